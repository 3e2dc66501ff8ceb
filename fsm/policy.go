package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// Policy withholds a need that would fit: from one holder, from a class, for a while
// (docs/decisions/0005-policy.md).

// The zones' thresholds, in millionths of usable, and what they mean. A smooth zone begins at its threshold, a strict one above.
const (
	smoothGreen, smoothAmber = 400_000, 150_000
	strictGreen, strictAmber = 200_000, 50_000
	// longestDelay is how far apart a holder's background calls are where amber ends.
	longestDelay = 2 * second
	// redPace is how far apart a holder's standard calls are in red.
	redPace = second
	// Thresholds shrink over the last shrinkPart-th of a window.
	shrinkPart = 10
	million    = 1_000_000
)

// Bounds of definitions.
const (
	maxRamp         = hour
	maxAgeing       = day
	defaultClosed   = 60 * second
	maxClosed       = hour
	maxBreakerCount = 1000
	// rampPart: a quota reopens with one rampPart-th of its rate.
	rampPart = 10
)

// policy is a definition's policy, worked out. The zero value withholds nothing.
type policy struct {
	zones logpb.Zones
	// failures is after how many refusals in a row the breaker of a holder opens, closed for how long; 0: never.
	failures int32
	// observe: nothing stands in the way; what would have is counted.
	observe bool
	// metering: what each holder does is counted.
	metering bool
	// ageing is after how long without a grant background work counts as standard; 0: never.
	ageing     int64
	prediction prediction
	shares     shares
	closed     int64
	// ramp is how long a quota takes to reopen; 0: no time.
	ramp int64
}

// judges tells whether the policy withholds anything from anybody.
func (p *policy) judges() bool {
	return p.zones != logpb.Zones_ZONES_UNSPECIFIED || p.failures > 0 || p.shares.on || p.prediction.on
}

// keepsStats tells whether the policy looks at single holders.
func (p *policy) keepsStats() bool {
	return p.zones != logpb.Zones_ZONES_UNSPECIFIED || p.failures > 0 || p.ageing > 0
}

// newPolicy works a policy out, or says why it cannot work.
func newPolicy(def *logpb.Quota, r *rule, level uint32) (policy, *logpb.Failure) {
	given := def.GetPolicy()
	p := policy{zones: given.GetZones(), ramp: given.GetRampNs(), observe: given.GetObserve(), ageing: given.GetAgeingNs(), metering: given.GetMetering()}
	switch {
	case p.zones < logpb.Zones_ZONES_UNSPECIFIED || p.zones > logpb.Zones_ZONES_STRICT:
		return policy{}, impossible(def, "unknown zones", "smooth or strict")
	case p.zones != logpb.Zones_ZONES_UNSPECIFIED && r.kind != kindWindow:
		return policy{}, impossible(def, "only windows have zones", zonesHint(r.kind, level))
	case p.ageing < 0 || p.ageing > 0 && p.ageing < second || p.ageing > maxAgeing:
		return policy{}, impossible(def, "ageing must be 1 s to 24 h", "such as 5m; leave it out for none")
	case p.ramp < 0 || p.ramp > maxRamp:
		return policy{}, impossible(def, "the ramp must be at most 1 h", "such as 60s; leave it out to reopen at once")
	}
	if breaker := given.GetBreaker(); breaker != nil {
		p.failures, p.closed = breaker.Failures, breaker.ClosedNs
		if p.closed == 0 {
			p.closed = defaultClosed
		}
		if p.failures < 1 || p.failures > maxBreakerCount || p.closed < second || p.closed > maxClosed {
			return policy{}, impossible(def, "a breaker needs 1 to 1000 failures and 1 s to 1 h", "failures: 5, closed: 60s")
		}
	}
	var failure *logpb.Failure
	if p.shares, failure = newShares(def, r.kind, level); failure != nil {
		return policy{}, failure
	}
	p.prediction, failure = newPrediction(def, r, level)
	return p, failure
}

// zonesHint says why a rate or slots have no zones.
func zonesHint(kind kind, level uint32) string {
	if kind == kindRate && level >= levelReports {
		return "a rate that is used well has little left all the time, and would be red for good: shares order who gets what comes back"
	}
	return "the queue paces rates and slots"
}

// withheld is a need that policy withholds.
type withheld struct {
	refusal *logpb.Refusal
	// class says that it is withheld from the whole class, not only from this holder.
	class bool
}

// withhold returns what policy withholds now of some needs from a holder in a class; nil: nothing. Of several reasons the
// refusal has the first in precedence.
func (m *Machine) withhold(req *logpb.Reserve, as priority, needs []need) *withheld {
	var all *withheld
	if refusal := m.withholdByWorkflow(req.Holder, needs); refusal != nil {
		all = &withheld{refusal: refusal}
	}
	for _, n := range needs {
		p := &n.quota.rule.policy
		if p.observe || !p.judges() || n.quota.rule.withholdsNothing(as.class) {
			continue
		}
		if one := m.withholdNeed(req, as, n); one != nil {
			if all != nil {
				one.refusal, one.class = worse(all.refusal, one.refusal), one.class || all.class
			}
			all = one
		}
	}
	return all
}

// withholdsNothing tells whether a rate's policy withholds nothing from a class: it does so by its cap and breaker alone.
func (r *rule) withholdsNothing(class int32) bool {
	p := &r.policy
	return r.kind == kindRate && p.failures == 0 && (!p.shares.on || class != classCritical)
}

// withholdNeed judges one need.
func (m *Machine) withholdNeed(req *logpb.Reserve, as priority, n need) *withheld {
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
	t := m.statsOf(req.Holder, n.quota)
	if n.quota.rule.policy.failures > 0 && t.closedUntil > m.clock.Now {
		add(m.refusal(logpb.Reason_REASON_BREAKER_OPEN, n.quota, t.closedUntil,
			fmt.Sprintf("the provider refused %q %d times in a row", req.Holder, t.failures)), false)
	}
	add(m.withholdByZone(req, as.rank, n.quota, t))
	add(m.withholdByShare(req.Holder, as, n), false)
	add(m.withholdByForecast(as, n.quota), true)
	return found
}

// zone returns a window's zone, the share of usable that is left (of strict zones the next smaller one, so that who reaches a
// threshold is above it), and by how much the thresholds have shrunk (both in millionths). A quota without zones has none.
func (q *quota) zone(g *ledger, v view) (zone logpb.Zone, left, scale int64) {
	green, amber := q.rule.policy.thresholds()
	if green == 0 {
		return logpb.Zone_ZONE_UNSPECIFIED, 0, million
	}
	scale = million
	if closes, ok := g.closes(&q.rule, v); ok {
		scale = min(million, mulDivFloor(max(closes, 0), shrinkPart*million, q.rule.length(g)))
	}
	switch available := max(g.available(&q.rule), 0); {
	case q.rule.usable == 0:
	case q.rule.policy.zones == logpb.Zones_ZONES_STRICT:
		left = max(mulDivCeil(available, million, q.rule.usable)-1, 0)
	default:
		left = mulDivFloor(available, million, q.rule.usable)
	}
	switch {
	case left >= mulDivFloor(green, scale, million):
		return logpb.Zone_ZONE_GREEN, left, scale
	case left >= mulDivFloor(amber, scale, million):
		return logpb.Zone_ZONE_AMBER, left, scale
	}
	return logpb.Zone_ZONE_RED, left, scale
}

// thresholds returns where green and amber end; 0: there are no zones.
func (p *policy) thresholds() (green, amber int64) {
	switch p.zones {
	case logpb.Zones_ZONES_SMOOTH:
		return smoothGreen, smoothAmber
	case logpb.Zones_ZONES_STRICT:
		return strictGreen, strictAmber
	case logpb.Zones_ZONES_UNSPECIFIED:
	}
	return 0, 0
}

// length returns how long the present window is.
func (r *rule) length(g *ledger) int64 {
	if r.anchored {
		return r.period
	}
	window := r.span(g.window - 1)
	return window.end - window.start
}

// withholdByZone paces a holder, or parks a class.
func (m *Machine) withholdByZone(req *logpb.Reserve, class int32, q *quota, t holderStats) (*logpb.Refusal, bool) {
	if q.rule.policy.zones == logpb.Zones_ZONES_UNSPECIFIED {
		return nil, false
	}
	green, amber := q.rule.policy.thresholds()
	zone, left, scale := q.zone(&q.ledger, q.rule.at(m.clock))
	if zone == logpb.Zone_ZONE_GREEN {
		return nil, false
	}
	strict, red := q.rule.policy.zones == logpb.Zones_ZONES_STRICT, zone == logpb.Zone_ZONE_RED
	switch {
	case class == classCritical && (!strict || !red || req.Emergency):
		return nil, false
	case class == classCritical:
		return m.parked(q, left, amber, "little is left: mark it as an emergency if it is one"), false
	case strict:
		return m.parked(q, left, green, "little is left: it is kept for critical calls"), true
	case red && class == classBackground:
		return m.parked(q, left, amber, "little is left: background work waits"), true
	case red:
		return m.paced(q, t, redPace), false
	}
	top, bottom := mulDivFloor(green, scale, million), mulDivFloor(amber, scale, million)
	delay := mulDivFloor(longestDelay, top-left, max(top-bottom, 1))
	if class == classStandard {
		delay /= 2
	}
	return m.paced(q, t, delay), false
}

// paced refuses a holder that was granted something less than a delay ago.
func (m *Machine) paced(q *quota, t holderStats, delay int64) *logpb.Refusal {
	next := addSaturated(t.granted, delay)
	if t.grants == 0 || next <= m.clock.Now {
		return nil
	}
	return m.refusal(logpb.Reason_REASON_ZONE, q, next, "little is left: calls are spread over the window")
}

// parked refuses until the shrinking threshold meets what is left, or the window closes.
func (m *Machine) parked(q *quota, left, threshold int64, advice string) *logpb.Refusal {
	wait := unknownRetry
	if closes, ok := q.ledger.closes(&q.rule, q.rule.at(m.clock)); ok {
		wait = max(closes-mulDivFloor(q.rule.length(&q.ledger), min(left, threshold), shrinkPart*threshold), millisecond)
	}
	return m.refusal(logpb.Reason_REASON_ZONE, q, addSaturated(m.clock.Now, wait), advice)
}

// rampWait returns in how long a quota that reopens lets a need through; 0: now. It is a shortage, as what does not fit is:
// whoever is first waits for it, and everybody behind.
func (m *Machine) rampWait(n need) int64 {
	q := n.quota
	if q.reopens(m.clock.Now) == 0 {
		return 0
	}
	return max(q.reopened+q.letsThrough(q.ramped, n.amount)-m.clock.Now, 0)
}

// letsThrough returns how long after its reopening a quota lets an amount through, when so much was granted before.
func (q *quota) letsThrough(granted, amount int64) int64 {
	if q.rule.policy.ramp == 0 {
		return 0
	}
	if q.rule.kind == kindSlots {
		granted = q.ledger.held + q.ledger.consumed()
	}
	want := addSaturated(granted, amount)
	if want <= q.rule.ramped(0) {
		return 0
	}
	// What it lets through only grows.
	return firstMillisecond(q.rule.policy.ramp, func(since int64) bool { return q.rule.ramped(since) >= want })
}

// ramped returns what a reopening quota lets through in its first moments in all, or for slots at once: the rate begins
// with a tenth and climbs evenly.
func (r *rule) ramped(since int64) int64 {
	ramp := r.policy.ramp
	if r.kind == kindSlots {
		part := million/rampPart + mulDivFloor(million-million/rampPart, since, ramp)
		return max(1, mulDivFloor(r.usable, part, million))
	}
	effective := since/rampPart + mulDivFloor(since-since/rampPart, since, 2*ramp)
	return max(1, mulDivFloor(r.usable, effective, r.period))
}

// recordGrant remembers a grant for the policies that ask.
func (m *Machine) recordGrant(req *logpb.Reserve, as priority, needs []need) {
	aged := false
	for _, n := range needs {
		q := n.quota
		p := &q.rule.policy
		if p.observe && m.wouldRefuse(req, as, n) {
			q.observed++
		}
		if t := m.meter(q, req.Holder); t != nil {
			t.Granted = addSaturated(t.Granted, n.amount)
		}
		if q.reopens(m.clock.Now) > 0 {
			q.ramped = addSaturated(q.ramped, n.amount)
		}
		q.pay(m.clock.Now, n.amount)
		if !p.keepsStats() {
			continue
		}
		aged = aged || p.ageing > 0
		t := m.editStats(req.Holder, q)
		t.grants++
		t.granted, t.denied = m.clock.Now, 0
		if p.failures > 0 && t.failures >= p.failures {
			m.closeFor(t, addSaturated(m.clock.Now, p.closed)) // half open: this is the one that tries
		}
	}
	if aged {
		m.demote(req.Holder)
	}
}

// wouldRefuse tells whether a need would be refused if its quota did more than observe.
func (m *Machine) wouldRefuse(req *logpb.Reserve, as priority, n need) bool {
	r := &n.quota.rule
	return r.limit == 0 || r.maxHold > 0 && n.own > r.maxHold || n.quota.cooling(m.clock.Now) || m.lacks(req, as, n) ||
		m.rampWait(n) > 0 || r.policy.judges() && m.withholdNeed(req, as, n) != nil || m.rejectAboveCap(as.class, n, r) != nil
}

// recordAnswer remembers how the provider answered a holder.
func (m *Machine) recordAnswer(name string, q *quota, cause logpb.Cause) {
	p := &q.rule.policy
	if t := m.meter(q, name); t != nil {
		t.answered(cause)
	}
	if p.failures == 0 || !m.hasStats(name, q) && !m.mayRemember(name) {
		return // a runner of tasks may report for any holder, also for one that was never granted anything
	}
	switch {
	case cause == logpb.Cause_CAUSE_OK:
		if t := m.statsOf(name, q); t.failures > 0 {
			mine := m.editStats(name, q)
			mine.failures = 0
			m.closeFor(mine, 0)
			m.markDirty(q)
		}
	case saysLimited(cause):
		t := m.editStats(name, q)
		t.failures = min(t.failures+1, maxBreakerCount)
		if t.failures >= p.failures {
			m.closeFor(t, addSaturated(m.clock.Now, p.closed))
			m.emit(Event{Kind: EventBreaker, Quota: q.name, Holder: name, Duration: p.closed})
		}
	}
}

// reopen begins the ramp of a quota whose cooldown ended at a time.
func (m *Machine) reopen(q *quota, at int64) {
	switch {
	case q.rule.policy.ramp > 0:
		q.reopened, q.ramped, q.rampLease = at, 0, m.lastLease
	case q.rule.paced():
		q.pacer.shutUntil = addSaturated(at, q.rule.period) // else all that came back meanwhile would go in one moment
	}
}

// consumesRamp tells whether what a lease consumes of a quota goes through its ramp: what was granted since it reopened has
// been let through already. Slots are in use from their grant.
func (m *Machine) consumesRamp(l *lease, q *quota) bool {
	return l.id <= q.rampLease && q.rule.kind != kindSlots && q.reopens(m.clock.Now) > 0
}

// reopens returns in how long a quota is fully open again after a cooldown; 0: it is.
func (q *quota) reopens(now int64) int64 {
	if q.reopened == 0 {
		return 0
	}
	return max(q.reopened+q.rule.policy.ramp-now, 0)
}
