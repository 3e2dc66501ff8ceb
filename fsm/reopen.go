package fsm

import "github.com/quotad/quotad/fsm/logpb"

// reopenQuota ends, on an operator's word, what reports closed of a quota: its cooldown, its holders' breakers, a cap of
// its window. Of a provider-anchored window it confirms the reset that was reported. What the quota's own rule keeps back
// it keeps.
func (m *Machine) reopenQuota(command *logpb.ReopenQuota) *logpb.Result {
	q := m.quotaNamed(command.Quota)
	if q == nil {
		return failed(unknownQuota(command.Quota))
	}
	q = m.editQuotaNow(q.number)
	g := &q.ledger
	reopened := &logpb.QuotaReopened{CooldownLeftNs: max(q.cooldown-m.clock.Now, 0)}
	if g.capped != noCap {
		capped := g.capped
		reopened.CappedTo = &capped
	}
	closed := q.cooling(m.clock.Now)
	if q.cooldown != 0 {
		m.endCooldown(q, m.clock.Now)
	}
	if closed {
		m.endLimitsOf(q)
	}
	// Whoever closes it next begins anew.
	q.closer, q.closedSince, q.attempt = "", 0, 0
	reopened.Breakers, reopened.More = m.closeBreakers(q)
	available, known := g.available(&q.rule), g.known
	g.confirm(&q.rule, q.rule.at(m.clock))
	reopened.Freed = g.available(&q.rule) - available
	if g.known && !known {
		m.emit(Event{Kind: EventResetLearned, Quota: q.name, Duration: g.closeEnd - m.clock.WallLate})
	}
	m.emit(Event{Kind: EventReopenedByOperator, Quota: q.name, Amount: reopened.Freed, Duration: reopened.CooldownLeftNs})
	m.markDirty(q)
	return &logpb.Result{Kind: &logpb.Result_QuotaReopened{QuotaReopened: reopened}}
}

// endCooldown reopens a quota whose cooldown ends at a time.
func (m *Machine) endCooldown(q *quota, at int64) {
	m.cooldowns.Delete(due{at: q.cooldown, id: uint64(q.number)})
	q.cooldown = 0
	m.reopen(q, at)
	m.emit(Event{Kind: EventReopened, Quota: q.name})
	m.markDirty(q)
}

// closeBreakers closes the breakers of a quota's holders, so that all of them may call again, and returns how many; more
// says that there are others, since one entry does no more than this.
func (m *Machine) closeBreakers(q *quota) (ended int64, more bool) {
	var names []string
	m.closed.Ascend(quotaHolder{quota: q.number}, func(of quotaHolder) bool {
		if more = of.quota == q.number && len(names) == maxDuePerEntry; more || of.quota != q.number {
			return false
		}
		names = append(names, of.holder)
		return true
	})
	for _, name := range names {
		t := m.editStats(name, q)
		t.failures = 0
		m.closeFor(t, 0)
	}
	return int64(len(names)), more
}
