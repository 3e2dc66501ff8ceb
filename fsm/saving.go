package fsm

import "math"

// Ageing also saves up: a large amount that is first in line, and never there because critical calls take what comes free,
// goes before these once it has been first for as long as the quota's ageing says.

// rankSaved is the rank, in the order, of a waiter that is saved up for: before critical ones.
const rankSaved = -1

// maxFirstLooked bounds how many waiters of one lane are looked at for who is first in line.
const maxFirstLooked = 16

// saveUp finds out, once a second, who is first in line below critical waiters, and has go first who has been for too long:
// one for each quota at a time.
func (m *Machine) saveUp() {
	if !m.ticked {
		return
	}
	for _, number := range m.agers.Keys() {
		q := m.quota(number)
		w := m.firstInLine(q)
		switch {
		case w == nil:
			q.first, q.firstSince = 0, 0
		case w.ticket != q.first:
			q.first, q.firstSince = w.ticket, m.clock.Now
		case m.clock.Now-q.firstSince >= q.rule.policy.ageing && !m.savesUp(w):
			m.changeWaiter(w, func(saved *waiter) { saved.saved = true })
		}
	}
}

// savesUp tells whether something is saved up for already of a quota that a waiter needs.
func (m *Machine) savesUp(w *waiter) bool {
	l, _ := m.lanes.Get(w.lane)
	for _, number := range l.quotas {
		if _, saved, _ := m.smallestTurnIn(number, rankSaved, math.MaxInt); saved {
			return true
		}
	}
	return false
}

// firstInLine returns the first waiter below critical ones that nothing but a shortage of a quota keeps waiting; nil: there
// is none.
func (m *Machine) firstInLine(q *quota) (first *waiter) {
	m.lanesOf.Ascend(quotaLane{quota: q.number}, func(ql quotaLane) bool {
		if ql.quota != q.number {
			return false
		}
		if w := m.firstOfLane(ql.lane, q); w != nil && (first == nil || before(w.place(), first.place())) {
			first = w
		}
		return true
	})
	return first
}

func (m *Machine) firstOfLane(number uint32, q *quota) (first *waiter) {
	looked := 0
	m.order.Ascend(place{lane: number, rank: classStandard}, func(p place) bool {
		looked++
		if p.lane != number || looked > maxFirstLooked {
			return false
		}
		if w, _ := m.waiters.Get(p.ticket); m.isShort(w, q) {
			first = w
		}
		return first == nil
	})
	return first
}

// isShort tells whether a waiter may have what it asks for, were there enough of all that it needs: what is short may
// change from one of its quotas to another.
func (m *Machine) isShort(w *waiter, of *quota) bool {
	needs, failed := m.needs(w.ask)
	if failed != nil || m.goneWaiter(w) || m.withholds(w.ask, w.standing, needs) != nil {
		return false
	}
	_, critical := m.smallestTurn(of.number, classCritical)
	short := critical
	for _, n := range needs {
		if n.quota.cooling(m.clock.Now) && !n.quota.rule.policy.observe {
			return false
		}
		short = short || m.lacks(w.ask, n)
	}
	return short
}
