package fsm

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

const ordinary = logpb.Cause_CAUSE_OK

// takesAll consumes all that a quota has available.
func (w *world) takesAll(holder, quota string) (taken int64, lease uint64) {
	w.t.Helper()
	amount := w.available(quota)
	if amount <= 0 {
		return 0, 0
	}
	granted := w.do(consumesAtOnce(holder, itemOf(quota, amount))).GetGranted()
	if granted == nil {
		return 0, 0
	}
	return amount, granted.Lease
}

// TestReset_OneCallerFreesOneWindow: a caller that reports a reset in 5 s after each batch gets one window of each
// hour.
func TestReset_OneCallerFreesOneWindow(t *testing.T) {
	const limit = 5000
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", limit))
	var spends []spend
	for w.now < 3*hour {
		if taken, lease := w.takesAll("liar", "p"); taken > 0 {
			spends = append(spends, spend{at: w.now, amount: taken})
			w.do(reports(lease, 1, signal("p", ordinary, resetAfter(5*second))))
			w.do(settle(&logpb.Settle{Lease: lease, Fence: lease, Op: 1, Final: true, Release: true}))
		}
		w.sleep(10 * second)
	}
	var sum, first int64
	for _, s := range spends {
		if sum += s.amount; s.at < minute+hour {
			first += s.amount
		}
	}
	if first > limit || sum > 4*limit { // three hours touch up to four windows
		t.Fatalf("one caller got %d of %d in the first hour and %d in three", first, limit, sum)
	}
	if most := peak(spends, hour-minute); most > 2*limit {
		t.Fatalf("one caller got %d of %d within an hour", most, limit)
	}
}

// TestReset_OneCallerCannotMoveTheOpening: not even by a reset that would make the present window begin now.
func TestReset_OneCallerCannotMoveTheOpening(t *testing.T) {
	const limit = 5000
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", limit))
	w.do(consumesAtOnce("a", itemOf("p", limit-1)))
	w.sleep(10 * minute)
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	w.do(reports(2, 1, signal("p", ordinary, resetAfter(hour))))
	w.sleep(minute)
	if free := w.available("p"); free != 0 {
		t.Fatalf("a window that is said to have begun a minute ago frees %d of the last hour", free)
	}
}

// TestReset_ASecondCallerFrees: an early reset that two callers report is believed.
func TestReset_ASecondCallerFrees(t *testing.T) {
	for name, c := range map[string]struct {
		first, second string
		after         int64
		resolution    int64
		free          int64
	}{
		"another caller":                     {"a", "b", 10*minute - second, 0, 100},
		"the same caller":                    {"a", "a", 10*minute - second, 0, 0},
		"another caller, another reset":      {"a", "b", 20 * minute, 0, 0},
		"another caller, who knows it badly": {"a", "b", 10*minute - second, 5 * minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.now = minute
			w.quotas(anchored("p", 100))
			w.do(consumesAtOnce(c.first, itemOf("p", 50)))
			w.do(consumesAtOnce(c.second, itemOf("p", 50)))
			w.do(reports(1, 1, signal("p", ordinary, resetAfter(10*minute))))
			w.sleep(second)
			w.do(reports(2, 1, signal("p", ordinary, resetAfter(c.after), func(s *logpb.Signal) { s.ResetResolutionNs = c.resolution })))
			w.reborn()
			w.sleep(10*minute + 5*second)
			if free := w.available("p"); free != c.free {
				t.Fatalf("%d are available after the reset, want %d", free, c.free)
			}
		})
	}
}

// TestReset_AnEarlyOneClosesNothing: after one caller's report once a reset was known: leases keep their holdings.
func TestReset_AnEarlyOneClosesNothing(t *testing.T) {
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", 100))
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	if got := say(w.do(reports(1, 1, signal("p", ordinary, resetAfter(10*minute))))); got != "reported: p reset learned" {
		t.Fatalf("the first reset: %s", got)
	}
	w.sleep(11 * minute)
	long := asks("b", hour, itemOf("p", 10))
	w.do(long)
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	for range 3 {
		if got := say(w.do(reports(3, 1, signal("p", ordinary, resetAfter(5*second))))); got != "reported: p" {
			t.Fatalf("a reset that is too early: %s", got)
		}
		w.sleep(20 * second)
	}
	if r := w.do(consumes(2, 1)); r.GetConsumed() == nil {
		t.Fatalf("the lease that was granted before: %v", r)
	}
}

// TestReset_OneCallerClosesOneWindowAPeriod: not even a dispute with itself, after which the boundary frees nothing,
// lets it close leases again before a period is over.
func TestReset_OneCallerClosesOneWindowAPeriod(t *testing.T) {
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", 100))
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	w.do(reports(1, 1, signal("p", ordinary, resetAfter(10*minute))))
	w.do(reports(1, 1, signal("p", ordinary, resetAfter(40*minute))))
	w.sleep(11 * minute)
	w.do(asks("b", 2*hour, itemOf("p", 10)))
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	w.do(reports(3, 1, signal("p", ordinary, resetAfter(50*minute)))) // an hour after the quota's first moment
	w.reborn()
	w.sleep(52 * minute)
	if r := w.do(consumes(2, 1)); r.GetConsumed() == nil {
		t.Fatalf("51 minutes after a boundary the lease is closed by the next one: %v", r)
	}
}

// TestReset_WideIntervalsFreeNothingSooner: a caller that names each reset with the widest interval, and as early as
// believable, gets no more windows for that.
func TestReset_WideIntervalsFreeNothingSooner(t *testing.T) {
	const limit, hours = 100, 20
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", limit))
	var sum int64
	for w.now < hours*hour {
		taken, lease := w.takesAll("a", "p")
		sum += taken
		g, r := &w.m.quotas.named("p").ledger, &w.m.quotas.named("p").rule
		wide := r.Period/8 + r.Skew
		if after := g.Soonest(r) - (epochStart + w.now) - wide; taken > 0 && !g.Known && after > wide {
			w.do(reports(lease, 1, signal("p", ordinary, resetAfter(after), func(s *logpb.Signal) { s.ResetResolutionNs = hour })))
		}
		w.sleep(minute)
	}
	if sum > (hours+2)*limit {
		t.Fatalf("%d windows in %d hours", sum/limit, hours)
	}
}

// TestReset_ATrueReportInsideTheBoundary names the next reset: it is learned when the boundary ends, and the window
// that was used up is open again.
func TestReset_ATrueReportInsideTheBoundary(t *testing.T) {
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", 100))
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	w.do(reports(1, 1, signal("p", ordinary, resetAfter(hour)))) // the reset is at 61 min
	w.now = 50 * minute
	if taken, _ := w.takesAll("a", "p"); taken != 99 {
		t.Fatalf("took %d", taken)
	}
	w.do(settle(&logpb.Settle{Lease: 2, Fence: 2, Op: 1, Unspent: []*logpb.Item{itemOf("p", 1)}}))
	w.now = 61*minute + 100*millisecond // the provider's new window has begun; the boundary is not over
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	w.do(reports(3, 1, signal("p", ordinary, remaining(99), resetAfter(hour-100*millisecond))))
	w.reborn()
	w.sleep(10 * second)
	v, _ := w.m.State().Quota("p", w.clock())
	if v.Available != 99 || v.WindowLeft < 59*minute {
		t.Fatalf("%d are available, the window ends in %d s", v.Available, v.WindowLeft/second)
	}
	learned := 0
	for i := range w.last.Events {
		if w.last.Events[i].Kind == effect.EventResetLearned {
			learned++
		}
	}
	w.do(reserve(ask("a", itemOf("p", 99))))
	for i := range w.last.Events {
		if w.last.Events[i].Kind == effect.EventResetLearned {
			learned++
		}
	}
	if learned != 1 {
		t.Fatalf("the reset was learned %d times", learned)
	}
}

// TestReset_ACapOutlivesABoundaryThatFreesNothing: a report never raises the granted amount.
func TestReset_ACapOutlivesABoundaryThatFreesNothing(t *testing.T) {
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", 100))
	w.do(consumesAtOnce("a", itemOf("p", 10)))
	w.do(reports(1, 1, signal("p", ordinary, remaining(5), resetAfter(minute))))
	w.sleep(10 * minute)
	if free := w.available("p"); free > 5 {
		t.Fatalf("%d are available; 5 remained", free)
	}
}

// TestReset_NoHistoryOfOneCallerFreesMoreThanTheWindow: whatever resets one caller names, for old and new operations,
// no hour has more than two neighbouring windows, and all hours together have one window each.
func TestReset_NoHistoryOfOneCallerFreesMoreThanTheWindow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const limit = 30
		w := newWorld(rt)
		w.now = minute
		w.quotas(anchored("p", limit))
		born := w.now
		var spends []spend
		var leases []uint64
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			w.sleep(rapid.SampledFrom([]int64{0, second, 7 * second, minute, 11 * minute, 31 * minute}).Draw(rt, "pass"))
			amount := rapid.Int64Range(1, limit).Draw(rt, "amount")
			a := ask("liar", itemOf("p", amount))
			a.Consume, a.TtlNs = true, 4*hour
			if g := w.do(reserve(a)).GetGranted(); g != nil {
				spends, leases = append(spends, spend{at: w.now, amount: amount}), append(leases, g.Lease)
				if rapid.Bool().Draw(rt, "settled") {
					w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Final: true}))
				}
			}
			if len(leases) == 0 {
				continue
			}
			w.do(reports(rapid.SampledFrom(leases).Draw(rt, "lease"), 1, signal("p", ordinary,
				resetAfter(rapid.OneOf(rapid.Int64Range(second, minute), rapid.Int64Range(second, hour)).Draw(rt, "after")),
				func(s *logpb.Signal) {
					s.ResetResolutionNs = rapid.SampledFrom([]int64{0, second, hour}).Draw(rt, "resolution")
				},
			)))
		}
		var sum int64
		for _, s := range spends {
			sum += s.amount
		}
		slack := 5 * second
		if windows := (w.now-born)/(hour-slack) + 2; sum > windows*limit {
			rt.Fatalf("%d in %d windows of %d", sum, windows, limit)
		}
		if most := peak(spends, hour-slack-minute); most > 2*limit {
			rt.Fatalf("%d within an hour of %d", most, limit)
		}
	})
}

// TestReset_OneHonestCallerGetsEachWindow: a single caller's true reports are enough, from the second window on. This
// holds even if its calls take long, so that its reports say little about the time of the reset.
func TestReset_OneHonestCallerGetsEachWindow(t *testing.T) {
	for name, call := range map[string]int64{"short calls": second, "calls of four minutes": 4 * minute} {
		t.Run(name, func(t *testing.T) {
			const limit, windows = 100, 6 // and one that had begun before the quota was made
			w := newWorld(t)
			w.now = minute
			w.quotas(anchored("p", limit))
			p := &anchoredProvider{length: hour, start: epochStart - 40*minute}
			var sum int64
			for w.now < windows*hour {
				a := ask("only", itemOf("p", 20))
				a.Consume, a.TtlNs = true, hour
				g := w.do(reserve(a)).GetGranted()
				if g == nil {
					w.sleep(10 * second)
					continue
				}
				used, resetIn := p.call(epochStart+w.now, 20)
				if used > limit {
					t.Fatalf("a window saw %d of %d", used, limit)
				}
				sum += 20
				w.now += call
				if resetIn -= call; resetIn > 0 {
					w.do(reports(g.Lease, 1, signal("p", ordinary, resetAfter(resetIn), func(s *logpb.Signal) { s.ResetResolutionNs = second })))
				}
				w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Final: true, Release: true}))
			}
			if sum < (windows-1)*limit {
				t.Fatalf("%d used in %d windows of %d", sum, windows, limit)
			}
		})
	}
}
