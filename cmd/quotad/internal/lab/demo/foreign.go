package demo

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/client/providertest"
)

// Some agents of the governed fleet do not use quotad's client: they make their calls in another language, at the base URL
// of a gateway.

// language is the program of the machine that makes an agent's calls.
type language string

// The languages. Go is missing: it uses the client, without a gateway.
const (
	python language = "python3"
	curl   language = "curl"
	node   language = "node"
)

// found reports whether the machine has the program; packages is the folder of Node's packages, empty if there is none.
func (l language) found(packages string) bool {
	if l == node && packages == "" {
		return false
	}
	_, err := exec.LookPath(string(l))
	return err == nil
}

//go:embed agent.py
var agentPy string

//go:embed node/agent.mjs
var agentJS []byte

// writeNodeAgent writes the JavaScript program next to the packages that it imports, which must be installed already.
func writeNodeAgent(packages string) error {
	if _, err := exec.LookPath(string(node)); err != nil {
		return err
	}
	for _, name := range []string{"openai", "@octokit/rest"} {
		if _, err := os.Stat(filepath.Join(packages, "node_modules", name)); err != nil {
			return fmt.Errorf("%s is not installed in %s", name, packages)
		}
	}
	return os.WriteFile(filepath.Join(packages, nodeAgent), agentJS, 0o600)
}

// nodeAgent is the name of the program's file there.
const nodeAgent = "agent.mjs"

// foreign makes calls in another language. Its programs return the statuses and headers of answers. It is safe for
// concurrent use.
type foreign interface {
	call(ctx context.Context, c foreignCall) (foreignAnswer, error)
	close() error
}

// foreignCall is a call, and the line that requests it from a program that makes all calls.
type foreignCall struct {
	ID     string            `json:"id"`
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Body   string            `json:"body"`
	Header map[string]string `json:"header"`
}

// foreignAnswer is the outcome of a call, and the line with which such a program returns it.
type foreignAnswer struct {
	ID     string      `json:"id"`
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Error  string      `json:"error"`
}

// foreignCaller calls through a gateway.
type foreignCaller struct {
	provider *provider
	by       foreign
}

// newForeignCaller starts the program that makes calls at a gateway. packages is the folder of Node's packages.
func newForeignCaller(p *provider, by language, gateway, packages string) (*foreignCaller, error) {
	var args []string
	switch by {
	case python:
		args = []string{"-u", "-c", agentPy, gateway}
	case node:
		args = []string{filepath.Join(packages, nodeAgent), gateway}
	case curl:
		return &foreignCaller{provider: p, by: curlProgram{gateway}}, nil
	default:
		return nil, fmt.Errorf("there is no language %q", by)
	}
	started, err := startProgram(by, args...)
	if err != nil {
		return nil, err
	}
	return &foreignCaller{provider: p, by: started}, nil
}

// do makes the call. If the gateway refuses, it tries again after the time that the gateway names.
func (f *foreignCaller) do(ctx context.Context, w wish) (int, error) {
	began := time.Now()
	c := foreignCall{
		ID: w.id, Method: w.method, Path: "/" + string(w.api) + w.path, Body: w.body,
		Header: map[string]string{
			"Authorization": "Bearer " + f.provider.key, "Content-Type": "application/json", "X-Quotad-Holder": f.provider.holder,
			"X-Quotad-Explain": "1", providertest.HolderHeader: f.provider.holder, providertest.CallHeader: w.id,
		},
	}
	for {
		sent := time.Now()
		answer, err := f.by.call(ctx, c)
		if err != nil {
			return 0, err
		}
		if answer.Header.Get("X-Quotad-Refusal") == "" && answer.Status != http.StatusServiceUnavailable {
			if s, ok := ctx.Value(sendingKey{}).(*sending); ok {
				s.note(sent.Add(waitedIn(answer.Header)))
			}
			return answer.Status, nil
		}
		delay := retryAway
		if answer.Status == http.StatusTooManyRequests {
			millis, _ := strconv.Atoi(answer.Header.Get("Retry-After-Ms"))
			delay = max(time.Duration(millis)*time.Millisecond, 20*time.Millisecond)
		}
		if !pause(ctx, delay) {
			return 0, fmt.Errorf("after %s: %w", short(time.Since(began)), context.Cause(ctx))
		}
	}
}

func (f *foreignCaller) close() error { return f.by.close() }

var waited = regexp.MustCompile(`\bwait=(\d+)ms`)

// waitedIn returns the time that a call waited in the gateway, from its answer.
func waitedIn(header http.Header) time.Duration {
	found := waited.FindStringSubmatch(header.Get("X-Quotad"))
	if found == nil {
		return 0
	}
	millis, err := strconv.Atoi(found[1])
	if err != nil {
		return 0
	}
	return time.Duration(millis) * time.Millisecond
}

// curlProgram makes each call in a process of its own.
type curlProgram struct{ gateway string }

func (p curlProgram) call(ctx context.Context, c foreignCall) (foreignAnswer, error) {
	args := []string{"--silent", "--show-error", "--noproxy", "*", "--request", c.Method, "--dump-header", "-", "--output", "/dev/null"}
	for name, value := range c.Header {
		args = append(args, "--header", name+": "+value)
	}
	if c.Body != "" {
		args = append(args, "--data-binary", "@-")
	}
	cmd := exec.CommandContext(ctx, string(curl), append(args, p.gateway+c.Path)...)
	cmd.Stdin = strings.NewReader(c.Body)
	var said, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &failed
	if err := cmd.Run(); err != nil {
		return foreignAnswer{}, fmt.Errorf("curl: %w: %s", err, strings.TrimSpace(failed.String()))
	}
	return readHead(c.ID, &said)
}

func (p curlProgram) close() error { return nil }

// readHead reads the head of an answer, and skips those of 1xx answers.
func readHead(id string, from io.Reader) (foreignAnswer, error) {
	in := textproto.NewReader(bufio.NewReader(from))
	for {
		line, err := in.ReadLine()
		if err != nil {
			return foreignAnswer{}, fmt.Errorf("an answer without a head: %w", err)
		}
		header, err := in.ReadMIMEHeader()
		if err != nil && !errors.Is(err, io.EOF) {
			return foreignAnswer{}, err
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return foreignAnswer{}, fmt.Errorf("the head of an answer begins with %q", line)
		}
		status, err := strconv.Atoi(fields[1])
		if err != nil {
			return foreignAnswer{}, err
		}
		if status >= http.StatusOK {
			return foreignAnswer{ID: id, Status: status, Header: http.Header(header)}, nil
		}
	}
}

// lineProgram is one process that makes all calls of an agent. It reads one line for each call, and writes one for each
// answer.
type lineProgram struct {
	by    language
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu      sync.Mutex
	pending map[string]chan foreignAnswer
}

func startProgram(by language, args ...string) (*lineProgram, error) {
	p := &lineProgram{
		by: by, cmd: exec.Command(string(by), args...), //nolint:noctx // it ends with its input
		ended: make(chan struct{}), pending: map[string]chan foreignAnswer{},
	}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	return p, nil
}

// read delivers answers to the waiting calls.
func (p *lineProgram) read(out io.Reader) {
	defer close(p.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var answer foreignAnswer
		if json.Unmarshal(lines.Bytes(), &answer) != nil {
			continue
		}
		p.mu.Lock()
		waits := p.pending[answer.ID]
		delete(p.pending, answer.ID)
		p.mu.Unlock()
		if waits != nil {
			waits <- answer
		}
	}
}

func (p *lineProgram) call(ctx context.Context, c foreignCall) (foreignAnswer, error) {
	line, err := json.Marshal(c)
	if err != nil {
		return foreignAnswer{}, err
	}
	waits := make(chan foreignAnswer, 1)
	p.mu.Lock()
	p.pending[c.ID] = waits
	_, err = p.stdin.Write(append(line, '\n'))
	p.mu.Unlock()
	if err != nil {
		return foreignAnswer{}, fmt.Errorf("%s ended: %w", p.by, err)
	}
	select {
	case answer := <-waits:
		if answer.Error != "" {
			return answer, fmt.Errorf("%s: %s", p.by, answer.Error)
		}
		// The program keeps the case of header names as sent.
		header := http.Header{}
		for name, values := range answer.Header {
			header[http.CanonicalHeaderKey(name)] = values
		}
		answer.Header = header
		return answer, nil
	case <-p.ended:
		return foreignAnswer{}, fmt.Errorf("%s ended", p.by)
	case <-ctx.Done():
		return foreignAnswer{}, context.Cause(ctx)
	}
}

func (p *lineProgram) close() error {
	_ = p.stdin.Close()
	<-p.ended
	return p.cmd.Wait()
}
