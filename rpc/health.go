package rpc

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/quotad/quotad/raftnode"
)

// serveLive says that the process lives. It needs no leader: a node that waits for its majority must not be killed.
func (s *Server) serveLive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintln(w, "[+]process ok")
}

// serveReady says whether the node can serve, check by check. ?exclude=NAME leaves one out.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	checks := s.node.Status().Checks
	if s.isDraining() {
		checks = append(checks, raftnode.Check{Name: "draining", Message: "the node is stopping"})
	}
	excluded := r.URL.Query()["exclude"]
	var text strings.Builder
	ready := true
	for _, c := range checks {
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
