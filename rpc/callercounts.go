package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// countEvery bounds the age of the callers' counts: a count reads all accounts, and all callers that use something of the node.
const countEvery = time.Second

// counted caches a count, so that its cost does not grow with the requests for it.
type counted[T any] struct {
	mu    sync.Mutex
	at    time.Time
	value T
}

// of returns the last count, or a new one if that is older than countEvery.
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

// countCallers counts what callers use of the state's budgets. It does not lock the state meanwhile.
func (s *Server) countCallers(ctx context.Context) ([]accounts.View, error) {
	return s.callers.of(func() ([]accounts.View, error) {
		state, _, _, err := s.node.Frozen(ctx, raftnode.Stale)
		if err != nil {
			return nil, err
		}
		return state.Budgets(maxTopCallers), nil
	})
}

// countNodeBudgets counts what callers use of this node's budgets.
func (s *Server) countNodeBudgets() []*quotav1.Budget {
	all, _ := s.nodeCounts.of(func() (all []*quotav1.Budget, _ error) {
		for _, b := range s.nodeBudgets() {
			all = append(all, apiBudget(b))
		}
		return all, nil
	})
	return all
}

// withCallers adds the counts of callers to current totals. Both are in the order of budgets.
func withCallers(totals, counted []accounts.View) []accounts.View {
	for i := range totals {
		totals[i].Callers, totals[i].AtBudget, totals[i].Top = counted[i].Callers, counted[i].AtBudget, counted[i].Top
	}
	return totals
}
