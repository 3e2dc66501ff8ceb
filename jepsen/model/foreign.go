package model

import (
	"cmp"

	"github.com/quotad/quotad/fsm/logpb"
)

// The use of a rate by others, as its provider reports it (docs/policy/shares.md): these books know bounds of it. They know the report and
// when the call was consumed and, within rounding, the sum that counted then.

const (
	// levelReports is the first version of entries at which reports change a rate's state.
	levelReports = 7
	// levelOvertaken is the first at which consumption after the operation of a report does not count as use by others.
	levelOvertaken = 8
	// levelSingleReporter is the first at which a single caller's report holds a rate back only for a bounded time.
	levelSingleReporter = 8
	// levelReportsPerCaller is the first at which a report is stale only after a later one of the same caller.
	levelReportsPerCaller = 9
	// lowerPeriods is for how many periods a lower limit lowers a rate.
	lowerPeriods = 2
)

// others is the use of a rate by others.
type others struct {
	// most is the upper bound reported at mostAt, or its faded rest; least is the lower bound of leastAt.
	most, mostAt, least, leastAt int64
	// countsFrom is the time of the latest consume that was reported before levelReportsPerCaller, or of an operator's reopening; lastBegan
	// are the latest since then, by reporting caller.
	countsFrom int64
	lastBegan  map[string]int64
	// lowered is until when a lower limit may lower the rate.
	lowered int64
	// early: there was a report before levelSingleReporter.
	early bool
	// alone is the only caller that has reported since levelSingleReporter, without refusals: first at from, and at sure with more than
	// rounding explains. many: other callers reported, or a call was refused.
	alone      string
	from, sure int64
	many       bool
}

// span is the longest time in which a held-back amount fades.
func (q *quota) span() int64 {
	if q.others.early {
		return q.rule.period
	}
	return q.shortSpan()
}

// shortSpan is the shortest such time.
func (q *quota) shortSpan() int64 { return min(q.rule.period, longestClosing) }

// faded is the rest of an amount after a time.
func faded(amount, passed, period int64) int64 {
	if passed >= period {
		return 0
	}
	return amount - mulDiv(amount, passed, period)
}

// keptAtMost is the most that may be held back for others: six fifths, in steps of the log.
func (q *quota) keptAtMost(now int64) int64 {
	o, period := &q.others, q.span()
	if o.most == 0 || now-o.mostAt >= period {
		return 0
	}
	passed := max(now-o.mostAt-max(q.rule.period/rounding, 1_000_000), 0)
	return mulDiv(6*o.most, period-passed, 5*period) + 1
}

// keptAtLeast is the amount that surely is.
func (q *quota) keptAtLeast(now int64) int64 {
	o, period := &q.others, q.shortSpan()
	if o.least == 0 || now-o.leastAt >= period {
		return 0
	}
	return mulDiv(6*o.least, period-(now-o.leastAt), 5*period)
}

// hear applies a provider's report about a rate.
func (j *Judge) hear(q *quota, o *operation, caller string, signal *logpb.Signal, reported *logpb.ReportedQuota) {
	lower := signal.Limit != nil && *signal.Limit < q.rule.limit
	if reported.CappedTo != nil {
		j.lowerRate(q, o, lower, signal, *reported.CappedTo)
	}
	if o == nil || signal.Cause == logpb.Cause_CAUSE_OVERLOADED || signal.Cause == logpb.Cause_CAUSE_NOT_A_LIMIT {
		return
	}
	now, of := j.clock.Now, &q.others
	limit := q.rule.limit
	if lower {
		limit, of.lowered = *signal.Limit, max(of.lowered, plus(now, j.loweredFor(q)))
	}
	first, amount := o.chargedTo(q)
	if first == nil || signal.Limit == nil && signal.Remaining == nil {
		return
	}
	believed := first.answered && first.began >= max(of.countsFrom, of.lastBegan[caller]) && now-first.began <= q.rule.period
	if j.level < levelReportsPerCaller {
		of.countsFrom = max(of.countsFrom, first.began)
	} else if first.began > of.lastBegan[caller] {
		if of.lastBegan == nil {
			of.lastBegan = map[string]int64{}
		}
		of.lastBegan[caller] = first.began
	}
	if signal.Remaining == nil {
		return
	}
	gone := limit - min(*signal.Remaining, limit)
	since := j.since(q, o, first)
	least := first.beforeLeast
	if first.counted {
		least = plus(least, since)
	}
	most, surely := gone-min(least, gone), gone-min(plus(plus(first.before, amount), since), gone)
	believed = believed && !o.didActual
	may, must := j.heeds(q, caller, signal, most, believed && surely > 0)
	if left := faded(of.most, now-of.mostAt, q.span()); may && most >= left {
		of.most, of.mostAt = most, now
	} else if of.early {
		of.most, of.mostAt = left, now
	}
	if believed && must && surely >= faded(of.least, now-of.leastAt, q.shortSpan()) {
		of.least, of.leastAt = surely, now
	}
}

// heeds says whether a caller's report about others may be believed, and whether it must be. A single caller is believed for as long as it
// could close the rate, and then ignored for as long. Between these both are possible, since rounding decides when it began.
func (j *Judge) heeds(q *quota, caller string, signal *logpb.Signal, most int64, surely bool) (may, must bool) {
	now, of, bound := j.clock.Now, &q.others, j.closingBound(q)
	if j.level < levelSingleReporter {
		of.early = true
		return true, true
	}
	if most <= 0 {
		return false, false
	}
	refused := signal.Cause != logpb.Cause_CAUSE_OK && signal.Cause != logpb.Cause_CAUSE_UNSPECIFIED
	of.many = of.many || refused || of.alone != "" && of.alone != caller
	if of.from == 0 {
		of.alone, of.from = caller, max(now, 1)
	}
	if surely && of.sure == 0 {
		of.sure = max(now, 1)
	}
	within := now-of.from < bound
	ended := !of.many && of.sure != 0 && now-of.sure >= bound && now-of.from < 2*bound
	return !ended, refused || within
}

// loweredFor is for how long a report lowers a rate.
func (j *Judge) loweredFor(q *quota) int64 {
	if j.level < levelSingleReporter {
		return lowerPeriods * q.rule.period
	}
	return min(lowerPeriods*q.rule.period, longestClosing)
}

// consumes adds to the total consumption of a rate, and says whether the quota has one.
func (j *Judge) consumes(q *quota, amount int64) bool {
	if q.rule.kind != rateKind || j.level < levelOvertaken {
		return false
	}
	q.total += amount
	return true
}

// since is the consumption of a rate by other operations after an operation; first is that operation's first charge to it.
func (j *Judge) since(q *quota, o *operation, first *charge) int64 {
	own := int64(0)
	for _, p := range o.parts {
		for _, c := range p.charges {
			if c.quota == q {
				own = plus(own, plus(p.consumed, p.over))
			}
		}
	}
	if j.level < levelOvertaken {
		return 0
	}
	return max(q.total-first.total-own, 0)
}

// lowerRate judges the lowering of a rate: to the rest that the reported limit leaves, and never up.
func (j *Judge) lowerRate(q *quota, o *operation, lower bool, signal *logpb.Signal, total int64) {
	j.stats.Caps++
	named := mulDiv(signal.GetLimit(), millionth-int64(q.definition.HeadroomPpm), millionth)
	switch {
	case o == nil || !lower:
		j.violate("cap", "%s is lowered to %d by a report of %v", q.name, total, signal)
	case total < named || total > named && j.level < levelSingleReporter: // a single caller's report may be believed in part
		j.violate("cap", "%s is lowered to %d by a limit of %d", q.name, total, *signal.Limit)
	case total >= q.allowed():
		j.violate("cap", "%s is lowered to %d, it had %d", q.name, total, q.allowed())
	}
	until := plus(j.clock.Now, j.loweredFor(q))
	q.cap = reportedCap{total: total, window: q.window, until: until, latest: until, is: true}
}

// chargedTo returns the first of an operation's charges to a quota, nil for none, and their sum.
func (o *operation) chargedTo(q *quota) (first *charge, amount int64) {
	for _, p := range o.parts {
		for _, c := range p.charges {
			if c.quota != q {
				continue
			}
			if first == nil {
				first = c
			}
			amount = plus(amount, c.amount)
		}
	}
	return first, amount
}

// retryFrom is the earliest retry of each class after a cooldown (docs/policy/ramp.md).
var retryFrom = [3]int64{0, second / 2, 7 * second / 2}

// comesBack judges the retry time of a refusal for a cooldown: after its end, and after those of higher classes. Other reasons may put it
// off further.
func (j *Judge) comesBack(q *quota, refusal *logpb.Refusal, class int32) {
	switch {
	case refusal.ReopensAtNs == 0:
		if j.level >= levelReports && refusal.Reason == logpb.Reason_REASON_COOLDOWN {
			j.violate("cooldown", "%s is closed, and the refusal does not say until when: %v", q.name, refusal)
		}
	case refusal.ReopensAtNs != q.closedUntil:
		j.violate("cooldown", "%s is closed until %d, a refusal says until %d", q.name, q.closedUntil, refusal.ReopensAtNs)
	case refusal.RetryAtNs < plus(q.closedUntil, retryFrom[class]):
		j.violate("cooldown", "class %d is to come back to %s at %d, which is closed until %d", class, q.name, refusal.RetryAtNs, q.closedUntil)
	}
}

// predicts judges a forecast of a rate: it is near, its advice can be followed, and it parks nobody.
func (j *Judge) predicts(f *logpb.Forecast) {
	q := j.quotas[f.GetQuota()]
	if f == nil || q == nil || q.rule.kind != rateKind {
		return
	}
	left := f.ExhaustedAtNs - j.clock.Now
	if q.definition.GetPolicy().GetPrediction() == nil || f.Parks || left <= 0 || left > q.rule.period ||
		f.SmallerPpm < millionth/10 || f.SmallerPpm > millionth {
		j.violate("unexplained", "of %s is predicted: %v", q.name, f)
	}
}

// limitedUntil is until when a refusal limits a step of a workflow: until the end of a cooldown, though retries come later.
func limitedUntil(refusal *logpb.Refusal) int64 {
	return cmp.Or(refusal.ReopensAtNs, refusal.RetryAtNs)
}
