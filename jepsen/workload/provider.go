package workload

import (
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/jepsen/history"
)

// Provider is the service whose limits the fleet must not exceed. It knows nothing of quotad; it records each call that reaches it, and the
// checkers count.
type Provider struct {
	server *http.Server
	spends *history.Writer[history.Spend]
	// trouble makes it answer 429 below any limit, as providers do.
	trouble atomic.Bool
	models  models
}

// StartProvider serves on a listener until Close.
func StartProvider(listener net.Listener, to history.Dir) (*Provider, error) {
	spends, err := history.Create[history.Spend](to.Spends())
	if err != nil {
		return nil, err
	}
	p := &Provider{spends: spends}
	calls := http.NewServeMux()
	calls.HandleFunc("/", p.serve)
	calls.HandleFunc("POST "+ModelsPath+"/v1/chat/completions", p.serveModel)
	p.server = &http.Server{Handler: calls, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = p.server.Serve(listener) }() // ends with Close
	return p, nil
}

// serve counts a call from its first byte here to its end, whatever its result.
func (p *Provider) serve(w http.ResponseWriter, r *http.Request) {
	began := history.Now()
	query := r.URL.Query()
	spend := history.Spend{Quota: query.Get("quota"), By: query.Get("by"), Amount: 1, Began: began}
	defer func() {
		spend.Ended = history.Now()
		p.spends.Write(&spend)
	}()
	if p.trouble.Load() {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if work, err := strconv.ParseInt(query.Get("work"), 10, 64); err == nil && work > 0 {
		select {
		case <-time.After(time.Duration(work)):
		case <-r.Context().Done(): // the caller canceled; a provider stops its work then
		}
	}
	w.WriteHeader(http.StatusOK)
}

// Trouble makes the provider refuse calls, or stops that.
func (p *Provider) Trouble(on bool) { p.trouble.Store(on) }

// Close stops the server and closes its log.
func (p *Provider) Close() error {
	_ = p.server.Close()
	return p.spends.Close()
}
