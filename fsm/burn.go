package fsm

import "github.com/quotad/quotad/fsm/logpb"

// A rate is predicted by what was granted of it lately against what its log returns (docs/policy/prediction.md). It never parks
// anybody: what is used up comes back within a period.

const (
	// burnBuckets: what was granted counts for so many buckets of the log and the present one, a tenth of a period.
	burnBuckets = bucketsPerPeriod / 10
	// aheadPart: by default a rate looks such a part of its period ahead.
	aheadPart = 5
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

// burns tells whether a rule predicts from what is granted.
func (r *rule) burns() bool { return r.kind == kindRate && r.policy.prediction.on }

// recordBurn records what was granted, or came back.
func (q *quota) recordBurn(now, amount int64) {
	if !q.rule.burns() {
		return
	}
	b, bucket := &q.burn, now/q.rule.width
	for b.last = max(b.last, bucket-int64(len(b.of))); b.last < bucket; {
		b.last++
		b.of[b.last%int64(len(b.of))] = 0
	}
	slot := &b.of[bucket%int64(len(b.of))]
	*slot = addSaturated(*slot, amount)
}

// at returns what was granted up to a moment, and over how long.
func (b *burn) at(width, now int64) (sum, span int64) {
	bucket := now / width
	for i := range int64(len(b.of)) {
		if number := bucket - i; number >= 0 && number <= b.last && number > b.last-int64(len(b.of)) {
			sum = addSaturated(sum, b.of[number%int64(len(b.of))])
		}
	}
	return max(sum, 0), burnBuckets*width + now%width
}

// lasts returns how long what is left lasts if as much is granted as lately, while the log returns what was consumed a period ago;
// 0: at least for as long as it is looked ahead. An entry returns from the beginning of its bucket on.
func (q *quota) lasts(g *ledger, now int64) int64 {
	r := &q.rule
	sum, span := q.burn.at(r.width, now)
	if sum == 0 {
		return 0
	}
	ahead := min(r.policy.prediction.ahead, r.period)
	there := max(g.available(r), 0)
	for _, e := range g.log {
		returns := e.end - r.width + r.period + 1 - now
		if returns > ahead {
			break
		}
		if until := mulDivFloor(there, span, sum); until < returns {
			return max(until, 1)
		}
		there = addSaturated(there, e.amount)
	}
	if until := mulDivFloor(there, span, sum); until < ahead {
		return max(until, 1)
	}
	return 0
}

// lastingPart returns to what part of their size calls have to shrink for a rate to last a period, in millionths.
func (q *quota) lastingPart(g *ledger, now int64) int32 {
	r := &q.rule
	sum, span := q.burn.at(r.width, now)
	there := max(g.available(r), 0)
	for _, e := range g.log {
		if e.end-r.width < now {
			there = addSaturated(there, e.amount)
		}
	}
	needed := max(mulDivCeil(sum, r.period, span), 1)
	return int32(min(max(mulDivFloor(there, million, needed), leastFactor), million))
}

// foreseesBurn returns how far a rate acts upon its prediction, and how long what it has will last.
func (q *quota) foreseesBurn(g *ledger, now int64) (s stage, left int64) {
	if left = q.lasts(g, now); left == 0 {
		return stageNone, 0
	}
	return stageElsewhere - stage((left-1)*rateStages/min(q.rule.policy.prediction.ahead, q.rule.period)), left
}

// forecastBurn returns what a rate predicts; nil: nothing.
func (q *quota) forecastBurn(g *ledger, now int64) *logpb.Forecast {
	s, left := q.foreseesBurn(g, now)
	if s == stageNone {
		return nil
	}
	f := &logpb.Forecast{Quota: q.name, ExhaustedAtNs: addSaturated(now, left), SmallerPpm: q.lastingPart(g, now)}
	if s >= stageElsewhere {
		f.Fallback = q.definition.Fallback
	}
	return f
}
