// Package workload is the clients of the cluster under test. A worker is a separate process, so that it can be paused, cut off and killed.
// It runs several actors, and records each of their calls in the history as sent and received.
package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quotad/quotad/jepsen/canary"
	"github.com/quotad/quotad/jepsen/certs"
	"github.com/quotad/quotad/jepsen/history"
)

// Spec is the specification of a worker, in JSON.
type Spec struct {
	// Name is the worker's name; it begins the names of its holders and files.
	Name string `json:"name"`
	// Profile names the behaviour of its actors.
	Profile string `json:"profile"`
	// Actors is their number.
	Actors int `json:"actors"`
	// Pace is the approximate number of actions per actor and second.
	Pace float64 `json:"pace"`
	// Nodes are the URLs of the cluster's API; Bundle is the file of the CAs that sign for them; empty: clear text. Provider is the provider's
	// address.
	Nodes    []string `json:"nodes"`
	Bundle   string   `json:"bundle,omitempty"`
	Provider string   `json:"provider"`
	// Gateway is the address of the gateway on the worker's host; empty: there is none.
	Gateway string `json:"gateway,omitempty"`
	// Secret is the token of calls to the cluster.
	Secret string `json:"secret"`
	// LocalIP is the address to call from; empty: any.
	LocalIP string `json:"local_ip,omitempty"`
	// Seed determines the choices.
	Seed uint64 `json:"seed"`
	// History is the folder of the run.
	History history.Dir `json:"history"`
}

// worker is a running Spec.
type worker struct {
	Spec
	transport *http.Transport
	// cluster carries calls to the cluster.
	cluster http.RoundTripper
	calls   *history.Writer[history.Call]
	seen    *history.Writer[history.Seen]
	// local makes calls to the gateway on the worker's host, asked records them.
	local *http.Client
	asked *history.Writer[history.Asked]
}

// Run reads a Spec from in, runs it until in ends, and lets calls in flight finish within a few seconds.
func Run(in io.Reader) error {
	decoder := json.NewDecoder(in)
	w := &worker{}
	if err := decoder.Decode(&w.Spec); err != nil {
		return fmt.Errorf("the worker's spec: %w", err)
	}
	act, ok := profiles[w.Profile]
	if !ok {
		return fmt.Errorf("there is no profile %q", w.Profile)
	}
	if err := w.open(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, io.MultiReader(decoder.Buffered(), in))
		stop()
	}()
	var wg sync.WaitGroup
	for number := range w.Actors {
		wg.Go(func() { act(ctx, w, number) })
	}
	wg.Wait()
	w.transport.CloseIdleConnections()
	err := errors.Join(w.calls.Close(), w.seen.Close())
	if w.asked != nil {
		w.local.CloseIdleConnections()
		err = errors.Join(err, w.asked.Close())
	}
	return err
}

func (w *worker) open() error {
	dialer := &net.Dialer{Timeout: time.Second}
	if w.LocalIP != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(w.LocalIP)}
	}
	w.transport = &http.Transport{
		DialContext: dialer.DialContext, MaxIdleConnsPerHost: w.Actors, IdleConnTimeout: 30 * time.Second,
		ResponseHeaderTimeout: 0, DisableCompression: true,
	}
	if w.Bundle != "" {
		w.transport.DialTLSContext = certs.Secured(dialer.DialContext, w.Bundle)
	}
	w.cluster = &canary.Carry{Secret: w.Secret, Next: w.transport}
	var err error
	if w.calls, err = history.Create[history.Call](w.History.Calls(w.Name)); err != nil {
		return err
	}
	if w.seen, err = history.Create[history.Seen](w.History.Seen(w.Name)); err != nil || w.Gateway == "" {
		return err
	}
	w.local = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: w.Actors, DisableCompression: true}}
	w.asked, err = history.Create[history.Asked](w.History.Agents(w.Name))
	return err
}

// holder is the holder name of an actor.
func (w *worker) holder(number int) string { return fmt.Sprintf("%s-%d", w.Name, number) }

// rand returns an actor's own source.
func (w *worker) rand(number int) *rand.Rand {
	return rand.New(rand.NewPCG(w.Seed, uint64(number)+1)) //nolint:gosec // a workload's choices are no secret
}

// rest waits about as long as the pace requires. It returns false when the worker should end.
func (w *worker) rest(ctx context.Context, r *rand.Rand) bool {
	length := time.Duration(r.ExpFloat64() / w.Pace * float64(time.Second))
	select {
	case <-ctx.Done():
		return false
	case <-time.After(min(length, 5*time.Second)):
		return true
	}
}
