package fsm

import (
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxWaitsPerEntry bounds the items of waiters that leave the queue or are promoted in one entry because their time has
// come.
const maxWaitsPerEntry = 4 * maxDuePerEntry

// cost returns the work of removing or moving a waiter.
func (w *waiter) cost() int { return max(w.shares, 1) }

// endWaits ends expired waits.
func (m *Machine) endWaits() {
	for m.bounds.waits.left > 0 {
		w, ok := m.queue.takeDue(m.queue.waitEnds)
		if !ok {
			return
		}
		if !m.endGone(w) {
			m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WAIT_EXPIRED))
		}
	}
}

// liveWaiter returns a waiter. A waiter that is about to leave the queue leaves here: a command that finds it earlier
// gets the same answer as later.
func (m *Machine) liveWaiter(ticket uint64) (*waiter, bool) {
	w, ok := m.queue.waiters.Get(ticket)
	return w, ok && !m.endGone(w)
}

// endGone removes a waiter whose session has ended or one of whose quotas was deleted; false: neither.
func (m *Machine) endGone(w *waiter) bool {
	if m.requests.Abandoned(w.from) {
		m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WITHDRAWN))
		return true
	}
	name, deleted := m.queue.lostQuota(w)
	if deleted {
		m.refuseFor(w, name)
	}
	return deleted
}

// endWait removes a waiter from the queue with its final result.
func (m *Machine) endWait(w *waiter, refusal *logpb.Refusal) {
	m.recordRefusal(w.req.Holder, refusal)
	m.finishWait(w, refusal)
}

// finishWait is endWait for a refusal that is already counted, or that no meter counts.
func (m *Machine) finishWait(w *waiter, refusal *logpb.Refusal) {
	m.queue.dequeue(w)
	refusal.BackPressure = m.workflows.Pressure(w.req.Holder, m.clock.Now)
	result := effect.Refused(refusal)
	m.requests.Complete(requestHost{m}, w.from, w.ticket, result)
	m.emit(effect.Event{
		Kind: effect.EventWaitEnded, Quota: refusal.Quota, Holder: w.req.Holder, Ticket: w.ticket,
		Reason: refusal.Reason, Result: result,
	})
}

// refusalOf returns a waiter's refusal: the given reason, with the present obstacle.
func (m *Machine) refusalOf(w *waiter, reason logpb.Reason) *logpb.Refusal {
	m.asker = w.ticket
	refusal := &logpb.Refusal{}
	needs, failure := m.judge.needs(w.req)
	if failure == nil {
		rq := m.judge.requestOf(w)
		refusal = rq.inLine(needs)
	}
	refusal.Reason = reason
	if reason == logpb.Reason_REASON_WAIT_EXPIRED {
		refusal.Advice = "come back then, or wait for longer"
	}
	return refusal
}

// withdraw removes a waiting Reserve from the queue.
func (m *Machine) withdraw(command *logpb.Withdraw, by string) *logpb.Result {
	w, ok := m.liveWaiter(command.Ticket)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_TICKET, "no Reserve waits under this ticket",
			"it was granted, refused or withdrawn before")
	}
	if by != "" && !Match(by, w.req.Holder) {
		return effect.Fail(logpb.Reason_REASON_FOREIGN_LEASE, "the waiting Reserve belongs to another holder", "")
	}
	m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WITHDRAWN))
	return effect.Done()
}
