package estimate

import (
	"math"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Key identifies similar calls.
type Key struct {
	// Upstream is the provider or its quotas' prefix, Model the model in the quotas' names, Holder the caller's holder.
	Upstream, Model, Holder string
}

// Bounds of learning.
const (
	// minCalls is the number of calls from which a figure is trusted; lastCalls is how many of the latest calls it covers.
	minCalls  = 20
	lastCalls = 200
	// minFactor and maxLearntFactor bound the ratio of the provider's count to the estimator's. minCachedFactor is the lower bound for
	// bodies with cache marks, since tokens read from a cache do not count.
	minFactor       = 0.25
	maxLearntFactor = 4
	minCachedFactor = 0.02
	// DefaultOutput is the output of a call without any history, in tokens.
	DefaultOutput = 4_000
	// maxHolders and maxModels bound the tables; maxPriors and priorLife bound what is recorded of answers by their id.
	maxHolders = 2_000
	maxModels  = 500
	maxPriors  = 10_000
	priorLife  = 24 * time.Hour
)

// Amounts is the estimate of one call, in tokens.
type Amounts struct {
	Input int64
	// Bound is the output for providers that count its bound when the call arrives: the bound, or without one Likely.
	Bound int64
	// Likely is the output according to earlier calls, at most the bound.
	Likely int64
	// Learnt: Likely is learnt, not a default.
	Learnt bool
}

// AtArrival returns the amount that OpenAI, Azure and Bedrock count when a call arrives.
func (a Amounts) AtArrival() int64 { return a.Input + a.Bound }

// Said is the use of a call that a provider stated.
type Said struct {
	// Input is the input that counts against the limit: for Anthropic and Bedrock without tokens read from a cache. Output is all
	// output. Negative: not stated.
	Input, Output int64
}

// Learner learns the use of calls. It is safe for concurrent use.
type Learner struct {
	now func() time.Time

	mu      sync.Mutex
	holders *simplelru.LRU[Key, *history]
	models  *simplelru.LRU[Key, *history]
	priors  *simplelru.LRU[priorKey, prior]
}

// priorKey identifies an earlier answer; prior is the size of the answer and its input, with an expiry.
type priorKey struct{ upstream, id string }

type prior struct {
	tokens int64
	until  time.Time
}

// NewLearner returns an empty Learner. now is the clock for records that expire after a day; nil: time.Now.
func NewLearner(now func() time.Time) *Learner {
	if now == nil {
		now = time.Now
	}
	return &Learner{
		now: now, holders: table[Key, *history](maxHolders), models: table[Key, *history](maxModels), priors: table[priorKey, prior](maxPriors),
	}
}

// table returns a table that evicts the least recently used entry.
func table[K comparable, V any](size int) *simplelru.LRU[K, V] {
	t, err := simplelru.NewLRU[K, V](size, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return t
}

// history is the use of calls of one key.
type history struct {
	// factors are the ratios of stated to counted input; cached the same for bodies with cache marks.
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

// believed returns the first of a key's windows with enough calls; nil: none has.
func (l *Learner) believed(k Key, of func(*history) *window) *window {
	if h, ok := l.holders.Get(k); ok && of(h).size() >= minCalls {
		return of(h)
	}
	if h, ok := l.models.Get(Key{Upstream: k.Upstream, Model: k.Model}); ok && of(h).size() >= minCalls {
		return of(h)
	}
	return nil
}

// Estimate returns the expected use of a call. otherwise is the output of a call without any history, such as the quota's default
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

// input estimates the input of a call, including the earlier answer that it continues.
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

// factor returns the factor to multiply counted input by.
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

// factorOf returns the factor that a window teaches; 1 if it is too short.
func factorOf(w *window, least float64) float64 {
	if w.size() < minCalls {
		return 1
	}
	return min(max(w.p95(), least), maxLearntFactor)
}

// prior returns the tokens of an earlier answer, or else the usual input.
func (l *Learner) prior(k Key, id string) int64 {
	if p, ok := l.priors.Get(priorKey{k.Upstream, id}); ok && l.now().Before(p.until) {
		return p.tokens
	}
	if learnt := l.believed(k, func(h *history) *window { return &h.inputs }); learnt != nil {
		return int64(learnt.p95())
	}
	return 0
}

// Learn records the provider's stated use of a call with request r.
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

// LearnRequested records the provider's count for a call that it refused: the "Requested 8172" of OpenAI's 429, which is the input plus
// the bound.
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

// teach learns the factor of one call. If the call continues an earlier one, its own part is unknown.
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

// Remember records the tokens of an answer and its input, under the answer's or its conversation's id, for calls that continue it.
func (l *Learner) Remember(upstream, id string, tokens int64) {
	if id == "" || tokens < 0 || len(id) > maxName {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.priors.Add(priorKey{upstream, id}, prior{min(tokens, MaxCount), l.now().Add(priorLife)})
}

// requested matches the count in OpenAI's refusals for tokens. Refusals for the number of requests have such a count as well.
var requested = regexp.MustCompile(`(?i)\btokens?(?:_|\b)[^:]{0,200}: Limit \d+, Used \d+, Requested (\d{1,12})`)

// Requested returns the provider's count for the call, in tokens, from the text of a refusal, for LearnRequested.
func Requested(text []byte) (tokens int64, said bool) {
	found := requested.FindSubmatch(text)
	if found == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	return n, err == nil
}
