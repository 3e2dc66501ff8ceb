package fsm

import (
	"slices"

	"github.com/quotad/quotad/fsm/ledger"
)

// Ageing also guards against starvation: a large request that is first in line, but never fits because critical calls take all that
// comes free, goes before these once it has been first for as long as the quota's ageing says.
//
// Who is first is found by going round the wait sets, once a second as far as an entry may look: each wait set offers its first waiter to its quotas,
// and a quota keeps the one that stands before all others that it was offered. So a round finds who is first, and until the next one nobody takes
// that place but who stands before it, however many wait sets others make.

// rankStarved is the rank of a starved waiter: before critical ones.
const rankStarved = -1

// maxFirstLooked bounds how many waiters of one wait set are looked at for who is first in line.
const maxFirstLooked = 16

// maxLookedPerEntry bounds how many waiters, by their quotas, one entry looks at for who is first in line. All that one caller may have waiting is
// looked at within some seconds.
const maxLookedPerEntry = 1 << 15

// ahead counts who waits for a quota before others: critical ones, those that are saved up for, and standard ones.
type ahead struct{ critical, saved, standard int64 }

// add counts waiters of a rank.
func (a *ahead) add(rank int32, count int64) {
	switch rank {
	case rankStarved:
		a.saved += count
	case ledger.ClassCritical:
		a.critical += count
	case ledger.ClassStandard:
		a.standard += count
	}
}

// reserveForStarved finds, once a second, the first waiter below critical ones for each quota with ageing, and puts it before all others
// once it has been first for too long: one for each quota at a time. It goes on where it stopped a second ago, and looks at each wait set once at most. New wait sets have higher
// numbers than all before: on the way down a round meets none of them, so each ends.
func (qu *queue) reserveForStarved() {
	if !qu.ticked || qu.quotas.ageingQuotas.Len() == 0 {
		return
	}
	from := qu.lookedFrom
	if qu.examineWaitSets(from, 0) {
		qu.examineWaitSets(qu.lastWaitSet, from)
	}
}

// examineWaitSets looks at wait sets from one on downwards, down to another one that is not looked at any more. It tells whether it came
// that far.
func (qu *queue) examineWaitSets(from, above uint32) (all bool) {
	qu.lookedFrom, all = 0, true
	qu.waitSets.Descend(from, func(number uint32, l *waitSet) bool {
		switch {
		case number <= above:
			return false
		case qu.bounds.looks.left == 0:
			qu.lookedFrom, all = number, false
			return false
		}
		qu.examineWaitSet(l)
		return true
	})
	return all
}

// examineWaitSet offers those quotas of a wait set that age who is first in it.
func (qu *queue) examineWaitSet(l *waitSet) {
	var ageing []uint32
	for _, number := range l.quotas {
		if q := qu.quotas.get(number); q != nil && q.rule.Policy.Ageing > 0 {
			ageing = append(ageing, number)
		}
	}
	firsts, looked := qu.firstsOf(l, ageing)
	qu.bounds.looks.spend(len(l.quotas) * max(looked, 1))
	for i, number := range ageing {
		qu.offerFirst(qu.quotas.editNow(number), l, firsts[i])
	}
}

// firstsOf returns, for each of some quotas of a wait set, the first waiter below critical ones that nothing but a shortage keeps waiting, nil where
// there is none; and how many were looked at.
func (qu *queue) firstsOf(l *waitSet, numbers []uint32) (firsts []*waiter, looked int) {
	firsts = make([]*waiter, len(numbers))
	missing := len(numbers)
	qu.order.Ascend(place{waitSet: l.number, rank: ledger.ClassStandard}, func(p place) bool {
		if p.waitSet != l.number || looked == maxFirstLooked || missing == 0 {
			return false
		}
		looked++
		w, _ := qu.waiters.Get(p.ticket)
		allowed, lacking := qu.keptByShortage(w)
		for i, number := range numbers {
			if allowed && firsts[i] == nil && (lacking || qu.quotas.get(number).ahead.critical > 0) {
				firsts[i] = w
				missing--
			}
		}
		return true
	})
	return firsts, looked
}

// offerFirst offers a quota the first waiter of a wait set, nil for none. A waiter that has been first for as long as ageing says goes before
// critical ones, unless something that it needs is saved up for already.
func (qu *queue) offerFirst(q *quota, l *waitSet, offered *waiter) {
	first, waits := qu.waiters.Get(q.first)
	elsewhere := waits && !first.starved && first.waitSet != l.number
	switch {
	case elsewhere && (offered == nil || before(first.place(), offered.place())):
	case offered == nil:
		q.first, q.firstSince = 0, 0
	case offered.ticket != q.first:
		q.first, q.firstSince = offered.ticket, qu.clock.Now
	case qu.clock.Now-q.firstSince >= q.rule.Policy.Ageing && !qu.reservesAlready(l):
		qu.change(offered, func(saved *waiter) { saved.starved = true })
	}
}

// reservesAlready tells whether something is saved up for already of a wait set's quotas.
func (qu *queue) reservesAlready(l *waitSet) bool {
	return slices.ContainsFunc(l.quotas, func(number uint32) bool {
		q := qu.quotas.get(number)
		return q != nil && q.ahead.saved > 0
	})
}

// keptByShortage tells whether a waiter may have what it asks for, were there enough of all that it needs, and whether it lacks something: what
// is short may change from one of its quotas to another.
func (qu *queue) keptByShortage(w *waiter) (allowed, lacking bool) {
	needs, failure := qu.judge.needs(w.req)
	if failure != nil || qu.gone(w) {
		return false, false
	}
	rq := qu.judge.requestOf(w)
	if onPool(needs) {
		return rq.keptByMembers(needs)
	}
	return rq.keptFrom(needs)
}

// keptByMembers tells the same of a waiter for pools: it may have one of their members, and lacks something of each that it may have.
func (rq *request) keptByMembers(needs []need) (allowed, lacking bool) {
	lacking = true
	for _, c := range choicesOf(needs) {
		if may, lacks := rq.keptFrom(c.needs); may && rq.reject(c.needs) == nil {
			allowed, lacking = true, lacking && lacks
		}
	}
	return allowed, allowed && lacking
}

// keptFrom tells the same of what it needs of quotas that are no pools.
func (rq *request) keptFrom(needs []need) (allowed, lacking bool) {
	if rq.withhold(needs) != nil {
		return false, false
	}
	for _, n := range needs {
		if n.quota.cooling(rq.clock.Now) && !n.quota.rule.Policy.Observe {
			return false, false
		}
		lacking = lacking || rq.lacks(n)
	}
	return true, lacking
}
