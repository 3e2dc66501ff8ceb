package fsm

// entryVirtualTime returns the virtual time at which a holder enters the queue: the highest among the quotas that it needs. For a quota and
// a class it is the smallest virtual time of a waiter, but at most the largest that was served: a holder that asks for one thing at a
// time has no waiter when it is served, and must not take over the others' virtual time each time.
func (m *Machine) entryVirtualTime(needs []need, rank int32) (entry uint64) {
	for _, n := range needs {
		if virtualTime, waits := m.minVirtualTime(n.quota.number, rank); waits {
			entry = max(entry, min(virtualTime, n.quota.servedTo[rank]))
		}
	}
	return entry
}

// leastSearched is how many wait sets of a quota are searched for the smallest virtual time when passes have used up the entry's bound.
const leastSearched = 8

// minVirtualTime returns the smallest virtual time of a class's waiters for a quota. It searches the oldest wait sets, as many as the entry may.
func (m *Machine) minVirtualTime(number uint32, rank int32) (virtualTime uint64, ok bool) {
	most, looked := m.bounds.tries.part(leastSearched), 0
	m.waitSetsOf.Ascend(quotaWaitSet{quota: number}, func(ql quotaWaitSet) bool {
		if ql.quota != number || looked == most {
			return false
		}
		looked++
		m.order.Ascend(place{waitSet: ql.waitSet, rank: rank}, func(p place) bool {
			if p.waitSet == ql.waitSet && p.rank == rank && (!ok || p.virtualTime < virtualTime) {
				virtualTime, ok = p.virtualTime, true
			}
			return false
		})
		return true
	})
	m.bounds.tries.spend(looked)
	return virtualTime, ok
}

// recordServed records the virtual time at which needs are granted.
func recordServed(needs []need, rank int32, virtualTime uint64) {
	for _, n := range needs {
		n.quota.servedTo[rank] = max(n.quota.servedTo[rank], virtualTime)
	}
}
