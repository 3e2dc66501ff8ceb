package gateway

import (
	"slices"
	"sync"
	"time"
)

// waiting is the calls that wait for the cluster.
type waiting struct {
	mu    sync.Mutex
	calls map[*call]time.Time
}

func (w *waiting) add(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls == nil {
		w.calls = map[*call]time.Time{}
	}
	w.calls[c] = time.Now()
}

func (w *waiting) remove(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, c)
}

func (w *waiting) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.calls)
}

// Waiter is one waiting call, for the status page.
type Waiter struct {
	Upstream string `json:"upstream,omitempty"`
	Model    string `json:"model,omitempty"`
	Holder   string `json:"holder"`
	Class    string `json:"class,omitempty"`
	Waited   Length `json:"waited"`
	Left     Length `json:"left"`
}

// list returns those that have waited for the longest time, at most n of them.
func (w *waiting) list(n int) []Waiter {
	now := time.Now()
	w.mu.Lock()
	out := make([]Waiter, 0, len(w.calls))
	for c, since := range w.calls {
		upstream := ""
		if c.upstream != nil {
			upstream = c.upstream.name
		}
		out = append(out, Waiter{
			Upstream: upstream, Model: c.target.Model, Holder: c.caller.Holder, Class: c.caller.Class.String(),
			Waited: Length(now.Sub(since)), Left: Length(max(c.until.Sub(now), 0)),
		})
	}
	w.mu.Unlock()
	slices.SortFunc(out, func(a, b Waiter) int { return int(b.Waited - a.Waited) })
	return out[:min(n, len(out))]
}
