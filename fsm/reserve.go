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

// Bounds of a Reserve; the API checks the same bounds earlier, with longer messages.
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
	// maxWaitersOfHolder bounds the waiting Reserves of one holder: each of its grants moves all of them.
	maxWaitersOfHolder = 4096
)

// need is the amount that a Reserve needs of one quota: the sum over its items, including those of descendants.
type need struct {
	quota  *quota
	amount int64
	// own is the largest amount of a single item of this quota itself; MaxHold limits it.
	own int64
	// choices, set in the first pool's need, are the members on which the Reserve may draw, in the order of trial when
	// the needs were computed.
	choices []choice
}

// reserve grants a lease, refuses it, or puts it into the queue.
func (m *Machine) reserve(req *logpb.Reserve, from dedup.RequestID) *logpb.Result {
	if failure := checkReserve(req); failure != nil {
		return effect.Failed(failure)
	}
	req, failure := m.judge.resolveMember(req)
	if failure != nil {
		return effect.Failed(failure)
	}
	var room [4]need
	needs, failure := m.judge.needsIn(room[:0], req)
	if failure != nil {
		return effect.Failed(failure)
	}
	rq := m.judge.request(req, needs)
	recordDemand(needs, rq.priority, m.clock.Now)
	rejected := rq.reject(needs)
	if rejected != nil && !req.Fallback {
		return m.refuse(req, rejected)
	}
	if req.Resume {
		m.resume(req.Holder)
		m.queue.serve()
		needs, _ = m.judge.needs(req)
		rejected = rq.reject(needs) // with the present availability
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
	if req.Fallback && (rejected != nil || m.judge.movesOn(needs)) {
		if result := m.fallBack(req, needs); result != nil {
			return result
		}
	}
	if rejected != nil {
		return m.refuse(req, rejected)
	}
	result, refusal := m.grantNow(&rq, needs)
	if result == nil {
		result = m.fallBack(req, needs)
	}
	if result == nil {
		result = m.refuseOrWait(&rq, needs, from, refusal)
	}
	return result
}

// noLeaseLeft refuses a Reserve that would exceed the budget of leases, whatever the quotas have.
func (m *Machine) noLeaseLeft(needs []need) *logpb.Refusal {
	return m.refusalFor(accounts.Leases, m.taking(accounts.Leases), needs,
		"release leases that are not needed, or come back when some have ended")
}

// noRecordLeft refuses a Reserve that consumes at once and would exceed the budget of operations.
func (m *Machine) noRecordLeft(req *logpb.Reserve, needs []need) *logpb.Refusal {
	if !req.Consume {
		return nil
	}
	return m.refusalFor(accounts.Operations, m.taking(accounts.Operations), needs, settleHint)
}

// settleHint is the advice for a full budget of operations.
const settleHint = "settle what is consumed and send done_below, or release the lease; what is never settled stays until it stops counting"

// refusalFor returns the refusal for a budget that is used up.
func (m *Machine) refusalFor(b accounts.Budget, judged accounts.Verdict, needs []need, advice string) *logpb.Refusal {
	if judged == accounts.MayTake {
		return nil
	}
	reason := logpb.Reason_REASON_BUDGET_FULL
	if judged == accounts.AtBudget {
		reason = logpb.Reason_REASON_CALLER_BUDGET
	}
	refusal := m.judge.refusal(reason, needs[0].quota, fixed.AddSaturated(m.clock.Now, budgetRetry), accounts.Names[b]+": "+advice)
	refusal.Budget = accounts.Names[b]
	m.accounts.Refused[b]++
	return refusal
}

// grantNow grants a Reserve, or returns what prevents that.
func (m *Machine) grantNow(rq *request, needs []need) (*logpb.Result, *logpb.Refusal) {
	if waitedFor(needs) {
		return m.grantInLine(rq, needs)
	}
	if onPool(needs) {
		free, refusal := rq.judgeChoices(needs)
		if refusal != nil {
			return nil, refusal
		}
		return m.grantChoice(rq, free, 0, m.accounts.Open(m.payer)), nil
	}
	if refusal := rq.obstacle(needs); refusal != nil {
		return nil, refusal
	}
	return m.grant(rq, needs, 0, m.accounts.Open(m.payer)), nil
}

// refuseOrWait refuses a Reserve that cannot be granted now, or queues it.
func (m *Machine) refuseOrWait(rq *request, needs []need, from dedup.RequestID, refusal *logpb.Refusal) *logpb.Result {
	req := rq.req
	m.holders.recordStarving(req.Holder, rq.priority, needs)
	m.workflows.RecordDenial(workflowHost{m}, req.Holder, refusal, amountIn(needs))
	m.workflows.RecordRequest(req.Holder, refusal.Reason, m.clock.Now)
	if req.WaitNs == 0 {
		return m.refuse(req, refusal)
	}
	return m.wait(rq, needs, from, refusal)
}

// grantInLine judges a Reserve whose quotas have waiters as if it stood in the queue now.
func (m *Machine) grantInLine(rq *request, needs []need) (*logpb.Result, *logpb.Refusal) {
	w := m.queue.enqueue(rq, needs, dedup.RequestID{})
	for _, n := range needs {
		m.quotas.dirty[n.quota.number] = true
	}
	before := len(m.events)
	m.queue.wakeupLost = false
	m.queue.serve()
	if _, waits := m.queue.waiters.Get(w.ticket); !waits {
		return m.servedAtOnce(rq.req, w.ticket, before), nil
	}
	m.queue.dequeue(w)
	if m.queue.wakeupLost {
		m.queue.serve() // the waiters that it overtook were not tried, and would not be again
	}
	clear(m.quotas.dirty) // as before it was queued
	needs, _ = m.judge.needs(rq.req)
	return nil, rq.inLine(needs)
}

// servedAtOnce returns the result of a Reserve that left the queue as soon as it had entered it.
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

// wait queues a Reserve, unless it would certainly wait in vain.
func (m *Machine) wait(rq *request, needs []need, from dedup.RequestID, refusal *logpb.Refusal) *logpb.Result {
	req := rq.req
	taking := m.taking(accounts.Waiters)
	if taking == accounts.AtBudget {
		return m.refuse(req, m.refusalFor(accounts.Waiters, taking, needs, "wait for less at a time, or come back"))
	}
	if h, known := m.holders.byName.Get(req.Holder); taking == accounts.AllTaken || known && h.waiting >= maxWaitersOfHolder {
		refusal.Reason = logpb.Reason_REASON_QUEUE_FULL
		return m.refuse(req, refusal)
	}
	if at := rq.certainlyNotBefore(needs); at > fixed.AddSaturated(m.clock.Now, req.WaitNs) {
		if refusal.ReopensAtNs != 0 {
			at = max(at, refusal.RetryAtNs) // spread within the class's retry window
		}
		refusal.Reason, refusal.RetryAtNs = logpb.Reason_REASON_CANNOT_SERVE_IN_TIME, at
		refusal.Advice = "come back then, or wait longer"
		return m.refuse(req, refusal)
	}
	w := m.queue.enqueue(rq, needs, from)
	for _, n := range needs {
		if n.quota.rule.Policy.KeepsStats() {
			m.holders.editStats(req.Holder, n.quota) // its grant writes there, without a check of the budget
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

// checkReserve validates the fields that need no state.
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

// waitedFor reports whether one of the needed quotas has waiters.
func waitedFor(needs []need) bool {
	return slices.ContainsFunc(needs, func(n need) bool { return n.quota.waiting > 0 })
}

// worse returns the refusal with precedence: the lower reason, or of equal ones the later time. If retrying helps, its
// retry time is the later of both.
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

// refuse builds the answer of a refusal.
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
