package fsm

import (
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// workflowHost adapts the machine to workflows (workflow.Host).
type workflowHost struct{ m *Machine }

// Now returns cluster time.
func (h workflowHost) Now() int64 { return h.m.clock.Now }

// Fence returns the newest fence.
func (h workflowHost) Fence() uint64 { return h.m.fence() }

// NewestFence returns the fence of a holder's newest lease, if it lives.
func (h workflowHost) NewestFence(holder string) uint64 {
	if l := h.m.newestLease(holder); l != nil {
		return l.fence
	}
	return 0
}

// Waiting returns how many Reserves of a holder wait.
func (h workflowHost) Waiting(holder string) int64 { return h.m.holders.waitingOf(holder) }

func (hs *holderTables) waitingOf(name string) int64 {
	h, ok := hs.byName.Get(name)
	if !ok {
		return 0
	}
	return h.waiting
}

// Wake marks a holder's waiters to be tried.
func (h workflowHost) Wake(holder string) { h.m.queue.wake(holder) }

// Emit emits an event, or replaces the earlier event at place, which is from 1.
func (h workflowHost) Emit(event effect.Event, place int) int {
	if place != 0 {
		h.m.events[place-1] = event
		return place
	}
	h.m.emit(event)
	return len(h.m.events)
}

// Lacks reports whether an earlier shortage still exists.
func (h workflowHost) Lacks(short workflow.Shortage) bool {
	m := h.m
	q := m.quotas.named(short.Quota)
	return q != nil && slices.ContainsFunc(m.quotas.ancestors(q), func(q *quota) bool {
		q = m.quotas.editNow(q.number)
		return !q.rule.Policy.Observe && (q.cooling(m.clock.Now) || q.ledger.Available(&q.rule) < short.Amount)
	})
}

// WaitsForElse reports whether a holder waits for something that a limit by this quota does not prevent: it needs other
// quotas, or all that it needs is available. It examines only the first waiters of a long list.
func (h workflowHost) WaitsForElse(holder, quota string) (found bool) {
	m := h.m
	out, scanned := h.Lacks(workflow.Shortage{Quota: quota, Amount: 1}), 0
	number, _ := m.quotas.names.Get(quota)
	m.queue.eachOf(holder, func(w *waiter) bool {
		if scanned++; scanned > maxPassedOver {
			return false
		}
		if m.queue.gone(w) {
			return true
		}
		if ws, _ := m.queue.waitSets.Get(w.waitSet); out && !ws.pooled && slices.Contains(ws.quotas, number) {
			return true // it waits for the quota itself
		}
		needs, failure := m.judge.needs(w.req)
		found = failure == nil && (amountOf(needs, quota) == 0 || !h.limited(w, needs))
		return !found
	})
	return found
}

// limited reports whether a limit now prevents some of the needs.
func (h workflowHost) limited(w *waiter, needs []need) bool {
	rq := h.m.judge.requestOf(w)
	if onPool(needs) {
		return !slices.ContainsFunc(choicesOf(needs), func(c choice) bool { return !h.limited(w, c.needs) })
	}
	return slices.ContainsFunc(needs, func(n need) bool {
		return !n.quota.rule.Policy.Observe && (n.quota.cooling(h.m.clock.Now) || rq.lacks(n))
	})
}

// withholdByWorkflow withholds a grant from a step of a workflow, except from quotas that only observe.
func (rq *request) withholdByWorkflow(needs []need) *logpb.Refusal {
	kept, ok := rq.workflows.Withhold(rq.req.Holder, rq.clock.Now)
	if !ok {
		return nil
	}
	binding := enforced(needs)
	if binding == nil {
		return nil
	}
	return rq.refusal(kept.Reason, binding, kept.Until, kept.Advice)
}

// enforced returns the first needed quota that does more than observe; nil: none.
func enforced(needs []need) *quota {
	for _, n := range needs {
		if !n.quota.rule.Policy.Observe {
			return n.quota
		}
	}
	return nil
}

// amountIn returns a function that returns the needed amount of a quota.
func amountIn(needs []need) func(quota string) int64 {
	return func(quota string) int64 { return amountOf(needs, quota) }
}

// amountOf returns the needed amount of a quota; 0: it is not needed.
func amountOf(needs []need, name string) int64 {
	for _, n := range needs {
		if n.quota.name == name {
			return n.amount
		}
	}
	return 0
}

// Workflow returns one workflow as it stands at a clock.
func (s *State) Workflow(name string, at Clock) (workflow.View, bool) {
	return s.workflows.View(name, at.Now, s.holders.waitingOf)
}

// Workflows returns up to limit workflows in name order, after the name after, in which a holder is a step (empty:
// all).
func (s *State) Workflows(holder, after string, limit int, at Clock) []workflow.View {
	return s.workflows.Views(holder, after, limit, at.Now, s.holders.waitingOf)
}
