package fsm

// level returns the turn at which a holder enters a line: the highest among the quotas that it needs. A quota's level in
// a class is the smallest turn that waits for it, but not more than the largest that was served: a holder that asks for
// one thing at a time is never in line when it is served, and the others' turns must not become its own each time.
func (m *Machine) level(needs []need, rank int32) (level uint64) {
	for _, n := range needs {
		if turn, waits := m.smallestTurn(n.quota.number, rank); waits {
			level = max(level, min(turn, n.quota.served[rank]))
		}
	}
	return level
}

// leastLevelled is in how many lanes of a quota the smallest turn is looked for when passes have used up what an entry may look at.
const leastLevelled = 8

// smallestTurn returns the smallest turn of a class that waits for a quota: in as many of its lanes, the oldest ones, as an entry may look at.
func (m *Machine) smallestTurn(number uint32, rank int32) (turn uint64, ok bool) {
	most, looked := m.bounds.tries.part(leastLevelled), 0
	m.lanesOf.Ascend(quotaLane{quota: number}, func(ql quotaLane) bool {
		if ql.quota != number || looked == most {
			return false
		}
		looked++
		m.order.Ascend(place{lane: ql.lane, rank: rank}, func(p place) bool {
			if p.lane == ql.lane && p.rank == rank && (!ok || p.turn < turn) {
				turn, ok = p.turn, true
			}
			return false
		})
		return true
	})
	m.bounds.tries.spend(looked)
	return turn, ok
}

// noteServed notes at which turn needs are granted.
func noteServed(needs []need, rank int32, turn uint64) {
	for _, n := range needs {
		n.quota.served[rank] = max(n.quota.served[rank], turn)
	}
}
