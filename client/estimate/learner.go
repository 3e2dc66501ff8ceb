package estimate

import (
	"math"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Key names whose calls are alike.
type Key struct {
	// Upstream is the provider or its quotas' prefix, Model the model as its quotas are named, Holder who asks.
	Upstream, Model, Holder string
}

// Bounds of what is learnt.
const (
	// minCalls is from how many calls on a figure is believed; lastCalls is how many of them it is taken from.
	minCalls  = 20
	lastCalls = 200
	// minFactor and maxLearnt bound the factor between what was counted and what the provider says; minCachedFactor is the lower
	// bound for bodies that mark parts for a cache, since what is read from there does not count.
	minFactor       = 0.25
	maxLearntFactor = 4
	minCachedFactor = 0.02
	// DefaultOutput is the output of a call of which nothing is known, in tokens.
	DefaultOutput = 4_000
	// maxHolders and maxModels bound the tables, priorLife and maxPriors what is remembered of answers by their id.
	maxHolders = 2_000
	maxModels  = 500
	maxPriors  = 10_000
	priorLife  = 24 * time.Hour
)

// Amounts is the estimate of one call, in tokens.
type Amounts struct {
	// Input is the input.
	Input int64
	// Bound is the output for providers that count its bound when the call arrives: the bound, or where there is none Likely.
	Bound int64
	// Likely is the output as it was with earlier calls, at most the bound.
	Likely int64
	// Learnt: Likely is learnt, not a default.
	Learnt bool
}

// AtArrival returns what OpenAI, Azure and Bedrock count when a call arrives.
func (a Amounts) AtArrival() int64 { return a.Input + a.Bound }

// Said is what a provider said that a call used.
type Said struct {
	// Input is the input that counts against the limit: for Anthropic and Bedrock without what was read from a cache. Output is all
	// output. Negative: not said.
	Input, Output int64
}

// Learner remembers what calls used. It is safe for concurrent use.
type Learner struct {
	now func() time.Time

	mu      sync.Mutex
	holders *simplelru.LRU[Key, *history]
	models  *simplelru.LRU[Key, *history]
	priors  *simplelru.LRU[priorKey, prior]
}

// priorKey names an earlier answer; prior is what it and its input came to, until when.
type priorKey struct{ upstream, id string }

type prior struct {
	tokens int64
	until  time.Time
}

// NewLearner returns a Learner that knows nothing. now is a clock for what is forgotten after a day; nil: time.Now.
func NewLearner(now func() time.Time) *Learner {
	if now == nil {
		now = time.Now
	}
	return &Learner{
		now: now, holders: table[Key, *history](maxHolders), models: table[Key, *history](maxModels), priors: table[priorKey, prior](maxPriors),
	}
}

// table returns a table that forgets what was not used for longest.
func table[K comparable, V any](size int) *simplelru.LRU[K, V] {
	t, err := simplelru.NewLRU[K, V](size, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return t
}

// history is what calls of one key used.
type history struct {
	// factors are those of said to counted input; cached the same of bodies with marks for a cache.
	factors, cached, inputs, outputs window
}

// histories returns the histories of a key, the holder's first.
func (l *Learner) histories(k Key) [2]*history {
	return [2]*history{find(l.holders, k), find(l.models, Key{Upstream: k.Upstream, Model: k.Model})}
}

func find(t *simplelru.LRU[Key, *history], k Key) *history {
	h, ok := t.Get(k)
	if !ok {
		h = &history{}
		t.Add(k, h)
	}
	return h
}

// believed returns the first of a key's windows that enough calls stand behind, nil: none.
func (l *Learner) believed(k Key, of func(*history) *window) *window {
	if h, ok := l.holders.Get(k); ok && of(h).size() >= minCalls {
		return of(h)
	}
	if h, ok := l.models.Get(Key{Upstream: k.Upstream, Model: k.Model}); ok && of(h).size() >= minCalls {
		return of(h)
	}
	return nil
}

// Estimate returns what a call will use. otherwise is the output of a call of which nothing is known, such as the quota's default
// estimate; 0: DefaultOutput.
func (l *Learner) Estimate(k Key, r *Request, otherwise int64) Amounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := Amounts{Input: l.input(k, r)}
	if learnt := l.believed(k, func(h *history) *window { return &h.outputs }); learnt != nil {
		a.Likely, a.Learnt = int64(learnt.p95()), true
	}
	return r.bounded(a, otherwise)
}

// input estimates the input of a call, with what it goes on from.
func (l *Learner) input(k Key, r *Request) int64 {
	counted := float64(r.Counted()) * l.factor(k, r.Cached)
	if r.Prior != "" {
		counted += float64(l.prior(k, r.Prior))
	}
	if counted < 1 && r.Size > 0 {
		return 1
	}
	return int64(math.Round(min(counted, MaxCount)))
}

// factor returns what counted input is multiplied by.
func (l *Learner) factor(k Key, cached bool) float64 {
	of, least := func(h *history) *window { return &h.factors }, minFactor
	if cached {
		of, least = func(h *history) *window { return &h.cached }, minCachedFactor
	}
	if w := l.believed(k, of); w != nil {
		return factorOf(w, least)
	}
	return 1
}

// factorOf returns the factor that a window teaches, 1 where it is too short to teach any.
func factorOf(w *window, least float64) float64 {
	if w.size() < minCalls {
		return 1
	}
	return min(max(w.p95(), least), maxLearntFactor)
}

// prior returns what an earlier answer came to, or else what input usually does.
func (l *Learner) prior(k Key, id string) int64 {
	if p, ok := l.priors.Get(priorKey{k.Upstream, id}); ok && l.now().Before(p.until) {
		return p.tokens
	}
	if learnt := l.believed(k, func(h *history) *window { return &h.inputs }); learnt != nil {
		return int64(learnt.p95())
	}
	return 0
}

// Learn takes what the provider said that a call used, whose request was r.
func (l *Learner) Learn(k Key, r *Request, said Said) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.histories(k) {
		if said.Output >= 0 && r.Operation != Embed {
			h.outputs.add(float64(min(said.Output, MaxCount)))
		}
		if said.Input >= 0 {
			h.inputs.add(float64(min(said.Input, MaxCount)))
			h.teach(r, min(said.Input, MaxCount))
		}
	}
}

// LearnRequested takes what the provider said that it counted for a call that it refused: the "Requested 8172" of OpenAI's 429, which
// is the input and the bound.
func (l *Learner) LearnRequested(k Key, r *Request, requested int64) {
	input := min(requested, MaxCount) - r.Bound
	if input <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.histories(k) {
		h.teach(r, input)
	}
}

// teach learns the factor of one call. Of a call that goes on from an earlier one, its own part is not known.
func (h *history) teach(r *Request, input int64) {
	counted := r.Counted()
	if counted == 0 || r.Prior != "" {
		return
	}
	factor := float64(input) / float64(counted)
	if r.Cached {
		h.cached.add(factor)
		return
	}
	h.factors.add(factor)
}

// Remember notes what an answer and its input came to, under the answer's id or that of its conversation, for calls that go on from it.
func (l *Learner) Remember(upstream, id string, tokens int64) {
	if id == "" || tokens < 0 || len(id) > maxName {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.priors.Add(priorKey{upstream, id}, prior{min(tokens, MaxCount), l.now().Add(priorLife)})
}

// requested is how OpenAI's refusals say what they counted. Those for the number of requests say so as well.
var requested = regexp.MustCompile(`(?i)\btokens?(?:_|\b)[^:]{0,200}: Limit \d+, Used \d+, Requested (\d{1,12})`)

// Requested returns what the text of a refusal says that the provider counted for the call, in tokens, for LearnRequested.
func Requested(text []byte) (tokens int64, said bool) {
	found := requested.FindSubmatch(text)
	if found == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	return n, err == nil
}
