package fsm

import (
	"slices"

	"github.com/quotad/quotad/fsm/ledger"
)

// Ageing also guards against starvation. A large request may be first in line and never fit, because critical calls
// take all that becomes free. It goes before these once it has been first for as long as the quota's ageing says.
//
// The first waiter is found by rounds over the wait sets, once a second, within the entry's bound. Each wait set offers
// its first waiter to its quotas, and a quota keeps the one before all others. So a round finds the first waiter. Until
// the next round only a waiter before it can replace it, however many wait sets others make.

// rankStarved is the rank of a starved waiter: before critical ones.
const rankStarved = -1

// maxFirstScanned bounds how many waiters of one wait set are examined to find the first in line.
const maxFirstScanned = 16

// maxScannedPerEntry bounds how many waiters, by their quotas, one entry examines to find the first in line. All waiters
// of one caller are examined within some seconds.
const maxScannedPerEntry = 1 << 15

// ahead counts waiters for a quota that go before others: critical ones, starved ones with a reserve, and standard
// ones.
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

// reserveForStarved finds, once a second, the first waiter below critical ones for each quota with ageing. It puts that
// waiter before all others once it has been first for too long: one at a time for each quota. It continues where it
// stopped a second ago, and examines each wait set at most once. New wait sets have the highest numbers, so a
// descending round meets none of them and ends.
func (qu *queue) reserveForStarved() {
	if !qu.ticked || qu.quotas.ageingQuotas.Len() == 0 {
		return
	}
	from := qu.scannedFrom
	if qu.examineWaitSets(from, 0) {
		qu.examineWaitSets(qu.lastWaitSet, from)
	}
}

// examineWaitSets examines wait sets in descending order, from one down to above, exclusive. It reports whether it
// finished.
func (qu *queue) examineWaitSets(from, above uint32) (all bool) {
	qu.scannedFrom, all = 0, true
	qu.waitSets.Descend(from, func(number uint32, ws *waitSet) bool {
		switch {
		case number <= above:
			return false
		case qu.bounds.scans.left == 0:
			qu.scannedFrom, all = number, false
			return false
		}
		qu.examineWaitSet(ws)
		return true
	})
	return all
}

// examineWaitSet offers the first waiter of a wait set to each of its quotas with ageing.
func (qu *queue) examineWaitSet(ws *waitSet) {
	var ageing []uint32
	for _, number := range ws.quotas {
		if q := qu.quotas.get(number); q != nil && q.rule.Policy.Ageing > 0 {
			ageing = append(ageing, number)
		}
	}
	firsts, scanned := qu.firstsOf(ws, ageing)
	qu.bounds.scans.spend(len(ws.quotas) * max(scanned, 1))
	for i, number := range ageing {
		qu.offerFirst(qu.quotas.editNow(number), ws, firsts[i])
	}
}

// firstsOf returns, for each of some quotas of a wait set, the first waiter below critical ones that only a shortage
// keeps waiting, nil if there is none. It also returns how many it examined.
func (qu *queue) firstsOf(ws *waitSet, numbers []uint32) (firsts []*waiter, scanned int) {
	firsts = make([]*waiter, len(numbers))
	missing := len(numbers)
	qu.order.Ascend(place{waitSet: ws.number, rank: ledger.ClassStandard}, func(p place) bool {
		if p.waitSet != ws.number || scanned == maxFirstScanned || missing == 0 {
			return false
		}
		scanned++
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
	return firsts, scanned
}

// offerFirst offers a quota the first waiter of a wait set, nil for none. A waiter that has been first for as long as
// ageing says goes before critical ones, unless one of its quotas already has a reserve.
func (qu *queue) offerFirst(q *quota, ws *waitSet, offered *waiter) {
	first, waits := qu.waiters.Get(q.first)
	elsewhere := waits && !first.starved && first.waitSet != ws.number
	switch {
	case elsewhere && (offered == nil || before(first.place(), offered.place())):
	case offered == nil:
		q.first, q.firstSince = 0, 0
	case offered.ticket != q.first:
		q.first, q.firstSince = offered.ticket, qu.clock.Now
	case qu.clock.Now-q.firstSince >= q.rule.Policy.Ageing && !qu.reservesAlready(ws):
		qu.change(offered, func(saved *waiter) { saved.starved = true })
	}
}

// reservesAlready reports whether one of a wait set's quotas already has a reserve for a starved waiter.
func (qu *queue) reservesAlready(ws *waitSet) bool {
	return slices.ContainsFunc(ws.quotas, func(number uint32) bool {
		q := qu.quotas.get(number)
		return q != nil && q.ahead.saved > 0
	})
}

// keptByShortage reports whether policy allows a waiter what it requests, and whether it lacks something. The shortage
// may move from one of its quotas to another.
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

// keptByMembers is keptByShortage for pools: policy allows one of the members, and each allowed one lacks something.
func (rq *request) keptByMembers(needs []need) (allowed, lacking bool) {
	lacking = true
	for _, c := range choicesOf(needs) {
		if may, lacks := rq.keptFrom(c.needs); may && rq.reject(c.needs) == nil {
			allowed, lacking = true, lacking && lacks
		}
	}
	return allowed, allowed && lacking
}

// keptFrom is keptByShortage for needs without pools.
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
