package providertest

import (
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Provider is a provider as an http.Handler.
type Provider struct {
	cfg  Config
	born time.Time

	// mu guards the fields below. A request is judged, counted and recorded under one hold of the lock, so that the records are in the
	// order of judgement.
	mu      sync.Mutex
	random  *rand.Rand
	github  map[string]*githubKey
	openai  map[openaiKey]*openaiLimits
	seen    map[seenCall]struct{}
	records []Record
	totals  map[totalsKey]*Totals
	faults  []Fault
	ids     uint64
}

// New returns a provider with the configuration.
func New(cfg Config) *Provider {
	cfg = cfg.withDefaults()
	return &Provider{
		cfg:    cfg,
		born:   cfg.Now(),
		random: rand.New(rand.NewPCG(cfg.Seed, 1)),
		github: make(map[string]*githubKey),
		openai: make(map[openaiKey]*openaiLimits),
		seen:   make(map[seenCall]struct{}),
		totals: make(map[totalsKey]*Totals),
	}
}

// The two APIs, by their names in records.
const (
	apiGitHub = "github"
	apiOpenAI = "openai"
)

type seenCall struct{ key, call string }

type totalsKey struct{ key, api string }

// ServeHTTP serves one request.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{p: p, w: w, r: r, api: apiGitHub}
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		x.api = apiOpenAI
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if x.key = strings.TrimSpace(key); x.key == "" || !strings.EqualFold(scheme, "bearer") && !strings.EqualFold(scheme, "token") {
		x.key = ""
		x.unauthorized()
		return
	}
	var err error
	if x.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		x.rejected(http.StatusBadRequest, `{"message":"Problems parsing JSON","status":"400"}`)
		return
	}
	if fault, hit := p.takeFault(x); hit {
		x.hold(fault.Delay)
		if fault.Status != 0 || fault.Close {
			x.fail(fault)
			return
		}
	}
	if x.api == apiOpenAI {
		x.serveOpenAI()
		return
	}
	x.serveGitHub()
}

// exchange is one request at the provider.
type exchange struct {
	p        *Provider
	w        http.ResponseWriter
	r        *http.Request
	api, key string
	body     []byte
}

// recordLocked records the request and its verdict.
func (x *exchange) recordLocked(now time.Time, resource string, weight int64, status int, verdict Verdict, window time.Time) {
	p := x.p
	record := Record{
		At: now.Sub(p.born), API: x.api, Key: x.key, Holder: x.r.Header.Get(HolderHeader), Call: x.r.Header.Get(CallHeader),
		Method: x.r.Method, Path: x.r.URL.Path, Resource: resource, Weight: weight, Status: status, Verdict: verdict,
	}
	if !window.IsZero() {
		record.Window = window.Unix()
	}
	if record.Call != "" {
		call := seenCall{x.key, record.Call}
		_, record.Repeat = p.seen[call]
		if len(p.seen) < p.cfg.MaxRecords {
			p.seen[call] = struct{}{}
		}
	}
	p.totalsLocked(x.key, x.api).add(record)
	if len(p.records) < p.cfg.MaxRecords {
		p.records = append(p.records, record)
	}
}

func (p *Provider) totalsLocked(key, api string) *Totals {
	at := totalsKey{key, api}
	if p.totals[at] == nil {
		p.totals[at] = &Totals{Key: key, API: api}
	}
	return p.totals[at]
}

// latencyLocked returns a random service time with the given mean.
func (p *Provider) latencyLocked(mean time.Duration) time.Duration {
	if mean <= 0 {
		return 0
	}
	return mean/2 + time.Duration(p.random.Int64N(int64(mean)))
}

// hold delays the request, or until its caller leaves.
func (x *exchange) hold(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.r.Context().Done():
	}
}

// Totals counts the requests of one key to one API.
type Totals struct {
	// Key and API identify the requests.
	Key string `json:"key"`
	API string `json:"api"`
	// Arrived counts all of them.
	Arrived int64 `json:"arrived"`
	// Admitted counts the served ones.
	Admitted int64 `json:"admitted"`
	// Weight is the sum of the admitted requests' weights: points, or tokens.
	Weight int64 `json:"weight"`
	// Limited counts refusals by a limit; Limited403 and Limited429 count them by status.
	Limited    int64 `json:"limited"`
	Limited403 int64 `json:"limited403"`
	Limited429 int64 `json:"limited429"`
	// Secondary counts those of Limited that one of GitHub's secondary limits refused.
	Secondary int64 `json:"secondary"`
	// Injected counts injected faults, Rejected invalid requests.
	Injected int64 `json:"injected"`
	Rejected int64 `json:"rejected"`
	// Repeats counts repeated calls.
	Repeats int64 `json:"repeats"`
	// Used and Limit describe GitHub's present core window, or OpenAI's requests within the last period.
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
	// UsedTokens and LimitTokens describe OpenAI's tokens within the last period.
	UsedTokens  int64 `json:"usedTokens,omitempty"`
	LimitTokens int64 `json:"limitTokens,omitempty"`
	// ResetIn is how long until GitHub's core window ends, 0 if none is open.
	ResetIn time.Duration `json:"resetIn,omitempty"`
}

func (t *Totals) add(r Record) {
	t.Arrived++
	if r.Repeat {
		t.Repeats++
	}
	switch r.Verdict {
	case Admitted:
		t.Admitted++
		t.Weight += r.Weight
	case Rejected:
		t.Rejected++
	case Injected:
		t.Injected++
	case LimitConcurrent, LimitPoints, LimitContent, LimitPenalty:
		t.Secondary++
	default:
	}
	if !r.Verdict.Limited() {
		return
	}
	t.Limited++
	switch r.Status {
	case http.StatusForbidden:
		t.Limited403++
	case http.StatusTooManyRequests:
		t.Limited429++
	}
}

// Totals returns the counts of every key and API, sorted by their names.
func (p *Provider) Totals() []Totals {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	all := make([]Totals, 0, len(p.totals))
	for _, at := range slices.SortedFunc(maps.Keys(p.totals), func(a, b totalsKey) int {
		return strings.Compare(a.key+"\x00"+a.api, b.key+"\x00"+b.api)
	}) {
		t := *p.totals[at]
		if at.api == apiGitHub {
			p.github[at.key].show(now, &t)
		} else {
			p.showOpenAI(now, &t)
		}
		all = append(all, t)
	}
	return all
}

// Records returns a copy of the records, in the order of judgement.
func (p *Provider) Records() []Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.records)
}
