package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// A clock reset is the operator's way out where wrong clocks carried the views of Unix time far ahead: the earlier view would stand
// still until real time has caught up, and calendar windows with it.
//
// The views themselves go on: all that is kept in their time (ends, boundaries, claims, spend-bys) stays in order. What a reset moves is
// how far ahead of Unix time they are counted. It moves them past everything that windows have kept, so that each window closes, with
// what was held in it and every record of it, and begins again at the right time. There it is charged with what may lie in it: all that
// was consumed, whichever window it was charged to, but for what cluster time proves to have ended before. Cluster time never runs faster
// than real time, so what ended a time ago by cluster time ended at least as long ago.

const (
	// mostUnsure is by how much the two views of a sample may differ to which the clock is reset.
	mostUnsure = 2 * second
	// leastAhead is by how much the earlier view must be ahead: less comes back by itself within that time.
	leastAhead = second
	// maxPast is how many amounts a window remembers that it dropped; beyond that the oldest are taken together.
	maxPast = 128
)

// past is an amount that was dropped, and when the last of its exposures ended by cluster time.
type past struct{ until, amount int64 }

// remember records what is dropped of a window.
func (g *ledger) remember(p past) {
	if p.until == 0 || p.amount == 0 {
		return
	}
	if last := len(g.past) - 1; last >= 0 && g.past[last].until >= p.until {
		// One end for both keeps the list in order, and nothing ends too soon.
		g.past[last].amount = addSaturated(g.past[last].amount, p.amount)
		return
	}
	if g.past = append(g.past, p); len(g.past) > maxPast {
		g.past[1].amount = addSaturated(g.past[0].amount, g.past[1].amount)
		g.past = slices.Delete(g.past, 0, 1)
	}
}

// forgetPast forgets what ended before a moment of cluster time.
func (g *ledger) forgetPast(before int64) {
	n := 0
	for n < len(g.past) && g.past[n].until < before {
		n++
	}
	g.past = slices.Delete(g.past, 0, n)
}

// resetClock sets both views of Unix time to the sample of the present entry.
func (m *Machine) resetClock() *logpb.Result {
	entry := &m.decoder.entry
	early, late := entry.WallEarlyNs, entry.WallLateNs
	switch {
	case early <= 0 || late <= 0:
		return failWith(logpb.Reason_REASON_CLOCK_UNSURE, "too few members told the time", "wait until a majority of the members answers")
	case late-early > mostUnsure || late < early:
		return failWith(logpb.Reason_REASON_CLOCK_UNSURE, fmt.Sprintf("the members' clocks differ by %d ms", (late-early)/millisecond),
			"set the members' clocks right first")
	}
	ahead := m.clock.WallEarly - m.clock.Shifted(late)
	if ahead <= leastAhead {
		return failWith(logpb.Reason_REASON_CLOCK_NOT_AHEAD, "the time of day is not ahead of the members' clocks", "there is nothing to reset")
	}
	windows := m.windows()
	from := m.clock.WallEarly
	for _, q := range windows {
		from = max(from, q.ledger.beyond(&q.rule))
	}
	if from > maxTime-mostUnsure {
		return failWith(logpb.Reason_REASON_INVALID, "the time of day cannot be moved on any further", "found the cluster again from a backup")
	}
	was := m.clock.WallEarly
	m.clock.Shift = from - early
	m.clock.WallEarly, m.clock.WallLate = from, from+late-early
	for _, q := range windows {
		q.rule.shift = m.clock.Shift
		q.ledger.restart(&q.rule, q.rule.at(m.clock), from-was)
		m.emit(Event{Kind: EventWindowClosed, Quota: q.name})
		m.markDirty(q)
	}
	return &logpb.Result{Kind: &logpb.Result_ClockReset{ClockReset: &logpb.ClockReset{AheadNs: ahead, Windows: int64(len(windows))}}}
}

// windows returns all quotas that are windows, by number, brought to the present.
func (m *Machine) windows() (windows []*quota) {
	var numbers []uint32
	m.quotas.Scan(func(number uint32, q *quota) bool {
		if q.rule.kind == kindWindow {
			numbers = append(numbers, number)
		}
		return true
	})
	for _, number := range numbers {
		windows = append(windows, m.editQuotaNow(number))
	}
	return windows
}

// settling is how long after the end of its exposure an amount counts at least, so that a window that begins now may still count it.
func (r *rule) settling() int64 {
	if r.anchored {
		return r.slides()
	}
	return r.skew
}

// beyond returns the first moment at which everything that a window keeps has ended.
func (g *ledger) beyond(r *rule) int64 {
	last := max(g.cutoff, g.opened, g.passed, g.since)
	if !r.anchored {
		last = max(last, g.window)
	}
	if n := len(g.log); n > 0 {
		last = max(last, g.log[n-1].end)
	}
	return addSaturated(last, 1+r.settling())
}

// restart closes a window and begins another one, at a moment beyond all that it kept; the views moved on by so much.
func (g *ledger) restart(r *rule, v view, moved int64) {
	before := slices.Clone(g.past)
	for _, e := range g.log {
		before = append(before, past{until: e.until, amount: e.amount})
	}
	window := g.window + 1
	if !r.anchored {
		window = r.span(v.late + r.skew).end
	}
	g.roll(window)
	g.log, g.past, g.counted, g.settled = nil, nil, 0, 0
	g.cutoff = v.early - r.settling()
	g.known, g.closing, g.disputed, g.closeBegin, g.closeEnd = false, false, false, 0, 0
	if r.anchored {
		// As if a boundary had just passed: nobody's word alone frees anything for a period.
		g.opened, g.anchor = g.cutoff, anchor{since: v.early}
	}
	for _, p := range before {
		g.recount(r, v, p)
	}
	if g.capped != noCap {
		g.cappedIn, g.capEnd = g.window, addSaturated(g.capEnd, moved)
	}
}

// recount counts an amount again as far as its exposure may touch a window that is not over; nothing of it can come back.
func (g *ledger) recount(r *rule, v view, p past) {
	end := g.key(r, addSaturated(v.late, p.until-v.now))
	if end < g.cutoff {
		g.remember(p)
		return
	}
	g.add(end, p.amount, 0, p.until)
	g.close(end, p.amount)
	if p.until <= v.now {
		g.settled = addSaturated(g.settled, p.amount)
	}
}
