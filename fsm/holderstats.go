package fsm

import "cmp"

// holderStats is what is remembered of one holder's use of one quota whose policy asks for it.
type holderStats struct {
	generation uint64
	holder     string
	quota      uint32
	// grants is how often the holder was granted some of it, granted when it was last (cluster time).
	grants, granted int64
	// failures counts the provider's refusals in a row; closedUntil is when the quota opens for the holder again.
	failures    int32
	closedUntil int64
	// denied is since when the holder asks and is granted nothing; 0: it does not. It is noted where background work ages.
	denied int64
}

func lessStats(a, b *holderStats) bool {
	return cmp.Or(cmp.Compare(a.holder, b.holder), cmp.Compare(a.quota, b.quota)) < 0
}

// statsOf returns a tally for reading; the zero value where nothing is remembered.
func (s *State) statsOf(name string, q *quota) holderStats {
	if t, ok := s.stats.Get(&holderStats{holder: name, quota: q.number}); ok {
		return *t
	}
	return holderStats{}
}

// hasStats tells whether there is a tally.
func (s *State) hasStats(name string, q *quota) bool {
	_, ok := s.stats.Get(&holderStats{holder: name, quota: q.number})
	return ok
}

// holderStats returns a tally that may be changed. Its holder is remembered at least as long.
func (m *Machine) editStats(name string, q *quota) *holderStats {
	h := m.useHolder(name)
	t, ok := m.stats.Get(&holderStats{holder: name, quota: q.number})
	if ok && t.generation == m.generation {
		return t
	}
	c := holderStats{holder: h.name, quota: q.number}
	if ok {
		c = *t
	} else {
		m.addTo(h.account, budgetHolders, statsSize)
	}
	c.generation = m.generation
	m.stats.Set(&c)
	return &c
}

// closeFor closes a quota for a tally's holder until a time; 0: it is open again.
func (m *Machine) closeFor(t *holderStats, until int64) {
	t.closedUntil = until
	if until == 0 {
		m.closed.Delete(t.place())
		return
	}
	m.closed.Set(t.place())
}

// place is where a tally stands in the table of those with a closing breaker.
func (t *holderStats) place() quotaHolder { return quotaHolder{quota: t.quota, holder: t.holder} }

// unlistStats takes tallies that were dropped out of the other tables.
func (m *Machine) unlistStats(dropped ...*holderStats) {
	for _, t := range dropped {
		m.closed.Delete(t.place())
		m.chargeHolder(t.holder, -statsSize)
	}
}

// chargeHolder charges the account of a holder, of whom something is remembered, with bytes.
func (m *Machine) chargeHolder(name string, bytes int64) {
	h, _ := m.holders.Get(name)
	m.addTo(h.account, budgetHolders, bytes)
}

// broken returns up to limit holders, by name, for whom a quota is closed.
func (s *State) broken(q *quota, now int64, limit int) []string {
	if q.rule.policy.failures == 0 {
		return nil
	}
	var names []string
	s.closed.Ascend(quotaHolder{quota: q.number}, func(of quotaHolder) bool {
		if of.quota == q.number && s.statsOf(of.holder, q).closedUntil > now {
			names = append(names, of.holder)
		}
		return of.quota == q.number && len(names) < limit
	})
	return names
}
