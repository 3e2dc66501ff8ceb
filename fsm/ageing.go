package fsm

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
)

// priority is the priority of a Reserve in the queue.
type priority struct {
	// class is its own class: by the operator's rules, or lower on request. It selects caps and shares.
	class int32
	// rank is the class that orders it in the queue, in zones and against shares: its own, or standard once ageing
	// promoted it.
	rank int32
}

// promotesAt returns when a holder's background request counts as standard (cluster time); 0: never. Where several of
// its quotas have ageing, the latest of their times counts.
func (j *judge) promotesAt(name string, as priority, needs []need) (at int64) {
	if as.rank != ledger.ClassBackground {
		return 0
	}
	for _, n := range needs {
		ageing := n.quota.rule.Policy.Ageing
		if ageing == 0 {
			continue
		}
		denied := j.holders.statsOf(name, n.quota).denied
		if denied == 0 {
			denied = j.clock.Now
		}
		at = max(at, fixed.AddSaturated(denied, ageing))
	}
	return at
}

// recordStarving records since when a background holder has been granted nothing.
func (hs *holderTables) recordStarving(name string, as priority, needs []need) {
	if as.class != ledger.ClassBackground {
		return
	}
	for _, n := range needs {
		if n.quota.rule.Policy.Ageing == 0 {
			continue
		}
		hs.use(name) // keeps the record of a holder whose requests fail
		if hs.statsOf(name, n.quota).denied != 0 {
			continue
		}
		hs.editStats(name, n.quota).denied = max(hs.clock.Now, 1)
	}
}

// promote raises background waiters to standard once their holders have waited as long as the ageing policy says.
func (qu *queue) promote() {
	for qu.bounds.waits.left > 0 {
		w, ok := qu.takeDue(qu.promotions)
		if !ok {
			return
		}
		floor := qu.standardVirtualTime(w)
		qu.change(w, func(aged *waiter) { aged.rank, aged.promotedAt, aged.promoteAt = ledger.ClassStandard, floor, 0 })
	}
}

// standardVirtualTime returns the virtual time of the first standard waiter for any quota that a waiter needs. A
// promoted waiter that enters there goes behind older tickets of the same virtual time, and before waiters whose
// holders were granted more.
func (qu *queue) standardVirtualTime(w *waiter) (first uint64) {
	ws, _ := qu.waitSets.Get(w.waitSet)
	for _, number := range ws.quotas {
		if virtualTime, waits := qu.minVirtualTime(number, ledger.ClassStandard); waits {
			first = max(first, virtualTime)
		}
	}
	return first
}

// demote demotes the promoted waiters of a holder that was granted something. It does so at once, or, if the entry has
// used up its bound, after the last command, once for all grants of the holder.
func (qu *queue) demote(name string) {
	h, ok := qu.holders.byName.Get(name)
	switch {
	case !ok || h.waiting == 0:
	case qu.bounds.walks.left == 0:
		qu.toDemote.Insert(name)
	default:
		qu.bounds.walks.spend(qu.demoteNow(name))
	}
}

// demoteNow puts the other background waiters of a holder back into their class after a grant in any class: ageing is
// per holder, not per request. A waiter for other quotas keeps its age. It returns the number of items of the holder's
// waiters.
func (qu *queue) demoteNow(name string) (visited int) {
	var waiting []*waiter
	qu.eachOf(name, func(w *waiter) bool {
		visited += w.cost()
		if w.class == ledger.ClassBackground {
			waiting = append(waiting, w)
		}
		return true
	})
	for _, w := range waiting {
		needs, _ := qu.judge.needs(w.req)
		ages := qu.judge.promotesAt(name, priority{class: w.class, rank: w.class}, needs)
		if ages == w.promoteAt && w.rank == w.class || ages != 0 && ages <= qu.clock.Now {
			continue
		}
		qu.promotions.Delete(due{At: w.promoteAt, ID: w.ticket})
		if ages != 0 {
			qu.promotions.Set(due{At: ages, ID: w.ticket})
		}
		qu.change(w, func(young *waiter) { young.rank, young.promotedAt, young.promoteAt = young.class, 0, ages })
		for _, n := range needs {
			qu.reordered[n.quota.number] = true
		}
	}
	return visited
}
