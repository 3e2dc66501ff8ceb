package model

import (
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// reset is the known end of a window anchored at its provider's reset: an interval, and its source. The effect of a reset is judged from
// one side: these books free no later than the rules say.
type reset struct {
	known      bool
	begin, end int64
	first      int64 // the earliest beginning of any report
	opened     int64 // the last boundary that passed and was believed
	passed     bool  // a reset passed, and no event has ended the holds before it yet
	// since is the last boundary that passed, or the quota's first moment: a single caller's report frees nothing before one period later.
	since int64
	// latest is the last boundary that passed, believed or not.
	latest int64
	// caller reported it first; sure: a second caller or the operator confirmed it. closing: its boundary has begun. disputed: a report named
	// another one.
	caller                  string
	sure, closing, disputed bool
	// later is the end of a later reset that a single caller reported instead, since levelResets; 0: none.
	later int64
	// other is a reported reset that is not the known one.
	other named
}

// named is a reset that a caller reported.
type named struct {
	begin, end int64
	caller     string
	sure       bool
}

// levelResets is the first version at which a single caller's report neither moves another caller's reset nor delays its effect for long.
const levelResets = 10

// slack is how much earlier than a period after the last reset the next one may appear.
func (q *quota) slack() int64 { return min(4*q.rule.skew+second, q.rule.period/8) }

// narrow says whether an interval is narrow enough to confirm another.
func (q *quota) narrow(begin, end int64) bool {
	return end-begin <= min(max(8*q.rule.skew+2*second, q.rule.period/60), q.rule.period/8)
}

// learn handles a reported reset. The provider counted from its answer, given at some moment since the operation was consumed. All reports
// of one window bound its reset. A single caller's reset that is too early is not believed.
func (j *Judge) learn(caller string, q *quota, o *operation, signal *logpb.Signal, reported *logpb.ReportedQuota) {
	after := signal.GetResetAfterNs()
	resolution := min(signal.ResetResolutionNs, q.rule.period/8)
	slack := q.rule.skew + resolution
	if !q.rule.anchored || o == nil || after == 0 || after > q.rule.period+slack ||
		signal.Cause == logpb.Cause_CAUSE_OVERLOADED || signal.Cause == logpb.Cause_CAUSE_NOT_A_LIMIT {
		if reported.ResetLearned {
			j.violate("cap", "a reset of %s in %d ns is believed", q.name, after)
		}
		return
	}
	said := named{begin: plus(o.began, after-slack), end: plus(j.clock.WallLate, after+slack), caller: caller}
	r := &q.reset
	was := *r
	switch {
	case r.known && said.begin <= r.end && said.end >= r.begin:
		q.sameReset(said, j.level)
	case r.known:
		q.otherReset(j.clock, said, j.level)
	case said.begin > j.clock.WallLate:
		q.remember(j.clock, said, j.level)
		q.believe(j.clock.WallLate)
	}
	if !reported.ResetLearned {
		return
	}
	j.stats.Resets++
	if !r.known || was.known && !r.sure {
		j.violate("reset", "a reset of %s between %d and %d is believed on the word of %s; the last one was at %d", q.name, said.begin, said.end,
			caller, r.since)
		// These books follow the state.
		q.know(said)
	}
}

// with returns a reported reset combined with another caller's report of it: it lies in both intervals. From levelResets on, a reset so
// early that it takes two callers lies in either, and only a second caller moves it.
func (n named) with(q *quota, said named, level uint32) named {
	both := named{begin: max(n.begin, said.begin), end: min(n.end, said.end), caller: n.caller, sure: n.sure}
	second := !n.sure && n.caller != said.caller && q.narrow(n.begin, n.end) && q.narrow(said.begin, said.end)
	both.sure = n.sure || second
	if level < levelResets || !n.sure && n.caller == said.caller || both.end >= q.reset.since+q.rule.period-q.slack() {
		return both
	}
	if second {
		both.begin, both.end = min(n.begin, said.begin), max(n.end, said.end)
		return both
	}
	return n
}

// sameReset handles a report of the known reset.
func (q *quota) sameReset(said named, level uint32) {
	r := &q.reset
	known := named{begin: r.begin, end: r.end, caller: r.caller, sure: r.sure}.with(q, said, level)
	if !r.closing {
		r.begin, r.first = known.begin, min(r.first, known.begin)
	}
	r.end = known.end
	if known.sure && !r.sure {
		r.sure, r.later = true, 0
		r.disputed = r.disputed && level < levelResets
		q.opens()
	}
}

// otherReset handles a report of another reset than the known one. During the boundary it may be the next one. From levelResets on, if no
// second caller confirms either, the known one frees later.
func (q *quota) otherReset(clock fsm.Clock, said named, level uint32) {
	r := &q.reset
	q.remember(clock, said, level)
	switch {
	case r.closing && said.end >= r.begin+q.rule.period-q.slack():
		r.later = 0
	case r.other.sure && !r.sure:
		q.know(r.other)
	case !r.sure && level >= levelResets:
		r.later = max(r.later, said.end)
	case r.other.sure, !r.sure:
		r.disputed = true
	}
}

// resetOver is when the known reset is over: at most an hour or an eighth of the period after its end, if a caller reports a later one.
func (q *quota) resetOver() int64 {
	r := &q.reset
	return max(r.end, min(r.later, r.end+min(int64(time.Hour), q.rule.period/8)))
}

// remember keeps a reported reset until more is known.
func (q *quota) remember(clock fsm.Clock, said named, level uint32) {
	o := &q.reset.other
	past := o.begin <= clock.WallLate
	switch {
	case !past && said.begin <= o.end && said.end >= o.begin:
		if level < levelResets || said.begin > clock.WallLate {
			*o = o.with(q, said, level)
		}
	case past || !o.sure:
		*o = said
	}
}

// believe makes the reported reset the known one if it is the first, late enough or sure, and after now.
func (q *quota) believe(now int64) {
	r := &q.reset
	switch {
	case r.other.begin <= now:
		r.other = named{}
	case r.other.sure, q.window == 0, r.other.end >= max(r.since, r.latest)+q.rule.period-q.slack():
		q.know(r.other)
	}
}

// know makes a reset the known one.
func (q *quota) know(said named) {
	r := &q.reset
	r.known, r.begin, r.end, r.first = true, said.begin, said.end, said.begin
	r.caller, r.sure, r.closing, r.disputed, r.later, r.other = said.caller, said.sure, false, false, 0, named{}
	q.opens()
}

// opens frees the charges that ended before the opening that the known reset implies, if that is believed.
func (q *quota) opens() {
	r := &q.reset
	opening := r.begin - q.rule.period
	if r.sure || opening >= r.since+q.rule.period-q.slack() {
		r.opened = max(r.opened, opening)
		q.surely.drop(r.opened)
	}
}

// advanceAnchored advances an anchored window: once a believed reset has surely passed, earlier charges stop counting. Until the next one
// is known the quota is a rate that began empty there. These books always treat it so: no window is longer.
func (q *quota) advanceAnchored(clock fsm.Clock) {
	r := &q.reset
	for r.known && clock.WallEarly >= q.resetOver() {
		passed := q.resetOver()
		r.latest = max(r.latest, r.begin)
		// A sum is judged at a grant: a reset frees it here even if the state noticed the reset later.
		if !r.disputed && (r.sure || r.end >= r.since+q.rule.period-q.slack()) {
			r.opened = max(r.opened, r.begin)
		}
		if !r.disputed {
			r.since = max(r.since, r.begin)
		}
		r.passed = r.passed || !r.closing
		r.known, r.closing, r.disputed, r.sure, r.caller, r.later = false, false, false, false, "", 0
		q.surely.drop(r.opened)
		q.believe(passed)
	}
	q.surely.drop(max(r.opened, clock.WallEarly-q.rule.period))
	q.uncap(clock)
}

// confirm confirms the reported reset at an operator's command.
func (q *quota) confirm(clock fsm.Clock) {
	r := &q.reset
	q.advance(clock)
	if !q.rule.anchored {
		return
	}
	r.opened = max(r.opened, r.latest)
	if r.known {
		r.sure, r.disputed, r.later = true, false, 0
		q.opens()
	} else if r.other.begin > clock.WallLate {
		r.other.sure = true
		q.believe(clock.WallLate)
	}
	q.surely.drop(r.opened)
}

// reopen judges an operator's command that ends the effects of reports.
func (j *Judge) reopen(command *logpb.ReopenQuota, reopened *logpb.QuotaReopened) {
	q := j.quotas[command.Quota]
	if q == nil || reopened == nil {
		j.violate("unexplained", "%s is reopened, and does not exist", command.Quota)
		return
	}
	j.stats.Reopened++
	if left := max(q.closedUntil-j.clock.Now, 0); reopened.CooldownLeftNs != left {
		j.violate("cooldown", "%s is reopened %d before the end of its cooldown, and that is %d away", q.name, reopened.CooldownLeftNs, left)
	}
	q.confirm(j.clock)
	if q.closedUntil != 0 {
		q.reopens(j.clock.Now)
	}
	q.closedUntil, q.closer, q.closerSince, q.cap = 0, "", 0, reportedCap{}
	o := &q.others
	o.least, o.countsFrom, o.alone, o.from, o.sure, o.many = 0, j.clock.Now, "", 0, 0, false
	j.unlimit(q)
	for _, u := range q.usages {
		if u.closedUntil != 0 {
			u.refusals, u.closedUntil, u.unsure = 0, 0, u.unsure || reopened.More
		}
	}
}
