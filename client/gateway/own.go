package gateway

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quotad/quotad/client/gateway/dialect"
)

// ownPaths are the gateway's own, which no upstream may have.
var ownPaths = []string{"livez", "readyz", "metrics"}

// serveOwn answers what is not proxied.
func (g *Gateway) serveOwn(w http.ResponseWriter, r *http.Request, c *call) {
	w.Header().Set("Cache-Control", "no-store")
	switch c.own {
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
