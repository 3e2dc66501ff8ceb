package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// maxReopenedPerEntry bounds the steps of workflows, and the breakers, that one entry examines because operators
// reopened quotas. leastReopened is how many a command examines itself when earlier commands have used up that bound:
// one workflow's.
const (
	maxReopenedPerEntry = 8 * maxDuePerEntry
	leastReopened       = workflow.MaxSteps
)

// reopenQuota ends, at an operator's command, the closings of a quota by reports: its cooldown, its holders' breakers,
// a cap of its window. For a provider-anchored window it confirms the reported reset. Limits of the quota's own rule
// stay.
func (m *Machine) reopenQuota(command *logpb.ReopenQuota) *logpb.Result {
	q := m.quotas.named(command.Quota)
	if q == nil {
		return effect.Failed(unknownQuota(command.Quota))
	}
	if q.rule.Kind == ledger.KindPool {
		return effect.Failed(noPool(q, "is never closed itself"))
	}
	q = m.quotas.editNow(q.number)
	g := &q.ledger
	reopened := &logpb.QuotaReopened{CooldownLeftNs: max(q.cooldown-m.clock.Now, 0)}
	if g.Capped != ledger.NoCap {
		capped := g.Capped
		reopened.CappedTo = &capped
	}
	closed := q.cooling(m.clock.Now)
	if q.cooldown != 0 {
		m.endCooldown(q, m.clock.Now)
	}
	if closed {
		m.reopening.Set(q.number, "") // from the first workflow on, even if a pass was running
		m.endLimitsOf(q.number, "", m.bounds.reopens.own(leastReopened))
	}
	// The next caller that closes it starts a new series.
	q.closer, q.closedSince, q.attempt = "", 0, 0
	reopened.Breakers, reopened.More = m.closeBreakers(q)
	available, known := g.Available(&q.rule), g.Known
	g.Confirm(&q.rule, q.rule.At(m.clock))
	reopened.Freed = g.Available(&q.rule) - available
	if g.Known && !known {
		m.emit(effect.Event{Kind: effect.EventResetLearned, Quota: q.name, Duration: g.CloseEnd - m.clock.WallLate})
	}
	m.emit(effect.Event{Kind: effect.EventReopenedByOperator, Quota: q.name, Amount: reopened.Freed, Duration: reopened.CooldownLeftNs})
	m.quotas.markDirty(q)
	return &logpb.Result{Kind: &logpb.Result_QuotaReopened{QuotaReopened: reopened}}
}

// endCooldown reopens a quota whose cooldown ends at a time.
func (m *Machine) endCooldown(q *quota, at int64) {
	m.quotas.cooldowns.Delete(due{At: q.cooldown, ID: uint64(q.number)})
	q.cooldown = 0
	m.reopen(q, at)
	m.emit(effect.Event{Kind: effect.EventReopened, Quota: q.name})
	m.quotas.markDirty(q)
}

// closeBreakers closes the breakers of a quota's holders, so that all of them may call again, and returns how many.
// more says that others remain, since one entry has a bound.
func (m *Machine) closeBreakers(q *quota) (ended int64, more bool) {
	var names []string
	most := min(maxDuePerEntry, m.bounds.reopens.own(leastReopened))
	m.holders.closed.Ascend(quotaHolder{quota: q.number}, func(of quotaHolder) bool {
		if more = of.quota == q.number && len(names) == most; more || of.quota != q.number {
			return false
		}
		names = append(names, of.holder)
		return true
	})
	m.bounds.reopens.spend(len(names))
	for _, name := range names {
		t := m.holders.editStats(name, q)
		t.failures = 0
		m.holders.closeFor(t, 0)
	}
	return int64(len(names)), more
}

// endLimits continues to end limits of reopened quotas, in the order of their numbers.
func (m *Machine) endLimits() {
	for m.bounds.reopens.left > 0 {
		number, from, ok := m.reopening.Min()
		if !ok {
			return
		}
		m.endLimitsOf(number, from, m.bounds.reopens.left)
	}
}

// endLimitsOf ends, at an operator's command, the limits of steps by a reopened quota or a descendant of it. A limit
// stays if its quota is still closed or lacks the amount that the step needs. Calm is measured from the last report or
// refusal, not from the end that the cooldown would have had. It starts at workflow from, and visits at most own steps.
func (m *Machine) endLimitsOf(reopened uint32, from string, own int) {
	restsOn := func(quota string, short workflow.Shortage) bool { return m.restsOn(quota, short, reopened) }
	steps, next := m.workflows.EndLimits(workflowHost{m}, from, own, m.bounds.reopens.left > 0, restsOn)
	m.bounds.reopens.spend(max(steps, 1))
	if _, exists := m.quotas.byNumber.Get(reopened); next == "" || !exists {
		m.reopening.Delete(reopened)
	} else {
		m.reopening.Set(reopened, next)
	}
}

// restsOn reports whether a step's limit has no reason except that a now open quota was closed. The step is limited by
// a quota, and short is its last shortage.
func (m *Machine) restsOn(limited string, short workflow.Shortage, reopened uint32) bool {
	q := m.quotas.named(limited)
	if q == nil {
		return false
	}
	below := false
	for _, above := range m.quotas.ancestors(m.quotas.editNow(q.number)) {
		below = below || above.number == reopened
		if above.cooling(m.clock.Now) || short.Quota != "" && above.ledger.Available(&above.rule) < short.Amount {
			return false
		}
	}
	return below
}

// reopeningRecords are the reopened quotas with limits that are still to be ended.
func (s *State) reopeningRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.reopening.Scan(func(number uint32, from string) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Reopening{
			Reopening: &logpb.SnapshotReopening{Quota: number, Workflow: from},
		}})
		return going
	})
	return going
}

// verifyReopening checks the numbers of reopened quotas.
func (s *State) verifyReopening() (err error) {
	s.reopening.Scan(func(number uint32, _ string) bool {
		if number == 0 || number > s.quotas.last {
			err = fmt.Errorf("quota %d was reopened, and never existed", number)
		}
		return err == nil
	})
	return err
}
