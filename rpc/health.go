package rpc

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// serveLive reports that the process lives. It needs no leader: a node that waits for its majority must not be killed.
func (s *Server) serveLive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintln(w, "[+]process ok")
}

// serveReady reports whether the node can serve, check by check. ?exclude=NAME leaves one out.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	excluded := r.URL.Query()["exclude"]
	var text strings.Builder
	ready := true
	for _, c := range s.checks() {
		switch {
		case slices.Contains(excluded, c.Name):
			fmt.Fprintf(&text, "[ ]%s excluded\n", c.Name)
		case c.OK:
			fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
		default:
			ready = false
			fmt.Fprintf(&text, "[-]%s failed: %s\n", c.Name, c.Message)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprint(w, text.String())
}

// checks returns the checks that readiness depends on.
func (s *Server) checks() []raftnode.Check {
	checks := s.health.checks(s)
	if s.isDraining() {
		checks = append(slices.Clone(checks), raftnode.Check{Name: "draining", Message: "the node is stopping"})
	}
	return checks
}

// healthEvery is the shortest time between two checks of health, however many requests ask for it.
const healthEvery = time.Second

// health is what all requests for it share: the last checks, and the watchers of changes.
type health struct {
	mu   sync.Mutex
	last []raftnode.Check
	at   time.Time
	// looking is set while a caller checks again, which may take as long as a leader does not answer.
	looking bool

	watchMu  sync.Mutex
	watchers map[*func()]struct{}
	// stop ends the goroutine that checks for changes; nil without watchers.
	stop chan struct{}
}

// checks returns the node's checks, at most as old as healthEvery plus the time of one check. A caller that arrives during a check gets
// the previous result.
func (h *health) checks(s *Server) []raftnode.Check {
	if last, known := h.known(); known {
		return last
	}
	defer h.observed()
	checks := append(s.node.Checks(), s.forwardingCheck(), s.answersCheck(time.Now()))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.at = checks, time.Now()
	return checks
}

// known returns the last checks, or false if the caller must check again.
func (h *health) known() (last []raftnode.Check, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.at.IsZero() && (h.looking || time.Since(h.at) < healthEvery) {
		return h.last, true
	}
	h.looking = true
	return nil, false
}

func (h *health) observed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looking = false
}

// watch calls onChange when the health may have changed, until stop is called. All watchers share one ticker.
func (h *health) watch(s *Server, onChange func()) (stop func()) {
	h.watchMu.Lock()
	defer h.watchMu.Unlock()
	if h.watchers == nil {
		h.watchers = map[*func()]struct{}{}
	}
	h.watchers[&onChange] = struct{}{}
	if h.stop == nil {
		h.stop = make(chan struct{})
		go h.tick(s, h.stop)
	}
	return func() {
		h.watchMu.Lock()
		defer h.watchMu.Unlock()
		delete(h.watchers, &onChange)
		if len(h.watchers) == 0 && h.stop != nil {
			close(h.stop)
			h.stop = nil
		}
	}
}

// tick checks for changes until it is stopped.
func (h *health) tick(s *Server, stop <-chan struct{}) {
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	was := s.healthy()
	for first := true; ; first = false {
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
		is := s.healthy()
		if is == was && !first { // at first always: a watcher may have come between a change and the first check
			continue
		}
		was = is
		h.watchMu.Lock()
		for onChange := range h.watchers { // in any order
			(*onChange)()
		}
		h.watchMu.Unlock()
	}
}

// healthy tells whether all checks pass.
func (s *Server) healthy() bool {
	return !slices.ContainsFunc(s.checks(), func(c raftnode.Check) bool { return !c.OK })
}

// grpcHealth answers gRPC's health protocol, for the whole node and each service, as /readyz does.
type grpcHealth struct{ s *Server }

// Check implements grpchealth.Checker.
func (h grpcHealth) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	switch req.Service {
	case "", quotav1connect.QuotaServiceName, quotav1connect.AdminServiceName, quotav1connect.TaskServiceName:
	default:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("unknown service %q", req.Service))
	}
	if !h.s.healthy() {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// Watch implements grpchealth.Watcher. Only changes are sent.
func (h grpcHealth) Watch(ctx context.Context, req *grpchealth.CheckRequest, onChange func()) (stop func(), err error) {
	if _, err := h.Check(ctx, req); err != nil {
		return nil, err
	}
	return h.s.health.watch(h.s, onChange), nil
}

// untilDrained ends a handler's stream when the node drains.
func (s *Server) untilDrained(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := s.untilDrain(r.Context())
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
