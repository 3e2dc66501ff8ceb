package fsm

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// A rate is predicted by what was granted of it lately against what its log returns (docs/policy/prediction.md). It never parks
// anybody: what is used up comes back within a period.

const (
	// burnBuckets: what was granted counts for so many buckets of the log and the present one, a tenth of a period.
	burnBuckets = ledger.BucketsPerPeriod / 10
	// rateStages: in the first half of the time ahead calls are advised to become smaller, in the second to go elsewhere.
	rateStages = 2
)

// burn is what was granted of a rate lately, less what came back unused, by buckets of the log.
type burn struct {
	// last is the number of the newest bucket.
	last int64
	// of are the buckets, each at its number modulo their count.
	of [burnBuckets + 1]int64
}

// recordBurn records what was granted, or came back.
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

// at returns what was granted up to a moment, and over how long.
func (b *burn) at(width, now int64) (sum, span int64) {
	bucket := now / width
	for i := range int64(len(b.of)) {
		if number := bucket - i; number >= 0 && number <= b.last && number > b.last-int64(len(b.of)) {
			sum = fixed.AddSaturated(sum, b.of[number%int64(len(b.of))])
		}
	}
	return max(sum, 0), burnBuckets*width + now%width
}

// lasts returns how long what is left lasts if as much is granted as lately, while the log returns what was consumed a period ago;
// 0: at least for as long as it is looked ahead. An entry returns from the beginning of its bucket on.
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

// lastingPart returns to what part of their size calls have to shrink for a rate to last a period, in millionths.
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

// foreseesBurn returns how far a rate acts upon its prediction, and how long what it has will last.
func (q *quota) foreseesBurn(g *ledger.Ledger, now int64) (s stage, left int64) {
	if left = q.lasts(g, now); left == 0 {
		return stageNone, 0
	}
	return stageElsewhere - stage((left-1)*rateStages/min(q.rule.Policy.Prediction.Ahead, q.rule.Period)), left
}

// forecastBurn returns what a rate predicts; nil: nothing.
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
