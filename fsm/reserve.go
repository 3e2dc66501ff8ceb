package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Bounds of a Reserve; the API's table refuses the same earlier and with more words.
const (
	maxItems       = 64
	defaultTTL     = 5 * fixed.Minute
	minTTL         = fixed.Second
	maxTTL         = fixed.Day
	maxWait        = 10 * fixed.Minute
	provisionalTTL = 5 * fixed.Second
	noClockRetry   = fixed.Second
	budgetRetry    = fixed.Second
	unknownRetry   = 5 * fixed.Second
	maxPlacesAhead = 1000
	// maxWaitersOfHolder bounds the waiting Reserves of one holder: each of its grants moves them all.
	maxWaitersOfHolder = 4096
)

// need is what a Reserve needs of one quota: the sum over its items, those of descendants included.
type need struct {
	quota  *quota
	amount int64
	// own is the largest amount of a single item of this very quota: what a hold's clamp judges.
	own int64
	// choices are, of the first pool of a Reserve, the members on which it may draw, in the order in which they were to be tried when the
	// needs were worked out.
	choices []choice
}

// needs works out what a Reserve needs, by ascending quota number.
func (m *Machine) needs(req *logpb.Reserve) ([]need, *logpb.Failure) {
	return m.needsIn(make([]need, 0, len(req.Items)), req)
}

// needsIn does the same in a list that is empty.
func (m *Machine) needsIn(needs []need, req *logpb.Reserve) ([]need, *logpb.Failure) {
	for _, item := range req.Items {
		q := m.quotas.get(m.quotas.numberOf(item.Quota))
		if q == nil {
			return nil, unknownQuota(item.Quota)
		}
		if q.rule.Kind == ledger.KindPool {
			return m.needsOfPools(req)
		}
		var failure *logpb.Failure
		if needs, failure = m.addNeed(needs, q, item); failure != nil {
			return nil, failure
		}
	}
	return needs, nil
}

// addNeed adds what an item needs of a quota, and of its ancestors.
func (m *Machine) addNeed(needs []need, q *quota, item *logpb.Item) ([]need, *logpb.Failure) {
	amount := q.rule.Estimate
	if item.Amount != nil {
		amount = *item.Amount
	}
	if amount < 1 || amount > fixed.MaxAmount {
		return nil, effect.Invalid(fmt.Sprintf("amount %d of %q is not within 1 to 2^53-1", amount, item.Quota), "")
	}
	own := amount
	for q = m.quotas.editNow(q.number); q != nil; q, own = m.quotas.parent(q), 0 {
		i, found := slices.BinarySearchFunc(needs, q.number, func(n need, number uint32) int {
			return int(int64(n.quota.number) - int64(number))
		})
		if !found {
			needs = slices.Insert(needs, i, need{quota: q})
		}
		needs[i].amount = fixed.AddSaturated(needs[i].amount, amount)
		needs[i].own = max(needs[i].own, own)
	}
	return needs, nil
}

// reserve grants a lease, refuses it, or puts it into the queue.
func (m *Machine) reserve(req *logpb.Reserve, from dedup.RequestID) *logpb.Result {
	if failure := checkReserve(req); failure != nil {
		return effect.Failed(failure)
	}
	req, failure := m.settleMember(req)
	if failure != nil {
		return effect.Failed(failure)
	}
	var room [4]need
	needs, failure := m.needsIn(room[:0], req)
	if failure != nil {
		return effect.Failed(failure)
	}
	as := m.priorityOf(req, needs)
	m.recordDemand(needs, as)
	rejected := m.reject(req, as.class, needs)
	if rejected != nil && !req.Fallback {
		return m.refuse(req, rejected)
	}
	if req.Resume {
		m.resume(req.Holder)
		m.serve()
		needs, _ = m.needs(req)
		rejected = m.reject(req, as.class, needs) // says what is available now
	}
	if full := m.noLeaseLeft(needs); full != nil {
		return m.refuse(req, full)
	}
	if full := m.noHolderLeft(req.Holder, needs); full != nil {
		return m.refuse(req, full)
	}
	if full := m.noRecordLeft(req, needs); full != nil {
		return m.refuse(req, full)
	}
	if req.Fallback && (rejected != nil || m.movesOn(needs)) {
		if result := m.fallBack(req, needs); result != nil {
			return result
		}
	}
	if rejected != nil {
		return m.refuse(req, rejected)
	}
	result, refusal := m.grantNow(req, needs, as)
	if result == nil {
		result = m.fallBack(req, needs)
	}
	if result == nil {
		result = m.refuseOrWait(req, needs, as, from, refusal)
	}
	return result
}

// noLeaseLeft refuses what would be one lease too many, whatever there is of the quotas.
func (m *Machine) noLeaseLeft(needs []need) *logpb.Refusal {
	return m.refusalFor(accounts.Leases, m.taking(accounts.Leases), needs,
		"release leases that are not needed, or come back when some have ended")
}

// noRecordLeft refuses what would consume at once and have one record of an operation too many.
func (m *Machine) noRecordLeft(req *logpb.Reserve, needs []need) *logpb.Refusal {
	if !req.Consume {
		return nil
	}
	return m.refusalFor(accounts.Operations, m.taking(accounts.Operations), needs, settleHint)
}

// settleHint says how to come back under the budget of operations.
const settleHint = "settle what is consumed and send done_below, or release the lease; what is never settled stays until it stops counting"

// refusalFor makes the refusal of what may not be taken of a budget.
func (m *Machine) refusalFor(b accounts.Budget, judged accounts.Verdict, needs []need, advice string) *logpb.Refusal {
	if judged == accounts.MayTake {
		return nil
	}
	reason := logpb.Reason_REASON_BUDGET_FULL
	if judged == accounts.AtBudget {
		reason = logpb.Reason_REASON_CALLER_BUDGET
	}
	refusal := m.refusal(reason, needs[0].quota, fixed.AddSaturated(m.clock.Now, budgetRetry), accounts.Names[b]+": "+advice)
	refusal.Budget = accounts.Names[b]
	m.accounts.Refused[b]++
	return refusal
}

// grantNow grants a Reserve, or says what stands in the way.
func (m *Machine) grantNow(req *logpb.Reserve, needs []need, as priority) (*logpb.Result, *logpb.Refusal) {
	if m.waitedFor(needs) {
		return m.grantInLine(req, needs, as)
	}
	if onPool(needs) {
		free, refusal := m.judgeChoices(req, as, needs)
		if refusal != nil {
			return nil, refusal
		}
		return m.grantChoice(req, free, as, 0, m.accounts.Open(m.payer)), nil
	}
	if refusal := m.judge(req, as, needs); refusal != nil {
		return nil, refusal
	}
	return m.grant(req, needs, as, 0, m.accounts.Open(m.payer)), nil
}

// refuseOrWait refuses a Reserve that cannot be granted now, or puts it into the queue.
func (m *Machine) refuseOrWait(
	req *logpb.Reserve, needs []need, as priority, from dedup.RequestID, refusal *logpb.Refusal,
) *logpb.Result {
	m.recordStarving(req.Holder, as, needs)
	m.workflows.RecordDenial(workflowHost{m}, req.Holder, refusal, amountIn(needs))
	m.workflows.RecordRequest(req.Holder, refusal.Reason, m.clock.Now)
	if req.WaitNs == 0 {
		return m.refuse(req, refusal)
	}
	return m.wait(req, needs, as, from, refusal)
}

// grantInLine judges a Reserve whose quotas are waited for: as if it stood in the order now.
func (m *Machine) grantInLine(req *logpb.Reserve, needs []need, as priority) (*logpb.Result, *logpb.Refusal) {
	w := m.enqueue(req, needs, as, dedup.RequestID{})
	for _, n := range needs {
		m.quotas.dirty[n.quota.number] = true
	}
	before := len(m.events)
	m.wakeupLost = false
	m.serve()
	if _, waits := m.waiters.Get(w.ticket); !waits {
		return m.servedAtOnce(req, w.ticket, before), nil
	}
	m.dequeue(w)
	if m.wakeupLost {
		m.serve() // whom it stood before was not tried, and would not be again
	}
	clear(m.quotas.dirty) // as before it came
	needs, _ = m.needs(req)
	refusal := m.judge(req, as, needs)
	if refusal == nil {
		refusal = m.behind(needs)
	}
	return nil, refusal
}

// servedAtOnce returns the result of a Reserve that left the queue as soon as it had come.
func (m *Machine) servedAtOnce(req *logpb.Reserve, ticket uint64, since int) *logpb.Result {
	for i := since; i < len(m.events); i++ {
		if event := &m.events[i]; event.Ticket == ticket && event.Result != nil {
			result := event.Result
			if granted := result.GetGranted(); granted != nil {
				m.confirmAtOnce(granted)
			}
			return result
		}
	}
	panic(fmt.Sprintf("fsm: ticket %d of holder %q left the queue without a result", ticket, req.Holder))
}

// wait puts a Reserve into the queue, unless it can be known that it would wait in vain.
func (m *Machine) wait(
	req *logpb.Reserve, needs []need, as priority, from dedup.RequestID, refusal *logpb.Refusal,
) *logpb.Result {
	taking := m.taking(accounts.Waiters)
	if taking == accounts.AtBudget {
		return m.refuse(req, m.refusalFor(accounts.Waiters, taking, needs, "wait for less at a time, or come back"))
	}
	if h, known := m.holders.byName.Get(req.Holder); taking == accounts.AllTaken || known && h.waiting >= maxWaitersOfHolder {
		refusal.Reason = logpb.Reason_REASON_QUEUE_FULL
		return m.refuse(req, refusal)
	}
	if at := m.certainlyNotBefore(req, as.class, needs); at > fixed.AddSaturated(m.clock.Now, req.WaitNs) {
		if refusal.ReopensAtNs != 0 {
			at = max(at, refusal.RetryAtNs) // spread within the class's retry window
		}
		refusal.Reason, refusal.RetryAtNs = logpb.Reason_REASON_CANNOT_SERVE_IN_TIME, at
		refusal.Advice = "come back then, or wait longer"
		return m.refuse(req, refusal)
	}
	w := m.enqueue(req, needs, as, from)
	for _, n := range needs {
		if n.quota.rule.Policy.KeepsStats() {
			m.holders.editStats(holding{m}, req.Holder, n.quota) // its grant will note something there, and is over no budget
		}
	}
	if slices.ContainsFunc(needs, func(n need) bool { return n.quota.rule.Timed() || n.quota.rule.Paced() }) {
		m.quotas.wakeAt(needs[0].quota.number, refusal.RetryAtNs)
	}
	m.emit(effect.Event{Kind: effect.EventWaiting, Quota: refusal.Quota, Holder: req.Holder, Ticket: w.ticket, Reason: refusal.Reason})
	return &logpb.Result{Kind: &logpb.Result_Waiting{
		Waiting: &logpb.Waiting{Ticket: w.ticket, UntilNs: w.until},
	}}
}

// checkReserve checks what needs no state.
func checkReserve(req *logpb.Reserve) *logpb.Failure {
	switch {
	case req.Holder == "":
		return effect.Invalid("a Reserve needs a holder", "any stable name")
	case len(req.Items) == 0 || len(req.Items) > maxItems:
		return effect.Invalid(fmt.Sprintf("%d items are not within 1 to %d", len(req.Items), maxItems), "")
	case req.TtlNs != 0 && (req.TtlNs < minTTL || req.TtlNs > maxTTL):
		return effect.Invalid("the ttl is not within 1 s to 24 h", "leave it out for 5 min")
	case req.WaitNs < 0 || req.WaitNs > maxWait:
		return effect.Invalid("the wait is not within 0 to 10 min", "")
	case req.Class != nil && (*req.Class < ledger.ClassCritical || *req.Class > ledger.ClassBackground):
		return effect.Invalid("the class is not within 0 to 2", "")
	}
	for i, item := range req.Items {
		if item.Pool != "" {
			return effect.Invalid(fmt.Sprintf("quota %q is asked for as one of pool %q", item.Quota, item.Pool),
				"name the pool, and the member of the Reserve")
		}
		for _, other := range req.Items[:i] {
			if item.Quota == other.Quota {
				return effect.Invalid(fmt.Sprintf("quota %q is named twice", item.Quota), "add the amounts up")
			}
		}
	}
	return nil
}

// reject refuses what can never be granted as things are configured.
func (m *Machine) reject(req *logpb.Reserve, class int32, needs []need) *logpb.Refusal {
	if onPool(needs) {
		return m.rejectChoices(req, class, needs)
	}
	var worst *logpb.Refusal
	for _, n := range needs {
		if m.rejectByOverride(req, class, n) == nil {
			worst = worse(worst, m.rejectByRule(req, class, n, &n.quota.rule))
		}
	}
	return worst
}

// rejectByRule refuses a need that can never be granted under a rule of its quota.
func (m *Machine) rejectByRule(req *logpb.Reserve, class int32, n need, r *ledger.Rule) *logpb.Refusal {
	switch {
	case r.Policy.Observe:
		return nil
	case r.Limit == 0:
		return m.refusal(logpb.Reason_REASON_SUSPENDED, n.quota, 0, "its limit is 0: ask the operator")
	case n.amount > r.Usable || req.Consume && r.Burst > 0 && n.amount > r.Burst:
		largest := r.Usable
		if req.Consume && r.Burst > 0 {
			largest = min(largest, r.Burst)
		}
		return m.refusal(logpb.Reason_REASON_NEVER_FITS, n.quota, 0, fmt.Sprintf("ask for at most %d", largest))
	case r.MaxHold > 0 && n.own > r.MaxHold:
		return m.refusal(logpb.Reason_REASON_ABOVE_CLAMP, n.quota, 0, fmt.Sprintf("ask for at most %d at a time", r.MaxHold))
	}
	return m.rejectAboveCap(class, n, r)
}

// judge says what stands in the way of a grant now, nil for nothing. Waiters are not looked at.
func (m *Machine) judge(req *logpb.Reserve, as priority, needs []need) *logpb.Refusal {
	if onPool(needs) {
		_, refusal := m.judgeChoices(req, as, needs)
		return refusal
	}
	var worst *logpb.Refusal
	if kept := m.withhold(req, as, needs); kept != nil {
		worst = kept.refusal
	}
	for _, n := range needs {
		q := n.quota
		if q.rule.Policy.Observe {
			continue
		}
		if q.cooling(m.clock.Now) {
			reopens := fixed.AddSaturated(q.cooldown, q.letsThrough(0, n.amount))
			worst = worse(worst, m.coolingRefusal(q, req.Holder, as.class, reopens))
		}
		rejected := m.rejectByOverride(req, as.class, n)
		switch {
		case rejected != nil:
			worst = worse(worst, rejected)
		case q.rule.Kind == ledger.KindWindow && m.clock.WallEarly == 0:
			worst = worse(worst, m.refusal(logpb.Reason_REASON_EXHAUSTED, q, fixed.AddSaturated(m.clock.Now, noClockRetry),
				"the cluster has no sample of Unix time yet"))
		case m.lacks(req, as, n):
			worst = worse(worst, m.exhausted(req, as, n))
		}
		if wait := m.rampWait(n); wait > 0 {
			worst = worse(worst, m.refusal(logpb.Reason_REASON_REOPENING, q, fixed.AddSaturated(m.clock.Now, wait),
				"it reopens slowly after a cooldown"))
		}
	}
	if worst != nil {
		worst.Forecast = m.forecastOf(needs)
	}
	return worst
}

// lacks tells whether a need does not fit now.
func (m *Machine) lacks(req *logpb.Reserve, as priority, n need) bool {
	there := n.quota.ledger.Available(&n.quota.rule)
	return there < n.amount || m.burstWait(req, n) > 0 || n.quota.heldBack(as.rank, n.amount, there, m.clock.Now)
}

// exhausted makes the refusal of a need that does not fit now.
func (m *Machine) exhausted(req *logpb.Reserve, as priority, n need) *logpb.Refusal {
	g, r := &n.quota.ledger, &n.quota.rule
	if as.rank > ledger.ClassCritical && r.Paced() {
		return m.exhaustedPaced(req, as, n)
	}
	left, ok := g.FreesIn(r, r.At(m.clock), n.amount, false)
	if !ok {
		left = unknownRetry
		if closes, known := g.Closes(r, r.At(m.clock)); known {
			left = min(max(closes, 1), unknownRetry)
		}
	}
	left = max(left, m.burstWait(req, n))
	return m.refusal(logpb.Reason_REASON_EXHAUSTED, n.quota, fixed.AddSaturated(m.clock.Now, left), "come back then, or wait in the queue")
}

// burstWait returns in how long a need that is consumed at once passes the burst.
func (m *Machine) burstWait(req *logpb.Reserve, n need) int64 {
	if !req.Consume {
		return 0
	}
	return n.quota.burstLeft(m.moment, n.amount)
}

// behind makes the refusal of a Reserve that fits but is behind waiters.
func (m *Machine) behind(needs []need) *logpb.Refusal {
	binding := needs[0].quota
	for _, n := range needs[1:] {
		if n.quota.waiting > binding.waiting {
			binding = n.quota
		}
	}
	refusal := m.refusal(logpb.Reason_REASON_BEHIND_WAITERS, binding, fixed.AddSaturated(m.clock.Now, fixed.Second), "wait in the queue")
	refusal.Ahead = binding.waiting
	return refusal
}

// certainlyNotBefore returns a time before which needs can certainly not be met, whatever comes back.
func (m *Machine) certainlyNotBefore(req *logpb.Reserve, class int32, needs []need) int64 {
	at := m.clock.Now
	if onPool(needs) {
		return m.noMemberBefore(req, class, needs)
	}
	for _, n := range needs {
		q := n.quota
		if q.rule.Policy.Observe {
			continue
		}
		if q.cooling(m.clock.Now) {
			at = max(at, q.cooldown)
		}
		if m.rejectByOverride(req, class, n) != nil {
			at = max(at, q.override.until)
			continue
		}
		if q.rule.Anchored && (!q.ledger.Known || !q.ledger.Frees(&q.rule)) {
			continue // a reset that is learned, or confirmed, may free all of it
		}
		if left, ok := q.ledger.FreesIn(&q.rule, q.rule.At(m.clock), n.amount, true); ok {
			at = max(at, fixed.AddSaturated(m.clock.Now, left))
		}
	}
	return at
}

// waitedFor tells whether somebody waits for one of the needed quotas.
func (m *Machine) waitedFor(needs []need) bool {
	return slices.ContainsFunc(needs, func(n need) bool { return n.quota.waiting > 0 })
}

// refusal makes a refusal.
func (m *Machine) refusal(reason logpb.Reason, q *quota, retryAt int64, advice string) *logpb.Refusal {
	zone, _, _ := q.zone(&q.ledger, q.rule.At(m.clock))
	return &logpb.Refusal{
		Reason: reason, Quota: q.name, RetryAtNs: retryAt, Advice: advice, Zone: zone,
		Available: q.ledger.Available(&q.rule), Ahead: min(q.waiting, maxPlacesAhead),
	}
}

// worse returns the refusal that goes first: the lower reason, or of equal ones the later time. Where coming back helps,
// it is told when nothing of both stands in the way.
func worse(a, b *logpb.Refusal) *logpb.Refusal {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	at := max(a.RetryAtNs, b.RetryAtNs)
	if b.Reason < a.Reason || b.Reason == a.Reason && b.RetryAtNs > a.RetryAtNs {
		a = b
	}
	if a.RetryAtNs != 0 {
		a.RetryAtNs = at
	}
	return a
}

// refused answers a refusal.
func (m *Machine) refuse(req *logpb.Reserve, refusal *logpb.Refusal) *logpb.Result {
	m.recordRefusal(req.Holder, refusal)
	m.emit(effect.Event{Kind: effect.EventRefused, Quota: refusal.Quota, Holder: req.Holder, Reason: refusal.Reason})
	refusal.BackPressure = m.workflows.Pressure(req.Holder, m.clock.Now)
	return effect.Refused(refusal)
}

func unknownQuota(name string) *logpb.Failure {
	return &logpb.Failure{
		Reason: logpb.Reason_REASON_UNKNOWN_QUOTA, Quota: name, Message: fmt.Sprintf("there is no quota %q", name),
		Hint: "list the quotas, or apply its definition first",
	}
}
