package fsm

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Bounds of an override.
const (
	minOverride = fixed.Second
	maxOverride = 31 * fixed.Day
	maxNote     = 500
)

// override replaces a quota's limit for a while. It is never changed in place.
type override struct {
	limit, until int64
	note         string
}

// setOverride replaces a quota's limit for a while, or ends an override. As with any change of a limit, leases keep
// their holdings, and nothing new is granted until the counted amount is below it.
func (m *Machine) setOverride(command *logpb.SetOverride) *logpb.Result {
	q := m.quotas.named(command.Quota)
	if q == nil {
		return effect.Failed(unknownQuota(command.Quota))
	}
	if q.rule.Kind == ledger.KindPool {
		return effect.Failed(noPool(q, "has no limit to override"))
	}
	q = m.quotas.editNow(q.number)
	if command.Limit == nil {
		m.endOverride(q)
		return effect.Done()
	}
	if command.ForNs < minOverride || command.ForNs > maxOverride {
		return effect.Failed(effect.Invalid("an override lasts 1 s to 31 days", "such as 1h"))
	}
	if len(command.Note) > maxNote {
		return effect.Failed(effect.Invalid(fmt.Sprintf("a note has at most %d bytes", maxNote), ""))
	}
	set := &override{limit: *command.Limit, until: fixed.AddSaturated(m.clock.Now, command.ForNs), note: command.Note}
	worked, failure := ruleUnder(q.definition, set, m.featureLevel)
	if failure != nil {
		return effect.Failed(failure)
	}
	m.quotas.replaceOverride(q, set)
	m.quotas.changeRule(q, worked)
	m.emit(effect.Event{Kind: effect.EventOverride, Quota: q.name, Amount: set.limit, Duration: command.ForNs})
	return effect.Done()
}

// endOverride restores a quota's own limit.
func (m *Machine) endOverride(q *quota) {
	if q.override == nil {
		return
	}
	m.quotas.replaceOverride(q, nil)
	own, _ := ledger.NewRule(q.definition, m.featureLevel) // the definition was checked when it was applied
	m.quotas.changeRule(q, own)
	m.emit(effect.Event{Kind: effect.EventOverride, Quota: q.name, Amount: own.Limit})
}

// endOverrides ends the overrides whose time is over.
func (m *Machine) endOverrides() {
	for _, end := range cow.TakeDue(m.quotas.overrides, maxDuePerEntry, func(d due) bool { return d.At <= m.clock.Now }) {
		if q := m.quotas.editNow(uint32(end.ID)); q != nil {
			m.endOverride(q)
		}
	}
}

// rejectByOverride refuses a need that only an override rules out, until the override ends; nil: none does.
func (rq *request) rejectByOverride(n need) *logpb.Refusal {
	q := n.quota
	if q.override == nil {
		return nil
	}
	refusal := rq.rejectByRule(n, &q.rule)
	if refusal == nil {
		return nil
	}
	if own, _ := ledger.NewRule(q.definition, rq.featureLevel); rq.rejectByRule(n, &own) != nil {
		return nil
	}
	refusal.RetryAtNs, refusal.Advice = q.override.until, "an operator's override rules it out until then: "+refusal.Advice
	return refusal
}

// replaceOverride enters an override into the tables; nil removes it.
func (qs *quotaTable) replaceOverride(q *quota, to *override) {
	if q.override != nil {
		qs.overrides.Delete(due{At: q.override.until, ID: uint64(q.number)})
	}
	q.override = to
	if to != nil {
		qs.overrides.Set(due{At: to.until, ID: uint64(q.number)})
	}
}

// changeRule replaces a quota's rule.
func (qs *quotaTable) changeRule(q *quota, to ledger.Rule) {
	q.ledger.RescaleBurst(&q.rule, &to, qs.clock.Now, qs.exactBurst())
	q.repace(&to, qs.clock.Now, qs.featureLevel)
	if !to.Burns() {
		q.burn = burn{}
	}
	to.Shift = qs.clock.Shift
	q.rule = to
	qs.markDirty(q)
}

// ruleUnder compiles a definition under an override; nil: under none.
func ruleUnder(definition *logpb.Quota, over *override, level uint32) (ledger.Rule, *logpb.Failure) {
	if over == nil {
		return ledger.NewRule(definition, level)
	}
	other := proto.CloneOf(definition)
	switch r := other.Rule.(type) {
	case *logpb.Quota_Window:
		r.Window.Limit = over.limit
	case *logpb.Quota_Rate:
		r.Rate.Limit = over.limit
	case *logpb.Quota_Slots:
		r.Slots.Limit = over.limit
	}
	return ledger.NewRule(other, level)
}
