package fsm

import (
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxWaitsPerEntry bounds the items of waiters that leave the queue, or are promoted, in one entry because their time has come.
const maxWaitsPerEntry = 4 * maxDuePerEntry

// cost is what a waiter takes of an entry's work when it leaves or changes its place.
func (w *waiter) cost() int { return max(w.shares, 1) }

// endWaits ends waits that are over.
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

// liveWaiter returns a waiter. One that is to leave the queue, and has not come to it yet, leaves here, so that who meets it before finds
// what comes after.
func (m *Machine) liveWaiter(ticket uint64) (*waiter, bool) {
	w, ok := m.queue.waiters.Get(ticket)
	return w, ok && !m.endGone(w)
}

// endGone takes a waiter out of the queue whose session has ended, or of whose quotas one was deleted; false: it is neither.
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

// endWait takes a waiter out of the queue with its final result.
func (m *Machine) endWait(w *waiter, refusal *logpb.Refusal) {
	m.recordRefusal(w.req.Holder, refusal)
	m.finishWait(w, refusal)
}

// finishWait does so for one of whose refusal the binding quota's meter has been told, or there is none.
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

// refusalOf makes a waiter's refusal: for a reason of its own, with what stands in the way now.
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

// withdraw takes a waiting Reserve out of the queue.
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
