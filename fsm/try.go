package fsm

import (
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// pass is one pass over the queue. It holds the amounts set aside for the first waiters, and the quotas that are short
// for them, so that waiters behind them are passed over.
type pass struct {
	*judge
	aside   map[uint32]int64
	blocked map[uint32]bool
}

// maxPassRoom bounds the size of maps that is kept from one pass for the next: more quotas than usual passes meet.
const maxPassRoom = 256

// begin resets the pass.
func (p *pass) begin(j *judge) {
	if p.judge = j; p.aside == nil || len(p.aside)+len(p.blocked) > maxPassRoom {
		p.aside, p.blocked = map[uint32]int64{}, map[uint32]bool{}
	}
	clear(p.aside)
	clear(p.blocked)
}

func (p *pass) isBlocked(number uint32) bool { return p.blocked[number] }

// serving adapts the machine to the queue.
type serving struct{ m *Machine }

// try implements server.
func (s serving) try(w *waiter, head *waitSetHead, p *pass) tried { return s.m.tryWaiter(w, head, p) }

// tryWaiter grants a waiter what it requested, or sets its amounts aside if it is eligible.
func (m *Machine) tryWaiter(w *waiter, head *waitSetHead, p *pass) tried {
	if m.endGone(w) {
		return left
	}
	if w.until < m.clock.Now {
		m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WAIT_EXPIRED))
		return left
	}
	if head.pooled {
		return m.tryChoices(w, head.quotas[0], p)
	}
	if slices.ContainsFunc(head.quotas, m.judge.closedNow) {
		return waitSetBlocked // ineligible, like every waiter in this wait set: nothing is set aside
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
	if kept := p.passOver(&rq, needs, head.quotas[0]); kept != 0 {
		return kept
	}
	short := p.shortOf(w, &rq, needs, head.quotas[0])
	if len(short) == 0 {
		m.leaveForGrant(w, needs)
		m.requests.Complete(requestHost{m}, w.from, w.ticket, m.grant(&rq, needs, w.ticket, w.account))
		return left
	}
	p.setAside(w, needs, head.quotas[0], short)
	return waitSetBlocked
}

// refusalFrom returns the refusal of a waiter whose Reserve is no longer valid.
func refusalFrom(failure *logpb.Failure) *logpb.Refusal {
	return &logpb.Refusal{Reason: failure.Reason, Quota: failure.Quota, Advice: failure.Hint}
}

// closedNow reports whether a provider closed a quota that does more than observe.
func (j *judge) closedNow(number uint32) bool {
	q := j.quotas.editNow(number)
	return q.cooling(j.clock.Now) && !q.rule.Policy.Observe
}

// passOver returns how to pass over a waiter that is ineligible, whatever its quotas have; 0: it is eligible. It sets
// when to try the waiter again, at the quota at.
func (p *pass) passOver(rq *request, needs []need, at uint32) tried {
	if slices.ContainsFunc(needs, func(n need) bool { return rq.rejectByOverride(n) != nil }) {
		return passedOver // until the override ends, even if amounts return
	}
	kept := rq.withhold(needs)
	if kept == nil {
		return 0
	}
	p.quotas.wakeAt(at, min(kept.refusal.RetryAtNs, (p.clock.Now/policyRetry+1)*policyRetry))
	if kept.class {
		return classPassedOver
	}
	return passedOver
}

// shortOf returns the numbers of the quotas that are too short for a waiter after the amounts set aside.
func (p *pass) shortOf(w *waiter, rq *request, needs []need, at uint32) (short []uint32) {
	rank := w.place().rank // nothing is kept from a starved waiter with a reserve
	for _, n := range needs {
		q := n.quota
		if q.rule.Policy.Observe {
			continue
		}
		waits := max(p.rampWait(n), rq.burstWait(n))
		if waits > 0 {
			p.quotas.wakeAt(at, fixed.AddSaturated(p.clock.Now, waits))
		}
		there := q.ledger.Available(&q.rule) - p.aside[q.number]
		lent := there < n.amount || q.heldBack(rank, n.amount, there, p.clock.Now)
		if lent && there >= n.amount {
			p.quotas.wakeAt(at, q.heldBackUntil(rank, n.amount, p.asideFor(q), p.clock.Now))
		}
		if lent || waits > 0 {
			short = append(short, q.number)
		}
	}
	return short
}

// asideFor returns the amount set aside of a quota, as far as it decides when to try a waiter again.
func (p *pass) asideFor(q *quota) int64 {
	if p.featureLevel < levels.RetriesCountSetAside {
		return 0
	}
	return p.aside[q.number]
}

// setAside sets the amounts of a waiter aside, in all quotas that it needs. Later waiters that need one of the short
// quotas are passed over.
func (p *pass) setAside(w *waiter, needs []need, at uint32, short []uint32) {
	p.workflows.ExtendOffers(w.req.Holder, p.clock.Now)
	for _, n := range needs {
		if ahead := n.quota.rule.Policy.Prediction.Ahead; w.rank == ledger.ClassBackground && n.quota.exhausted != 0 {
			p.quotas.wakeAt(at, n.quota.exhausted-ahead/stages) // from then on it is parked, and keeps nothing from others
		}
		p.aside[n.quota.number] = fixed.AddSaturated(p.aside[n.quota.number], n.amount)
	}
	for _, number := range short {
		p.blocked[number] = true
	}
}

// leaveForGrant removes a waiter from the queue before its grant.
func (m *Machine) leaveForGrant(w *waiter, needs []need) {
	m.queue.dequeue(w)
	for _, n := range needs {
		if t := m.holders.meterOf(n.quota, w.req.Holder); t != nil && w.until-w.req.WaitNs < m.clock.Now {
			t.Waits++
			t.WaitedNs = fixed.AddSaturated(t.WaitedNs, m.clock.Now-(w.until-w.req.WaitNs))
		}
	}
}
