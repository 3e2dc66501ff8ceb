package fsm

import (
	"math"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
)

// Waiters may become eligible by time alone. Each quota with waiters has timers, so that an entry serves only the
// quotas whose timers are due, however many others wait.

// timerKind is the reason for a timer; each kind has its own view of time.
type timerKind int8

const (
	// timerNextEntry: a command changed the quota, which may change what its policy withholds; due with the next entry.
	timerNextEntry timerKind = 0
	// timerWakeup: a waiter that was passed over may become eligible, in cluster time.
	timerWakeup timerKind = 1
	// timerCluster, timerEarly and timerLate: something stops counting, in cluster time or by the earlier view of Unix
	// time, or a window begins to close, by the later view.
	timerCluster timerKind = 2
	timerEarly   timerKind = 3
	timerLate    timerKind = 4
	timerKinds             = 5
)

// timer is when to serve the waiters of a quota again.
type timer struct {
	kind  timerKind
	at    int64
	quota uint32
}

func lessTimer(a, b timer) bool {
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	return a.at < b.at || a.at == b.at && a.quota < b.quota
}

// clockFor returns the present by the view of time that a kind of timer uses.
func clockFor(c Clock, kind timerKind) int64 {
	switch kind {
	case timerEarly:
		return c.WallEarly
	case timerLate:
		return c.WallLate
	case timerNextEntry, timerWakeup, timerCluster:
	}
	return c.Now
}

// policyRetry is how often to retry waiters from which policy withholds something: some of its inputs change without an
// event, such as the time since a higher class asked.
const policyRetry = fixed.Second

// timers returns the times of a quota's timers, by kind.
func (q *quota) timers() (at [timerKinds]int64) {
	for why := range at {
		at[why] = ledger.NoTimer
	}
	if q.waiting == 0 {
		return at
	}
	if q.wakeNext {
		at[timerNextEntry] = 0
	}
	if q.wakeup != 0 {
		at[timerWakeup] = q.wakeup
	}
	early, late := q.ledger.Changes(&q.rule)
	if q.rule.Kind != ledger.KindWindow {
		at[timerCluster] = early
		return at
	}
	at[timerEarly], at[timerLate] = early, late
	return at
}

// markChanged records that a quota may have changed, so that its timers are set again at the end of the entry.
func (qs *quotaTable) markChanged(q *quota) {
	if q.waiting == 0 && !q.scheduled {
		return
	}
	if q.changedIn != qs.index {
		q.changedIn = qs.index
		qs.unscheduled = append(qs.unscheduled, q.number)
	}
	q.wakeNext = q.wakeNext || qs.commanded && q.rule.Timed()
}

// rescheduleChanged sets the timers of the changed quotas.
func (qs *quotaTable) rescheduleChanged() {
	for _, number := range qs.unscheduled {
		if q := qs.get(number); q != nil {
			qs.schedule(q)
		}
	}
	qs.unscheduled = qs.unscheduled[:0]
}

// schedule sets the timers of a quota, or removes them if it has no waiters.
func (qs *quotaTable) schedule(q *quota) {
	if q.waiting == 0 {
		q.wakeNext, q.wakeup = false, 0
	}
	if q.waiting > 0 && q.rule.Policy.Ageing > 0 {
		qs.ageingQuotas.Set(q.number, struct{}{})
	} else {
		qs.ageingQuotas.Delete(q.number)
	}
	at := q.timers()
	for kind := range timerKind(timerKinds) {
		was := ledger.NoTimer
		if q.scheduled {
			was = q.scheduledAt[kind]
		}
		if was == at[kind] {
			continue
		}
		if was != ledger.NoTimer {
			qs.timers.Delete(timer{kind: kind, at: was, quota: q.number})
		}
		if at[kind] != ledger.NoTimer {
			qs.timers.Set(timer{kind: kind, at: at[kind], quota: q.number})
		}
	}
	q.scheduled, q.scheduledAt = q.waiting > 0, at
}

// fireTimers advances quotas whose timers are due to the present, and marks them dirty where necessary.
func (qs *quotaTable) fireTimers() {
	for kind := range timerKind(timerKinds) {
		now := clockFor(qs.clock, kind)
		var due []uint32
		qs.timers.Ascend(timer{kind: kind, at: ledger.NoTimer}, func(v timer) bool {
			if v.kind != kind || v.at > now || len(due) == maxDuePerEntry && kind != timerNextEntry { // as many as the last entry changed
				return false
			}
			due = append(due, v.quota)
			return true
		})
		for _, number := range due {
			if q := qs.editNow(number); kind <= timerWakeup || q.rule.Timed() {
				qs.markDirty(q)
			}
		}
	}
}

// wakeAt sets when to serve waiters again that were passed over.
func (qs *quotaTable) wakeAt(number uint32, at int64) {
	if at <= qs.clock.Now {
		return
	}
	if q := qs.edit(number); q.wakeup == 0 || at < q.wakeup {
		q.wakeup = at
	}
}

// nextTimer returns the first cluster time, not before the present, at which a quota with waiters should be checked;
// the largest int64: never, or unknown. timerNextEntry is left out: the next entry comes for other reasons.
func (qs *quotaTable) nextTimer(present func() (Clock, bool)) int64 {
	first := int64(math.MaxInt64)
	for kind := timerWakeup; kind < timerKinds; kind++ {
		qs.timers.Ascend(timer{kind: kind, at: ledger.NoTimer}, func(v timer) bool {
			if v.kind != kind {
				return false
			}
			from, ok := qs.clock, true
			if kind == timerEarly || kind == timerLate {
				from, ok = present()
			}
			if ok {
				first = min(first, fixed.AddSaturated(max(from.Now, qs.clock.Now), max(v.at-clockFor(from, kind), 0)))
			}
			return false
		})
	}
	return first
}
