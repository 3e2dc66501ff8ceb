package model

import (
	"math"
	"math/big"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// kind is a quota's kind.
type kind int

const (
	rateKind kind = iota + 1
	windowKind
	slotsKind
	// poolKind counts nothing.
	poolKind
)

const (
	second = int64(time.Second)
	minute = 60 * second
	// defaultTTL is the length of a lease that names none.
	defaultTTL = 5 * minute
	// firstTTL is the length of a lease from the queue until its holder confirms it.
	firstTTL = 5 * second
	// longestSpendBy is the spend-by of a window without one; a rate's is a thirtieth of its period, within bounds.
	longestSpendBy  = minute
	rateSpendByMin  = 250 * int64(time.Millisecond)
	rateSpendByMost = 2 * second
	// rounding is the part of a period by which ends may be rounded up, to the safe side.
	rounding = 100
	never    = math.MaxInt64
)

// rule is the meaning of a definition (concepts.md, "Quotas").
type rule struct {
	kind   kind
	limit  int64
	usable int64
	// observe: it grants everything.
	observe  bool
	period   int64
	every    logpb.Every
	anchored bool
	skew     int64
	// grace is how long a slot is kept after its deadline; 0: a tenth of the lease, at least a second.
	grace     int64
	estimate  int64
	maxHold   int64
	spendBy   int64
	openEnded bool
	maxCall   int64
	settleMax bool
	// burst is the most that may be consumed at once: the burst less what accumulates until it is spent. 0: no bound.
	burst int64
	// shift is the distance of windows' times from Unix time, since the clock was reset.
	shift int64
}

func ruleOf(def *logpb.Quota) rule {
	r := rule{
		estimate: max(def.DefaultEstimate, 1), maxCall: def.MaxCallNs, maxHold: never, spendBy: def.SpendByNs,
		settleMax: def.Settle == logpb.SettleMode_SETTLE_MODE_MAX,
	}
	var limit int64
	switch provider := def.Rule.(type) {
	case *logpb.Quota_Rate:
		r.kind, limit, r.period = rateKind, provider.Rate.Limit, provider.Rate.PerNs
		if r.spendBy == 0 {
			r.spendBy = min(max(r.period/30, rateSpendByMin), rateSpendByMost)
		}
	case *logpb.Quota_Window:
		limit = provider.Window.Limit
		r.setWindow(provider.Window)
	case *logpb.Quota_Slots:
		r.kind, limit, r.grace = slotsKind, provider.Slots.Limit, provider.Slots.GraceNs
	}
	if def.GetPool() != nil {
		r.kind = poolKind
	}
	r.limit, r.observe = limit, def.GetPolicy().GetObserve()
	if r.maxCall == 0 {
		r.maxCall = 5 * minute
	}
	r.openEnded = r.kind != slotsKind && (def.Charged == logpb.Charged_CHARGED_END || def.Charged == logpb.Charged_CHARGED_DURING)
	r.usable = mulDiv(limit, int64(1_000_000-def.HeadroomPpm), 1_000_000)
	if def.MaxHold != nil {
		r.maxHold = *def.MaxHold
	}
	if def.ClampHold && r.kind != slotsKind {
		r.maxHold = min(r.maxHold, max(1, r.usable/2+r.usable%2))
	}
	r.setBurst(def.GetRate().GetBurst(), def.SpendByNs == 0)
	return r
}

func (r *rule) setWindow(w *logpb.Window) {
	r.kind, r.every, r.anchored, r.skew, r.period = windowKind, w.Every, w.Anchored, w.SkewNs, w.EveryNs
	switch w.Every {
	case logpb.Every_EVERY_HOUR:
		r.period = int64(time.Hour)
	case logpb.Every_EVERY_DAY:
		r.period = 24 * int64(time.Hour)
	case logpb.Every_EVERY_MONTH:
		r.period = 31 * 24 * int64(time.Hour) // its longest
	case logpb.Every_EVERY_UNSPECIFIED:
	}
	if r.skew == 0 {
		r.skew = second
	}
	if r.spendBy == 0 {
		r.spendBy = longestSpendBy
	}
}

// setBurst: the spend-by is at most burst x period / (2 x usable), and the burst excludes the amount that returns within one spend-by.
func (r *rule) setBurst(burst int64, chosen bool) {
	if burst == 0 || r.usable == 0 {
		return
	}
	if chosen {
		r.spendBy = min(r.spendBy, mulDiv(burst, r.period, 2*r.usable))
	}
	piled := mulDiv(r.usable, r.spendBy, r.period)
	if mulDiv(piled, r.period, r.usable) < r.spendBy {
		piled++
	}
	r.burst = burst - piled
}

// mulDiv returns a*b/c, rounded down.
func mulDiv(a, b, c int64) int64 {
	product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
	product.Quo(product, big.NewInt(c))
	if !product.IsInt64() {
		return never
	}
	return product.Int64()
}

// plus returns a+b, at most the largest int64.
func plus(a, b int64) int64 {
	if b > 0 && a > never-b {
		return never
	}
	return a + b
}

// later returns the latest end of something that lasts for in from now, in the rule's own time: the late view of Unix time for windows,
// cluster time otherwise.
func (r *rule) later(clock fsm.Clock, in int64) int64 {
	if r.kind == windowKind {
		return plus(clock.WallLate, in)
	}
	return plus(clock.Now, in)
}

// graceOf is how long a slot of a lease of some length is kept after the deadline.
func (r *rule) graceOf(ttl int64) int64 {
	if r.grace > 0 {
		return r.grace
	}
	return max(second, ttl/10)
}

// windowAt returns the calendar window that contains a moment of Unix time.
func (r *rule) windowAt(t int64) (start, end int64) {
	start, end = r.unixWindowAt(t - r.shift)
	return start + r.shift, end + r.shift
}

func (r *rule) unixWindowAt(t int64) (start, end int64) {
	if r.every == logpb.Every_EVERY_MONTH {
		at := time.Unix(0, t).UTC()
		first := time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
		return first.UnixNano(), first.AddDate(0, 1, 0).UnixNano()
	}
	start = t - t%r.period
	if t%r.period < 0 {
		start -= r.period
	}
	return start, start + r.period
}

// matches says whether a name matches a pattern, in which * stands for any run of characters.
func matches(pattern, name string) bool {
	if pattern == "" {
		return name == ""
	}
	if pattern[0] == '*' {
		for i := 0; i <= len(name); i++ {
			if matches(pattern[1:], name[i:]) {
				return true
			}
		}
		return false
	}
	return name != "" && name[0] == pattern[0] && matches(pattern[1:], name[1:])
}
