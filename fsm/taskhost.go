package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
)

// taskHost adapts the machine to the table of tasks.
type taskHost struct{ m *Machine }

var _ task.Host = taskHost{}

// Now implements task.Host.
func (h taskHost) Now() int64 { return h.m.clock.Now }

// FenceCounter implements task.Host.
func (h taskHost) FenceCounter() uint64 { return h.m.fence() }

// NextFence implements task.Host.
func (h taskHost) NextFence() uint64 {
	h.m.grants++
	return h.m.fence()
}

// Book implements task.Host.
func (h taskHost) Book() *accounts.Book { return &h.m.accounts }

// Payer implements task.Host.
func (h taskHost) Payer() accounts.Payer { return h.m.payer }

// OverBudget implements task.Host.
func (h taskHost) OverBudget(b accounts.Budget, hint string) *logpb.Result {
	return h.m.overBudget(b, hint)
}

// Covers implements task.Host.
func (h taskHost) Covers(pattern, holder string) bool { return Match(pattern, holder) }

// QuotaName implements task.Host.
func (h taskHost) QuotaName(name string) (own string, failure *logpb.Failure) {
	q := h.m.quotas.named(name)
	if q == nil {
		return "", unknownQuota(name)
	}
	return q.name, nil
}

// Closed implements task.Host.
func (h taskHost) Closed(holder string, quotas []string) (worst *logpb.Refusal) {
	for _, name := range quotas {
		worst = worse(worst, h.closed(holder, name).refusal)
	}
	return worst
}

// closed refuses work on a quota that is closed or has a closed ancestor; for a pool, all members must be closed. No
// refusal: it is open.
func (h taskHost) closed(holder, name string) (worst hindrance) {
	m := h.m
	q := m.quotas.editNow(m.quotas.named(name).number)
	for _, member := range q.definition.GetPool().GetMembers() {
		closed := h.closed(holder, member.Quota)
		if closed.refusal == nil {
			return hindrance{}
		}
		worst = m.judge.milder(worst, closed)
	}
	if q.rule.Kind == ledger.KindPool {
		return worst
	}
	for _, q := range m.quotas.ancestors(q) {
		switch {
		case q.rule.Policy.Observe:
		case q.rule.Limit == 0:
			worst.add(m.judge.refusal(logpb.Reason_REASON_SUSPENDED, q, 0, "its limit is 0: ask the operator"), 0)
		case q.cooling(m.clock.Now):
			class, _ := m.rules.of(holder)
			worst.add(m.judge.coolingRefusal(q, holder, class, q.cooldown), q.cooldown)
		}
	}
	return worst
}

// Report implements task.Host. The attempt's fence replaces that of a lease: its holder showed, under a deadline, that
// it uses these quotas. It does not show which member of a pool it used.
func (h taskHost) Report(end *logpb.Command, holder string, quotas []string) bool {
	m := h.m
	if m.noReportLeft(holder) != nil {
		return false
	}
	m.accounts.CountReport(m.payer, m.clock.Now)
	by, command := reporterOf(end, holder), end.GetEndTask()
	for _, name := range quotas {
		if q := m.quotas.named(name); q != nil && q.rule.Kind != ledger.KindPool {
			signal := &logpb.Signal{Quota: name, Cause: command.Report, RetryAfterNs: command.WaitNs}
			m.takeSignal(by, nil, m.quotas.editNow(q.number), signal)
		}
	}
	return true
}

// Emit implements task.Host.
func (h taskHost) Emit(event effect.Event) { h.m.emit(event) }
