package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// maxReopenedPerEntry bounds the steps of workflows, and the breakers, that one entry examines because operators reopened quotas.
// leastReopened is how many a command examines itself when those before it have taken all: a workflow's.
const (
	maxReopenedPerEntry = 8 * maxDuePerEntry
	leastReopened       = workflow.MaxSteps
)

// reopenQuota ends, on an operator's word, what reports closed of a quota: its cooldown, its holders' breakers, a cap of
// its window. Of a provider-anchored window it confirms the reset that was reported. What the quota's own rule keeps back
// it keeps.
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
		m.reopening.Set(q.number, "") // from the first workflow on, also where that was in progress
		m.endLimitsOf(q.number, "", m.bounds.reopens.own(leastReopened))
	}
	// Whoever closes it next begins anew.
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

// closeBreakers closes the breakers of a quota's holders, so that all of them may call again, and returns how many; more
// says that there are others, since one entry does no more than this.
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

// endLimits goes on with ending limits of quotas that were reopened, in the order of their numbers.
func (m *Machine) endLimits() {
	for m.bounds.reopens.left > 0 {
		number, from, ok := m.reopening.Min()
		if !ok {
			return
		}
		m.endLimitsOf(number, from, m.bounds.reopens.left)
	}
}

// endLimitsOf ends, on an operator's word, what steps are limited by because a quota was closed: a limit by it or one below it, unless
// that one is closed still or has not what the step needs. Calm is measured from the last report or refusal, not
// from the end that the closing would have had. It goes through workflows from one on, and through as many steps as its own.
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

// restsOn tells whether a step, which is limited by a quota and was last kept from some amount, is limited by nothing but that a quota was
// closed, which is open now.
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

// reopeningRecords are the reopened quotas of which limits are still to be ended.
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

// verifyReopening looks at the numbers of reopened quotas.
func (s *State) verifyReopening() (err error) {
	s.reopening.Scan(func(number uint32, _ string) bool {
		if number == 0 || number > s.quotas.last {
			err = fmt.Errorf("quota %d was reopened, and never existed", number)
		}
		return err == nil
	})
	return err
}
