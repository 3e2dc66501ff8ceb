package ledger

import (
	"fmt"
	"math"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Kind is the kind of a quota.
type Kind uint8

// Kinds of quotas.
const (
	KindWindow Kind = 1
	KindRate   Kind = 2
	KindSlots  Kind = 3
	KindPool   Kind = 4
)

// Defaults and bounds of definitions; section 2 of design.md has the reasons.
const (
	defaultSkew          = fixed.Second
	defaultMaxCall       = 5 * fixed.Minute
	minSpendBy           = 50 * fixed.Millisecond
	defaultWindowSpendBy = 60 * fixed.Second
	boundarySpendBy      = fixed.Second
	MaxTransit           = fixed.Second
	minGrace             = fixed.Second
	BucketsPerPeriod     = 100
	monthLength          = 31 * fixed.Day
	MaxPeriod            = 366 * fixed.Day
	NoSpendBy            = math.MaxInt64
)

// Rule is a compiled definition, with all defaults filled in.
type Rule struct {
	// Kind is the quota's.
	Kind Kind
	// Anchored windows end at the provider's reported reset.
	Anchored bool
	// OpenEnded: the provider charges at the end of a call or during it, so an exposure lasts until it is settled.
	OpenEnded bool
	// SettleMax: the provider charges the larger of estimate and use, so the unused part does not return.
	SettleMax bool
	// Every is a calendar window's length.
	Every logpb.Every
	// Limit is the configured limit, Usable the part of it without headroom. Period is the rate's period or the
	// window's length; for a month, its longest form.
	Limit, Usable, Period int64
	// Burst is the admission burst: the configured one, less the amount that can accumulate between consuming and
	// spending. 0: none.
	Burst int64
	// SpendBy is the longest spend-by; NoSpendBy for slots.
	SpendBy int64
	// Transit is the configured transit; 0: min(1 s, spend-by / 2).
	Transit int64
	// Width is the granularity of the ledger's log.
	Width int64
	// MaxHold is the largest hold; 0: none.
	MaxHold int64
	// Estimate is the amount of an item without one.
	Estimate int64
	// Policy may withhold amounts that would fit.
	Policy Policy
	// MaxCall is the longest call whose exposure has no end of its own.
	MaxCall int64
	// Skew bounds the distance of a window's boundary from its time.
	Skew int64
	// grace is the grace of slots; 0: a tenth of the lease, at least 1 s.
	grace int64
	// Shift is Clock.Shift: calendar windows are computed in Unix time without it.
	Shift int64
}

// View is a moment in a rule's own time base: cluster time for rates and slots, shifted Unix time for windows.
type View struct {
	// Early and Late are the bounds of the moment, Now is cluster time.
	Early, Late, Now int64
}

// At returns the moment in the rule's time base.
func (r *Rule) At(clock Clock) View {
	if r.Kind == KindWindow {
		return View{Early: clock.WallEarly, Late: clock.WallLate, Now: clock.Now}
	}
	return View{Early: clock.Now, Late: clock.Now, Now: clock.Now}
}

// span returns the calendar window that contains t.
func (r *Rule) span(t int64) Span {
	s := calendarSpan(r.Every, r.Period, t-r.Shift)
	return Span{start: s.start + r.Shift, End: s.End + r.Shift}
}

// GraceOf returns how long after its deadline a slot of a lease of length ttl is kept.
func (r *Rule) GraceOf(ttl int64) int64 {
	if r.grace > 0 {
		return r.grace
	}
	return max(minGrace, ttl/10)
}

// NewRule compiles a definition at a feature level, or returns why it is invalid there.
func NewRule(def *logpb.Quota, level uint32) (Rule, *logpb.Failure) {
	if _, pool := def.GetRule().(*logpb.Quota_Pool); pool {
		return newPoolRule(def, level)
	}
	r := Rule{Estimate: max(def.DefaultEstimate, 1), MaxCall: def.MaxCallNs, Transit: def.TransitNs}
	if failure := r.setKind(def); failure != nil {
		return Rule{}, failure
	}
	if r.Limit < 0 || r.Limit > fixed.MaxAmount {
		return Rule{}, Impossible(def, "the limit must be 0 to 2^53-1", "0 suspends the quota")
	}
	if def.HeadroomPpm < 0 || def.HeadroomPpm >= 1_000_000 {
		return Rule{}, Impossible(def, "headroom must be at least 0 and below 1", "0.2 leaves a fifth of the limit alone")
	}
	r.Usable = fixed.MulDivFloor(r.Limit, int64(1_000_000-def.HeadroomPpm), 1_000_000)
	if r.Limit > 0 && r.Usable == 0 {
		return Rule{}, Impossible(def, "headroom leaves nothing of the limit", "lower the headroom; a limit of 0 suspends")
	}
	if failure := r.setBounds(def); failure != nil {
		return Rule{}, failure
	}
	if failure := r.setSpendBy(def); failure != nil {
		return Rule{}, failure
	}
	var failure *logpb.Failure
	if r.Policy, failure = newPolicy(def, &r, level); failure != nil {
		return Rule{}, failure
	}
	return r, r.setBurst(def)
}

// setKind sets the fields of the provider's rule.
func (r *Rule) setKind(def *logpb.Quota) *logpb.Failure {
	switch provider := def.Rule.(type) {
	case *logpb.Quota_Window:
		return r.setWindow(def, provider.Window)
	case *logpb.Quota_Rate:
		r.Kind, r.Limit, r.Period = KindRate, provider.Rate.GetLimit(), provider.Rate.GetPerNs()
		if r.Period < fixed.Second || r.Period > monthLength {
			return Impossible(def, "the period of a rate must be 1 s to 31 days", "such as 1m")
		}
		r.Width = max(r.Period/BucketsPerPeriod, fixed.Millisecond)
	case *logpb.Quota_Slots:
		r.Kind, r.Limit, r.grace = KindSlots, provider.Slots.GetLimit(), provider.Slots.GetGraceNs()
		if r.grace < 0 || r.grace > fixed.Day {
			return Impossible(def, "the grace of slots must be at most 24 h", "leave it out for a tenth of the lease")
		}
		r.Width = 1
	default:
		return Impossible(def, "a quota needs one of window, rate, slots, pool", "window: {limit: 5000, every: hour}")
	}
	return nil
}

// setWindow sets the fields of a window.
func (r *Rule) setWindow(def *logpb.Quota, window *logpb.Window) *logpb.Failure {
	r.Kind, r.Limit, r.Every = KindWindow, window.GetLimit(), window.GetEvery()
	r.Anchored, r.Skew = window.GetAnchored(), window.GetSkewNs()
	switch r.Every {
	case logpb.Every_EVERY_HOUR:
		r.Period = fixed.Hour
	case logpb.Every_EVERY_DAY:
		r.Period = fixed.Day
	case logpb.Every_EVERY_MONTH:
		r.Period = monthLength
	case logpb.Every_EVERY_UNSPECIFIED:
		r.Period = window.GetEveryNs()
	default:
		return Impossible(def, "unknown calendar unit", "hour, day, month or a duration")
	}
	if r.Skew == 0 {
		r.Skew = defaultSkew
	}
	if r.Period < fixed.Second || r.Period > MaxPeriod {
		return Impossible(def, "the length of a window must be 1 s to 366 days", "hour, day, month or a duration such as 15m")
	}
	if r.Skew < 0 || r.Skew > r.Period/8 {
		return Impossible(def, "the skew must be at most an eighth of the window", "the default is 1s; shorter windows need their own skew")
	}
	r.Width = max(r.Period/BucketsPerPeriod, fixed.Millisecond)
	return nil
}

// setBounds sets hold clamp, estimates and charging.
func (r *Rule) setBounds(def *logpb.Quota) *logpb.Failure {
	if def.MaxHold != nil {
		if *def.MaxHold < 1 || *def.MaxHold > fixed.MaxAmount {
			return Impossible(def, "max_hold must be 1 to 2^53-1", "leave it out for none")
		}
		r.MaxHold = *def.MaxHold
	}
	if def.ClampHold && r.Kind != KindSlots {
		clamp := max(1, (r.Usable+1)/2)
		if r.MaxHold == 0 || clamp < r.MaxHold {
			r.MaxHold = clamp
		}
	}
	if def.DefaultEstimate < 0 || def.DefaultEstimate > fixed.MaxAmount {
		return Impossible(def, "default_estimate must be 1 to 2^53-1", "leave it out for 1")
	}
	if r.MaxCall == 0 {
		r.MaxCall = defaultMaxCall
	}
	if r.MaxCall < 0 || r.MaxCall > fixed.Day {
		return Impossible(def, "max_call must be at most 24 h", "the default is 5m")
	}
	r.SettleMax = def.Settle == logpb.SettleMode_SETTLE_MODE_MAX
	r.OpenEnded = r.Kind != KindSlots &&
		(def.Charged == logpb.Charged_CHARGED_END || def.Charged == logpb.Charged_CHARGED_DURING)
	return nil
}

// setSpendBy computes the spend-by.
func (r *Rule) setSpendBy(def *logpb.Quota) *logpb.Failure {
	switch r.Kind {
	case KindSlots:
		if def.SpendByNs != 0 || def.TransitNs != 0 {
			return Impossible(def, "slots have no spend_by and no transit", "held is in use; leave both out")
		}
		r.SpendBy = NoSpendBy
		return nil
	case KindPool: // has a rule of its own
	case KindRate:
		r.SpendBy = min(max(r.Period/30, 250*fixed.Millisecond), 2*fixed.Second)
	case KindWindow:
		r.SpendBy = min(defaultWindowSpendBy, r.Period/4)
	}
	if def.SpendByNs != 0 {
		r.SpendBy = def.SpendByNs
	}
	if r.SpendBy < minSpendBy || r.SpendBy > r.Period || r.SpendBy > fixed.Hour {
		return Impossible(def, "spend_by must be 50 ms to 1 h and at most one period", "leave it out for the default")
	}
	if r.Transit < 0 || r.Transit >= r.SpendBy {
		return Impossible(def, "transit must be shorter than spend_by", "leave it out for min(1s, spend_by/2)")
	}
	return nil
}

// setBurst computes the admission burst: amounts consumed within one spend-by may reach the provider together, so that
// much of the burst is never granted.
func (r *Rule) setBurst(def *logpb.Quota) *logpb.Failure {
	burst := def.GetRate().GetBurst()
	if burst == 0 || r.Limit == 0 {
		return nil
	}
	if burst < 0 || burst > fixed.MaxAmount {
		return Impossible(def, "burst must be 1 to 2^53-1", "leave it out for none")
	}
	longest := fixed.MulDivFloor(burst, r.Period, 2*r.Usable)
	if def.SpendByNs == 0 {
		r.SpendBy = min(r.SpendBy, longest)
	}
	admitted := burst - fixed.MulDivCeil(r.Usable, r.SpendBy, r.Period)
	if r.SpendBy < minSpendBy || r.SpendBy > longest || admitted < 1 {
		spendBy := minSpendBy
		if def.SpendByNs != 0 {
			spendBy = def.SpendByNs
		}
		smallest := max(2, fixed.MulDivCeil(2*r.Usable, spendBy, r.Period))
		return Impossible(def, fmt.Sprintf("burst %d is too small for this rate", burst),
			fmt.Sprintf("the smallest burst that works here is %d", smallest))
	}
	if r.Transit >= r.SpendBy {
		return Impossible(def, fmt.Sprintf("transit must be shorter than the spend-by that its burst leaves, %d ms", r.SpendBy/fixed.Millisecond),
			"raise the burst, or leave transit out")
	}
	r.Burst = admitted
	return nil
}

// Impossible returns the failure of an invalid definition.
func Impossible(def *logpb.Quota, message, hint string) *logpb.Failure {
	return &logpb.Failure{
		Reason: logpb.Reason_REASON_IMPOSSIBLE_QUOTA, Quota: def.GetName(),
		Message: fmt.Sprintf("quota %q: %s", def.GetName(), message), Hint: hint,
	}
}

// Length returns the length of the present window.
func (r *Rule) Length(g *Ledger) int64 {
	if r.Anchored {
		return r.Period
	}
	window := r.span(g.Window - 1)
	return window.End - window.start
}

// WithholdsNothing reports whether a rate's policy withholds nothing from a class: only its cap and breaker do.
func (r *Rule) WithholdsNothing(class int32) bool {
	p := &r.Policy
	return r.Kind == KindRate && p.Failures == 0 && (!p.Shares.On || class != ClassCritical)
}

// Timed reports whether waiters may become eligible although nothing of the quota changes. For rates with shares that
// time is known.
func (r *Rule) Timed() bool {
	p := &r.Policy
	return r.Burst > 0 || p.Ramp > 0 || p.Zones != logpb.Zones_ZONES_UNSPECIFIED || p.Failures > 0 || p.Prediction.on && !r.Burns() ||
		p.Shares.On && !r.Paced()
}
