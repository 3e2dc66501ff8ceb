package ledger

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Thresholds of zones, in millionths of usable. A smooth zone includes its threshold, a strict one excludes it.
const (
	smoothGreen, smoothAmber = 400_000, 150_000
	strictGreen, strictAmber = 200_000, 50_000
	// ShrinkPart: thresholds shrink over the last ShrinkPart-th of a window.
	ShrinkPart = 10
)

// Bounds and defaults of definitions.
const (
	MaxRamp         = fixed.Hour
	MaxAgeing       = fixed.Day
	DefaultClosed   = 60 * fixed.Second
	MaxClosed       = fixed.Hour
	MaxBreakerCount = 1000
	// rampPart: a quota reopens with a rampPart-th of its rate.
	rampPart = 10
)

// Policy is the compiled policy of a definition. The zero value withholds nothing.
type Policy struct {
	// Zones pace holders, and then park classes, when little is left.
	Zones logpb.Zones
	// Failures is the number of refusals in a row that opens a holder's breaker; 0: never.
	Failures int32
	// Observe: the quota withholds nothing, and counts the grants that it would have withheld.
	Observe bool
	// Metering: each holder's use is counted.
	Metering bool
	// Ageing is how long without a grant makes background work count as standard; 0: never.
	Ageing int64
	// Prediction acts before a quota is used up.
	Prediction Prediction
	// Shares keep a part for each class.
	Shares Shares
	// Closed is how long a breaker stays open.
	Closed int64
	// Ramp is how long a quota takes to reopen; 0: no time.
	Ramp int64
}

// Judges reports whether the policy may withhold anything.
func (p *Policy) Judges() bool {
	return p.Zones != logpb.Zones_ZONES_UNSPECIFIED || p.Failures > 0 || p.Shares.On || p.Prediction.on
}

// KeepsStats reports whether the policy needs stats of single holders.
func (p *Policy) KeepsStats() bool {
	return p.Zones != logpb.Zones_ZONES_UNSPECIFIED || p.Failures > 0 || p.Ageing > 0
}

// Thresholds returns the lower ends of green and amber; 0: there are no zones.
func (p *Policy) Thresholds() (green, amber int64) {
	switch p.Zones {
	case logpb.Zones_ZONES_SMOOTH:
		return smoothGreen, smoothAmber
	case logpb.Zones_ZONES_STRICT:
		return strictGreen, strictAmber
	case logpb.Zones_ZONES_UNSPECIFIED:
	}
	return 0, 0
}

// Meters reports whether a holder's use of a quota is counted.
func (p *Policy) Meters(name string) bool {
	return p.Metering || len(p.Shares.Holders) > 0 && p.Shares.Holder(name) > 0
}

// newPolicy compiles a policy, or returns why it is invalid.
func newPolicy(def *logpb.Quota, r *Rule, level uint32) (Policy, *logpb.Failure) {
	given := def.GetPolicy()
	p := Policy{
		Zones: given.GetZones(), Ramp: given.GetRampNs(), Observe: given.GetObserve(), Ageing: given.GetAgeingNs(),
		Metering: given.GetMetering(),
	}
	switch {
	case p.Zones < logpb.Zones_ZONES_UNSPECIFIED || p.Zones > logpb.Zones_ZONES_STRICT:
		return Policy{}, Impossible(def, "unknown zones", "smooth or strict")
	case p.Zones != logpb.Zones_ZONES_UNSPECIFIED && r.Kind != KindWindow:
		return Policy{}, Impossible(def, "only windows have zones", zonesHint(r.Kind, level))
	case p.Ageing < 0 || p.Ageing > 0 && p.Ageing < fixed.Second || p.Ageing > MaxAgeing:
		return Policy{}, Impossible(def, "ageing must be 1 s to 24 h", "such as 5m; leave it out for none")
	case p.Ramp < 0 || p.Ramp > MaxRamp:
		return Policy{}, Impossible(def, "the ramp must be at most 1 h", "such as 60s; leave it out to reopen at once")
	}
	if breaker := given.GetBreaker(); breaker != nil {
		p.Failures, p.Closed = breaker.Failures, breaker.ClosedNs
		if p.Closed == 0 {
			p.Closed = DefaultClosed
		}
		if p.Failures < 1 || p.Failures > MaxBreakerCount || p.Closed < fixed.Second || p.Closed > MaxClosed {
			return Policy{}, Impossible(def, "a breaker needs 1 to 1000 failures and 1 s to 1 h", "failures: 5, closed: 60s")
		}
	}
	var failure *logpb.Failure
	if p.Shares, failure = newShares(def, r.Kind, level); failure != nil {
		return Policy{}, failure
	}
	p.Prediction, failure = newPrediction(def, r, level)
	return p, failure
}

// zonesHint explains why a rate or slots have no zones.
func zonesHint(kind Kind, level uint32) string {
	if kind == KindRate && level >= levels.Reports {
		return "a rate that is used well has little left all the time, and would be red for good: shares order who gets what comes back"
	}
	return "the queue paces rates and slots"
}

// Ramped returns the amount that a reopening quota lets through in total until since, or for slots at once. The rate
// begins with a tenth and rises linearly.
func (r *Rule) Ramped(since int64) int64 {
	ramp := r.Policy.Ramp
	if r.Kind == KindSlots {
		part := fixed.Million/rampPart + fixed.MulDivFloor(fixed.Million-fixed.Million/rampPart, since, ramp)
		return max(1, fixed.MulDivFloor(r.Usable, part, fixed.Million))
	}
	effective := since/rampPart + fixed.MulDivFloor(since-since/rampPart, since, 2*ramp)
	return max(1, fixed.MulDivFloor(r.Usable, effective, r.Period))
}
