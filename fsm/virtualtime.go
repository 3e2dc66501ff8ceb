package fsm

import (
	"math"

	"github.com/quotad/quotad/fsm/fixed"
)

// entryVirtualTime returns the virtual time at which a holder enters the queue: the highest among the quotas that it
// needs. For a quota and a class it is the smallest virtual time of a waiter, but at most the largest that was served.
// A holder with one request at a time has no waiter when it is served. It must not take over the others' virtual time
// each time.
func (qu *queue) entryVirtualTime(needs []need, rank int32) (entry uint64) {
	for _, n := range needs {
		if virtualTime, waits := qu.minVirtualTime(n.quota.number, rank); waits {
			entry = max(entry, min(virtualTime, n.quota.servedTo[rank]))
		}
	}
	return entry
}

// leastSearched is how many wait sets of a quota are searched for the smallest virtual time even if passes have used up
// the entry's bound.
const leastSearched = 8

// minVirtualTime returns the smallest virtual time of a class's waiters for a quota. It searches the oldest wait sets,
// within the entry's bound.
func (qu *queue) minVirtualTime(number uint32, rank int32) (virtualTime uint64, ok bool) {
	most, scanned := qu.bounds.tries.part(leastSearched), 0
	qu.waitSetsOf.Ascend(quotaWaitSet{quota: number}, func(pair quotaWaitSet) bool {
		if pair.quota != number || scanned == most {
			return false
		}
		scanned++
		qu.order.Ascend(place{waitSet: pair.waitSet, rank: rank}, func(p place) bool {
			if p.waitSet == pair.waitSet && p.rank == rank && (!ok || p.virtualTime < virtualTime) {
				virtualTime, ok = p.virtualTime, true
			}
			return false
		})
		return true
	})
	qu.bounds.tries.spend(scanned)
	return virtualTime, ok
}

// recordServed records the virtual time at which needs are granted.
func recordServed(needs []need, rank int32, virtualTime uint64) {
	for _, n := range needs {
		n.quota.servedTo[rank] = max(n.quota.servedTo[rank], virtualTime)
	}
}

// addCost adds a cost, which may be negative, to a holder's virtual time, and reorders its waiters. A remainder below one step is carried
// over: if grants cost less than the holder's weight, its virtual time would never advance, and the holder would always go first. An
// unknown holder has no virtual time: a release or a Settle creates no record.
func (qu *queue) addCost(name string, by int64) {
	if by == 0 || !qu.holders.knows(name) {
		return
	}
	h := qu.holders.use(name)
	_, weight := qu.judge.rules.of(name)
	whole := fixed.AddSaturated(by, h.rest)
	step := fixed.FloorDiv(whole, int64(weight))
	virtualTime := addVirtualTime(h.virtualTime, step)
	if h.rest = whole - step*int64(weight); virtualTime == 0 && step < 0 {
		h.rest = 0
	}
	qu.setVirtualTime(h, virtualTime)
}

// addVirtualTime adds a step to a virtual time, saturated at both ends.
func addVirtualTime(virtualTime uint64, step int64) uint64 {
	switch moved := virtualTime + uint64(step); {
	case step < 0 && uint64(-step) > virtualTime:
		return 0
	case step > 0 && moved < virtualTime:
		return math.MaxUint64
	default:
		return moved
	}
}
