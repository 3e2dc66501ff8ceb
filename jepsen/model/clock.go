package model

import (
	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// span is an interval of Unix time.
type span struct{ begin, end int64 }

const (
	widestSample = 2 * second
	// longestExposure is longer than any lease plus its longest call.
	longestExposure = 3 * 24 * 60 * minute
)

// resets says whether a command of the entry reset the clock.
func (e *entry) resets() bool {
	for _, result := range e.results {
		if result.GetClockReset() != nil {
			return true
		}
	}
	return false
}

// resetClock judges a reset of the clock: the views equal the sample, as Unix time, and do not go back. Every window begins again. Amounts
// consumed since the present window began, by cluster time, surely count in it; amounts consumed within a period perhaps do.
func (j *Judge) resetClock(reset *logpb.ClockReset) {
	was, now, sample := j.clock, j.entry.reset, j.entry.sample
	switch {
	case reset == nil:
		j.violate("unexplained", "the clock is reset, and nothing says so")
		return
	case sample.begin <= 0 || sample.end-sample.begin > widestSample || plus(sample.end, was.Shift) >= was.WallEarly:
		j.violate("clock", "the clock is reset from %+v to the sample %+v", was, sample)
	case now.WallEarly-now.Shift != sample.begin || now.WallLate-now.Shift != max(sample.end, sample.begin) || now.WallEarly < was.WallEarly:
		j.violate("clock", "the clock goes from %+v to %+v, the sample is %+v", was, now, sample)
	}
	now.Now = was.Now
	j.clock = now
	for _, q := range j.quotas {
		if q.rule.kind == windowKind {
			q.advance(was) // whatever the wrong time had closed is closed, a cap included
			q.rule.shift = now.Shift
			q.beginAgain(now, now.WallEarly-was.WallEarly)
			continue
		}
		q.rule.shift = now.Shift
	}
}

// beginAgain begins a window again after a reset of the clock, which moved the views forward. A cap keeps its end: the reset does not
// extend a single caller's report.
func (q *quota) beginAgain(clock fsm.Clock, moved int64) {
	since := clock.Now
	until := plus(clock.WallLate, q.rule.period)
	if q.rule.anchored {
		q.window++
		since -= q.rule.period
		q.reset = reset{since: clock.WallEarly, opened: clock.WallEarly - 2*q.rule.period}
	} else {
		begin, end := q.rule.windowAt(clock.WallEarly)
		since -= clock.WallLate - begin
		until = end - 1
		q.window = q.takesHolds(clock)
	}
	q.held, q.granted, q.surelyIn = 0, [3]int64{}, map[int64]int64{}
	recent := q.recent
	q.surely, q.perhaps, q.recent = tally{}, tally{}, nil
	for _, c := range recent {
		open := c.end == never && (c.surely.in || c.perhaps.in)
		if c.surely.in, c.perhaps.in, c.sure = false, false, false; open {
			c.end, c.latest = never, never
			q.enter(c, c.began)
			continue
		}
		latest := plus(until, 2*q.rule.period+q.rule.spendBy+q.rule.maxCall) // it may last for more than a period
		again := &charge{quota: q, amount: c.amount, began: c.began, end: until, latest: latest, surely: new(mark), perhaps: new(mark)}
		if c.began >= since {
			sure := until
			if q.rule.anchored { // its exposure ended no earlier than it began
				sure = clock.WallEarly + c.began - clock.Now
			}
			q.surely.put(again, again.surely, sure, true)
		}
		q.perhaps.put(again, again.perhaps, again.latest, true)
		q.recent = append(q.recent, again)
	}
	if q.cap.is {
		q.cap.window, q.cap.until, q.cap.latest = q.window, plus(q.cap.until, moved), plus(q.cap.latest, moved)
	}
}

// enterRecent keeps a charge for as long as a reset of the clock may count it again.
func (q *quota) enterRecent(c *charge, now int64) {
	c.began = now
	if q.rule.kind != windowKind {
		return
	}
	n := 0
	for n < len(q.recent) && q.recent[n].end != never && q.recent[n].began < now-q.rule.period-longestExposure {
		n++
	}
	q.recent = append(q.recent[n:], c)
}
