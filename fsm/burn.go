package fsm

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// The prediction of a rate compares its recent grants with the amounts that its log returns
// (docs/policy/prediction.md). It never parks a call, because used amounts return within a period.

const (
	// burnBuckets is how many buckets of the log count as recent, besides the present one: a tenth of a period.
	burnBuckets = ledger.BucketsPerPeriod / 10
	// rateStages is the number of stages of advice: in the first half of the time ahead, make calls smaller; in the
	// second, use the fallback.
	rateStages = 2
)

// burn is the recent grants of a rate, less unused returns, by buckets of the log.
type burn struct {
	// last is the number of the newest bucket.
	last int64
	// of are the buckets, each at its number modulo their count.
	of [burnBuckets + 1]int64
}

// recordBurn records an amount that was granted, or that returned.
func (q *quota) recordBurn(now, amount int64) {
	if !q.rule.Burns() {
		return
	}
	b, bucket := &q.burn, now/q.rule.Width
	for b.last = max(b.last, bucket-int64(len(b.of))); b.last < bucket; {
		b.last++
		b.of[b.last%int64(len(b.of))] = 0
	}
	slot := &b.of[bucket%int64(len(b.of))]
	*slot = fixed.AddSaturated(*slot, amount)
}

// at returns the amount granted up to a moment, and over how long (nanoseconds).
func (b *burn) at(width, now int64) (sum, span int64) {
	bucket := now / width
	for i := range int64(len(b.of)) {
		if number := bucket - i; number >= 0 && number <= b.last && number > b.last-int64(len(b.of)) {
			sum = fixed.AddSaturated(sum, b.of[number%int64(len(b.of))])
		}
	}
	return max(sum, 0), burnBuckets*width + now%width
}

// lasts returns how long the remaining amount lasts at the recent rate of grants, while the log returns the consumption
// of a period ago; 0: at least as long as the prediction looks ahead. An entry returns from the start of its bucket.
func (q *quota) lasts(g *ledger.Ledger, now int64) int64 {
	r := &q.rule
	sum, span := q.burn.at(r.Width, now)
	if sum == 0 {
		return 0
	}
	ahead := min(r.Policy.Prediction.Ahead, r.Period)
	there := max(g.Available(r), 0)
	for _, e := range g.Log {
		returns := e.End - r.Width + r.Period + 1 - now
		if returns > ahead {
			break
		}
		if until := fixed.MulDivFloor(there, span, sum); until < returns {
			return max(until, 1)
		}
		there = fixed.AddSaturated(there, e.Amount)
	}
	if until := fixed.MulDivFloor(there, span, sum); until < ahead {
		return max(until, 1)
	}
	return 0
}

// lastingPart returns the factor by which calls have to shrink for a rate to last a period, in millionths.
func (q *quota) lastingPart(g *ledger.Ledger, now int64) int32 {
	r := &q.rule
	sum, span := q.burn.at(r.Width, now)
	there := max(g.Available(r), 0)
	for _, e := range g.Log {
		if e.End-r.Width < now {
			there = fixed.AddSaturated(there, e.Amount)
		}
	}
	needed := max(fixed.MulDivCeil(sum, r.Period, span), 1)
	return int32(min(max(fixed.MulDivFloor(there, fixed.Million, needed), leastFactor), fixed.Million))
}

// foreseesBurn returns the stage of a rate's prediction, and how long its amount will last (nanoseconds).
func (q *quota) foreseesBurn(g *ledger.Ledger, now int64) (s stage, left int64) {
	if left = q.lasts(g, now); left == 0 {
		return stageNone, 0
	}
	return stageElsewhere - stage((left-1)*rateStages/min(q.rule.Policy.Prediction.Ahead, q.rule.Period)), left
}

// forecastBurn returns the forecast of a rate; nil: none.
func (q *quota) forecastBurn(g *ledger.Ledger, now int64) *logpb.Forecast {
	s, left := q.foreseesBurn(g, now)
	if s == stageNone {
		return nil
	}
	f := &logpb.Forecast{Quota: q.name, ExhaustedAtNs: fixed.AddSaturated(now, left), SmallerPpm: q.lastingPart(g, now)}
	if s >= stageElsewhere {
		f.Fallback = q.definition.Fallback
	}
	return f
}
