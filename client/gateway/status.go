package gateway

import (
	_ "embed"
	"html/template"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// Length is a duration with a text form in JSON, such as 1.2s.
type Length time.Duration

// String returns the duration rounded to 0.1 s.
func (l Length) String() string { return time.Duration(l).Round(100 * time.Millisecond).String() }

// MarshalText implements encoding.TextMarshaler.
func (l Length) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Length) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*l = Length(d)
	return err
}

// Status is the gateway's state as shown to people. It has no secrets and no content of calls.
type Status struct {
	Version string    `json:"version"`
	Machine string    `json:"machine"`
	At      time.Time `json:"at"`
	// Loaded: the cluster's quotas are known. Away: it did not answer the last call. Stopping: no further calls are admitted.
	Loaded   bool `json:"loaded"`
	Away     bool `json:"away"`
	Stopping bool `json:"stopping"`
	// InFlight counts the calls in flight, Waiting the waiting ones of them. Buffered is the bytes of bodies in memory.
	InFlight  int64            `json:"inFlight"`
	Waiting   int64            `json:"waiting"`
	Buffered  int64            `json:"buffered"`
	Upstreams []UpstreamStatus `json:"upstreams"`
	// Classes has the number of waiting calls in each class. Queue has the longest waiting calls, by class.
	Classes []ClassStatus `json:"classes"`
	Queue   []Waiter      `json:"queue"`
	Seats   []SeatStatus  `json:"seats"`
	// Refusals are the last refusals, newest first.
	Refusals []PastRefusal `json:"refusals"`
}

// UpstreamStatus is one upstream.
type UpstreamStatus struct {
	Name    string `json:"name"`
	Dialect string `json:"dialect"`
	Base    string `json:"base"`
	Auth    string `json:"auth"`
	// Passing: calls pass while the cluster is away, as far as fail_open allows. Closed are the quotas of its calls that a cooldown of
	// theirs or of an ancestor closes.
	Passing bool          `json:"passing"`
	Closed  []string      `json:"closed,omitempty"`
	Keys    []KeyStatus   `json:"keys,omitempty"`
	Models  []ModelStatus `json:"models,omitempty"`
	// Quotas are the quotas of its calls other than those of models: GitHub's limits, and quotas named by rules and also.
	Quotas []PartStatus `json:"quotas,omitempty"`
	// Batch: calls use batches. Batches are the present and past ones.
	Batch   bool          `json:"batch,omitempty"`
	Batches []BatchStatus `json:"batches,omitempty"`
}

// KeyStatus describes a key by its name.
type KeyStatus struct {
	Name   string `json:"name"`
	Quotas string `json:"quotas"`
	Age    Length `json:"age"`
	// Free is the least free share of its models' quotas, in percent.
	Free int64 `json:"free"`
}

// ModelStatus is a model and the quotas that its calls draw on.
type ModelStatus struct {
	Name  string       `json:"name"`
	Parts []PartStatus `json:"parts"`
	// NoTokens: its requests are counted, but not its tokens.
	NoTokens bool `json:"noTokens"`
	// Learnt is the use of its past calls, the basis of estimates; nil: nothing was learnt.
	Learnt *LearntStatus `json:"learnt,omitempty"`
}

// LearntStatus is the use of a model's last calls: 95 % had no more input and output, in tokens.
type LearntStatus struct {
	Calls  int   `json:"calls"`
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
	// Factor is the factor applied to counted input, CachedFactor the same for bodies with cache marks.
	Factor       float64 `json:"factor"`
	CachedFactor float64 `json:"cachedFactor"`
}

// ClassStatus is the number of waiting calls of a class.
type ClassStatus struct {
	Class   string `json:"class"`
	Waiting int    `json:"waiting"`
}

// PartStatus is a quota as last listed.
type PartStatus struct {
	Part      string `json:"part"`
	Quota     string `json:"quota"`
	Usable    int64  `json:"usable"`
	Available int64  `json:"available"`
	Open      bool   `json:"open"`
	// Unbatched is why calls ask the cluster for this quota although their upstream has batch: true.
	Unbatched string `json:"unbatched,omitempty"`
	// Members are a pool's members: each has the name of the key whose quota it is.
	Members []MemberStatus `json:"members,omitempty"`
}

// MemberStatus is a member of a pool.
type MemberStatus struct {
	Name      string `json:"name"`
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

// Status returns the gateway's state.
func (g *Gateway) Status() Status {
	s := g.state.Load()
	now := time.Now()
	out := Status{
		Version: g.options.Version, Machine: s.machine, At: now.UTC().Truncate(time.Second), Loaded: g.catalog.Loaded(),
		Away: g.away.Load(), Stopping: g.stopping.Load(),
		InFlight: g.calls.Load(), Waiting: int64(g.waiting.len()), Buffered: g.buffered.Load(), Classes: g.waiting.classes(),
		Queue: g.waiting.list(keptRefusals), Refusals: g.refusals.list(),
	}
	for _, seat := range g.seats.List(now) {
		out.Seats = append(out.Seats, SeatStatus{Tool: seat.Tool, Session: cut(seat.Session), Number: seat.Number, Silent: Length(seat.Silent)})
	}
	learnt := map[string]*LearntStatus{}
	for _, m := range g.learner.Models() {
		learnt[m.Upstream+"/"+m.Model] = &LearntStatus{
			Calls: m.Calls, Input: m.Input, Output: m.Output, Factor: m.Factor, CachedFactor: m.CachedFactor,
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.upstreams)) {
		out.Upstreams = append(out.Upstreams, g.upstreamStatus(s.upstreams[name], learnt, now))
	}
	return out
}

func (g *Gateway) upstreamStatus(u *upstream, learnt map[string]*LearntStatus, now time.Time) UpstreamStatus {
	out := UpstreamStatus{
		Name: u.name, Dialect: u.config.Dialect, Base: u.config.Base, Auth: u.config.Auth, Passing: u.open.passing(),
		Batch: u.config.Batch,
	}
	prefixes := u.prefixes()
	free, ofMember := map[string]int64{}, map[string]int64{}
	for _, prefix := range prefixes {
		free[prefix] = 100
		for _, model := range g.catalog.Models(prefix) {
			shown := g.modelStatus(prefix, model)
			shown.Learnt = learnt[shown.Name]
			for _, part := range shown.Parts {
				free[prefix] = min(free[prefix], part.share())
				if !part.Open {
					out.close(part.Quota)
					free[prefix] = 0
				}
				for _, member := range part.Members {
					if _, seen := ofMember[member.Name]; !seen {
						ofMember[member.Name] = 100
					}
					ofMember[member.Name] = min(ofMember[member.Name], member.share())
					if !member.Open {
						out.close(member.Quota)
						ofMember[member.Name] = 0
					}
				}
			}
			out.Models = append(out.Models, shown)
		}
	}
	for _, prefix := range prefixes {
		for _, name := range u.otherQuotas(prefix) {
			g.otherStatus(&out, name)
		}
	}
	if out.Batch {
		out.Batches = g.batches.status(out.Quotas)
	}
	if u.keys != nil {
		for _, k := range u.keys.Keys() {
			left := free[k.Quotas]
			if its, ok := ofMember[k.Name]; ok && k.Quotas == u.config.Quotas {
				left = its
			}
			out.Keys = append(out.Keys, KeyStatus{Name: k.Name, Quotas: k.Quotas, Age: Length(k.Age(now).Truncate(time.Second)), Free: left})
		}
	}
	return out
}

// prefixes returns the beginnings of the names of the upstream's quotas: its own prefix, and those of its keys.
func (u *upstream) prefixes() []string {
	out := []string{u.config.Quotas}
	if u.keys != nil {
		for _, k := range u.keys.Keys() {
			if !slices.Contains(out, k.Quotas) {
				out = append(out, k.Quotas)
			}
		}
	}
	return out
}

// close records that a quota is closed, once.
func (u *UpstreamStatus) close(quota string) {
	if !slices.Contains(u.Closed, quota) {
		u.Closed = append(u.Closed, quota)
	}
}

// otherQuotas returns the names of the quotas that calls of the upstream draw on, other than those of models.
func (u *upstream) otherQuotas(prefix string) []string {
	names := map[string]bool{}
	switch u.dialect {
	case dialect.GitHub:
		for _, limit := range dialect.GitHubLimits(u.config.Secondary) {
			names[prefix+"/"+limit] = true
		}
	case dialect.Generic:
		for _, rule := range u.config.Rules {
			for name := range rule.Use {
				names[name] = true
			}
		}
	case dialect.Anthropic, dialect.Azure, dialect.Bedrock, dialect.Codex, dialect.Gemini, dialect.OpenAI:
		for _, also := range u.config.Also {
			for name := range also.Use {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// otherStatus adds a quota unless it is already shown.
func (g *Gateway) otherStatus(out *UpstreamStatus, name string) {
	named := func(p PartStatus) bool { return p.Quota == name }
	q, ok := g.catalog.Get(name)
	if !ok || slices.ContainsFunc(out.Quotas, named) ||
		slices.ContainsFunc(out.Models, func(m ModelStatus) bool { return slices.ContainsFunc(m.Parts, named) }) {
		return
	}
	shown := g.partStatus(config.PartOf(name), q)
	if out.Batch {
		shown.Unbatched = unbatchable(q)
	}
	out.Quotas = append(out.Quotas, shown)
	if !shown.Open {
		out.close(name)
	}
}

func (g *Gateway) partStatus(part string, q catalog.Quota) PartStatus {
	return PartStatus{Part: part, Quota: q.Name, Usable: q.Usable, Available: q.Available, Open: g.catalog.Open(q), Members: g.membersOf(q)}
}

// share returns the free share of a quota, in percent.
func (p PartStatus) share() int64 { return share(p.Available, p.Usable) }

func (m MemberStatus) share() int64 { return share(m.Available, m.Usable) }

func share(available, usable int64) int64 {
	return min(int64(100*(float64(max(available, 0))/float64(max(usable, 1)))), 100)
}

// membersOf returns the members of a pool; nil: the quota is not a pool.
func (g *Gateway) membersOf(q catalog.Quota) []MemberStatus {
	var out []MemberStatus
	for _, member := range q.Members {
		its, _ := g.catalog.Get(member.Quota)
		out = append(out, MemberStatus{
			Name: member.Name, Quota: member.Quota, Usable: its.Usable, Available: its.Available, Open: its.Open,
		})
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
		out.Parts = append(out.Parts, g.partStatus(part, q))
	}
	return out
}

//go:embed status.html
var statusPage string

var statusTemplate = template.Must(template.New("status").Funcs(template.FuncMap{
	"share": PartStatus.share, "group": group, "size": size, "models": func(u UpstreamStatus) bool {
		return u.Dialect != string(dialect.GitHub) && u.Dialect != string(dialect.Generic)
	},
}).Parse(statusPage))

// group formats a number with its digits in threes.
func group(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "\u00a0" + text[at:]
	}
	return text
}

// size formats a number of bytes with a unit.
func size(n int64) string {
	switch {
	case n >= 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
	case n >= 1<<10:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n, 10) + " B"
}

// serveStatus serves the status as a page, or as JSON.
func (g *Gateway) serveStatus(w http.ResponseWriter, r *http.Request, c *call) {
	if may, wrong := g.mayRead(r); !may {
		if wrong && g.wrong.tooMany(hostOf(r.RemoteAddr)) {
			c.refuse(w, tooManyWrong)
			return
		}
		c.refuse(w, dialect.Refusal{
			Status: http.StatusForbidden, Message: "quotad: to see the status, use loopback, the socket, or a token with the verb read",
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
		g.logger.Debug("could not write the status page", "error", err)
	}
}

// mayRead reports whether a caller may see the status; wrong: it presented an unknown token.
func (g *Gateway) mayRead(r *http.Request) (may, wrong bool) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if connectionOf(r.Context()).unix || err == nil && config.IsLoopback(host) {
		return true, false
	}
	token := identity.TokenIn(r.Header, r.URL.RawQuery)
	if token == "" || g.options.Tokens == nil {
		return false, false
	}
	right, known := g.options.Tokens.Find(token)
	return known && right.May(identity.Read), !known
}
