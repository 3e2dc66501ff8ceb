package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// A clock reset repairs a cluster whose views of Unix time were carried far ahead by wrong clocks. Without it the
// earlier view, and calendar windows with it, would stand still until real time has caught up.
//
// The views themselves continue, so everything kept in their time (ends, boundaries, claims, spend-bys) stays in order.
// A reset moves how far ahead of Unix time the views are. It moves them past everything that windows have kept: each
// window closes, with its held amounts and records, and begins again at the right time. The new window is charged with
// everything consumed that may lie in it, whichever window was charged first. Only amounts that ended before, proven by
// cluster time, are left out: cluster time never runs faster than real time, so they ended at least as long ago.

const (
	// mostUnsure is the largest difference between the two views of a sample that a reset accepts.
	mostUnsure = 2 * fixed.Second
	// leastAhead is how far ahead the earlier view must be. A smaller lead disappears within that time.
	leastAhead = fixed.Second
)

// resetClock sets both views of Unix time to the sample of the present entry.
func (m *Machine) resetClock() *logpb.Result {
	entry := &m.decoder.Entry
	early, late := entry.WallEarlyNs, entry.WallLateNs
	switch {
	case early <= 0 || late <= 0:
		return effect.Fail(logpb.Reason_REASON_CLOCK_UNSURE, "too few members told the time", "wait until a majority of the members answers")
	case late-early > mostUnsure || late < early:
		return effect.Fail(logpb.Reason_REASON_CLOCK_UNSURE, fmt.Sprintf("the members' clocks differ by %d ms", (late-early)/fixed.Millisecond),
			"set the members' clocks right first")
	}
	ahead := m.clock.WallEarly - m.clock.Shifted(late)
	if ahead <= leastAhead {
		return effect.Fail(logpb.Reason_REASON_CLOCK_NOT_AHEAD, "the time of day is not ahead of the members' clocks",
			"there is nothing to reset")
	}
	windows := m.quotas.windows()
	from := m.clock.WallEarly
	for _, q := range windows {
		from = max(from, q.ledger.Beyond(&q.rule))
	}
	if from > fixed.MaxTime-mostUnsure {
		return effect.Fail(logpb.Reason_REASON_INVALID, "the time of day cannot be moved on any further", "found the cluster again from a backup")
	}
	was := m.clock.WallEarly
	m.clock.Shift = from - early
	m.clock.WallEarly, m.clock.WallLate = from, from+late-early
	for _, q := range windows {
		q.rule.Shift = m.clock.Shift
		q.ledger.Restart(&q.rule, q.rule.At(m.clock), from-was)
		m.emit(effect.Event{Kind: effect.EventWindowClosed, Quota: q.name})
		m.quotas.markDirty(q)
	}
	return &logpb.Result{Kind: &logpb.Result_ClockReset{ClockReset: &logpb.ClockReset{AheadNs: ahead, Windows: int64(len(windows))}}}
}

// windows returns all window quotas, by number, advanced to the present.
func (qs *quotaTable) windows() (windows []*quota) {
	var numbers []uint32
	qs.byNumber.Scan(func(number uint32, q *quota) bool {
		if q.rule.Kind == ledger.KindWindow {
			numbers = append(numbers, number)
		}
		return true
	})
	for _, number := range numbers {
		windows = append(windows, qs.editNow(number))
	}
	return windows
}
