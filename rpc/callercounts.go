package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// countEvery is how old what is shown of callers may be: to count them is to look at all accounts, and at all who have something of a node.
const countEvery = time.Second

// counted is something that is counted once in a while, however many ask.
type counted[T any] struct {
	mu    sync.Mutex
	at    time.Time
	value T
}

// of returns the last count, or a new one.
func (c *counted[T]) of(count func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < countEvery {
		return c.value, nil
	}
	value, err := count()
	if err != nil {
		return value, err
	}
	c.value, c.at = value, time.Now()
	return value, nil
}

// countCallers counts what callers have of the state's budgets. The state is not locked meanwhile.
func (s *Server) countCallers(ctx context.Context) ([]accounts.View, error) {
	return s.callers.of(func() ([]accounts.View, error) {
		state, _, _, err := s.node.Frozen(ctx, raftnode.Stale)
		if err != nil {
			return nil, err
		}
		return state.Budgets(maxTopCallers), nil
	})
}

// countNodeBudgets counts what callers have of this node.
func (s *Server) countNodeBudgets() []*quotav1.Budget {
	all, _ := s.nodeCounts.of(func() (all []*quotav1.Budget, _ error) {
		for _, b := range s.nodeBudgets() {
			all = append(all, apiBudget(b))
		}
		return all, nil
	})
	return all
}

// withCallers returns present totals with what was counted of callers. Both are in the order of budgets.
func withCallers(totals, counted []accounts.View) []accounts.View {
	for i := range totals {
		totals[i].Callers, totals[i].AtBudget, totals[i].Top = counted[i].Callers, counted[i].AtBudget, counted[i].Top
	}
	return totals
}
