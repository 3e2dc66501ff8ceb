package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/quotad/quotad/raftnode/loopback"
)

// patience bounds every wait in a script; no test concludes anything from a duration.
const patience = 60 * time.Second

// poll is the interval at which a wait checks its condition.
const poll = 20 * time.Millisecond

// scriptCommands are our scripts' commands in addition to those of testscript.
func scriptCommands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		// ports NAME...: sets each variable to a free port of loopback.
		"ports": scriptPorts,
		// start NAME PROGRAM ARG...: starts a process; its output goes to the files NAME.out and NAME.err.
		"start": scriptStart,
		// send SIGNAL NAME: sends HUP, INT, TERM, KILL, STOP or CONT.
		"send": scriptSend,
		// ended NAME CODE: waits for the end of a process and checks its exit code (-1: killed by a signal).
		"ended": scriptEnded,
		// ready ADDRESS...: waits until /readyz of each answers 200.
		"ready": scriptReady,
		// until PATTERN PROGRAM ARG...: runs a program again and again until it succeeds and its output matches.
		"until": scriptUntil,
		// logged PATTERN FILE: waits until a file matches.
		"logged": scriptLogged,
		// capture NAME PATTERN: sets a variable to the pattern's first group in the last standard output.
		"capture": scriptCapture,
		// exits CODE PROGRAM ARG...: runs a program that must end with this code; stdout and stderr match its output.
		"exits": scriptExits,
		// get URL PATTERN: fetches a URL until its body matches.
		"get": scriptGet,
		// certificates DIR [NAME...]: makes a CA and a certificate for loopback: ca.pem, cert.pem, key.pem; and for each
		// name NAME.pem, NAME-key.pem.
		"certificates": scriptCertificates,
		// Commands that check files and damage them: see each.
		"mode": scriptMode, "glob-gone": scriptGlobGone, "damage": scriptDamage, "secret": scriptSecret, "tokenfile": scriptTokenFile,
	}
}

// processes are the processes that a script started, by name.
type processes struct{ all map[string]*process }

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

type processesKey struct{}

func setupScript(env *testscript.Env) error {
	env.Values[processesKey{}] = &processes{all: map[string]*process{}}
	env.Setenv("TMPDIR", env.WorkDir)
	env.Setenv("GORACE", raceExit)
	if err := separateCommands(env); err != nil {
		return err
	}
	// A time of day two to three hours ahead, in the form that a provider's message has.
	env.Setenv("AHEAD", time.Now().Add(3*time.Hour).Format("3pm"))
	return nil
}

// startPath is the variable with the PATH for long-running processes: PATH without commandLine.
const startPath = "STARTPATH"

func separateCommands(env *testscript.Env) error {
	env.Setenv(startPath, env.Getenv("PATH"))
	if os.Getenv("QUOTAD_TEST_COMMAND") == "" {
		return nil
	}
	command, err := commandLine()
	if err != nil {
		return err
	}
	bin := filepath.Join(env.WorkDir, ".bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return err
	}
	env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
	return os.Symlink(command, filepath.Join(bin, "quotad"))
}

func started(ts *testscript.TestScript, name string) *process {
	all, ok := ts.Value(processesKey{}).(*processes)
	if !ok || all.all[name] == nil {
		ts.Fatalf("no process %q was started", name)
	}
	return all.all[name]
}

func need(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

// freePort finds a port that no other script of this run uses.
func freePort() (int, error) {
	addresses, err := loopback.Free(1)
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(addresses[0])
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

func scriptPorts(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "ports NAME...")
	for _, name := range args {
		port, err := freePort()
		ts.Check(err)
		ts.Setenv(name, strconv.Itoa(port))
	}
}

func scriptStart(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "start NAME PROGRAM ARG...")
	name := args[0]
	path, err := valueAt(ts, startPath, args[1])
	ts.Check(err)
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environment(ts)
	stdout, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	stderr, err := os.Create(ts.MkAbs(name + ".err"))
	ts.Check(err)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	ts.Check(cmd.Start())
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		_ = errors.Join(stdout.Close(), stderr.Close())
		close(p.done)
	}()
	all, ok := ts.Value(processesKey{}).(*processes)
	if !ok {
		ts.Fatalf("the script was not set up")
	}
	all.all[name] = p
	ts.Defer(func() {
		_ = cmd.Process.Kill() // usually it has ended already
		<-p.done
		if text, err := os.ReadFile(stderr.Name()); err == nil && len(text) > 0 {
			ts.Logf("[%s wrote to stderr]\n%s", name, text)
		}
	})
}

// valueAt finds a program in the folders that a variable of the script lists.
func valueAt(ts *testscript.TestScript, variable, program string) (string, error) {
	for _, dir := range filepath.SplitList(ts.Getenv(variable)) {
		path := dir + "/" + program
		if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in PATH", program)
}

// environment is the environment of the scripts' processes: it contains none of the machine's own settings.
func environment(ts *testscript.TestScript) []string {
	names := []string{
		"PATH", "HOME", "TMPDIR", "WORK", "GOCOVERDIR", "GORACE", "QUOTAD_CONFIG", "QUOTAD_SERVER", "QUOTAD_LOG_LEVEL", "QUOTAD_TOKEN_FILE",
	}
	var all []string
	for _, name := range names {
		if value := ts.Getenv(name); value != "" {
			all = append(all, name+"="+value)
		}
	}
	return all
}

func scriptSend(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "send SIGNAL NAME")
	signals := map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL,
		"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
	}
	signal, ok := signals[args[0]]
	if !ok {
		ts.Fatalf("unknown signal %s", args[0])
	}
	ts.Check(started(ts, args[1]).cmd.Process.Signal(signal))
}

func scriptEnded(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "ended NAME CODE")
	p := started(ts, args[0])
	select {
	case <-p.done:
	case <-time.After(patience):
		ts.Fatalf("%s did not end within %v", args[0], patience)
	}
	if code := strconv.Itoa(p.cmd.ProcessState.ExitCode()); code != args[1] {
		ts.Fatalf("%s ended with %s (%v), not %s", args[0], code, p.err, args[1])
	}
}

// eventually polls until fine returns true; on timeout it fails with the last text that fine returned.
func eventually(ts *testscript.TestScript, what string, fine func() (bool, string)) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		yes, last := fine()
		if yes {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			ts.Fatalf("%s: not within %v; last:\n%s", what, patience, last)
		}
	}
}

func fetch(url string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

func scriptReady(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "ready ADDRESS...")
	for _, address := range args {
		eventually(ts, address+" is not ready", func() (bool, string) {
			code, body := fetch("http://" + address + "/readyz")
			return code == http.StatusOK, body
		})
	}
}

func scriptGet(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "get URL PATTERN")
	pattern := regexp.MustCompile(args[1])
	eventually(ts, args[0]+" does not match "+args[1], func() (bool, string) {
		_, body := fetch(args[0])
		return pattern.MatchString(body), body
	})
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "until PATTERN PROGRAM ARG...")
	pattern := regexp.MustCompile(args[0])
	eventually(ts, fmt.Sprintf("%v does not print %s", args[1:], args[0]), func() (bool, string) {
		path, err := valueAt(ts, "PATH", args[1])
		ts.Check(err)
		cmd := exec.Command(path, args[2:]...)
		cmd.Dir, cmd.Env = ts.MkAbs("."), environment(ts)
		out, err := cmd.CombinedOutput()
		return err == nil && pattern.Match(out), string(out)
	})
}

func scriptLogged(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "logged PATTERN FILE")
	pattern := regexp.MustCompile(args[0])
	eventually(ts, args[1]+" does not match "+args[0], func() (bool, string) {
		text, err := os.ReadFile(ts.MkAbs(args[1]))
		return err == nil && pattern.Match(text), string(text)
	})
}

func scriptCapture(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "capture NAME PATTERN")
	found := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) < 2 {
		ts.Fatalf("the output does not match %s", args[1])
	}
	ts.Setenv(args[0], found[1])
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "exits CODE PROGRAM ARG...")
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		code = ended.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("ended with %d, not %s", code, args[0])
	}
}
