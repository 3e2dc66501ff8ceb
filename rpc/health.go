package rpc

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// serveLive says that the process lives. It needs no leader: a node that waits for its majority must not be killed.
func (s *Server) serveLive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintln(w, "[+]process ok")
}

// serveReady says whether the node can serve, check by check. ?exclude=NAME leaves one out.
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

// checks are what readiness depends on.
func (s *Server) checks() []raftnode.Check {
	checks := s.node.Status().Checks
	if s.isDraining() {
		checks = append(checks, raftnode.Check{Name: "draining", Message: "the node is stopping"})
	}
	return checks
}

// healthEvery is how often readiness is looked at for those who watch it over gRPC.
const healthEvery = time.Second

// grpcHealth answers gRPC's health protocol, for the whole node and each service, with what /readyz says.
type grpcHealth struct{ s *Server }

// Check implements grpchealth.Checker.
func (h grpcHealth) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	switch req.Service {
	case "", quotav1connect.QuotaServiceName, quotav1connect.AdminServiceName, quotav1connect.TaskServiceName:
	default:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("unknown service %q", req.Service))
	}
	failed := func(c raftnode.Check) bool { return !c.OK }
	if slices.ContainsFunc(h.s.checks(), failed) {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// Watch implements grpchealth.Watcher. Only changes are sent.
func (h grpcHealth) Watch(ctx context.Context, req *grpchealth.CheckRequest, onChange func()) (stop func(), err error) {
	if _, err := h.Check(ctx, req); err != nil {
		return nil, err
	}
	stopped := make(chan struct{})
	ticker := time.NewTicker(healthEvery)
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				onChange()
			case <-stopped:
				return
			}
		}
	}()
	return func() { close(stopped) }, nil
}

// untilDrained ends what a handler streams when the node drains.
func (s *Server) untilDrained(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := s.untilDrain(r.Context())
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
