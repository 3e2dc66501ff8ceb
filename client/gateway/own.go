package gateway

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quotad/quotad/client/gateway/dialect"
)

// ownPaths are the gateway's own paths, which are not allowed as names of upstreams.
var ownPaths = []string{"livez", "readyz", "metrics", "status", "take", "slots", "report"}

// serveOwn serves the gateway's own paths.
func (g *Gateway) serveOwn(w http.ResponseWriter, r *http.Request, c *call) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost && slices.Contains([]string{"take", "take/settle", "slots", "report"}, c.own) {
		w.Header().Set("Allow", http.MethodPost)
		c.refuse(w, dialect.Refusal{Status: http.StatusMethodNotAllowed, Message: "quotad: use POST"})
		return
	}
	switch {
	case strings.HasPrefix(c.own, "quota.v1."):
		g.serveEntered(w, r, c, g.serveAPI)
		return
	case c.own == "take":
		g.serveEntered(w, r, c, g.admitted(maxAsk, 0, g.serveTake))
		return
	case c.own == "slots":
		g.serveEntered(w, r, c, g.admitted(maxAsk, 0, g.serveSlots))
		return
	case c.own == "report":
		g.serveEntered(w, r, c, g.admitted(maxAnswer, 0, g.serveReport))
		return
	}
	switch c.own {
	case "take/settle":
		g.serveSettling(w, r, c)
	case "status":
		g.serveStatus(w, r, c)
	case "livez":
		plain(w, http.StatusOK, "ok")
	case "readyz":
		switch {
		case g.stopping.Load():
			plain(w, http.StatusServiceUnavailable, "stopping")
		case !g.catalog.Loaded():
			plain(w, http.StatusServiceUnavailable, "no node of the cluster has answered yet")
		default:
			plain(w, http.StatusOK, "ok")
		}
	case "metrics":
		promhttp.HandlerFor(g.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	default:
		c.refuse(w, dialect.Refusal{Status: http.StatusNotFound, Message: "quotad: there is no " + c.own})
	}
}

// serveEntered serves requests that may wait or take memory; they count as calls in flight.
func (g *Gateway) serveEntered(w http.ResponseWriter, r *http.Request, c *call, serve func(http.ResponseWriter, *http.Request, *call)) {
	if !g.enter(w, c) {
		return
	}
	defer g.leave()
	serve(w, r, c)
}

// settleMemory is how much memory settlements may take beyond limits.memory, in bytes.
const settleMemory = 1 << 20

// serveSettling serves a settlement. It returns amounts, so neither waiting calls nor a stop may block it: settlements have a separate
// counter, also bounded by limits.calls.
func (g *Gateway) serveSettling(w http.ResponseWriter, r *http.Request, c *call) {
	defer g.settling.Add(-1)
	if g.settling.Add(1) > int64(c.state.config.Limits.Calls) {
		c.refuse(w, dialect.Refusal{
			Status: http.StatusServiceUnavailable, RetryAfter: time.Second, Message: "quotad: too many settlements are in flight (limits.calls)",
		})
		return
	}
	g.admitted(maxAsk, settleMemory, g.serveSettle)(w, r, c)
}

// admitted serves only callers with a valid token, if tokens are required, before it reads any of the body. It reads bodies within
// limits.memory plus beyond.
func (g *Gateway) admitted(most, beyond int64, serve func(http.ResponseWriter, *http.Request, *call)) func(
	http.ResponseWriter, *http.Request, *call) {
	return func(w http.ResponseWriter, r *http.Request, c *call) {
		if refusal, denied := c.admit(r); denied {
			c.refuse(w, refusal)
			return
		}
		keep := accountant{gateway: g, most: c.state.config.Limits.Memory + beyond}
		defer keep.release()
		var body bytes.Buffer
		if _, err := io.Copy(io.MultiWriter(&keep, &body), io.LimitReader(r.Body, most+1)); err != nil {
			c.refuse(w, bodyRefusal(err))
			return
		}
		r.Body = splice{&body, r.Body}
		serve(w, r, c)
	}
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}
