package fsm

import (
	"cmp"
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// Bounds of the effect of one caller's reports.
const (
	maxBackoff       = 60 * fixed.Second
	minClosing       = 5 * fixed.Minute
	closingPeriods   = 2
	maxBackoffDouble = 6
)

// reporter identifies the source of a report: the caller, whose effect is bounded, and the holder for which it speaks.
type reporter struct{ caller, holder string }

// reporterOf returns the reporter of a command on a lease or task of this holder. Where callers are known by address
// only, each holder there counts as a caller.
func reporterOf(command *logpb.Command, holder string) reporter {
	caller := cmp.Or(command.Caller, command.By, holder)
	if command.PerHolder {
		caller += " " + holder
	}
	return reporter{caller: caller, holder: holder}
}

// report applies a provider's answer. It is believed in the safe direction only: it can close a quota for a bounded
// time, lower the present window, and set the reset of a provider-anchored window.
func (m *Machine) report(from *logpb.Command) *logpb.Result {
	command := from.GetReport()
	l, failure := m.lookupLease(command.Lease, command.Fence, from.By)
	if failure != nil {
		return effect.Failed(failure)
	}
	o := l.operation(command.Op)
	if o == nil && !m.amounts.slotsOnly(l) {
		return effect.Failed(&logpb.Failure{
			Reason:  logpb.Reason_REASON_STALE_OPERATION,
			Message: fmt.Sprintf("lease %d has no record of operation %d", l.id, command.Op),
			Hint:    "report before you send a done_below above it",
		})
	}
	quotas, failure := m.signalled(l, command.Signals)
	if failure != nil {
		return effect.Failed(failure)
	}
	if full := m.noReportLeft(l.holder); full != nil {
		return full
	}
	m.accounts.CountReport(m.payer, m.clock.Now)
	reported := &logpb.Reported{}
	for i, signal := range command.Signals {
		reported.Quotas = append(reported.Quotas, m.takeSignal(reporterOf(from, l.holder), o, quotas[i], signal))
	}
	return &logpb.Result{Kind: &logpb.Result_Reported{Reported: reported}}
}

// noReportLeft refuses a report if its caller, reporting for a holder, has used up its reports of this minute; nil: it
// has not.
func (m *Machine) noReportLeft(holder string) *logpb.Result {
	m.payer.Holder = holder
	return m.accounts.Full(accounts.Reports, m.taking(accounts.Reports),
		"report refusals first, and successes less often; come back in the next minute")
}

// signalled finds the quotas that signals name, among a lease's items and their ancestors, and checks the numbers.
func (m *Machine) signalled(l *lease, signals []*logpb.Signal) ([]*quota, *logpb.Failure) {
	if len(signals) == 0 || len(signals) > maxItems {
		return nil, effect.Invalid(fmt.Sprintf("%d signals are not within 1 to %d", len(signals), maxItems), "")
	}
	quotas := make([]*quota, len(signals))
	for i, signal := range signals {
		for j := range l.items {
			if q := m.quotas.editNow(l.items[j].quota); q != nil && q.name == signal.Quota {
				quotas[i] = q
			}
		}
		switch {
		case quotas[i] == nil:
			return nil, notHeld(signal.Quota, fmt.Sprintf("lease %d has no item of %q", l.id, signal.Quota))
		case signal.Cause < logpb.Cause_CAUSE_OK || signal.Cause > logpb.Cause_CAUSE_NOT_A_LIMIT:
			return nil, effect.Invalid("the cause is not known", "")
		case signal.GetLimit() < 0, signal.GetRemaining() < 0, signal.GetResetAfterNs() < 0,
			signal.ResetResolutionNs < 0, signal.GetRetryAfterNs() < 0:
			return nil, effect.Invalid(fmt.Sprintf("the signal of %q has a negative number", signal.Quota), "leave out what is not known")
		}
	}
	return quotas, nil
}

// takeSignal applies the answer about one quota, and about an operation if there is one.
func (m *Machine) takeSignal(by reporter, o *operation, q *quota, signal *logpb.Signal) *logpb.ReportedQuota {
	reported := &logpb.ReportedQuota{Quota: q.name}
	if ofTheLimit(signal.Cause) {
		m.recordProviderLimit(q, signal)
		switch q.rule.Kind {
		case ledger.KindWindow:
			reported.ResetLearned = m.learnReset(by, q, o, signal)
			reported.CappedTo = m.lowerWindow(by, q, o, signal)
			m.recordSample(q, o, signal)
		case ledger.KindRate:
			reported.CappedTo = m.learnRate(by, q, o, signal)
		case ledger.KindSlots, ledger.KindPool: // slots have no window or rate; for a pool, the member's report counts
		}
	}
	m.recordAnswer(by.holder, q, signal.Cause)
	switch signal.Cause {
	case logpb.Cause_CAUSE_OK:
		if !q.cooling(m.clock.Now) {
			q.attempt = 0
		}
	case logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_PLAN:
		m.closeQuota(q, by, signal)
	case logpb.Cause_CAUSE_ACCOUNT:
		path := m.quotas.ancestors(q)
		m.closeQuota(path[len(path)-1], by, signal)
	case logpb.Cause_CAUSE_UNSPECIFIED, logpb.Cause_CAUSE_OVERLOADED, logpb.Cause_CAUSE_NOT_A_LIMIT:
	}
	var limited int64
	for _, closed := range m.quotas.ancestors(q) {
		if !closed.cooling(m.clock.Now) {
			continue
		}
		limited = max(limited, closed.cooldown)
		if !closed.rule.Policy.Observe { // an observed quota blocks nobody, not even the reporter
			reported.CooldownUntilNs = max(reported.CooldownUntilNs, closed.cooldown)
		}
	}
	reported.Attempt = q.attempt
	if saysLimited(signal.Cause) {
		m.workflows.RecordLimit(workflowHost{m}, by.holder, workflow.Shortage{Quota: q.name, Amount: 1}, limited, logpb.Reason_REASON_COOLDOWN)
	}
	return reported
}

// saysLimited reports whether an answer says that the caller exceeded a limit of the provider.
func saysLimited(cause logpb.Cause) bool {
	switch cause {
	case logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_ACCOUNT, logpb.Cause_CAUSE_PLAN:
		return true
	case logpb.Cause_CAUSE_UNSPECIFIED, logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_OVERLOADED, logpb.Cause_CAUSE_NOT_A_LIMIT:
	}
	return false
}

// ofTheLimit reports whether an answer's numbers describe the quota. Those of an overloaded provider, or of a refusal
// for another reason than a limit, do not.
func ofTheLimit(cause logpb.Cause) bool {
	return cause != logpb.Cause_CAUSE_NOT_A_LIMIT && cause != logpb.Cause_CAUSE_OVERLOADED
}

// learnReset records the reset of a provider-anchored window. It ignores a reset further away than one period. The
// provider counted from its answer, which it gave between the operation's Consume and now.
func (m *Machine) learnReset(by reporter, q *quota, o *operation, signal *logpb.Signal) bool {
	if o == nil || !q.rule.Anchored || signal.ResetAfterNs == nil || *signal.ResetAfterNs == 0 {
		return false
	}
	resolution := min(signal.ResetResolutionNs, q.rule.Period/8)
	if *signal.ResetAfterNs > q.rule.Period+q.rule.Skew+resolution {
		return false
	}
	answered := ledger.View{Early: o.beganWall, Late: m.clock.WallLate}
	available := q.ledger.Available(&q.rule)
	learned := q.ledger.LearnReset(&q.rule, q.rule.At(m.clock), answered, *signal.ResetAfterNs, resolution, by.caller, m.featureLevel)
	if learned {
		m.emit(effect.Event{Kind: effect.EventResetLearned, Quota: q.name, Duration: *signal.ResetAfterNs})
	}
	if learned || q.ledger.Available(&q.rule) != available {
		m.quotas.markDirty(q)
	}
	return learned
}

// lowerWindow lowers a window when other users share the key, so that the reported remainder plus everything consumed
// here is less than the limit. The new total is the amount settled before the reporting call was consumed, that call,
// and the remainder.
func (m *Machine) lowerWindow(by reporter, q *quota, o *operation, signal *logpb.Signal) *int64 {
	g := &q.ledger
	c := reportingCharge(q, o)
	if c == nil || signal.Remaining == nil || fixed.AddSaturated(*signal.Remaining, g.Consumed()) >= q.rule.Limit {
		return nil
	}
	total := fixed.AddSaturated(c.before+c.consumed, *signal.Remaining)
	if total >= q.rule.Usable || !g.Lower(&q.rule, q.rule.At(m.clock), total, by.caller) {
		return nil
	}
	m.emit(effect.Event{Kind: effect.EventCapped, Quota: q.name, Amount: g.Capped})
	capped := g.Capped
	return &capped
}

// reportingCharge returns the charge of the reporting operation to a quota in its present window; nil: none.
func reportingCharge(q *quota, o *operation) *charge {
	if o == nil {
		return nil
	}
	for i := range o.charges {
		if c := &o.charges[i]; c.quota == q.number && !c.overrun && c.window == q.ledger.Window {
			return c
		}
	}
	return nil
}

// closeQuota closes a quota for all until the provider's time, within the bound of one caller's effect. The later of
// the old and new ends counts.
func (m *Machine) closeQuota(q *quota, by reporter, signal *logpb.Signal) {
	now := m.clock.Now
	cooling := q.cooling(now)
	if !cooling {
		q.attempt++
	}
	if !cooling || q.closer != by.caller {
		q.closer, q.closedSince = by.caller, now
	}
	until := fixed.AddSaturated(now, m.closingTime(q, signal))
	until = max(q.cooldown, min(until, fixed.AddSaturated(q.closedSince, m.closingBound(q))))
	if until == q.cooldown {
		return
	}
	m.quotas.cooldowns.Delete(due{At: q.cooldown, ID: uint64(q.number)})
	q.cooldown = until
	m.quotas.cooldowns.Set(due{At: until, ID: uint64(q.number)})
	m.quotas.markDirty(q) // its waiters no longer keep amounts from others
	m.emit(effect.Event{Kind: effect.EventCooldown, Quota: q.name, Holder: by.holder, Duration: until - now})
}

// closingTime returns how long a provider's answer closes a quota (nanoseconds).
func (m *Machine) closingTime(q *quota, signal *logpb.Signal) int64 {
	switch {
	case signal.RetryAfterNs != nil:
		return *signal.RetryAfterNs
	case signal.Cause == logpb.Cause_CAUSE_EXHAUSTED && signal.ResetAfterNs != nil:
		return fixed.AddSaturated(*signal.ResetAfterNs, signal.ResetResolutionNs)
	case signal.Cause == logpb.Cause_CAUSE_EXHAUSTED && q.rule.Kind == ledger.KindWindow:
		if left, ok := q.ledger.Closes(&q.rule, q.rule.At(m.clock)); ok {
			return fixed.AddSaturated(left, 2*q.rule.Skew)
		}
	case signal.Cause == logpb.Cause_CAUSE_PLAN:
		return m.closingBound(q)
	}
	return min(maxBackoff, fixed.Second<<min(q.attempt, maxBackoffDouble))
}

// closingBound returns the longest time that one caller's reports may close a quota (nanoseconds): for a window until
// its reset, else two periods but at least 5 min. It is at most an hour in both cases.
func (m *Machine) closingBound(q *quota) int64 {
	if q.rule.Kind == ledger.KindWindow {
		bound := q.rule.Period
		if left, ok := q.ledger.Closes(&q.rule, q.rule.At(m.clock)); ok {
			bound = fixed.AddSaturated(max(left, 0), 2*q.rule.Skew+2*fixed.Second)
		}
		return min(bound, ledger.MaxWindowClosing)
	}
	bound := max(closingPeriods*q.rule.Period, minClosing)
	if m.featureLevel < levels.SingleReporter {
		return bound
	}
	return min(bound, ledger.MaxWindowClosing)
}

// endCooldowns reopens quotas whose cooldown is over.
func (m *Machine) endCooldowns() {
	for _, end := range cow.TakeDue(m.quotas.cooldowns, maxDuePerEntry, func(d due) bool { return d.At <= m.clock.Now }) {
		if q := m.quotas.editNow(uint32(end.ID)); q != nil && q.cooldown == end.At {
			m.endCooldown(q, end.At)
		}
	}
}
