package rpc

import (
	"cmp"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/quotav1"
)

// portBudgets are the budgets that the callers of one port share.
type portBudgets struct {
	// calls: calls in flight. holding: calls about something that is already held and that found no room in calls.
	calls, holding *budget.Budget
	// streams: open streams.
	streams *budget.Budget
	// Requests that need no token. health, lives (/livez) and scrapes (/metrics): their answers are computed at most once a second and wait
	// for no turn. watchers: requests that watch health. visits: all others.
	visits, health, lives, scrapes, watchers *budget.Budget
	// ownShares is set at the operators' port, which waits for no turn of the API port's callers.
	ownShares bool
	// refusals: refused requests that wait for their turn.
	refusals *budget.Budget
}

// newPortBudgets makes the budgets of a port that takes this many connections, calls and streams.
func newPortBudgets(connections, calls, streams int64) *portBudgets {
	named := func(name string) *budget.Budget { return budget.New(name, 0, 0, 0) }
	b := &portBudgets{
		calls: named("calls"), holding: named("calls"), streams: named("streams"), visits: named("visits"), health: named("health"),
		lives: named("liveness"), scrapes: named("scrapes"), refusals: named("refusals"), watchers: named("watchers"),
	}
	b.resize(connections, calls, streams)
	return b
}

// resize sets the budgets of a port that takes this many connections. Visits, watchers, scrapes and refusals may each occupy a connection
// of an anonymous caller, a caller without a known token. Together they occupy at most half of the anonymous callers' connections.
// Answers to health and liveness are short and occupy none.
func (b *portBudgets) resize(connections, calls, streams int64) {
	anonymous := anonymousOf(connections)
	visits, watchers, refusals, health := anonymous/8, anonymous*3/16, anonymous/8, anonymous/4
	part := func(whole, parts int64) int64 { return max(1, whole/parts) }
	smallest := func(whole, most int64) int64 { return max(1, min(most, whole/16)) }
	b.calls.Resize(calls-part(calls, 16), part(calls, 16), smallest(calls, 64))
	b.holding.Resize(part(calls, 16), 0, smallest(calls/16, 16))
	b.streams.Resize(streams, part(streams, 8), smallest(streams, 16))
	b.visits.Resize(visits, 0, smallest(visits, 16))
	b.health.Resize(health, 0, smallest(health, 16))
	b.lives.Resize(health, 0, smallest(health, 16))
	b.scrapes.Resize(part(anonymous, 16), 0, smallest(health, 16))
	b.refusals.Resize(refusals, 0, smallest(refusals, 64))
	b.watchers.Resize(watchers, 0, smallest(watchers, 16))
}

// all returns one budget of each name.
func (b *portBudgets) all() []*budget.Budget {
	return []*budget.Budget{b.calls, b.streams, b.visits, b.health, b.lives, b.scrapes, b.watchers}
}

// budgetError converts the refusal of a budget to an error of the API.
func budgetError(e *budget.FullError) *connect.Error {
	info := &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_BUDGET_FULL, Budget: e.Budget, NotAccepted: true,
		Hint: "retry later; the rest is kept for operators and for calls that release something", RetryAfter: durationpb.New(retryBudget),
	}
	if e.Own {
		info.Reason, info.Hint = quotav1.Reason_REASON_CALLER_BUDGET, "use less of it at the same time, or retry later"
	}
	return newError(e.Error(), info)
}

// overBudget counts a refusal and makes its error.
func (s *Server) overBudget(e *budget.FullError) error {
	s.metrics.overBudget(e)
	return budgetError(e)
}

// apiBudget converts a budget of this node, with the few callers that use most of it.
func apiBudget(b shared) *quotav1.Budget {
	v := b.View()
	res := &quotav1.Budget{
		Name: v.Name, Capacity: v.Capacity, OperatorsPart: v.Kept, Minimum: v.Minimum, Used: v.Used, Callers: int64(len(v.Uses)),
	}
	slices.SortFunc(v.Uses, func(x, y budget.Use) int { return cmp.Or(cmp.Compare(y.Used, x.Used), cmp.Compare(x.Caller, y.Caller)) })
	for i, use := range v.Uses {
		if use.Used >= use.Most {
			res.CallersAtBudget++
		}
		if i < maxTopCallers {
			res.Top = append(res.Top, &quotav1.BudgetUse{Caller: use.Caller, Used: use.Used, Most: use.Most})
		}
	}
	return res
}
