package fsm

import "math"

// What waits may be given something by the mere passing of time. Each quota that is waited for is listed by when to look at it
// again, so that an entry looks at those whose time has come, whatever waits besides.

// reason is why a quota is looked at; each has its own view of time.
type reason int8

const (
	// touched: a command had to do with it, and what its policy withholds may have changed: with the next entry.
	touched reason = 0
	// again: a waiter that was passed over may be given something, in cluster time.
	again reason = 1
	// ends: something stops counting, in cluster time, by the earlier view of Unix time, or a window begins to close, by the
	// later one.
	endsInCluster reason = 2
	endsEarly     reason = 3
	endsLate      reason = 4
	reasons              = 5
)

// visit is when to look at a quota that is waited for.
type visit struct {
	why   reason
	at    int64
	quota uint32
}

func lessVisit(a, b visit) bool {
	if a.why != b.why {
		return a.why < b.why
	}
	return a.at < b.at || a.at == b.at && a.quota < b.quota
}

// clockFor returns the present by the view of time that a reason goes by.
func (c Clock) clockFor(why reason) int64 {
	switch why {
	case endsEarly:
		return c.WallEarly
	case endsLate:
		return c.WallLate
	case touched, again, endsInCluster:
	}
	return c.Now
}

// noVisit is no time.
const noVisit = int64(math.MinInt64)

// policyVisit is how often waiters are tried that policy withholds something from: some of what it goes by changes unseen, such
// as how long ago a higher class asked.
const policyVisit = second

// visits returns when to look at a quota, for each reason.
func (q *quota) visits() (at [reasons]int64) {
	for why := range at {
		at[why] = noVisit
	}
	if q.waiting == 0 {
		return at
	}
	if q.touched {
		at[touched] = 0
	}
	if q.again != 0 {
		at[again] = q.again
	}
	early, late := q.ledger.changes(&q.rule)
	if q.rule.kind != kindWindow {
		at[endsInCluster] = early
		return at
	}
	at[endsEarly], at[endsLate] = early, late
	return at
}

// changes returns when something changes by itself, by the earlier and the later view of time; noVisit: nothing does.
func (g *ledger) changes(r *rule) (early, late int64) {
	late = noVisit
	first := func(after int64) int64 {
		if len(g.log) == 0 {
			return noVisit
		}
		return addSaturated(g.log[0].end, after)
	}
	switch {
	case r.kind == kindRate:
		early = first(r.period + 1)
	case r.kind == kindSlots:
		early = first(0)
	case !r.anchored:
		early, late = r.span(g.cutoff).end+r.skew, g.window-r.skew
		if g.capped != noCap {
			early = min(early, g.capEnd)
		}
	default:
		return g.changesAnchored(r)
	}
	return early, late
}

// impatient tells whether waiters may be given something although nothing of the quota changes.
func (r *rule) impatient() bool { return r.burst > 0 || r.policy.timed() }

// touch notes that a quota may have changed, so that it is listed anew when the entry is done.
func (m *Machine) touch(q *quota) {
	if q.waiting == 0 && !q.listed {
		return
	}
	if q.touchedIn != m.index {
		q.touchedIn = m.index
		m.unlisted = append(m.unlisted, q.number)
	}
	q.touched = q.touched || m.commanded && q.rule.impatient()
}

// list lists the quotas that were touched by when to look at them.
func (m *Machine) list() {
	for _, number := range m.unlisted {
		if q := m.look(number); q != nil {
			m.relist(q)
		}
	}
	m.unlisted = m.unlisted[:0]
}

// relist lists a quota by when to look at it; one that is not waited for is not listed.
func (m *Machine) relist(q *quota) {
	if q.waiting == 0 {
		q.touched, q.again = false, 0
	}
	if q.waiting > 0 && q.rule.policy.ageing > 0 {
		m.agers.Set(q.number, struct{}{})
	} else {
		m.agers.Delete(q.number)
	}
	at := q.visits()
	for why := range reason(reasons) {
		was := noVisit
		if q.listed {
			was = q.listedAt[why]
		}
		if was == at[why] {
			continue
		}
		if was != noVisit {
			m.visits.Delete(visit{why: why, at: was, quota: q.number})
		}
		if at[why] != noVisit {
			m.visits.Set(visit{why: why, at: at[why], quota: q.number})
		}
	}
	q.listed, q.listedAt = q.waiting > 0, at
}

// relieveWaited finds out of which waited-for quotas something came free by the mere passing of time.
func (m *Machine) relieveWaited() {
	for why := range reason(reasons) {
		now := m.clock.clockFor(why)
		var due []uint32
		m.visits.Ascend(visit{why: why, at: noVisit}, func(v visit) bool {
			if v.why != why || v.at > now || len(due) == maxDuePerEntry && why != touched { // as many as the last entry touched
				return false
			}
			due = append(due, v.quota)
			return true
		})
		for _, number := range due {
			if q := m.quota(number); why <= again || q.rule.impatient() {
				m.relieved(q)
			}
		}
	}
}

// tryAgain notes when waiters that were passed over should be tried again.
func (m *Machine) tryAgain(number uint32, at int64) {
	if at <= m.clock.Now {
		return
	}
	if q := m.mutableQuota(number); q.again == 0 || at < q.again {
		q.again = at
	}
}

// nextVisit returns the first cluster time, the present at the earliest, at which a quota that is waited for should be looked at; the
// largest int64: never, or nobody knows. What was touched waits for the next entry, whatever brings it.
func (s *State) nextVisit(present func() (Clock, bool)) int64 {
	first := int64(math.MaxInt64)
	for why := again; why < reasons; why++ {
		s.visits.Ascend(visit{why: why, at: noVisit}, func(v visit) bool {
			if v.why != why {
				return false
			}
			from, ok := s.clock, true
			if why == endsEarly || why == endsLate {
				from, ok = present()
			}
			if ok {
				first = min(first, addSaturated(max(from.Now, s.clock.Now), max(v.at-from.clockFor(why), 0)))
			}
			return false
		})
	}
	return first
}
