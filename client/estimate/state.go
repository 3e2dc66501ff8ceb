package estimate

import (
	"math"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Learnt is the knowledge about calls of one key, for a page or a file. It has numbers only.
type Learnt struct {
	// Upstream, Model and Holder are the key's. Holder is empty for all holders together.
	Upstream, Model string
	Holder          string `json:",omitempty"`
	// Calls is how many of the last 200 calls Output and Input are based on. Output and Input are the tokens that 95 % of the calls do
	// not exceed.
	Calls         int
	Output, Input int64
	// Factor is the factor applied to counted input, CachedFactor the same for bodies with cache marks.
	Factor, CachedFactor float64
	// Factors, CachedFactors, Inputs and Outputs are the figures themselves, the oldest first.
	Factors, CachedFactors, Inputs, Outputs []float32 `json:",omitempty"`
}

// Models returns the knowledge about models, without the figures themselves.
func (l *Learner) Models() []Learnt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Learnt
	for _, k := range l.models.Keys() {
		h, _ := l.models.Peek(k)
		all = append(all, h.learnt(k))
	}
	return all
}

// learnt returns the knowledge about one key.
func (h *history) learnt(k Key) Learnt {
	return Learnt{
		Upstream: k.Upstream, Model: k.Model, Holder: k.Holder, Calls: h.outputs.size(),
		Output: int64(h.outputs.p95()), Input: int64(h.inputs.p95()),
		Factor: factorOf(&h.factors, minFactor), CachedFactor: factorOf(&h.cached, minCachedFactor),
	}
}

// Learnt returns all knowledge, first about models, then about holders, each with the least recently used first.
func (l *Learner) Learnt() []Learnt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Learnt
	for _, t := range []*simplelru.LRU[Key, *history]{l.models, l.holders} {
		for _, k := range t.Keys() {
			h, _ := t.Peek(k)
			known := h.learnt(k)
			known.Factors, known.CachedFactors = h.factors.inOrder(), h.cached.inOrder()
			known.Inputs, known.Outputs = h.inputs.inOrder(), h.outputs.inOrder()
			all = append(all, known)
		}
	}
	return all
}

// Restore adds the result of an earlier call of Learnt, such as of another process. It ignores invalid figures.
func (l *Learner) Restore(all []Learnt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, known := range all {
		t := l.holders
		if known.Holder == "" {
			t = l.models
		}
		h := find(t, Key{known.Upstream, known.Model, known.Holder})
		for _, part := range []struct {
			to      *window
			figures []float32
		}{{&h.factors, known.Factors}, {&h.cached, known.CachedFactors}, {&h.inputs, known.Inputs}, {&h.outputs, known.Outputs}} {
			for _, f := range part.figures[max(len(part.figures)-lastCalls, 0):] {
				if f >= 0 && !math.IsInf(float64(f), 0) {
					part.to.add(float64(f))
				}
			}
		}
	}
}

// inOrder returns the figures, the oldest first.
func (w *window) inOrder() []float32 {
	return slices.Concat(w.ring[w.at:], w.ring[:w.at])
}
