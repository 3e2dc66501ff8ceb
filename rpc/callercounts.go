package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode"
)

// countCallersEvery is how old what is shown of callers may be: to count them is to look at all accounts.
const countCallersEvery = time.Second

// callerCounts is what callers have of the state's budgets, counted once in a while, however many ask.
type callerCounts struct {
	mu      sync.Mutex
	counted time.Time
	views   []accounts.View
}

// of returns the last count, or a new one. The state is not locked meanwhile.
func (c *callerCounts) of(ctx context.Context, node *raftnode.Node) ([]accounts.View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.views != nil && time.Since(c.counted) < countCallersEvery {
		return c.views, nil
	}
	state, _, _, err := node.Frozen(ctx, raftnode.Stale)
	if err != nil {
		return nil, err
	}
	c.views, c.counted = state.Budgets(maxTopCallers), time.Now()
	return c.views, nil
}

// withCallers returns present totals with what was counted of callers. Both are in the order of budgets.
func withCallers(totals, counted []accounts.View) []accounts.View {
	for i := range totals {
		totals[i].Callers, totals[i].AtBudget, totals[i].Top = counted[i].Callers, counted[i].AtBudget, counted[i].Top
	}
	return totals
}
