package model

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// The longest closing by a single caller's report: of a rate two periods, at least five minutes; of a window an hour.
const (
	closingPeriods = 2
	leastClosing   = 5 * minute
	longestClosing = 60 * minute
)

// callerOf is the source of a holder's command: its token, which may act for many, or else the holder itself.
func callerOf(command *logpb.Command, holder string) string {
	if command.By != "" {
		return command.By
	}
	return holder
}

// report handles a provider's answer. Its effects are judged.
func (j *Judge) report(command *logpb.Command, reported *logpb.Reported) {
	asked := command.GetReport()
	l := j.named(asked.Lease, asked.Fence, "Report")
	if l == nil || reported == nil {
		return
	}
	o := l.ops[asked.Op]
	for i, signal := range asked.Signals {
		q := l.share(signal.Quota)
		if q == nil || i >= len(reported.Quotas) || reported.Quotas[i].Quota != signal.Quota {
			j.violate("unexplained", "lease %d reports on %s, and %v was taken", l.id, signal.Quota, reported)
			return
		}
		q.advance(j.clock)
		switch q.rule.kind {
		case windowKind:
			j.learn(callerOf(command, l.holder), q, o, signal, reported.Quotas[i])
			j.lower(callerOf(command, l.holder), q, o, signal, reported.Quotas[i])
		case rateKind:
			caller := cmp.Or(command.Caller, command.By, l.holder)
			if command.PerHolder {
				caller += " " + l.holder
			}
			j.hear(q, o, caller, signal, reported.Quotas[i])
		case slotsKind, poolKind:
		}
		j.answered(l.holder, q, signal.Cause)
		j.closes(callerOf(command, l.holder), q, signal)
	}
}

// lower handles a total to which a report lowered a window: it only falls, and only if the remaining and the locally consumed amounts do
// not add up to the limit. Another caller's report may keep it unchanged and extend it.
func (j *Judge) lower(caller string, q *quota, o *operation, signal *logpb.Signal, reported *logpb.ReportedQuota) {
	if reported.CappedTo == nil {
		return
	}
	j.stats.Caps++
	total := *reported.CappedTo
	limit := q.rule.limit
	switch {
	case o == nil || signal.Remaining == nil || total < *signal.Remaining:
		j.violate("cap", "%s is lowered to %d by a report of %v", q.name, total, signal)
	case total >= q.rule.usable, q.capped() &&
		(total > q.cap.total || total == q.cap.total && caller == q.cap.caller):
		j.violate("cap", "%s is lowered to %d, it had %d", q.name, total, q.allowed())
	case !q.rule.anchored && *signal.Remaining >= limit-q.surely.sum:
		j.violate("cap", "%s is lowered to %d, %d remain and %d were consumed here of %d", q.name, total, *signal.Remaining, q.surely.sum, limit)
	}
	until := plus(j.clock.WallLate, q.cappedFor())
	switch {
	case !q.cap.is || caller != q.cap.caller:
		q.cap = reportedCap{caller: caller, until: until, latest: until}
	case q.cap.window != q.window || q.cap.over:
		// The caller's earlier cap may have ended: while the views of Unix time are far apart, it does when each has passed a boundary.
		q.cap.latest = until
	}
	q.cap.is, q.cap.total, q.cap.window = true, total, q.window
}

// cappedFor is for how long a single caller's report lowers a window: an hour at most. A shorter window ends before that, by a few times
// its skew; for one that ends at the provider's reset less is certain.
func (q *quota) cappedFor() int64 {
	switch {
	case q.rule.period > longestClosing:
		return longestClosing
	case q.rule.anchored:
		return q.rule.period
	}
	return q.rule.period + 4*q.rule.skew
}

// closes records whose report closes a quota, and from when on.
func (j *Judge) closes(caller string, q *quota, signal *logpb.Signal) {
	switch signal.Cause {
	case logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_PLAN:
	case logpb.Cause_CAUSE_ACCOUNT:
		path := q.path()
		q = path[len(path)-1]
	default:
		return
	}
	if !q.cooling(j.clock.Now) || q.closer != caller {
		q.closer, q.closerSince = caller, j.clock.Now
	}
	if q.rule.kind != windowKind && signal.RetryAfterNs != nil {
		until := min(plus(j.clock.Now, *signal.RetryAfterNs), q.closerSince+j.closingBound(q))
		j.entry.closing = append(j.entry.closing, closing{q, until})
	}
}

// mayClose says whether a command reports something that closes a quota.
func (j *Judge) mayClose(command *logpb.Command, event *effect.Event) bool {
	signals := command.GetReport().GetSignals()
	if end := command.GetEndTask(); end != nil && j.tasks[end.Task] != nil {
		for _, name := range j.tasks[end.Task].quotas {
			signals = append(signals, &logpb.Signal{Quota: name, Cause: end.Report})
		}
	}
	return slices.ContainsFunc(signals, func(s *logpb.Signal) bool {
		switch s.Cause {
		case logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_PLAN:
			return s.Quota == event.Quota
		case logpb.Cause_CAUSE_ACCOUNT:
			path := j.quotas[s.Quota].path()
			return len(path) > 0 && path[len(path)-1].name == event.Quota
		default:
			return false
		}
	})
}

// closing is a quota that must be closed until some time after this entry.
type closing struct {
	quota *quota
	until int64
}

// closingBound is for how long a single caller's report may close a quota. A window closes until its reset, an hour at most: for the
// shorter of its length and an hour. If a better sample of Unix time says that it is earlier, the window closes for the time left until the
// reset.
func (j *Judge) closingBound(q *quota) int64 {
	if q.rule.kind == windowKind {
		left, _, _ := q.closing(j.clock)
		return min(plus(max(q.rule.period, left), 2*q.rule.skew+2*second), longestClosing)
	}
	bound := max(closingPeriods*q.rule.period, leastClosing)
	if j.level < levelSingleReporter {
		return bound
	}
	return min(bound, longestClosing)
}

// cooldown handles the closing of a quota.
func (j *Judge) cooldown(event *effect.Event) {
	q := j.quotas[event.Quota]
	if q == nil {
		j.violate("unexplained", "%s is closed, and does not exist", event.Quota)
		return
	}
	j.stats.Cooldowns++
	until := plus(j.clock.Now, event.Duration)
	if until < q.closedUntil || until > plus(q.closerSince, j.closingBound(q)) && until > q.closedUntil {
		j.violate("cooldown", "%s is closed until %d for %s, it was until %d by %s since %d", q.name, until, event.Holder, q.closedUntil,
			q.closer, q.closerSince)
	}
	q.closedUntil = max(until, q.closedUntil)
}

// windowClosed handles the end of the window of current holds.
func (j *Judge) windowClosed(name string) {
	q := j.quotas[name]
	if q == nil {
		return // it may have been deleted with this entry, but not before
	}
	due := q.rolls(j.clock)
	if q.rule.anchored {
		due = q.reset.passed || q.reset.known && j.clock.WallLate >= q.reset.first
	}
	if !due && j.entry.resets() {
		return // it begins again with that command
	}
	j.stats.ItemsClosed++
	if q.rule.anchored {
		if !due {
			j.violate("item-closed", "the window of %s closes at %d, its reset is not before %d", name, j.clock.WallLate, q.reset.first)
		}
		q.window, q.held, q.reset.passed, q.granted = q.window+1, 0, false, [3]int64{}
		q.reset.closing = q.reset.known
		return
	}
	if !due {
		j.violate("item-closed", "the window of %s closes before its end at %d", name, q.window)
	}
	q.window, q.held, q.granted = q.takesHolds(j.clock), 0, [3]int64{}
}

func (j *Judge) applyQuotas(asked *logpb.ApplyQuotas) {
	if asked.DryRun {
		return
	}
	j.define(asked.Quotas)
	if asked.ReplaceHolders {
		j.rules = asked.Holders
	}
	if asked.ReplaceWorkflows {
		j.replaceWorkflows(asked.Workflows)
	}
}

func (j *Judge) deleteQuota(asked *logpb.DeleteQuota) {
	q := j.quotas[asked.Quota]
	if q == nil {
		j.violate("unexplained", "%s is deleted, and does not exist", asked.Quota)
		return
	}
	q.advance(j.clock)
	if inUse := q.leases > 0 || q.waiting > 0 || q.held > 0 || q.surely.sum > 0; q.children > 0 || inUse && !asked.Force {
		j.violate("conservation", "%s is deleted while it is in use", q.name)
	}
	if q.parent != nil {
		q.parent.children--
	}
	q.deleted = true
	delete(j.overridden, q)
	delete(j.quotas, asked.Quota)
}
