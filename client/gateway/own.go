package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quotad/quotad/client/gateway/dialect"
)

// ownPaths are the gateway's own, which no upstream may have.
var ownPaths = []string{"livez", "readyz", "metrics", "status", "take", "slots", "report"}

// serveOwn answers what is not proxied.
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
		g.serveEntered(w, r, c, g.serveTake)
		return
	case c.own == "slots":
		g.serveEntered(w, r, c, g.serveSlots)
		return
	case c.own == "report":
		g.serveEntered(w, r, c, g.serveReport)
		return
	}
	switch c.own {
	case "take/settle": // gives back, so also where no more calls are taken
		g.serveSettle(w, r, c)
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

// serveEntered serves what may wait, or takes memory, as one of the calls that are under way.
func (g *Gateway) serveEntered(w http.ResponseWriter, r *http.Request, c *call, serve func(http.ResponseWriter, *http.Request, *call)) {
	if !g.enter(w, c) {
		return
	}
	defer g.leave()
	serve(w, r, c)
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}
