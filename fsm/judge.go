package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// judge computes what a Reserve needs, and what prevents a grant. It advances the quotas that it reads to the present,
// and changes nothing else: it grants nothing, and has no table to do so.
type judge struct {
	*moment
	quotas    *quotaTable
	holders   *holderTables
	workflows *workflow.Table
	rules     *holderRules
}

// request is a Reserve under judgment, with its present priority.
type request struct {
	*judge
	req *logpb.Reserve
	priority
}

// request returns a Reserve with these needs for judgment at its present priority.
func (j *judge) request(req *logpb.Reserve, needs []need) request {
	own, _ := j.rules.of(req.Holder)
	class := classOf(own, req.Class)
	as := priority{class: class, rank: class}
	if at := j.promotesAt(req.Holder, as, needs); at != 0 && at <= j.clock.Now {
		as.rank = ledger.ClassStandard
	}
	return request{judge: j, req: req, priority: as}
}

// requestOf returns the Reserve of a waiter for judgment at its present priority.
func (j *judge) requestOf(w *waiter) request {
	return request{judge: j, req: w.req, priority: w.priority}
}

// needs computes what a Reserve needs, by ascending quota number.
func (j *judge) needs(req *logpb.Reserve) ([]need, *logpb.Failure) {
	return j.needsIn(make([]need, 0, len(req.Items)), req)
}

// needsIn is needs with an empty list to append to.
func (j *judge) needsIn(needs []need, req *logpb.Reserve) ([]need, *logpb.Failure) {
	for _, item := range req.Items {
		q := j.quotas.get(j.quotas.numberOf(item.Quota))
		if q == nil {
			return nil, unknownQuota(item.Quota)
		}
		if q.rule.Kind == ledger.KindPool {
			return j.needsOfPools(req)
		}
		var failure *logpb.Failure
		if needs, failure = j.addNeed(needs, q, item); failure != nil {
			return nil, failure
		}
	}
	return needs, nil
}

// addNeed adds what an item needs of a quota and of its ancestors.
func (j *judge) addNeed(needs []need, q *quota, item *logpb.Item) ([]need, *logpb.Failure) {
	amount := q.rule.Estimate
	if item.Amount != nil {
		amount = *item.Amount
	}
	if amount < 1 || amount > fixed.MaxAmount {
		return nil, effect.Invalid(fmt.Sprintf("amount %d of %q is not within 1 to 2^53-1", amount, item.Quota), "")
	}
	own := amount
	for q = j.quotas.editNow(q.number); q != nil; q, own = j.quotas.parent(q), 0 {
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

// reject refuses a Reserve that can never be granted under the present configuration.
func (rq *request) reject(needs []need) *logpb.Refusal {
	if onPool(needs) {
		return rq.rejectChoices(needs)
	}
	var worst *logpb.Refusal
	for _, n := range needs {
		if rq.rejectByOverride(n) == nil {
			worst = worse(worst, rq.rejectByRule(n, &n.quota.rule))
		}
	}
	return worst
}

// rejectByRule refuses a need that can never be granted under a rule of its quota.
func (rq *request) rejectByRule(n need, r *ledger.Rule) *logpb.Refusal {
	switch {
	case r.Policy.Observe:
		return nil
	case r.Limit == 0:
		return rq.refusal(logpb.Reason_REASON_SUSPENDED, n.quota, 0, "its limit is 0: ask the operator")
	case n.amount > r.Usable || rq.req.Consume && r.Burst > 0 && n.amount > r.Burst:
		largest := r.Usable
		if rq.req.Consume && r.Burst > 0 {
			largest = min(largest, r.Burst)
		}
		return rq.refusal(logpb.Reason_REASON_NEVER_FITS, n.quota, 0, fmt.Sprintf("ask for at most %d", largest))
	case r.MaxHold > 0 && n.own > r.MaxHold:
		return rq.refusal(logpb.Reason_REASON_ABOVE_CLAMP, n.quota, 0, fmt.Sprintf("ask for at most %d at a time", r.MaxHold))
	}
	return rq.rejectAboveCap(n, r)
}

// obstacle returns what prevents a grant now, nil for nothing. It ignores waiters.
func (rq *request) obstacle(needs []need) *logpb.Refusal {
	if onPool(needs) {
		_, refusal := rq.judgeChoices(needs)
		return refusal
	}
	return rq.hindrance(needs).refusal
}

// hindrance is what prevents a grant, and until when. Retry times may be spread over a period after that.
type hindrance struct {
	refusal *logpb.Refusal
	// until is 0 where waiting does not help.
	until int64
}

// add adds another reason that prevents a grant until a time.
func (h *hindrance) add(refusal *logpb.Refusal, until int64) {
	h.refusal = worse(h.refusal, refusal)
	if h.until = max(h.until, until); h.refusal.RetryAtNs == 0 {
		h.until = 0
	}
}

// hindrance returns what prevents a grant of needs that are not on a pool.
func (rq *request) hindrance(needs []need) (h hindrance) {
	if kept := rq.withhold(needs); kept != nil {
		h.add(kept.refusal, kept.refusal.RetryAtNs)
	}
	add := func(refusal *logpb.Refusal) { h.add(refusal, refusal.RetryAtNs) }
	for _, n := range needs {
		q := n.quota
		if q.rule.Policy.Observe {
			continue
		}
		if q.cooling(rq.clock.Now) {
			reopens := fixed.AddSaturated(q.cooldown, q.letsThrough(0, n.amount))
			h.add(rq.coolingRefusal(q, rq.req.Holder, rq.class, reopens), reopens)
		}
		rejected := rq.rejectByOverride(n)
		switch {
		case rejected != nil:
			add(rejected)
		case q.rule.Kind == ledger.KindWindow && rq.clock.WallEarly == 0:
			add(rq.refusal(logpb.Reason_REASON_EXHAUSTED, q, fixed.AddSaturated(rq.clock.Now, noClockRetry),
				"the cluster has no sample of Unix time yet"))
		case rq.lacks(n):
			add(rq.exhausted(n))
		}
		if wait := rq.rampWait(n); wait > 0 {
			add(rq.refusal(logpb.Reason_REASON_REOPENING, q, fixed.AddSaturated(rq.clock.Now, wait),
				"it reopens slowly after a cooldown"))
		}
	}
	if h.refusal != nil {
		h.refusal.Forecast = rq.forecastOf(needs)
	}
	return h
}

// lacks reports whether a need does not fit now.
func (rq *request) lacks(n need) bool {
	there := n.quota.ledger.Available(&n.quota.rule)
	return there < n.amount || rq.burstWait(n) > 0 || n.quota.heldBack(rq.rank, n.amount, there, rq.clock.Now)
}

// exhausted returns the refusal of a need that does not fit now.
func (rq *request) exhausted(n need) *logpb.Refusal {
	g, r := &n.quota.ledger, &n.quota.rule
	if rq.rank > ledger.ClassCritical && r.Paced() {
		return rq.exhaustedPaced(n)
	}
	left, ok := g.FreesIn(r, r.At(rq.clock), n.amount, false)
	if !ok {
		left = unknownRetry
		if closes, known := g.Closes(r, r.At(rq.clock)); known {
			left = min(max(closes, 1), unknownRetry)
		}
	}
	left = max(left, rq.burstWait(n))
	return rq.refusal(logpb.Reason_REASON_EXHAUSTED, n.quota, fixed.AddSaturated(rq.clock.Now, left), "come back then, or wait in the queue")
}

// burstWait returns how long until a need that is consumed at once passes the burst.
func (rq *request) burstWait(n need) int64 {
	if !rq.req.Consume {
		return 0
	}
	return n.quota.burstLeft(rq.moment, n.amount)
}

// inLine returns what keeps a Reserve in the queue: an obstacle, or else the waiters before it.
func (rq *request) inLine(needs []need) *logpb.Refusal {
	drawn := needs
	var refusal *logpb.Refusal
	if onPool(needs) {
		var free choice
		free, refusal = rq.judgeChoices(needs)
		drawn = free.needs
	} else {
		refusal = rq.obstacle(needs)
	}
	if refusal != nil {
		return refusal
	}
	refusal = rq.behind(needs)
	if rq.featureLevel >= levels.ForecastInLine {
		refusal.Forecast = rq.forecastOf(drawn)
	}
	return refusal
}

// behind returns the refusal of a Reserve that fits but is behind waiters.
func (j *judge) behind(needs []need) *logpb.Refusal {
	binding := needs[0].quota
	for _, n := range needs[1:] {
		if n.quota.waiting > binding.waiting {
			binding = n.quota
		}
	}
	refusal := j.refusal(logpb.Reason_REASON_BEHIND_WAITERS, binding, fixed.AddSaturated(j.clock.Now, fixed.Second), "wait in the queue")
	refusal.Ahead = binding.waiting
	return refusal
}

// certainlyNotBefore returns a time before which the needs certainly cannot be met, even if amounts return early.
func (rq *request) certainlyNotBefore(needs []need) int64 {
	at := rq.clock.Now
	if onPool(needs) {
		return rq.noMemberBefore(needs)
	}
	for _, n := range needs {
		q := n.quota
		if q.rule.Policy.Observe {
			continue
		}
		if q.cooling(rq.clock.Now) {
			at = max(at, q.cooldown)
		}
		if rq.rejectByOverride(n) != nil {
			at = max(at, q.override.until)
			continue
		}
		if q.rule.Anchored && (!q.ledger.Known || !q.ledger.Frees(&q.rule)) {
			continue // a reset that is learned or confirmed may free all of it
		}
		if left, ok := q.ledger.FreesIn(&q.rule, q.rule.At(rq.clock), n.amount, true); ok {
			at = max(at, fixed.AddSaturated(rq.clock.Now, left))
		}
	}
	return at
}

// refusal builds a refusal.
func (j *judge) refusal(reason logpb.Reason, q *quota, retryAt int64, advice string) *logpb.Refusal {
	zone, _, _ := q.zone(&q.ledger, q.rule.At(j.clock))
	return &logpb.Refusal{
		Reason: reason, Quota: q.name, RetryAtNs: retryAt, Advice: advice, Zone: zone,
		Available: q.ledger.Available(&q.rule), Ahead: min(q.waiting, maxPlacesAhead),
	}
}
