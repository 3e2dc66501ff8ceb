package fsm

import (
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// tryWaiter grants a waiter what it asked for, or sets its amounts aside where it is eligible.
func (m *Machine) tryWaiter(w *waiter, head *waitSetHead, aside map[uint32]int64, blocked map[uint32]bool) tried {
	if m.endGone(w) {
		return left
	}
	if w.until < m.clock.Now {
		m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WAIT_EXPIRED))
		return left
	}
	if head.pooled {
		return m.tryChoices(w, head.quotas[0], aside, blocked)
	}
	if slices.ContainsFunc(head.quotas, m.judge.closedNow) {
		return waitSetBlocked // ineligible, as everybody in this wait set: nothing is set aside
	}
	needs, failure := m.judge.needs(w.req)
	if failure != nil {
		m.endWait(w, refusalFrom(failure))
		return left
	}
	rq := m.judge.requestOf(w)
	if refusal := rq.reject(needs); refusal != nil {
		m.endWait(w, refusal)
		return left
	}
	if kept := m.passOver(&rq, needs, head.quotas[0]); kept != 0 {
		return kept
	}
	short := m.shortOf(w, &rq, needs, head.quotas[0], aside)
	if len(short) == 0 {
		m.leaveForGrant(w, needs)
		m.requests.Complete(requestHost{m}, w.from, w.ticket, m.grant(&rq, needs, w.ticket, w.account))
		return left
	}
	m.setAside(w, needs, head.quotas[0], short, aside, blocked)
	return waitSetBlocked
}

// refusalFrom makes the refusal of a waiter whose Reserve means nothing any more.
func refusalFrom(failure *logpb.Failure) *logpb.Refusal {
	return &logpb.Refusal{Reason: failure.Reason, Quota: failure.Quota, Advice: failure.Hint}
}

// closedNow tells whether a provider closed a quota, which does more than observe.
func (j *judge) closedNow(number uint32) bool {
	q := j.quotas.editNow(number)
	return q.cooling(j.clock.Now) && !q.rule.Policy.Observe
}

// passOver says that a waiter is ineligible, whatever there is of its quotas; 0: it is eligible. It is tried again at one of its quotas.
func (m *Machine) passOver(rq *request, needs []need, at uint32) tried {
	if slices.ContainsFunc(needs, func(n need) bool { return rq.rejectByOverride(n) != nil }) {
		return passedOver // until the override ends, whatever comes back
	}
	kept := rq.withhold(needs)
	if kept == nil {
		return 0
	}
	m.quotas.wakeAt(at, min(kept.refusal.RetryAtNs, (m.clock.Now/policyRetry+1)*policyRetry))
	if kept.class {
		return classPassedOver
	}
	return passedOver
}

// shortOf returns the numbers of the quotas of which there is not enough for a waiter, after what was set aside.
func (m *Machine) shortOf(w *waiter, rq *request, needs []need, at uint32, aside map[uint32]int64) (short []uint32) {
	rank := w.place().rank // nothing is kept from one that is saved up for
	for _, n := range needs {
		q := n.quota
		if q.rule.Policy.Observe {
			continue
		}
		waits := max(m.judge.rampWait(n), rq.burstWait(n))
		if waits > 0 {
			m.quotas.wakeAt(at, fixed.AddSaturated(m.clock.Now, waits))
		}
		there := q.ledger.Available(&q.rule) - aside[q.number]
		lent := there < n.amount || q.heldBack(rank, n.amount, there, m.clock.Now)
		if lent && there >= n.amount {
			m.quotas.wakeAt(at, q.heldBackUntil(rank, n.amount, m.asideFor(q, aside), m.clock.Now))
		}
		if lent || waits > 0 {
			short = append(short, q.number)
		}
	}
	return short
}

// asideFor returns what is set aside of a quota, as far as it decides when to try a waiter again.
func (m *Machine) asideFor(q *quota, aside map[uint32]int64) int64 {
	if m.featureLevel < levels.Aside {
		return 0
	}
	return aside[q.number]
}

// setAside sets the amounts of a waiter aside, in all quotas that it needs. Who comes after it is passed over where one of the short ones
// is needed.
func (m *Machine) setAside(w *waiter, needs []need, at uint32, short []uint32, aside map[uint32]int64, blocked map[uint32]bool) {
	m.workflows.ExtendOffers(w.req.Holder, m.clock.Now)
	for _, n := range needs {
		if ahead := n.quota.rule.Policy.Prediction.Ahead; w.rank == ledger.ClassBackground && n.quota.exhausted != 0 {
			m.quotas.wakeAt(at, n.quota.exhausted-ahead/stages) // from then on it is parked, and keeps nothing from others
		}
		aside[n.quota.number] = fixed.AddSaturated(aside[n.quota.number], n.amount)
	}
	for _, number := range short {
		blocked[number] = true
	}
}

// leaveForGrant takes a waiter out of the queue that is granted what it needs.
func (m *Machine) leaveForGrant(w *waiter, needs []need) {
	m.dequeue(w)
	for _, n := range needs {
		if t := m.holders.meterOf(n.quota, w.req.Holder); t != nil && w.until-w.req.WaitNs < m.clock.Now {
			t.Waits++
			t.WaitedNs = fixed.AddSaturated(t.WaitedNs, m.clock.Now-(w.until-w.req.WaitNs))
		}
	}
}
