package rpc

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// shares divide something of this process among its callers. A caller may take of it while what it has stays below max(minimum, half of
// what is free of capacity - kept - what others have). kept is for operators alone.
type shares struct {
	// name is the budget's, in refusals and metrics.
	name                    string
	capacity, kept, minimum int64

	mu   sync.Mutex
	used int64
	by   map[string]int64
}

func newShares(name string, capacity, kept, minimum int64) *shares {
	return &shares{name: name, capacity: capacity, kept: kept, minimum: minimum, by: map[string]int64{}}
}

// budgetError says that a budget has no room for a caller.
type budgetError struct {
	budget string
	// own is true where the caller has its part, and false where there is no room for anybody.
	own bool
}

// Error implements error.
func (e *budgetError) Error() string {
	if e.own {
		return fmt.Sprintf("the caller has its part of the budget %s", e.budget)
	}
	return fmt.Sprintf("the budget %s of this node is used up", e.budget)
}

// take takes n for a caller, or says why not.
func (s *shares) take(key string, n int64, operator bool) *budgetError {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := s.capacity - s.kept
	if operator {
		room = s.capacity
	}
	own := s.by[key]
	switch {
	case !operator && own+n > s.mostLocked(own):
		return &budgetError{s.name, own > 0}
	case s.used+n > room:
		return &budgetError{s.name, false}
	}
	s.used += n
	s.by[key] = own + n
	return nil
}

// mostLocked returns how much a caller may have that has so much.
func (s *shares) mostLocked(own int64) int64 {
	return max(s.minimum, (s.capacity-s.kept-(s.used-own))/2)
}

// give gives back what a caller took.
func (s *shares) give(key string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if s.by[key] -= n; s.by[key] <= 0 {
		delete(s.by, key)
	}
}

// has tells whether a caller has any of it.
func (s *shares) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[key] > 0
}

// inUse returns how much is taken, and by how many callers.
func (s *shares) inUse() (used int64, callers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, len(s.by)
}

// view returns the budget as the API shows it, with the few callers that have most of it.
func (s *shares) view() *quotav1.Budget {
	b := &quotav1.Budget{Name: s.name, Capacity: s.capacity, OperatorsPart: s.kept, Minimum: s.minimum}
	s.mu.Lock()
	b.Used, b.Callers = s.used, int64(len(s.by))
	for key, own := range s.by { // in any order
		use := &quotav1.BudgetUse{Caller: key, Used: own, Most: s.mostLocked(own)}
		if use.Used >= use.Most {
			b.CallersAtBudget++
		}
		b.Top = append(b.Top, use)
	}
	s.mu.Unlock()
	slices.SortFunc(b.Top, func(x, y *quotav1.BudgetUse) int {
		return cmp.Or(cmp.Compare(y.Used, x.Used), cmp.Compare(x.Caller, y.Caller))
	})
	b.Top = b.Top[:min(len(b.Top), maxTopCallers)]
	return b
}

// apiError makes the error of the API.
func (e *budgetError) apiError() error {
	info := &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_BUDGET_FULL, Budget: e.budget, NotAccepted: true,
		Hint: "come back; what is left is kept for operators and for what gives back", RetryAfter: durationpb.New(retryBudget),
	}
	if e.own {
		info.Reason, info.Hint = quotav1.Reason_REASON_CALLER_BUDGET, "have less of it at once, or come back"
	}
	return newError(e.Error(), info)
}

// portBudgets are the shares of one port.
type portBudgets struct {
	// calls in flight; holding are those kept for calls about what is held already, which find no room in calls.
	calls, holding *shares
	// streams that are open, and commands of Batches in flight.
	streams, commands *shares
	// visits are requests of what needs no token, but for /livez; watchers those that watch health.
	visits, watchers *shares

	refused *prometheus.CounterVec
}

// newPortBudgets makes the budgets of a port that takes so many connections. Half of the strangers' ones are never all held by what
// strangers may hold.
func newPortBudgets(connections int, calls, streams int64, refused *prometheus.CounterVec) *portBudgets {
	visits, watchers := strangersOf(connections)/4, strangersOf(connections)/4
	part := func(whole, parts int64) int64 { return max(1, whole/parts) }
	smallest := func(whole, most int64) int64 { return max(1, min(most, whole/16)) }
	b := &portBudgets{
		calls:    newShares("calls", calls-part(calls, 16), part(calls, 16), smallest(calls, 64)),
		holding:  newShares("calls", part(calls, 16), 0, smallest(calls/16, 16)),
		streams:  newShares("streams", streams, part(streams, 8), smallest(streams, 16)),
		commands: newShares("commands", maxCommands, part(maxCommands, 16), maxCommands/32),
		visits:   newShares("visits", visits, 0, smallest(visits, 16)),
		watchers: newShares("watchers", watchers, 0, smallest(watchers, 16)),
		refused:  refused,
	}
	for _, s := range b.all() { // each is 0 before it is anything else
		refused.WithLabelValues(s.name, "caller")
		refused.WithLabelValues(s.name, "full")
	}
	return b
}

// all returns the budgets, each name once.
func (b *portBudgets) all() []*shares {
	return []*shares{b.calls, b.streams, b.commands, b.visits, b.watchers}
}

// maxCommands is three quarters of the proposer's queue.
const maxCommands = 24_576

// refuse counts a refusal and makes its error.
func (b *portBudgets) refuse(e *budgetError) error {
	if e.own {
		b.refused.WithLabelValues(e.budget, "caller").Inc()
	} else {
		b.refused.WithLabelValues(e.budget, "full").Inc()
	}
	return e.apiError()
}
