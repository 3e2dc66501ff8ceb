package gateway

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
)

// waiting is the set of calls that wait for the cluster.
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

// classes returns the number of waiting calls in each class. Calls without a class count as standard.
func (w *waiting) classes() []ClassStatus {
	out := make([]ClassStatus, len(config.Classes))
	for i, name := range config.Classes {
		out[i].Class = name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.calls {
		out[cmp.Or(c.caller.Class, config.Standard)-1].Waiting++
	}
	return out
}

// list returns the n calls that have waited longest, the highest class first.
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
	out = out[:min(n, len(out))]
	slices.SortStableFunc(out, func(a, b Waiter) int { return rank(a.Class) - rank(b.Class) })
	return out
}

// rank orders classes. A call without one has its holder's class, which is standard unless the cluster maps it.
func rank(class string) int {
	named, _ := config.ClassNamed(class)
	return int(cmp.Or(named, config.Standard))
}
