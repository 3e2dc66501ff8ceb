package fsm

// entryVirtualTime returns the turn at which a holder enters a line: the highest among the quotas that it needs. A quota's level in
// a class is the smallest turn that waits for it, but not more than the largest that was served: a holder that asks for
// one thing at a time is never in line when it is served, and the others' turns must not become its own each time.
func (m *Machine) entryVirtualTime(needs []need, rank int32) (entry uint64) {
	for _, n := range needs {
		if virtualTime, waits := m.minVirtualTime(n.quota.number, rank); waits {
			entry = max(entry, min(virtualTime, n.quota.servedTo[rank]))
		}
	}
	return entry
}

// leastSearched is in how many lanes of a quota the smallest turn is looked for when passes have used up what an entry may look at.
const leastSearched = 8

// minVirtualTime returns the smallest turn of a class that waits for a quota: in as many of its lanes, the oldest ones, as an entry may look at.
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

// recordServed notes at which turn needs are granted.
func recordServed(needs []need, rank int32, virtualTime uint64) {
	for _, n := range needs {
		n.quota.servedTo[rank] = max(n.quota.servedTo[rank], virtualTime)
	}
}
