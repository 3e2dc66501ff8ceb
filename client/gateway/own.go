package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quotad/quotad/client/gateway/dialect"
)

// ownPaths are the gateway's own, which no upstream may have.
var ownPaths = []string{"livez", "readyz", "metrics", "status", "take", "slots"}

// serveOwn answers what is not proxied.
func (g *Gateway) serveOwn(w http.ResponseWriter, r *http.Request, c *call) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost && slices.Contains([]string{"take", "take/settle", "slots"}, c.own) {
		w.Header().Set("Allow", http.MethodPost)
		c.refuse(w, dialect.Refusal{Status: http.StatusMethodNotAllowed, Message: "quotad: use POST"})
		return
	}
	if strings.HasPrefix(c.own, "quota.v1.") {
		g.serveAPI(w, r, c)
		return
	}
	switch c.own {
	case "take":
		g.serveTake(w, r, c)
	case "take/settle":
		g.serveSettle(w, r, c)
	case "slots":
		g.serveSlots(w, r, c)
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

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}
