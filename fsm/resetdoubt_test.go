package fsm

import (
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/logpb"
)

// reportedReset is a report of a call of length took: at is when it is made, names the reset, both after the quota's first
// moment.
type reportedReset struct {
	by              string
	at, took, names int64
}

// hear makes callers consume and report, each at its moment.
func (w *world) hear(quota string, first int64, all ...reportedReset) {
	w.t.Helper()
	for _, r := range all {
		w.sleep(max(first+r.at-r.took-w.now, 0))
		lease := w.do(consumesAtOnce(r.by, itemOf(quota, 1))).GetGranted()
		if lease == nil {
			w.t.Fatalf("%s cannot consume", r.by)
		}
		w.sleep(r.took)
		w.do(reports(lease.Lease, 1, signal(quota, ordinary, resetAfter(first+r.names-w.now))))
		w.reborn()
	}
}

// TestReset_ContradictingReportDelaysIt: a caller that names a later reset than another one delays the effect of the
// earlier one. The delay is at most an hour or an eighth of the period, and none if a second caller confirms the
// earlier one.
func TestReset_ContradictingReportDelaysIt(t *testing.T) {
	const first = minute
	honest, liar, another := "honest", "liar", "another"
	for name, c := range map[string]struct {
		period   int64
		reported []reportedReset
		late     int64
	}{
		"nobody doubts": {hour, []reportedReset{{by: honest, at: 10 * minute, names: hour}}, 0},
		"one does": {
			hour,
			[]reportedReset{{by: honest, at: 10 * minute, names: hour}, {by: liar, at: 20 * minute, names: 79 * minute}},
			hour / 8,
		},
		"one does by little": {hour, []reportedReset{
			{by: honest, at: 10 * minute, names: hour}, {by: liar, at: 20 * minute, names: hour + 5*minute},
		}, 5 * minute},
		"one does, of a day": {day, []reportedReset{{by: honest, at: hour, names: day}, {by: liar, at: 12 * hour, names: 35 * hour}}, hour},
		"one does again and again": {hour, []reportedReset{
			{by: honest, at: 10 * minute, names: hour},
			{by: liar, at: 20 * minute, names: 70 * minute},
			{by: liar, at: 40 * minute, names: 90 * minute},
			{by: liar, at: 59 * minute, names: 105 * minute},
		}, hour / 8},
		"one names an earlier one": {hour, []reportedReset{
			{by: honest, at: 10 * minute, names: hour}, {by: liar, at: 20 * minute, names: 40 * minute},
		}, 0},
		"the caller itself does": {hour, []reportedReset{
			{by: honest, at: 10 * minute, names: hour}, {by: honest, at: 20 * minute, names: 79 * minute},
		}, hour / 8},
		"a second caller names the first one": {hour, []reportedReset{
			{by: honest, at: 10 * minute, names: hour}, {by: liar, at: 20 * minute, names: 79 * minute}, {by: another, at: 30 * minute, names: hour},
		}, 0},
		"a second caller named the first one before": {hour, []reportedReset{
			{by: honest, at: 10 * minute, names: hour}, {by: another, at: 20 * minute, names: hour}, {by: liar, at: 30 * minute, names: 79 * minute},
		}, 0},
		"the liar is first": {hour, []reportedReset{
			{by: liar, at: 10 * minute, names: 65 * minute}, {by: honest, at: 20 * minute, names: hour}, {by: another, at: 30 * minute, names: hour},
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.now = first
			q := anchored("p", 100)
			if c.period == day {
				q.GetWindow().Every = logpb.Every_EVERY_DAY
			}
			w.quotas(q)
			w.hear("p", first, c.reported...)
			w.do(consumesAtOnce(honest, itemOf("p", w.available("p")))) // all of it, just before the end
			w.sleep(first + c.period - 10*second - w.now)
			if free := w.available("p"); free != 0 {
				t.Fatalf("%d are free before the reset", free)
			}
			w.sleep(first + c.period + c.late - 5*second - w.now)
			if free := w.available("p"); free != 0 && c.late > 0 {
				t.Errorf("%d are free %v after the reset", free, time.Duration(c.late-5*second))
			}
			w.reborn()
			w.sleep(10 * second)
			if free := w.available("p"); free != 100 {
				t.Errorf("%d are free %v after the reset", free, time.Duration(c.late+5*second))
			}
		})
	}
}

// TestReset_FalseReportMovesNoEdge: an early reset needs reports of two callers. One of them may lie, and name an edge of the
// other one's interval, which is wide because that call took long. Nothing is free before the true reset, and amounts
// consumed after it stay consumed, in any order of reports.
func TestReset_FalseReportMovesNoEdge(t *testing.T) {
	const first, reset = minute, 20 * minute
	honest := reportedReset{by: "honest", at: 10 * minute, took: 50 * second, names: reset}
	third := reportedReset{by: "third", at: 15 * minute, names: reset}
	for name, edge := range map[string]int64{"the left edge": -49 * second, "the right edge": 2 * second} {
		liar := func(at int64) reportedReset { return reportedReset{by: "liar", at: at, names: reset + edge} }
		for order, reported := range map[string][]reportedReset{
			"honest, liar":               {honest, liar(12 * minute)},
			"liar, honest":               {liar(8 * minute), honest},
			"honest, liar, liar":         {honest, liar(12 * minute), liar(13 * minute)},
			"honest, liar, third":        {honest, liar(12 * minute), third},
			"honest, third, liar":        {honest, third, liar(16 * minute)},
			"a claim, honest, liar":      {{by: "liar", at: minute, names: 50 * minute}, honest, liar(12 * minute)},
			"a claim, liar, honest":      {{by: "liar", at: minute, names: 50 * minute}, liar(8 * minute), honest},
			"a claim, a third one, liar": {{by: "liar", at: minute, names: 50 * minute}, honest, third, liar(16 * minute)},
		} {
			t.Run(name+", "+order, func(t *testing.T) {
				w := newWorld(t)
				w.now = first
				w.quotas(anchored("p", 100))
				w.hear("p", first, reported...)
				w.do(consumesAtOnce("honest", itemOf("p", w.available("p")-10)))
				for w.now < first+reset-second/2 {
					w.sleep(min(5*second, first+reset-second/2-w.now))
					if free := w.available("p"); free > 10 {
						t.Fatalf("%d are free %v before the reset", free, time.Duration(first+reset-w.now))
					}
				}
				w.sleep(second)
				taken := w.do(consumesAtOnce("honest", itemOf("p", 10))).GetGranted() != nil
				w.reborn()
				w.sleep(2 * minute)
				want := int64(100)
				if taken {
					want = 90
				}
				if free := w.available("p"); free > want {
					t.Errorf("%d are free, of which %d were consumed after the reset", free, 100-want)
				}
			})
		}
	}
}
