package gateway

import (
	_ "embed"
	"html/template"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// Status is what a gateway shows of itself. It has no secrets and no content of calls.
type Status struct {
	Version, Machine string
	At               time.Time
	// Loaded: the cluster's quotas are known. Stopping: no further calls are taken.
	Loaded, Stopping bool
	// UnderWay is how many calls are, Waiting how many of them wait, Buffered the bytes of bodies in memory.
	UnderWay, Waiting, Buffered int64
	Upstreams                   []UpstreamStatus
	// Queue is the calls that have waited for the longest time.
	Queue []waiter
	Seats []identity.Seat
	// Refusals are the last ones, newest first.
	Refusals []pastRefusal
}

// UpstreamStatus is one upstream.
type UpstreamStatus struct {
	Name, Dialect, Base, Auth string
	Keys                      []KeyStatus
	Models                    []ModelStatus
}

// KeyStatus is a key by its name.
type KeyStatus struct {
	Name, Quotas string
	Age          time.Duration
}

// ModelStatus is a model and the quotas that its calls draw on.
type ModelStatus struct {
	Name  string
	Parts []PartStatus
	// NoTokens: its requests are counted, its tokens are not.
	NoTokens bool
}

// PartStatus is a quota as it was listed last.
type PartStatus struct {
	Part, Quota       string
	Usable, Available int64
	Open              bool
}

// Status returns what the gateway shows of itself.
func (g *Gateway) Status() Status {
	s := g.state.Load()
	now := time.Now()
	out := Status{
		Version: g.options.Version, Machine: s.machine, At: now.UTC().Truncate(time.Second), Loaded: g.catalog.Loaded(),
		Stopping: g.stopping.Load(),
		UnderWay: g.calls.Load(), Waiting: int64(g.waiting.len()), Buffered: g.buffered.Load(), Queue: g.waiting.list(keptRefusals),
		Seats: g.seats.List(now), Refusals: g.refusals.list(),
	}
	for _, name := range slices.Sorted(maps.Keys(s.upstreams)) {
		u := s.upstreams[name]
		shown := UpstreamStatus{Name: name, Dialect: u.config.Dialect, Base: u.config.Base, Auth: u.config.Auth}
		prefixes := []string{u.config.Quotas}
		if u.keys != nil {
			for _, k := range u.keys.Keys() {
				shown.Keys = append(shown.Keys, KeyStatus{Name: k.Name, Quotas: k.Quotas, Age: k.Age(now).Truncate(time.Second)})
				if !slices.Contains(prefixes, k.Quotas) {
					prefixes = append(prefixes, k.Quotas)
				}
			}
		}
		for _, prefix := range prefixes {
			for _, model := range g.catalog.Models(prefix) {
				shown.Models = append(shown.Models, g.modelStatus(prefix, model))
			}
		}
		out.Upstreams = append(out.Upstreams, shown)
	}
	return out
}

func (g *Gateway) modelStatus(prefix, model string) ModelStatus {
	out := ModelStatus{Name: prefix + "/" + model, NoTokens: true}
	for _, part := range config.Parts {
		q, ok := g.catalog.Get(prefix + "/" + model + "/" + part)
		if !ok {
			continue
		}
		out.NoTokens = out.NoTokens && !isTokens(part)
		out.Parts = append(out.Parts, PartStatus{Part: part, Quota: q.Name, Usable: q.Usable, Available: q.Available, Open: q.Open})
	}
	return out
}

//go:embed status.html
var statusPage string

var statusTemplate = template.Must(template.New("status").Funcs(template.FuncMap{
	"round": func(d time.Duration) string { return d.Round(100 * time.Millisecond).String() },
	"share": func(p PartStatus) int64 { return 100 * max(p.Available, 0) / max(p.Usable, 1) },
}).Parse(statusPage))

// serveStatus shows the gateway to people, or as JSON.
func (g *Gateway) serveStatus(w http.ResponseWriter, r *http.Request, c *call) {
	if !g.mayLook(r) {
		c.refuse(w, dialect.Refusal{
			Status: http.StatusForbidden, Message: "quotad: the status is shown on loopback, on the socket, or with a token",
		})
		return
	}
	if r.URL.Query().Get("format") == "json" {
		writeJSON(w, g.Status())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if err := statusTemplate.Execute(w, g.Status()); err != nil {
		g.logger.Debug("the status page was not written", "error", err)
	}
}

// mayLook reports whether a caller may see the status.
func (g *Gateway) mayLook(r *http.Request) bool {
	if connectionOf(r.Context()).unix {
		return true
	}
	if g.options.Tokens != nil {
		if _, ok := g.options.Tokens.Find(identity.TokenIn(r.Header, r.URL.RawQuery)); ok {
			return true
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && config.IsLoopback(host)
}
