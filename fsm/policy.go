package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// A policy withholds a need that would fit: from one holder or from a class, for a while
// (docs/decisions/0005-policy.md).

const (
	// longestDelay is the interval between a holder's background calls at the end of amber.
	longestDelay = 2 * fixed.Second
	// redPace is the interval between a holder's standard calls in red.
	redPace = fixed.Second
)

// withheld is a need that a policy withholds.
type withheld struct {
	refusal *logpb.Refusal
	// class says that it is withheld from the whole class, not only from this holder.
	class bool
}

// withhold returns which of a holder's needs policies withhold now; nil: none. Of several reasons the refusal has the
// first in precedence.
func (rq *request) withhold(needs []need) *withheld {
	var all *withheld
	if refusal := rq.withholdByWorkflow(needs); refusal != nil {
		all = &withheld{refusal: refusal}
	}
	for _, n := range needs {
		p := &n.quota.rule.Policy
		if p.Observe || !p.Judges() || n.quota.rule.WithholdsNothing(rq.class) {
			continue
		}
		if one := rq.withholdNeed(n); one != nil {
			if all != nil {
				one.refusal, one.class = worse(all.refusal, one.refusal), one.class || all.class
			}
			all = one
		}
	}
	return all
}

// withholdNeed judges one need.
func (rq *request) withholdNeed(n need) *withheld {
	var found *withheld
	add := func(refusal *logpb.Refusal, ofClass bool) {
		if refusal == nil {
			return
		}
		if found == nil {
			found = &withheld{}
		}
		found.refusal, found.class = worse(found.refusal, refusal), found.class || ofClass
	}
	t := rq.holders.statsOf(rq.req.Holder, n.quota)
	if n.quota.rule.Policy.Failures > 0 && t.closedUntil > rq.clock.Now {
		add(rq.refusal(logpb.Reason_REASON_BREAKER_OPEN, n.quota, t.closedUntil,
			fmt.Sprintf("the provider refused %q %d times in a row", rq.req.Holder, t.failures)), false)
	}
	add(rq.withholdByZone(n.quota, t))
	add(rq.withholdByShare(n), false)
	add(rq.withholdByForecast(n.quota), true)
	return found
}

// zone returns a window's zone, the share of usable that is left, and the factor by which the thresholds have shrunk
// (both in millionths). For strict zones the share is one smaller, so that equality counts as below the threshold. A
// quota without zones has none.
func (q *quota) zone(g *ledger.Ledger, v ledger.View) (zone logpb.Zone, left, scale int64) {
	green, amber := q.rule.Policy.Thresholds()
	if green == 0 {
		return logpb.Zone_ZONE_UNSPECIFIED, 0, fixed.Million
	}
	scale = fixed.Million
	if closes, ok := g.Closes(&q.rule, v); ok {
		scale = min(fixed.Million, fixed.MulDivFloor(max(closes, 0), ledger.ShrinkPart*fixed.Million, q.rule.Length(g)))
	}
	switch available := max(g.Available(&q.rule), 0); {
	case q.rule.Usable == 0:
	case q.rule.Policy.Zones == logpb.Zones_ZONES_STRICT:
		left = max(fixed.MulDivCeil(available, fixed.Million, q.rule.Usable)-1, 0)
	default:
		left = fixed.MulDivFloor(available, fixed.Million, q.rule.Usable)
	}
	switch {
	case left >= fixed.MulDivFloor(green, scale, fixed.Million):
		return logpb.Zone_ZONE_GREEN, left, scale
	case left >= fixed.MulDivFloor(amber, scale, fixed.Million):
		return logpb.Zone_ZONE_AMBER, left, scale
	}
	return logpb.Zone_ZONE_RED, left, scale
}

// withholdByZone paces a holder, or parks a class.
func (rq *request) withholdByZone(q *quota, t holderStats) (*logpb.Refusal, bool) {
	if q.rule.Policy.Zones == logpb.Zones_ZONES_UNSPECIFIED {
		return nil, false
	}
	green, amber := q.rule.Policy.Thresholds()
	zone, left, scale := q.zone(&q.ledger, q.rule.At(rq.clock))
	if zone == logpb.Zone_ZONE_GREEN {
		return nil, false
	}
	strict, red := q.rule.Policy.Zones == logpb.Zones_ZONES_STRICT, zone == logpb.Zone_ZONE_RED
	switch {
	case rq.rank == ledger.ClassCritical && (!strict || !red || rq.req.Emergency):
		return nil, false
	case rq.rank == ledger.ClassCritical:
		return rq.parked(q, left, amber, "little is left: mark it as an emergency if it is one"), false
	case strict:
		return rq.parked(q, left, green, "little is left: it is kept for critical calls"), true
	case red && rq.rank == ledger.ClassBackground:
		return rq.parked(q, left, amber, "little is left: background work waits"), true
	case red:
		return rq.paced(q, t, redPace), false
	}
	top, bottom := fixed.MulDivFloor(green, scale, fixed.Million), fixed.MulDivFloor(amber, scale, fixed.Million)
	delay := fixed.MulDivFloor(longestDelay, top-left, max(top-bottom, 1))
	if rq.rank == ledger.ClassStandard {
		delay /= 2
	}
	return rq.paced(q, t, delay), false
}

// paced refuses a holder that was granted something less than a delay ago.
func (j *judge) paced(q *quota, t holderStats, delay int64) *logpb.Refusal {
	next := fixed.AddSaturated(t.granted, delay)
	if t.grants == 0 || next <= j.clock.Now {
		return nil
	}
	return j.refusal(logpb.Reason_REASON_ZONE, q, next, "little is left: calls are spread over the window")
}

// parked refuses until the shrinking threshold reaches the remaining share, or the window closes.
func (j *judge) parked(q *quota, left, threshold int64, advice string) *logpb.Refusal {
	wait := unknownRetry
	if closes, ok := q.ledger.Closes(&q.rule, q.rule.At(j.clock)); ok {
		wait = max(closes-fixed.MulDivFloor(q.rule.Length(&q.ledger), min(left, threshold), ledger.ShrinkPart*threshold), fixed.Millisecond)
	}
	return j.refusal(logpb.Reason_REASON_ZONE, q, fixed.AddSaturated(j.clock.Now, wait), advice)
}

// rampWait returns how long until a quota that reopens lets a need through; 0: now. This is a shortage, like an
// exhausted quota: the first waiter and all behind it wait.
func (j *judge) rampWait(n need) int64 {
	q := n.quota
	if q.reopens(j.clock.Now) == 0 {
		return 0
	}
	return max(q.reopened+q.letsThrough(q.ramped, n.amount)-j.clock.Now, 0)
}

// letsThrough returns how long after its reopening a quota lets an amount through, if granted was granted before.
func (q *quota) letsThrough(granted, amount int64) int64 {
	if q.rule.Policy.Ramp == 0 {
		return 0
	}
	if q.rule.Kind == ledger.KindSlots {
		granted = q.ledger.Held + q.ledger.Consumed()
	}
	want := fixed.AddSaturated(granted, amount)
	if want <= q.rule.Ramped(0) {
		return 0
	}
	// Ramped only grows, as FirstMillisecond requires.
	return fixed.FirstMillisecond(q.rule.Policy.Ramp, func(since int64) bool { return q.rule.Ramped(since) >= want })
}

// recordGrant records a grant for the policies that need it.
func (m *Machine) recordGrant(rq *request, needs []need) {
	aged := false
	for _, n := range needs {
		q := n.quota
		p := &q.rule.Policy
		if p.Observe && rq.wouldRefuse(n) {
			q.observed++
		}
		if t := m.holders.meterOf(q, rq.req.Holder); t != nil {
			t.Granted = fixed.AddSaturated(t.Granted, n.amount)
		}
		if q.reopens(m.clock.Now) > 0 {
			q.ramped = fixed.AddSaturated(q.ramped, n.amount)
		}
		if q.pay(m.moment, n.amount) {
			m.quotas.markDirty(q)
		}
		if !p.KeepsStats() {
			continue
		}
		aged = aged || p.Ageing > 0
		t := m.holders.editStats(rq.req.Holder, q)
		t.grants++
		t.granted, t.denied = m.clock.Now, 0
		if p.Failures > 0 && t.failures >= p.Failures {
			m.holders.closeFor(t, fixed.AddSaturated(m.clock.Now, p.Closed)) // half open: this grant is the probe
		}
	}
	if aged {
		m.queue.demote(rq.req.Holder)
	}
}

// wouldRefuse reports whether a need would be refused if its quota did more than observe.
func (rq *request) wouldRefuse(n need) bool {
	r := &n.quota.rule
	return r.Limit == 0 || r.MaxHold > 0 && n.own > r.MaxHold || n.quota.cooling(rq.clock.Now) || rq.lacks(n) ||
		rq.rampWait(n) > 0 || r.Policy.Judges() && rq.withholdNeed(n) != nil || rq.rejectAboveCap(n, r) != nil
}

// recordAnswer records how the provider answered a holder.
func (m *Machine) recordAnswer(name string, q *quota, cause logpb.Cause) {
	p := &q.rule.Policy
	if t := m.holders.meterOf(q, name); t != nil {
		t.answered(cause)
	}
	if p.Failures == 0 || !m.holders.hasStats(name, q) && !m.holders.mayRemember(name) {
		return // a runner of tasks may report for any holder, even for one without grants
	}
	switch {
	case cause == logpb.Cause_CAUSE_OK:
		if t := m.holders.statsOf(name, q); t.failures > 0 {
			mine := m.holders.editStats(name, q)
			mine.failures = 0
			m.holders.closeFor(mine, 0)
			m.quotas.markDirty(q)
		}
	case saysLimited(cause):
		t := m.holders.editStats(name, q)
		t.failures = min(t.failures+1, ledger.MaxBreakerCount)
		if t.failures >= p.Failures {
			m.holders.closeFor(t, fixed.AddSaturated(m.clock.Now, p.Closed))
			m.emit(effect.Event{Kind: effect.EventBreaker, Quota: q.name, Holder: name, Duration: p.Closed})
		}
	}
}

// reopen begins the ramp of a quota whose cooldown ended at a time.
func (m *Machine) reopen(q *quota, at int64) {
	switch {
	case q.rule.Policy.Ramp > 0:
		q.reopened, q.ramped, q.rampLease = at, 0, m.lastLease
	case q.rule.Paced():
		q.pacer.shutUntil = fixed.AddSaturated(at, q.rule.Period) // without this, all that returned meanwhile would be granted in one moment
	}
}

// consumesRamp reports whether a lease's consumption of a quota passes its ramp. A lease granted after the reopening
// has passed it already. Slots are in use from their grant.
func (j *judge) consumesRamp(l *lease, q *quota) bool {
	return l.id <= q.rampLease && q.rule.Kind != ledger.KindSlots && q.reopens(j.clock.Now) > 0
}

// reopens returns how long until a quota is fully open again after a cooldown; 0: it is.
func (q *quota) reopens(now int64) int64 {
	if q.reopened == 0 {
		return 0
	}
	return max(q.reopened+q.rule.Policy.Ramp-now, 0)
}
