package fsm

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// Bounds of operator commands.
const (
	maxRules  = 10_000
	maxWeight = 1000
	maxDepth  = 8
)

// applyQuotas creates or changes quotas, holder rules and workflows, all or nothing. Leases keep their holdings. New
// grants wait until the counted amount is below the new limit.
func (m *Machine) applyQuotas(command *logpb.ApplyQuotas) *logpb.Result {
	defined, failure := m.checkQuotas(command.Quotas)
	if failure == nil {
		failure = checkRules(command.Holders)
	}
	var plans []*workflow.Plan
	if failure == nil {
		plans, failure = workflow.Check(command.Workflows)
	}
	if failure != nil {
		return effect.Failed(failure)
	}
	applied := &logpb.QuotasApplied{}
	for _, definition := range command.Quotas {
		switch q := m.quotas.named(definition.Name); {
		case q == nil:
			applied.Created = append(applied.Created, definition.Name)
		case proto.Equal(q.definition, definition):
			applied.Unchanged = append(applied.Unchanged, definition.Name)
		default:
			applied.Changed = append(applied.Changed, definition.Name)
		}
	}
	if !command.DryRun {
		m.rules.forget()
		unmetered := false
		for i, definition := range command.Quotas {
			unmetered = m.define(definition, defined[i]) || unmetered
		}
		if unmetered {
			m.holders.sweepAgain()
		}
		for _, definition := range command.Quotas {
			m.setParent(m.quotas.editNow(m.quotas.named(definition.Name).number), definition.Parent)
		}
		for _, definition := range command.Quotas {
			if p := m.quotas.named(definition.Name); p.rule.Kind == ledger.KindPool && p.waiting > 0 {
				m.queue.regroup(p)
			}
		}
		if command.ReplaceHolders {
			m.rules.list = command.Holders
		}
		if command.ReplaceWorkflows {
			m.workflows.Replace(workflowHost{m}, plans)
		}
	}
	return &logpb.Result{Kind: &logpb.Result_QuotasApplied{QuotasApplied: applied}}
}

// checkQuotas compiles definitions and checks them against each other and the state.
func (m *Machine) checkQuotas(definitions []*logpb.Quota) ([]ledger.Rule, *logpb.Failure) {
	rules := make([]ledger.Rule, len(definitions))
	parents := make(map[string]string, len(definitions))
	byName := make(map[string]*logpb.Quota, len(definitions))
	for i, definition := range definitions {
		if failure := checkName(definition.Name); failure != nil {
			return nil, failure
		}
		if _, twice := parents[definition.Name]; twice {
			return nil, ledger.Impossible(definition, "is defined twice", "")
		}
		parents[definition.Name], byName[definition.Name] = definition.Parent, definition
		worked, failure := ledger.NewRule(definition, m.featureLevel)
		q := m.quotas.named(definition.Name)
		if failure == nil && q != nil && q.override != nil {
			worked, failure = ruleUnder(definition, q.override, m.featureLevel)
		}
		if failure != nil {
			return nil, failure
		}
		rules[i] = worked
		if q != nil && !sameKind(&q.rule, &worked) {
			return nil, &logpb.Failure{
				Reason: logpb.Reason_REASON_KIND_CHANGE, Quota: definition.Name,
				Message: fmt.Sprintf("quota %q cannot change its kind, its period or its anchor in place", definition.Name),
				Hint:    "delete it first, or take a new name",
			}
		}
	}
	kinds := make(map[string]ledger.Kind, len(definitions))
	for i, definition := range definitions {
		kinds[definition.Name] = rules[i].Kind
	}
	moved := false
	for _, definition := range definitions {
		failure := m.checkAncestors(definition, parents, kinds)
		if failure == nil {
			failure = m.checkFallback(definition, byName, kinds)
		}
		if failure == nil {
			failure = m.checkMembers(definition, kinds)
		}
		if failure != nil {
			return nil, failure
		}
		q := m.quotas.named(definition.Name)
		if q == nil || q.definition.Parent == definition.Parent {
			continue
		}
		if m.quotas.editNow(q.number).inUse() {
			return nil, quotaInUse(q, "has leases, waiters or counted amounts: it cannot move to another parent",
				"wait until nothing of it is held or counts")
		}
		moved = moved || q.children > 0
	}
	if moved {
		return rules, m.checkDescendants(parents, kinds)
	}
	return rules, nil
}

// checkDescendants checks the ancestors of all quotas after the change: a quota that moves takes its descendants along.
func (m *Machine) checkDescendants(parents map[string]string, kinds map[string]ledger.Kind) (failure *logpb.Failure) {
	m.quotas.byNumber.Scan(func(_ uint32, q *quota) bool {
		if _, defined := parents[q.name]; !defined {
			failure = m.checkAncestors(q.definition, parents, kinds)
		}
		return failure == nil
	})
	return failure
}

// sameKind reports whether an amount counted under one rule stays valid under the other.
func sameKind(a, b *ledger.Rule) bool {
	return a.Kind == b.Kind && a.Period == b.Period && a.Every == b.Every && a.Anchored == b.Anchored
}

// checkAncestors checks that a definition's ancestors exist, form no cycle, and are of a compatible kind: slots stay in
// use while a lease lasts, other amounts are used once.
func (m *Machine) checkAncestors(definition *logpb.Quota, parents map[string]string, kinds map[string]ledger.Kind) *logpb.Failure {
	name := definition.Parent
	kindOf := func(name string) ledger.Kind {
		if k, defined := kinds[name]; defined {
			return k
		}
		return m.quotas.named(name).rule.Kind
	}
	for depth := 1; name != ""; depth++ {
		if name == definition.Name || depth > maxDepth {
			return ledger.Impossible(definition, "its ancestors form a cycle or are too many", fmt.Sprintf("at most %d levels", maxDepth))
		}
		parent, defined := parents[name]
		if !defined {
			q := m.quotas.named(name)
			if q == nil {
				return ledger.Impossible(definition, fmt.Sprintf("its ancestor %q does not exist", name), "define it in the same file")
			}
			parent = q.definition.Parent
		}
		if kindOf(name) == ledger.KindPool {
			return ledger.Impossible(definition, fmt.Sprintf("its ancestor %q is a pool", name),
				"a pool counts nothing; its members can have a parent")
		}
		if (kindOf(name) == ledger.KindSlots) != (kindOf(definition.Name) == ledger.KindSlots) {
			return ledger.Impossible(definition, fmt.Sprintf("it and its ancestor %q are not both slots, or both not", name),
				"name both in a Reserve instead")
		}
		name = parent
	}
	return nil
}

// checkMembers checks that a pool's members exist and are of one kind.
func (m *Machine) checkMembers(definition *logpb.Quota, kinds map[string]ledger.Kind) *logpb.Failure {
	var of ledger.Kind
	for _, member := range definition.GetPool().GetMembers() {
		its, defined := kinds[member.Quota]
		if q := m.quotas.named(member.Quota); !defined && q != nil {
			its, defined = q.rule.Kind, true
		}
		switch {
		case !defined:
			return ledger.Impossible(definition, fmt.Sprintf("its member %q, quota %q, does not exist", member.Name, member.Quota),
				"define it in the same file")
		case its == ledger.KindPool:
			return ledger.Impossible(definition, fmt.Sprintf("its member %q, quota %q, is a pool", member.Name, member.Quota),
				"name that pool's members")
		case of != 0 && its != of:
			return ledger.Impossible(definition, fmt.Sprintf("its member %q is of another kind than those before it", member.Name),
				"windows, rates, or slots, not several")
		}
		of = its
	}
	p := m.quotas.named(definition.Name)
	if p != nil && p.waiting > 0 && !proto.Equal(p.definition, definition) && m.queue.countWaitSets(p.number, maxRegrouped) > maxRegrouped {
		return quotaInUse(p, "is waited for in too many combinations with other quotas", "change it when fewer requests wait")
	}
	return nil
}

func checkName(name string) *logpb.Failure {
	if !ledger.ValidName(name) {
		return effect.Invalid(fmt.Sprintf("%q is no name for a quota", name), "letters, digits and . _ - / @ :, such as github/core")
	}
	return nil
}

func checkRules(rules []*logpb.HolderRule) *logpb.Failure {
	if len(rules) > maxRules {
		return effect.Invalid(fmt.Sprintf("%d holder rules are more than %d", len(rules), maxRules), "use patterns")
	}
	for i, rule := range rules {
		if rule.Pattern == "" || rule.Class < ledger.ClassCritical || rule.Class > ledger.ClassBackground ||
			rule.Weight < 0 || rule.Weight > maxWeight {
			return effect.Invalid(fmt.Sprintf("holder rule %d is malformed", i), "a pattern, a class 0 to 2, a weight 1 to 1000")
		}
	}
	return nil
}

// define creates a quota or changes its definition. It reports whether some of the quota's meters must be dropped.
func (m *Machine) define(definition *logpb.Quota, worked ledger.Rule) (unmetered bool) {
	q := m.quotas.named(definition.Name)
	switch {
	case q == nil:
		m.quotas.last++
		worked.Shift = m.clock.Shift
		q = &quota{
			Made: cow.In(m.generation), number: m.quotas.last, name: definition.Name, rule: worked, ledger: ledger.Ledger{Capped: ledger.NoCap},
		}
		m.quotas.setDefinition(q, definition)
		m.quotas.byNumber.Set(q.number, q)
		m.quotas.names.Set(definition.Name, q.number)
		q = m.quotas.editNow(q.number)
	case proto.Equal(q.definition, definition):
		return false
	default:
		q = m.quotas.editNow(q.number)
		m.quotas.setDefinition(q, definition)
		was := &q.rule.Policy
		unmetered = !worked.Policy.Metering && (was.Metering || len(was.Shares.Holders) > 0)
		m.quotas.changeRule(q, worked)
	}
	m.emit(effect.Event{Kind: effect.EventQuotaApplied, Quota: q.name})
	m.quotas.markDirty(q)
	return unmetered
}

// setParent links a quota to its parent. Live leases keep the shares that they were granted with. A quota that moves
// has no waiters, because waiters count as use and a quota in use cannot move.
func (m *Machine) setParent(q *quota, name string) {
	var number uint32
	if name != "" {
		number, _ = m.quotas.names.Get(name)
	}
	if number == q.parent {
		return
	}
	if old := m.quotas.editNow(q.parent); old != nil {
		old.children--
	}
	q.parent = number
	if number != 0 {
		m.quotas.editNow(number).children++
	}
}

// deleteQuota deletes a quota. With force, it ends the quota's items in leases and refuses its waiters. Amounts that
// these leases hold of its ancestors stay held until the leases end.
func (m *Machine) deleteQuota(command *logpb.DeleteQuota) *logpb.Result {
	q := m.quotas.named(command.Quota)
	if q == nil {
		return effect.Failed(unknownQuota(command.Quota))
	}
	q = m.quotas.editNow(q.number)
	inUse := q.inUse()
	switch {
	case q.children > 0:
		return effect.Failed(quotaInUse(q, "has children", "delete or move them first"))
	case m.quotas.poolOf(q) != "":
		return effect.Failed(quotaInUse(q, fmt.Sprintf("is a member of pool %q", m.quotas.poolOf(q)),
			"apply that pool without it first, or delete the pool"))
	case m.quotas.standsIn(q) != "" && !command.Force:
		return effect.Failed(quotaInUse(q, fmt.Sprintf("is the fallback of %q", m.quotas.standsIn(q)),
			"apply that one without it, or force it: the chain ends there"))
	case inUse && !command.Force:
		return effect.Failed(quotaInUse(q, "has leases, waiters or counted amounts", "wait, or force it: its items end"))
	}
	if parent := m.quotas.editNow(q.parent); parent != nil {
		parent.children--
	}
	m.refuseWaiters(q)
	m.quotas.cooldowns.Delete(due{At: q.cooldown, ID: uint64(q.number)})
	m.quotas.replaceOverride(q, nil)
	m.quotas.names.Delete(q.name)
	m.quotas.setDefinition(q, nil)
	m.quotas.byNumber.Delete(q.number)
	m.quotas.cache.forget(q)
	m.holders.sweepAgain()
	m.emit(effect.Event{Kind: effect.EventQuotaDeleted, Quota: q.name})
	return &logpb.Result{Kind: &logpb.Result_QuotasApplied{
		QuotasApplied: &logpb.QuotasApplied{Deleted: []string{q.name}},
	}}
}

// inUse reports whether a quota has held amounts, waiters, or counted amounts.
func (q *quota) inUse() bool {
	return q.leases > 0 || q.waiting > 0 || q.ledger.Held > 0 || q.ledger.Consumed() > 0
}

func quotaInUse(q *quota, message, hint string) *logpb.Failure {
	return &logpb.Failure{
		Reason: logpb.Reason_REASON_QUOTA_IN_USE, Quota: q.name,
		Message: fmt.Sprintf("quota %q %s", q.name, message), Hint: hint,
	}
}

// found sets the cluster's id, once.
func (m *Machine) found(command *logpb.Found) *logpb.Result {
	switch m.clusterID {
	case "", command.ClusterId:
		m.clusterID = command.ClusterId
		return effect.Done()
	}
	return effect.Fail(logpb.Reason_REASON_FOREIGN_CLUSTER,
		fmt.Sprintf("this cluster was founded as %q", m.clusterID), "two clusters are connected to each other")
}

// raiseEpoch raises the epoch of fences.
func (m *Machine) raiseEpoch(command *logpb.RaiseEpoch) *logpb.Result {
	if command.Epoch <= m.epoch || command.Epoch >= 1<<16 {
		return effect.Fail(logpb.Reason_REASON_EPOCH_NOT_RAISED,
			fmt.Sprintf("epoch %d is not above the present one, %d, or not below 65536", command.Epoch, m.epoch), "")
	}
	m.epoch, m.grants = command.Epoch, 0
	return effect.Done()
}

// setLimits changes the bounds that are part of the replicated state.
func (m *Machine) setLimits(command *logpb.SetLimits) *logpb.Result {
	if failure := checkLimits(command); failure != nil {
		return effect.Failed(failure)
	}
	for _, change := range []struct {
		to    *int64
		bound *int64
	}{
		{command.MaxSessions, &m.accounts.Limits.Sessions},
		{command.MaxResultBytes, &m.accounts.Limits.ResultBytes},
		{command.SessionIdleNs, &m.accounts.Limits.SessionIdle},
		{command.KeyLifeNs, &m.accounts.Limits.KeyLife},
		{command.MaxWaiters, &m.accounts.Limits.Waiters},
		{command.MaxTasks, &m.accounts.Limits.Tasks},
		{command.TaskLifeNs, &m.accounts.Limits.TaskLife},
		{command.MaxKeys, &m.accounts.Limits.Keys},
		{command.MaxLeases, &m.accounts.Limits.Leases},
		{command.MaxReports, &m.accounts.Limits.Reports},
		{command.MaxHolderBytes, &m.accounts.Limits.HolderBytes},
		{command.MaxOperationBytes, &m.accounts.Limits.OperationBytes},
		{command.OperatorsPpm, &m.accounts.Limits.OperatorsPPM},
		{command.CallerMinPpm, &m.accounts.Limits.CallerMinPPM},
		{command.MaxCalls, &m.accounts.Limits.Calls},
		{command.MaxStreams, &m.accounts.Limits.Streams},
		{command.MaxConnections, &m.accounts.Limits.Connections},
	} {
		if change.to != nil {
			*change.bound = *change.to
		}
	}
	return effect.Done()
}

// checkLimits validates new limits.
func checkLimits(command *logpb.SetLimits) *logpb.Failure {
	for _, bound := range []*int64{
		command.MaxSessions, command.MaxResultBytes, command.SessionIdleNs, command.KeyLifeNs, command.MaxWaiters, command.MaxTasks,
		command.TaskLifeNs, command.MaxKeys, command.MaxLeases, command.MaxReports,
		command.MaxHolderBytes, command.MaxOperationBytes,
	} {
		if bound != nil && *bound < 1 {
			return effect.Invalid("limits are at least 1", "")
		}
	}
	for _, of := range []struct {
		name  string
		bound *int64
		least int64
	}{
		{"calls", command.MaxCalls, accounts.MinCalls},
		{"streams", command.MaxStreams, accounts.MinStreams},
		{"connections", command.MaxConnections, accounts.MinConnections},
	} {
		if of.bound != nil && (*of.bound < of.least || *of.bound > accounts.MaxOfNode) {
			return effect.Invalid(fmt.Sprintf("%d %s of a node are not within %d to %d", *of.bound, of.name, of.least, accounts.MaxOfNode), "")
		}
	}
	switch operators, caller := command.GetOperatorsPpm(), command.GetCallerMinPpm(); {
	case operators < 0 || operators > accounts.MaxOperatorsPPM:
		return effect.Invalid("the operators' part is not within 0 to half", "")
	case caller < 0 || caller > accounts.MaxCallerMinPPM:
		return effect.Invalid("a caller's least part is not within 0 to a tenth", "")
	}
	return nil
}

// Rebase fits a state that was read from a backup into a running cluster. It raises the fence's epoch, and numbers
// leases, tickets and sessions from above it, so that no number issued since the backup is issued again. The cluster's
// id and members are those of the running cluster. Time, and the index and term that readers see, never go back.
func (m *Machine) Rebase(index, term uint64, epoch uint32, clusterID string, members []MemberView, floor Clock) {
	m.index, m.term = max(m.index, index), max(m.term, term)
	m.epoch, m.grants = max(epoch, m.epoch+1), 0
	above := uint64(m.epoch) << 40
	m.lastLease, m.queue.lastTicket, m.requests.Last = max(m.lastLease, above), max(m.queue.lastTicket, above), max(m.requests.Last, above)
	if clusterID != "" {
		m.clusterID = clusterID
	}
	m.members.Clear()
	for _, member := range members {
		m.members.Set(member.ID, member.APIAddress)
	}
	m.clock.Now = max(m.clock.Now, floor.Now)
	m.clock.WallEarly = max(m.clock.WallEarly, m.clock.Shifted(floor.WallEarly-floor.Shift))
	m.clock.WallLate = max(m.clock.WallLate, m.clock.Shifted(floor.WallLate-floor.Shift))
}
