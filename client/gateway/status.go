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

// Length is a duration that JSON has as text, such as 1.2s.
type Length time.Duration

// String returns the duration as people write it.
func (l Length) String() string { return time.Duration(l).Round(100 * time.Millisecond).String() }

// MarshalText implements encoding.TextMarshaler.
func (l Length) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Length) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*l = Length(d)
	return err
}

// Status is what a gateway shows of itself. It has no secrets and no content of calls.
type Status struct {
	Version string    `json:"version"`
	Machine string    `json:"machine"`
	At      time.Time `json:"at"`
	// Loaded: the cluster's quotas are known. Stopping: no further calls are taken.
	Loaded   bool `json:"loaded"`
	Stopping bool `json:"stopping"`
	// UnderWay is how many calls are, Waiting how many of them wait, Buffered the bytes of bodies in memory.
	UnderWay  int64            `json:"underWay"`
	Waiting   int64            `json:"waiting"`
	Buffered  int64            `json:"buffered"`
	Upstreams []UpstreamStatus `json:"upstreams"`
	// Queue is the calls that have waited for the longest time.
	Queue []Waiter     `json:"queue"`
	Seats []SeatStatus `json:"seats"`
	// Refusals are the last ones, newest first.
	Refusals []PastRefusal `json:"refusals"`
}

// UpstreamStatus is one upstream.
type UpstreamStatus struct {
	Name    string        `json:"name"`
	Dialect string        `json:"dialect"`
	Base    string        `json:"base"`
	Auth    string        `json:"auth"`
	Keys    []KeyStatus   `json:"keys,omitempty"`
	Models  []ModelStatus `json:"models,omitempty"`
}

// KeyStatus is a key by its name.
type KeyStatus struct {
	Name   string `json:"name"`
	Quotas string `json:"quotas"`
	Age    Length `json:"age"`
}

// ModelStatus is a model and the quotas that its calls draw on.
type ModelStatus struct {
	Name  string       `json:"name"`
	Parts []PartStatus `json:"parts"`
	// NoTokens: its requests are counted, its tokens are not.
	NoTokens bool `json:"noTokens"`
}

// PartStatus is a quota as it was listed last.
type PartStatus struct {
	Part      string `json:"part"`
	Quota     string `json:"quota"`
	Usable    int64  `json:"usable"`
	Available int64  `json:"available"`
	Open      bool   `json:"open"`
}

// SeatStatus is a taken seat.
type SeatStatus struct {
	Tool    string `json:"tool"`
	Session string `json:"session"`
	Number  int    `json:"number"`
	Silent  Length `json:"silent"`
}

// Status returns what the gateway shows of itself.
func (g *Gateway) Status() Status {
	s := g.state.Load()
	now := time.Now()
	out := Status{
		Version: g.options.Version, Machine: s.machine, At: now.UTC().Truncate(time.Second), Loaded: g.catalog.Loaded(),
		Stopping: g.stopping.Load(),
		UnderWay: g.calls.Load(), Waiting: int64(g.waiting.len()), Buffered: g.buffered.Load(), Queue: g.waiting.list(keptRefusals),
		Refusals: g.refusals.list(),
	}
	for _, seat := range g.seats.List(now) {
		out.Seats = append(out.Seats, SeatStatus{Tool: seat.Tool, Session: cut(seat.Session), Number: seat.Number, Silent: Length(seat.Silent)})
	}
	for _, name := range slices.Sorted(maps.Keys(s.upstreams)) {
		u := s.upstreams[name]
		shown := UpstreamStatus{Name: name, Dialect: u.config.Dialect, Base: u.config.Base, Auth: u.config.Auth}
		prefixes := []string{u.config.Quotas}
		if u.keys != nil {
			for _, k := range u.keys.Keys() {
				shown.Keys = append(shown.Keys, KeyStatus{Name: k.Name, Quotas: k.Quotas, Age: Length(k.Age(now).Truncate(time.Second))})
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
