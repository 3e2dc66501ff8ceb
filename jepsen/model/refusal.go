package model

import (
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// mostOperations is how many operations of a lease may have records.
const mostOperations = 1024

// judgeRefusal judges whether the refusal of a Reserve is true.
func (j *Judge) judgeRefusal(ask *logpb.Reserve, refusal *logpb.Refusal) {
	if lie := j.lie(ask, refusal.Reason, refusal.Quota, refusal.RetryAtNs); lie != "" {
		j.violate("false-refusal", "%s is refused %v: %s", ask.Holder, ask.Items, lie)
	}
	if refusal.Budget != "" {
		command := j.entry.commands[j.entry.command]
		if isTrue, judged := j.atBudget(command, refusal.Reason, refusal.Budget); judged && !isTrue {
			j.violate("false-refusal", "%q has not its part of the %s: %v", command.Caller, refusal.Budget, refusal)
		}
	}
	if q := j.quotas[refusal.Quota]; q != nil {
		j.available(q, refusal.Available)
		j.comesBack(q, refusal, j.classOf(ask))
	}
	j.predicts(refusal.Forecast)
}

// judgeWaiting judges whether a Reserve has to wait.
func (j *Judge) judgeWaiting(k int, event *effect.Event) {
	was := j.entry.command
	j.entry.command = k
	ask := j.entry.commands[k].GetReserve()
	if lie := j.lie(ask, event.Reason, event.Quota, 0); lie != "" {
		j.violate("false-refusal", "%s has to wait for %v: %s", ask.Holder, ask.Items, lie)
	}
	j.denied(ask.Holder, event.Reason, event.Quota, 0)
	j.entry.command = was
}

// available judges the available amount of a refusal: usable without the sum that leases hold and operations have counted.
func (j *Judge) available(q *quota, answered int64) {
	q.advance(j.clock)
	if q.rule.anchored || q.cap.is || j.clock.Now < q.others.lowered {
		return
	}
	least, most := q.rule.usable-q.held-q.perhaps.sum, q.rule.usable-q.held-q.surely.sum
	if q.rule.kind == rateKind {
		least, most = least-q.keptAtMost(j.clock.Now), most-q.keptAtLeast(j.clock.Now)
	}
	if answered < least || answered > most {
		j.violate("conservation", "of %s %d should be available, or down to %d by rounding, and %d are", q.name, most, least, answered)
	}
}

// lie says why the reason of a refusal is not true; empty: it may be.
func (j *Judge) lie(ask *logpb.Reserve, reason logpb.Reason, quota string, retryAt int64) string {
	needs, ok := j.needs(j.asked(ask))
	if !ok {
		return "it asked for a quota that does not exist, and got " + reason.String()
	}
	i := slices.IndexFunc(needs, func(n need) bool { return n.quota.name == quota })
	if i < 0 {
		return sprint("%v for %q, which it does not need", reason, quota)
	}
	n := needs[i]
	q, r := n.quota, &n.quota.rule
	if reason == logpb.Reason_REASON_EXHAUSTED || reason == logpb.Reason_REASON_COOLDOWN {
		if member := j.freeMember(ask); member != "" {
			return sprint("%v of %s, and member %q has room", reason, quota, member)
		}
	}
	var isTrue bool
	switch reason {
	case logpb.Reason_REASON_SUSPENDED:
		isTrue = r.usable == 0
	case logpb.Reason_REASON_NEVER_FITS:
		isTrue = n.amount > r.usable || ask.Consume && r.burst > 0 && n.amount > r.burst || j.aboveCap(ask, n)
	case logpb.Reason_REASON_ABOVE_CLAMP:
		isTrue = n.own > r.maxHold
	case logpb.Reason_REASON_COOLDOWN:
		isTrue = q.cooling(j.clock.Now)
	case logpb.Reason_REASON_EXHAUSTED:
		isTrue = j.short(n, ask.Consume)
	case logpb.Reason_REASON_BEHIND_WAITERS:
		isTrue = slices.ContainsFunc(needs, func(n need) bool { return n.quota.waiting > 0 })
	case logpb.Reason_REASON_QUEUE_FULL:
		isTrue = j.weightOfWaiters() >= j.open(min(j.entry.waiters, j.limits.waiters)) || j.waitersOf(ask.Holder) >= mostWaiters
	case logpb.Reason_REASON_CANNOT_SERVE_IN_TIME:
		j.stats.Unjudged++
		isTrue = ask.WaitNs > 0 && retryAt > plus(j.clock.Now, ask.WaitNs)
	case logpb.Reason_REASON_CALLER_BUDGET, logpb.Reason_REASON_BUDGET_FULL:
		j.stats.Unjudged++
		isTrue = true // judged with the command
	default:
		j.stats.Withheld++
		isTrue = j.withheld(ask, reason, n)
	}
	if isTrue {
		return ""
	}
	return sprint("%v of %s is not true: it needs %d (%d in one item) of %d usable, %d are held, %d to %d counted, closed until %d, %d wait",
		reason, quota, n.amount, n.own, r.usable, q.held, q.surely.sum, q.perhaps.sum, q.closedUntil, q.waiting)
}

// short says whether a quota may have too little.
func (j *Judge) short(n need, consume bool) bool {
	q := n.quota
	switch {
	case q.rule.kind == windowKind && j.clock.WallEarly == 0:
		return true
	case q.rule.anchored, q.cap.is, j.clock.Now < q.others.lowered, consume && q.rule.burst > 0:
		j.stats.Unjudged++
		return true
	}
	return n.amount > q.rule.usable-q.held-q.perhaps.sum-q.keptAtMost(j.clock.Now)
}

func (j *Judge) waitersOf(holder string) (count int) {
	for _, w := range j.waiting {
		if w.ask.Holder == holder {
			count++
		}
	}
	return count
}

// consumeRefused judges the refusal of a Consume: only a provider, an operator or a burst withholds held amounts.
func (j *Judge) consumeRefused(asked *logpb.Consume, refusal *logpb.Refusal) {
	l := j.live(asked.Lease, asked.Fence)
	if l == nil {
		j.violate("false-refusal", "a Consume of lease %d, which does not live, is refused for %v", asked.Lease, refusal.Reason)
		return
	}
	var found *quota
	for _, it := range l.items {
		for _, s := range it.shares {
			if s.quota.name == refusal.Quota && !s.quota.deleted && asks(asked.Items, it, j) {
				found = s.quota
			}
		}
	}
	isTrue := false
	switch {
	case found == nil:
	case refusal.Reason == logpb.Reason_REASON_SUSPENDED:
		isTrue = found.rule.usable == 0
	case refusal.Reason == logpb.Reason_REASON_COOLDOWN:
		isTrue = found.cooling(j.clock.Now)
	case refusal.Reason == logpb.Reason_REASON_REOPENING:
		_, isTrue = found.letsThrough(j.clock.Now)
	case refusal.Reason == logpb.Reason_REASON_NEVER_FITS, refusal.Reason == logpb.Reason_REASON_EXHAUSTED:
		j.stats.Unjudged++
		isTrue = found.rule.burst > 0
	default:
	}
	if !isTrue {
		j.violate("false-refusal", "a Consume of lease %d is refused for %v of %s, which is not true", l.id, refusal.Reason, refusal.Quota)
		return
	}
	j.available(found, refusal.Available)
	j.comesBack(found, refusal, 0) // these books do not keep the class of a lease
	j.denied(l.holder, refusal.Reason, refusal.Quota, limitedUntil(refusal))
}

// failed judges whether the error of a command is true.
func (j *Judge) failed(command *logpb.Command, failure *logpb.Failure) {
	j.stats.Failed++
	if failure.Reason == logpb.Reason_REASON_STALE_FENCE {
		j.stats.DeadFences++
	}
	isTrue, judged := j.isTrue(command, failure)
	if !judged {
		j.stats.Unjudged++
	} else if !isTrue {
		j.violate("false-refusal", "%v is not true of %v", failure.Reason, command)
	}
}

func (j *Judge) isTrue(command *logpb.Command, failure *logpb.Failure) (isTrue, judged bool) {
	if isOfTask(command) {
		return j.taskFailure(command, failure)
	}
	switch failure.Reason {
	case logpb.Reason_REASON_UNKNOWN_QUOTA:
		asked := command.GetDeleteQuota().GetQuota() == failure.Quota || command.GetSetOverride().GetQuota() == failure.Quota ||
			command.GetReopenQuota().GetQuota() == failure.Quota
		for _, item := range command.GetReserve().GetItems() {
			asked = asked || item.Quota == failure.Quota
		}
		return asked && j.quotas[failure.Quota] == nil, true
	case logpb.Reason_REASON_UNKNOWN_WORKFLOW:
		return j.workflows[command.GetDeleteWorkflow().GetWorkflow()] == nil, true
	case logpb.Reason_REASON_UNKNOWN_TICKET:
		return j.waiting[command.GetWithdraw().GetTicket()] == nil, true
	case logpb.Reason_REASON_UNKNOWN_LEASE:
		l := j.leases[command.GetRevokeLease().GetLease()]
		return l == nil || l.deadline <= j.clock.Now, true
	case logpb.Reason_REASON_EPOCH_NOT_RAISED:
		epoch := uint64(command.GetRaiseEpoch().GetEpoch())
		return epoch <= j.lastFence>>48 || epoch >= 1<<16, true
	case logpb.Reason_REASON_FOREIGN_CLUSTER:
		return j.clusterID != "" && j.clusterID != command.GetFound().GetClusterId(), true
	case logpb.Reason_REASON_SESSIONS_FULL:
		return int64(len(j.sessions)) >= j.open(j.limits.sessions), true
	case logpb.Reason_REASON_CALLER_BUDGET, logpb.Reason_REASON_BUDGET_FULL:
		return j.atBudget(command, failure.Reason, failure.Budget)
	case logpb.Reason_REASON_QUOTA_IN_USE:
		return j.inUse(command.GetDeleteQuota())
	case logpb.Reason_REASON_STALE_FENCE, logpb.Reason_REASON_NEVER_ISSUED, logpb.Reason_REASON_FOREIGN_LEASE:
		return j.isStale(command, failure)
	default:
	}
	lease, fence, ok := names(command)
	if !ok || command.GetRenew() != nil || isEmpty(command.GetSettle()) {
		return false, false
	}
	l := j.live(lease, fence)
	if failure.Reason == logpb.Reason_REASON_ALREADY_SETTLED && l == nil {
		l = j.ended[lease]
	}
	if failure.Reason == logpb.Reason_REASON_INVALID || l == nil && j.ended[lease] != nil {
		return false, false
	}
	if l == nil {
		return false, true
	}
	return j.isTrueOf(l, command, failure)
}

// isEmpty says whether a Settle asks for nothing.
func isEmpty(settle *logpb.Settle) bool {
	return settle != nil && len(settle.Unspent)+len(settle.Actual) == 0 && !settle.Final && !settle.Release
}

// names returns the lease that a command names.
func names(command *logpb.Command) (lease, fence uint64, ok bool) {
	switch k := command.Kind.(type) {
	case *logpb.Command_Consume:
		return k.Consume.Lease, k.Consume.Fence, true
	case *logpb.Command_Settle:
		return k.Settle.Lease, k.Settle.Fence, true
	case *logpb.Command_Release:
		return k.Release.Lease, k.Release.Fence, true
	case *logpb.Command_Renew:
		return k.Renew.Lease, k.Renew.Fence, true
	case *logpb.Command_Report:
		return k.Report.Lease, k.Report.Fence, true
	}
	return 0, 0, false
}

// isStale judges an error about a fence.
func (j *Judge) isStale(command *logpb.Command, failure *logpb.Failure) (isTrue, judged bool) {
	if failure.Reason == logpb.Reason_REASON_FOREIGN_LEASE {
		holder := ""
		if w := j.waiting[command.GetWithdraw().GetTicket()]; w != nil {
			holder = w.ask.Holder
		}
		if lease, _, ok := names(command); ok && j.leases[lease] != nil {
			holder = j.leases[lease].holder
		}
		return command.By != "" && !matches(command.By, holder), true
	}
	lease, fence, ok := names(command)
	counter := failure.FenceCounter
	if !ok || counter < j.entry.fenceBefore || counter > j.lastFence {
		return false, true
	}
	if failure.Reason == logpb.Reason_REASON_NEVER_ISSUED {
		return fence > counter, true
	}
	l := j.leases[lease]
	return l == nil || l.fence != fence || l.deadline <= j.clock.Now, true
}

// inUse judges why a quota cannot be deleted. Why a quota cannot move is not judged.
func (j *Judge) inUse(command *logpb.DeleteQuota) (isTrue, judged bool) {
	if command == nil {
		return false, false
	}
	q := j.quotas[command.Quota]
	if q == nil {
		return false, true
	}
	q.advance(j.clock)
	used := q.leases > 0 || q.waiting > 0 || q.held > 0 || q.perhaps.sum > 0
	return q.children > 0 || j.isPooled(q.name) || (used || j.standsIn(q)) && !command.Force, true
}

// standsIn reports whether a quota is the fallback of some other quota.
func (j *Judge) standsIn(q *quota) bool {
	for _, other := range j.quotas {
		if other.definition.Fallback == q.name {
			return true
		}
	}
	return false
}

// isTrueOf judges a failure of a command that named a live lease.
func (j *Judge) isTrueOf(l *lease, command *logpb.Command, failure *logpb.Failure) (isTrue, judged bool) {
	consume, settle, report := command.GetConsume(), command.GetSettle(), command.GetReport()
	o := l.ops[max(consume.GetOp(), settle.GetOp(), report.GetOp())]
	switch failure.Reason {
	case logpb.Reason_REASON_STALE_OPERATION:
		if consume != nil {
			return o == nil && consume.Op < max(l.doneBelow, consume.DoneBelow), true
		}
		return o == nil, true
	case logpb.Reason_REASON_OPERATION_REUSED:
		return o != nil && consume != nil && !sameAsked(o.asked, consume.Items), true
	case logpb.Reason_REASON_TOO_MANY_OPERATIONS:
		return len(l.ops) >= mostOperations, true
	case logpb.Reason_REASON_ITEM_CLOSED:
		return slices.ContainsFunc(l.items, func(it *item) bool { return it.isClosed(j.clock) }), true
	case logpb.Reason_REASON_NOT_HELD:
		return j.notHeld(l, o, command), true
	case logpb.Reason_REASON_ALREADY_SETTLED:
		unspent := len(settle.GetUnspent()) > 0 && o != nil &&
			(o.didUnspent && !sameAsked(o.unspent, settle.Unspent) || !o.didUnspent && o.didActual)
		return unspent || o != nil && o.didActual && !sameAsked(o.actual, settle.GetActual()), true
	case logpb.Reason_REASON_PAST_SPEND_BY:
		return o != nil && !j.inTime(o) && !o.didUnspent && len(settle.GetUnspent()) > 0, true
	default:
		return false, false
	}
}

// notHeld says whether a command names more than a lease or an operation has, or another quota.
func (j *Judge) notHeld(l *lease, o *operation, command *logpb.Command) bool {
	if report := command.GetReport(); report != nil {
		return slices.ContainsFunc(report.Signals, func(s *logpb.Signal) bool { return l.share(s.Quota) == nil })
	}
	if settle := command.GetSettle(); settle != nil {
		more := func(item *logpb.Item) bool {
			p := o.part(item.Quota)
			return p == nil || item.GetAmount() > p.consumed
		}
		none := func(item *logpb.Item) bool { return o.part(item.Quota) == nil }
		return o != nil && (slices.ContainsFunc(settle.Unspent, more) || slices.ContainsFunc(settle.Actual, none))
	}
	items := append(slices.Clone(command.GetConsume().GetItems()), command.GetRelease().GetItems()...)
	if len(items) == 0 {
		return !slices.ContainsFunc(l.items, func(it *item) bool { return it.quota.rule.kind != slotsKind && it.left(j.clock) > 0 })
	}
	return slices.ContainsFunc(items, func(item *logpb.Item) bool {
		it := l.item(item.Quota)
		return it == nil || it.left(j.clock) == 0 || item.GetAmount() > it.left(j.clock)
	})
}

// share returns a quota of which a lease has an item or, as an ancestor, a share; nil: none.
func (l *lease) share(name string) *quota {
	for _, it := range l.items {
		for _, s := range it.shares {
			if s.quota.name == name && !s.quota.deleted {
				return s.quota
			}
		}
	}
	return nil
}

// withheld says whether a policy or a workflow may withhold the items of a Reserve.
func (j *Judge) withheld(ask *logpb.Reserve, reason logpb.Reason, n need) bool {
	q := n.quota
	policy := q.definition.GetPolicy()
	switch reason {
	case logpb.Reason_REASON_BREAKER_OPEN:
		u := j.usageOf(ask.Holder, q)
		return u.closedUntil > j.clock.Now || u.unsure && policy.GetBreaker() != nil
	case logpb.Reason_REASON_REOPENING:
		_, reopens := q.letsThrough(j.clock.Now)
		return reopens
	case logpb.Reason_REASON_ZONE:
		return policy.GetZones() != logpb.Zones_ZONES_UNSPECIFIED
	case logpb.Reason_REASON_SHARE, logpb.Reason_REASON_CAP:
		switch {
		case q.paced() && reason == logpb.Reason_REASON_SHARE:
			return j.keptFrom(ask, n)
		case q.paced():
			return j.mayCap(ask, n)
		}
		return policy.GetShares() != nil
	case logpb.Reason_REASON_PARKED:
		return policy.GetPrediction() != nil && q.rule.kind == windowKind && j.classOf(ask) == 2
	case logpb.Reason_REASON_SEQUENTIAL, logpb.Reason_REASON_BACK_PRESSURE:
		return j.standsBack(ask.Holder, reason)
	default:
		return false
	}
}

// aboveCap says whether a critical Reserve is larger than all that critical ones may use of a window. On a rate there is no such bound.
func (j *Judge) aboveCap(ask *logpb.Reserve, n need) bool {
	shares := n.quota.definition.GetPolicy().GetShares()
	if shares == nil || j.classOf(ask) != 0 || n.quota.rule.kind != windowKind {
		return false
	}
	return n.amount > n.quota.capOf(n.quota.rule.usable)
}
