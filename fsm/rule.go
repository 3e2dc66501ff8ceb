package fsm

import (
	"fmt"
	"math"

	"github.com/quotad/quotad/fsm/logpb"
)

// kind is a quota's kind.
type kind uint8

const (
	kindWindow kind = 1
	kindRate   kind = 2
	kindSlots  kind = 3
	kindPool   kind = 4
)

// Defaults and bounds of definitions; design.md section 2 has the reasons.
const (
	defaultSkew          = second
	defaultMaxCall       = 5 * minute
	minSpendBy           = 50 * millisecond
	defaultWindowSpendBy = 60 * second
	boundarySpendBy      = second
	maxTransit           = second
	minGrace             = second
	bucketsPerPeriod     = 100
	monthLength          = 31 * day
	maxPeriod            = 366 * day
	noSpendBy            = math.MaxInt64
)

// rule is a definition, worked out: what admission needs, every default filled in.
type rule struct {
	kind kind
	// anchored windows end at the provider's reported reset.
	anchored bool
	// openEnded: the provider charges at the end of a call or meanwhile, so that an exposure lasts until it is settled.
	openEnded bool
	settleMax bool
	every     logpb.Every
	// period is the rate's period or the window's length; a month counts as its longest form.
	limit, usable, period int64
	// burst is the admission burst: the configured one less what can pile up between consuming and spending. 0: none.
	burst int64
	// spendBy is the longest spend-by; noSpendBy for slots.
	spendBy int64
	// transit is the configured one; 0: min(1 s, spend-by / 2).
	transit int64
	// width is the granularity of the ledger's log.
	width int64
	// maxHold is the largest hold; 0: none.
	maxHold  int64
	estimate int64
	policy   policy
	maxCall  int64
	skew     int64
	// grace of slots; 0: a tenth of the lease, at least 1 s.
	grace int64
	// shift is the clock's: the calendar is reckoned in Unix time.
	shift int64
}

// view is a moment in a rule's own time base: cluster time for rates and slots, Unix time, shifted, for windows. now is cluster time.
type view struct{ early, late, now int64 }

// at returns the moment in the rule's time base.
func (r *rule) at(clock Clock) view {
	if r.kind == kindWindow {
		return view{early: clock.WallEarly, late: clock.WallLate, now: clock.Now}
	}
	return view{early: clock.Now, late: clock.Now, now: clock.Now}
}

// span returns the calendar window that contains t.
func (r *rule) span(t int64) span {
	s := calendarSpan(r.every, r.period, t-r.shift)
	return span{start: s.start + r.shift, end: s.end + r.shift}
}

// graceOf returns how long after its deadline a slot of a lease of this length is kept.
func (r *rule) graceOf(ttl int64) int64 {
	if r.grace > 0 {
		return r.grace
	}
	return max(minGrace, ttl/10)
}

// newRule works a definition out at a feature level, or says why it cannot work there.
func newRule(def *logpb.Quota, level uint32) (rule, *logpb.Failure) {
	if _, pool := def.GetRule().(*logpb.Quota_Pool); pool {
		return newPoolRule(def, level)
	}
	r := rule{estimate: max(def.DefaultEstimate, 1), maxCall: def.MaxCallNs, transit: def.TransitNs}
	if failure := r.setKind(def); failure != nil {
		return rule{}, failure
	}
	if r.limit < 0 || r.limit > maxAmount {
		return rule{}, impossible(def, "the limit must be 0 to 2^53-1", "0 suspends the quota")
	}
	if def.HeadroomPpm < 0 || def.HeadroomPpm >= 1_000_000 {
		return rule{}, impossible(def, "headroom must be at least 0 and below 1", "0.2 leaves a fifth of the limit alone")
	}
	r.usable = mulDivFloor(r.limit, int64(1_000_000-def.HeadroomPpm), 1_000_000)
	if r.limit > 0 && r.usable == 0 {
		return rule{}, impossible(def, "headroom leaves nothing of the limit", "lower the headroom; a limit of 0 suspends")
	}
	if failure := r.setBounds(def); failure != nil {
		return rule{}, failure
	}
	if failure := r.setSpendBy(def); failure != nil {
		return rule{}, failure
	}
	var failure *logpb.Failure
	if r.policy, failure = newPolicy(def, &r, level); failure != nil {
		return rule{}, failure
	}
	return r, r.setBurst(def)
}

// setKind takes over the rule of the provider.
func (r *rule) setKind(def *logpb.Quota) *logpb.Failure {
	switch provider := def.Rule.(type) {
	case *logpb.Quota_Window:
		return r.setWindow(def, provider.Window)
	case *logpb.Quota_Rate:
		r.kind, r.limit, r.period = kindRate, provider.Rate.GetLimit(), provider.Rate.GetPerNs()
		if r.period < second || r.period > monthLength {
			return impossible(def, "the period of a rate must be 1 s to 31 days", "such as 1m")
		}
		r.width = max(r.period/bucketsPerPeriod, millisecond)
	case *logpb.Quota_Slots:
		r.kind, r.limit, r.grace = kindSlots, provider.Slots.GetLimit(), provider.Slots.GetGraceNs()
		if r.grace < 0 || r.grace > day {
			return impossible(def, "the grace of slots must be at most 24 h", "leave it out for a tenth of the lease")
		}
		r.width = 1
	default:
		return impossible(def, "a quota needs one of window, rate, slots, pool", "window: {limit: 5000, every: hour}")
	}
	return nil
}

// setWindow takes over a window.
func (r *rule) setWindow(def *logpb.Quota, window *logpb.Window) *logpb.Failure {
	r.kind, r.limit, r.every = kindWindow, window.GetLimit(), window.GetEvery()
	r.anchored, r.skew = window.GetAnchored(), window.GetSkewNs()
	switch r.every {
	case logpb.Every_EVERY_HOUR:
		r.period = hour
	case logpb.Every_EVERY_DAY:
		r.period = day
	case logpb.Every_EVERY_MONTH:
		r.period = monthLength
	case logpb.Every_EVERY_UNSPECIFIED:
		r.period = window.GetEveryNs()
	default:
		return impossible(def, "unknown calendar unit", "hour, day, month or a duration")
	}
	if r.skew == 0 {
		r.skew = defaultSkew
	}
	if r.period < second || r.period > maxPeriod {
		return impossible(def, "the length of a window must be 1 s to 366 days", "hour, day, month or a duration such as 15m")
	}
	if r.skew < 0 || r.skew > r.period/8 {
		return impossible(def, "the skew must be at most an eighth of the window", "the default is 1s; shorter windows need their own skew")
	}
	r.width = max(r.period/bucketsPerPeriod, millisecond)
	return nil
}

// setBounds takes over hold clamp, estimates and charging.
func (r *rule) setBounds(def *logpb.Quota) *logpb.Failure {
	if def.MaxHold != nil {
		if *def.MaxHold < 1 || *def.MaxHold > maxAmount {
			return impossible(def, "max_hold must be 1 to 2^53-1", "leave it out for none")
		}
		r.maxHold = *def.MaxHold
	}
	if def.ClampHold && r.kind != kindSlots {
		clamp := max(1, (r.usable+1)/2)
		if r.maxHold == 0 || clamp < r.maxHold {
			r.maxHold = clamp
		}
	}
	if def.DefaultEstimate < 0 || def.DefaultEstimate > maxAmount {
		return impossible(def, "default_estimate must be 1 to 2^53-1", "leave it out for 1")
	}
	if r.maxCall == 0 {
		r.maxCall = defaultMaxCall
	}
	if r.maxCall < 0 || r.maxCall > day {
		return impossible(def, "max_call must be at most 24 h", "the default is 5m")
	}
	r.settleMax = def.Settle == logpb.SettleMode_SETTLE_MODE_MAX
	r.openEnded = r.kind != kindSlots &&
		(def.Charged == logpb.Charged_CHARGED_END || def.Charged == logpb.Charged_CHARGED_DURING)
	return nil
}

// setSpendBy works the spend-by out.
func (r *rule) setSpendBy(def *logpb.Quota) *logpb.Failure {
	switch r.kind {
	case kindSlots:
		if def.SpendByNs != 0 || def.TransitNs != 0 {
			return impossible(def, "slots have no spend_by and no transit", "held is in use; leave both out")
		}
		r.spendBy = noSpendBy
		return nil
	case kindPool: // has a rule of its own
	case kindRate:
		r.spendBy = min(max(r.period/30, 250*millisecond), 2*second)
	case kindWindow:
		r.spendBy = min(defaultWindowSpendBy, r.period/4)
	}
	if def.SpendByNs != 0 {
		r.spendBy = def.SpendByNs
	}
	if r.spendBy < minSpendBy || r.spendBy > r.period || r.spendBy > hour {
		return impossible(def, "spend_by must be 50 ms to 1 h and at most one period", "leave it out for the default")
	}
	if r.transit < 0 || r.transit >= r.spendBy {
		return impossible(def, "transit must be shorter than spend_by", "leave it out for min(1s, spend_by/2)")
	}
	return nil
}

// setBurst works the admission burst out: what is consumed in one spend-by may reach the provider together, so that
// much of the burst is never given out.
func (r *rule) setBurst(def *logpb.Quota) *logpb.Failure {
	burst := def.GetRate().GetBurst()
	if burst == 0 || r.limit == 0 {
		return nil
	}
	if burst < 0 || burst > maxAmount {
		return impossible(def, "burst must be 1 to 2^53-1", "leave it out for none")
	}
	longest := mulDivFloor(burst, r.period, 2*r.usable)
	if def.SpendByNs == 0 {
		r.spendBy = min(r.spendBy, longest)
	}
	admitted := burst - mulDivCeil(r.usable, r.spendBy, r.period)
	if r.spendBy < minSpendBy || r.spendBy > longest || admitted < 1 {
		spendBy := minSpendBy
		if def.SpendByNs != 0 {
			spendBy = def.SpendByNs
		}
		smallest := max(2, mulDivCeil(2*r.usable, spendBy, r.period))
		return impossible(def, fmt.Sprintf("burst %d is too small for this rate", burst),
			fmt.Sprintf("the smallest burst that works here is %d", smallest))
	}
	if r.transit >= r.spendBy {
		return impossible(def, fmt.Sprintf("transit must be shorter than the spend-by that its burst leaves, %d ms", r.spendBy/millisecond),
			"raise the burst, or leave transit out")
	}
	r.burst = admitted
	return nil
}

// impossible makes the failure of a definition.
func impossible(def *logpb.Quota, message, hint string) *logpb.Failure {
	return &logpb.Failure{
		Reason: logpb.Reason_REASON_IMPOSSIBLE_QUOTA, Quota: def.GetName(),
		Message: fmt.Sprintf("quota %q: %s", def.GetName(), message), Hint: hint,
	}
}
