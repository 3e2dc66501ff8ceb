package gatewaybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/prometheus/procfs"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/raftnode/loopback"
)

// narrow is the model with one concurrent call.
const narrow = "narrow"

// Waiting is the memory of calls that wait in the queue.
type Waiting struct {
	// Calls is the number of waiting calls; Before and After are the resident bytes of the gateway's process without and
	// with them.
	Calls  int   `json:"calls"`
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

// Each returns the bytes per waiting call.
func (w Waiting) Each() int64 { return (w.After - w.Before) / int64(max(w.Calls, 1)) }

// waitingYAML is the configuration of the gateway whose memory is read: its address, the nodes, and the provider.
const waitingYAML = `listen: {tcp: [%q]}
cluster: {nodes: [%s]}
machine: bench
limits: {drain: 1s}
upstreams:
  openai: {base: %q, plain: true}
`

// Hold makes calls wait at a gateway in a process of its own, and reads its memory before and during the wait. The callers
// are in this process.
func Hold(ctx context.Context, binary, dir string, calls int) (w Waiting, err error) {
	below, err := os.MkdirTemp(dir, "waiting-")
	if err != nil {
		return w, err
	}
	p := &paths{
		nursery: local.NewNursery(binary, below), events: newEvents(),
		through: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1_000}},
	}
	defer func() { p.Stop(); err = errors.Join(err, os.RemoveAll(below)) }()
	if p.cluster, err = startCluster(ctx, p.nursery, below); err != nil {
		return w, err
	}
	if p.provider, err = p.serve(ctx, http.HandlerFunc(p.answer)); err != nil {
		return w, err
	}
	pid, err := p.startGateway(ctx, below)
	if err != nil {
		return w, err
	}
	// A stream occupies the only slot. Calls of another model warm the process up, so that its own needs are in Before.
	if _, err = newStreams(p.events, p.through, p.door+"/openai"+chat, asking(narrow)).open(); err != nil {
		return w, err
	}
	for range 200 {
		if err := p.call(ctx, http.MethodPost, p.door+"/openai"+chat, body); err != nil {
			return w, err
		}
	}
	w.Calls = calls
	if w.Before, err = resident(pid); err != nil {
		return w, err
	}
	w.After, err = p.held(ctx, pid, calls)
	return w, err
}

// startGateway starts a gateway as a process, and returns its process id once it serves.
func (p *paths) startGateway(ctx context.Context, dir string) (pid int, err error) {
	addresses, err := loopback.Free(1)
	if err != nil {
		return 0, err
	}
	quoted := make([]string, 0, len(p.cluster.Nodes))
	for _, server := range p.cluster.Servers() {
		quoted = append(quoted, fmt.Sprintf("%q", server))
	}
	path := filepath.Join(dir, "gateway.yaml")
	text := fmt.Sprintf(waitingYAML, addresses[0], strings.Join(quoted, ", "), p.provider)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return 0, err
	}
	child, err := p.nursery.Start("gateway", nil, "gateway", "--config", path)
	if err != nil {
		return 0, err
	}
	p.door, p.child = "http://"+addresses[0], child
	return child.PID(), bench.Retry(ctx, func(ctx context.Context) error { return p.call(ctx, http.MethodGet, p.door+"/readyz", nil) })
}

// held makes calls wait, and returns the gateway's resident bytes during the wait.
func (p *paths) held(ctx context.Context, pid, calls int) (bytes int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(nil); wg.Wait() }()
	for range calls {
		wg.Go(func() {
			if err := p.wait(ctx); ctx.Err() == nil {
				cancel(fmt.Errorf("a call did not wait: %w", err))
			}
		})
	}
	wanted := fmt.Sprintf("\nquotad_gateway_waiting %d\n", calls)
	err = bench.Retry(ctx, func(ctx context.Context) error {
		text, err := p.read(ctx, p.door+"/metrics")
		if err == nil && !strings.Contains(text, wanted) {
			err = errors.New("not all calls wait")
		}
		return err
	})
	if cause := context.Cause(ctx); cause != nil {
		return 0, cause
	}
	if err != nil {
		return 0, err
	}
	return resident(pid)
}

// wait makes a call that waits for the slot of the stream.
func (p *paths) wait(ctx context.Context) error {
	r, err := newCall(ctx, http.MethodPost, p.door+"/openai"+chat, asking(narrow))
	if err != nil {
		return err
	}
	r.Header.Set("X-Quotad-Wait", "10m")
	response, err := p.through.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	return fmt.Errorf("%s: %s", response.Status, text)
}

// read reads a page.
func (p *paths) read(ctx context.Context, at string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := p.through.Do(r)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(response.Body)
	return string(text), errors.Join(err, response.Body.Close())
}

// resident returns the resident bytes of a process.
func resident(pid int) (int64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	if err != nil {
		return 0, err
	}
	return int64(stat.ResidentMemory()), nil
}
