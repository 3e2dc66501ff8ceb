package ledger

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// The zones' thresholds, in millionths of usable. A smooth zone begins at its threshold, a strict one above.
const (
	smoothGreen, smoothAmber = 400_000, 150_000
	strictGreen, strictAmber = 200_000, 50_000
	// ShrinkPart: thresholds shrink over the last ShrinkPart-th of a window.
	ShrinkPart = 10
)

// Bounds of definitions.
const (
	MaxRamp         = fixed.Hour
	MaxAgeing       = fixed.Day
	DefaultClosed   = 60 * fixed.Second
	MaxClosed       = fixed.Hour
	MaxBreakerCount = 1000
	// rampPart: a quota reopens with one rampPart-th of its rate.
	rampPart = 10
)

// Policy is a definition's policy, worked out. The zero value withholds nothing.
type Policy struct {
	// Zones pace holders, and then park classes, where little is left.
	Zones logpb.Zones
	// Failures is after how many refusals in a row the breaker of a holder opens, closed for how long; 0: never.
	Failures int32
	// Observe: nothing stands in the way; what would have is counted.
	Observe bool
	// Metering: what each holder does is counted.
	Metering bool
	// Ageing is after how long without a grant background work counts as standard; 0: never.
	Ageing int64
	// Prediction acts before a quota is used up.
	Prediction Prediction
	// Shares keep a part for each class.
	Shares Shares
	// Closed is for how long a breaker is open.
	Closed int64
	// Ramp is how long a quota takes to reopen; 0: no time.
	Ramp int64
}

// Judges tells whether the policy withholds anything from anybody.
func (p *Policy) Judges() bool {
	return p.Zones != logpb.Zones_ZONES_UNSPECIFIED || p.Failures > 0 || p.Shares.On || p.Prediction.on
}

// KeepsStats tells whether the policy looks at single holders.
func (p *Policy) KeepsStats() bool {
	return p.Zones != logpb.Zones_ZONES_UNSPECIFIED || p.Failures > 0 || p.Ageing > 0
}

// Thresholds returns where green and amber end; 0: there are no zones.
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

// Meters tells whether what a holder does with a quota is counted.
func (p *Policy) Meters(name string) bool {
	return p.Metering || len(p.Shares.Holders) > 0 && p.Shares.Holder(name) > 0
}

// newPolicy works a policy out, or says why it cannot work.
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

// zonesHint says why a rate or slots have no zones.
func zonesHint(kind Kind, level uint32) string {
	if kind == KindRate && level >= levels.Reports {
		return "a rate that is used well has little left all the time, and would be red for good: shares order who gets what comes back"
	}
	return "the queue paces rates and slots"
}

// Ramped returns what a reopening quota lets through in its first moments in all, or for slots at once: the rate begins
// with a tenth and climbs evenly.
func (r *Rule) Ramped(since int64) int64 {
	ramp := r.Policy.Ramp
	if r.Kind == KindSlots {
		part := fixed.Million/rampPart + fixed.MulDivFloor(fixed.Million-fixed.Million/rampPart, since, ramp)
		return max(1, fixed.MulDivFloor(r.Usable, part, fixed.Million))
	}
	effective := since/rampPart + fixed.MulDivFloor(since-since/rampPart, since, 2*ramp)
	return max(1, fixed.MulDivFloor(r.Usable, effective, r.Period))
}
