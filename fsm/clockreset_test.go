package fsm

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

const year = 365 * day

func resetClock() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}}
}

// wrongBy applies an entry under clocks that are wrong by an offset, and corrects them afterwards.
func (w *world) wrongBy(by int64, commands ...*logpb.Command) []*logpb.Result {
	w.t.Helper()
	w.early, w.late = by, by
	defer func() { w.early, w.late = 0, 0 }()
	return w.apply(commands...)
}

// resets has the clock reset, which must succeed.
func (w *world) resets() *logpb.ClockReset {
	w.t.Helper()
	r := w.do(resetClock())
	if r.GetClockReset() == nil {
		w.t.Fatalf("not reset: %v", r)
	}
	return r.GetClockReset()
}

// unix returns the state's views converted to Unix time.
func (w *world) unix() (early, late int64) {
	c := w.m.State().Clock()
	return c.WallEarly - c.Shift, c.WallLate - c.Shift
}

// TestResetClock_CountsInThePresentWindow: after a reset a window counts all consumption in it, before clocks went
// wrong and since, and nothing that ended before it began.
func TestResetClock_CountsInThePresentWindow(t *testing.T) {
	take := func(amount int64) func(*world) {
		return func(w *world) { w.do(consumesAtOnce("a", itemOf("h", amount))) }
	}
	pass := func(d int64) func(*world) { return func(w *world) { w.sleep(d) } }
	jump := func(by int64) func(*world) { return func(w *world) { w.wrongBy(by) } }
	again := func(w *world) { w.reborn() }
	for _, c := range []struct {
		name  string
		steps []func(*world)
		left  int64
	}{
		{"nothing was consumed", []func(*world){jump(year)}, 10},
		{"what the future window has", []func(*world){jump(year), take(4)}, 6},
		{"what the present one had before", []func(*world){take(4), jump(year)}, 6},
		{"what the present one had long before", []func(*world){take(4), pass(50 * minute), jump(year)}, 6},
		{"both, also where that is more than usable", []func(*world){take(8), jump(year), take(8)}, -6},
		{"through two wrong times", []func(*world){take(1), jump(day), take(2), pass(minute), jump(year), take(3)}, 4},
		{"through a snapshot", []func(*world){take(1), again, jump(year), again, take(2), again}, 7},
		{"what ended before the present window", []func(*world){take(9), jump(year), pass(hour + 2*minute)}, 10},
		{"what ended in the hour before, and not in this one", []func(*world){take(5), pass(hour + 2*minute), take(2), jump(year), take(1)}, 7},
		{"what a window of the wrong time had in the hour before", []func(*world){jump(year), take(9), pass(hour + 2*minute)}, 10},
		{
			"what may reach the provider in the present one",
			[]func(*world){pass(hour - 1500*millisecond), take(3), jump(year), pass(40 * second)},
			7,
		},
		{"where the wrong hour begins elsewhere", []func(*world){take(1), jump(day + 17*minute), take(2), pass(10 * minute)}, 7},
		{"after a reset, again", []func(*world){take(1), jump(year), take(1), func(w *world) { w.resets() }, take(1), jump(day), take(1)}, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(hourly("h", 10))
			for _, step := range c.steps {
				step(w)
			}
			w.resets()
			if early, late := w.unix(); early != epochStart+w.now || late != early {
				t.Fatalf("the views are %d to %d, the time is %d", early, late, epochStart+w.now)
			}
			if left := w.available("h"); left != c.left {
				t.Fatalf("%d are left after the reset, want %d", left, c.left)
			}
			w.reborn()
			if left := w.available("h"); left != c.left {
				t.Fatalf("%d are left after a restore, want %d", left, c.left)
			}
			w.now += hour - (epochStart+w.now)%hour // the boundary
			w.apply()
			if left := w.available("h"); left > c.left {
				t.Fatalf("%d are left in the boundary, %d before", left, c.left)
			}
			w.sleep(second)
			if left := w.available("h"); left != 10 {
				t.Fatalf("%d are left in the next window", left)
			}
		})
	}
}

// TestResetClock_NamesMissingCondition: without a trusted time, or if the clock is right, nothing changes.
func TestResetClock_NamesMissingCondition(t *testing.T) {
	for _, c := range []struct {
		name        string
		ahead       int64
		early, late int64 // of the sample; 0: none
		want        logpb.Reason
	}{
		{"no sample", year, 0, 0, logpb.Reason_REASON_CLOCK_UNSURE},
		{"clocks that differ", year, epochStart, epochStart + mostUnsure + 1, logpb.Reason_REASON_CLOCK_UNSURE},
		{"clocks that differ just so much", year, epochStart, epochStart + mostUnsure, logpb.Reason_REASON_UNSPECIFIED},
		{"views that are right", 0, epochStart, epochStart, logpb.Reason_REASON_CLOCK_NOT_AHEAD},
		{"views that come back by themselves", second, epochStart, epochStart, logpb.Reason_REASON_CLOCK_NOT_AHEAD},
		{"views that are just so far ahead", second + 1, epochStart, epochStart, logpb.Reason_REASON_UNSPECIFIED},
		{"views that are behind", -hour, epochStart, epochStart, logpb.Reason_REASON_CLOCK_NOT_AHEAD},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(hourly("h", 10))
			w.wrongBy(c.ahead)
			w.sampled(c.early, c.late)
			before, _ := w.m.State().Hash()
			r := w.sampled(c.early, c.late, resetClock())[0]
			if r.GetFailure().GetReason() != c.want {
				t.Fatalf("%v, want %v", r, c.want)
			}
			if after, _ := w.m.State().Hash(); c.want != 0 && after != before {
				t.Fatal("a reset that failed changed the ledger")
			}
		})
	}
}

// TestResetClock_EndsHeldAmounts: those of a window, and no other items of its leases. Consumed amounts can be settled, and
// return nothing.
func TestResetClock_EndsHeldAmounts(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("h", 10), slotsOf("s", 5))
	held := w.granted(ask("a", itemOf("h", 4), itemOf("s", 1)))
	taken := w.granted(&logpb.Reserve{Holder: "b", Items: []*logpb.Item{itemOf("h", 3)}, Consume: true})
	w.wrongBy(year)
	late := w.granted(&logpb.Reserve{Holder: "c", Items: []*logpb.Item{itemOf("h", 2)}, Consume: true})
	again := w.granted(ask("d", itemOf("h", 1)))
	w.resets()
	if left := w.available("h"); left != 5 {
		t.Fatalf("%d are left", left)
	}
	for _, l := range []*logpb.Granted{held, again} {
		if r := w.do(consumes(l.Lease, 1)); r.GetFailure().GetReason() != logpb.Reason_REASON_ITEM_CLOSED {
			t.Fatalf("what was held before is consumed: %v", r)
		}
	}
	if r := w.do(&logpb.Command{Kind: &logpb.Command_Renew{Renew: &logpb.Renew{
		Lease: held.Lease, Fence: held.Fence,
	}}}); r.GetRenewed() == nil {
		t.Fatalf("the lease ended: %v", r)
	}
	for _, l := range []*logpb.Granted{taken, late} {
		w.do(settle(&logpb.Settle{Lease: l.Lease, Fence: l.Fence, Op: 1, Actual: []*logpb.Item{itemOf("h", 0)}, Final: true, Release: true}))
	}
	if left := w.available("h"); left != 5 {
		t.Fatalf("%d are left: something was returned", left)
	}
}

// TestResetClock_ForgetsResets: a window that ends at its provider's reset begins without a known reset. What was
// consumed counts for a whole period, and one caller's report frees none of it.
func TestResetClock_ForgetsResets(t *testing.T) {
	w := newWorld(t)
	w.now = minute
	w.quotas(anchored("p", 100))
	w.do(consumesAtOnce("a", itemOf("p", 30)))
	w.wrongBy(year, consumesAtOnce("a", itemOf("p", 50)))
	w.sleep(minute)
	w.do(reports(2, 1, signal("p", ordinary, resetAfter(10*minute)))) // believed, while time stands still
	w.sleep(minute)
	w.resets()
	if left := w.available("p"); left != 20 {
		t.Fatalf("%d are left, want 20", left)
	}
	w.do(consumesAtOnce("a", itemOf("p", 1)))
	w.do(reports(3, 1, signal("p", ordinary, resetAfter(10*minute))))
	w.reborn()
	for end := w.now + 55*minute; w.now < end; w.sleep(minute) {
		if left := w.available("p"); left > 19 {
			t.Fatalf("%d are left %d min after the reset", left, (w.now-3*minute)/minute)
		}
	}
	w.sleep(10 * minute)
	if left := w.available("p"); left != 100 {
		t.Fatalf("%d are left after more than a period", left)
	}
}

// TestResetClock_KeepsACap: a cap by a report lasts as long as it would have.
func TestResetClock_KeepsACap(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("h", 100))
	w.wrongBy(year)
	w.do(consumesAtOnce("a", itemOf("h", 1)))
	w.do(reports(1, 1, signal("h", ordinary, func(s *logpb.Signal) { s.Remaining = new(int64(5)) })))
	before := w.available("h")
	w.resets()
	if left := w.available("h"); left > before {
		t.Fatalf("%d are left, %d before the reset", left, before)
	}
	w.sleep(hour + second)
	if left := w.available("h"); left != 100 {
		t.Fatalf("%d are left in the next window", left)
	}
}

// TestResetClock_ServesWaiters: waiters for a window are granted the amounts that the reset frees.
func TestResetClock_ServesWaiters(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("h", 10))
	w.do(consumesAtOnce("a", itemOf("h", 10)))
	w.sleep(59 * minute)
	w.wrongBy(day, consumesAtOnce("a", itemOf("h", 10)))
	w.sleep(90 * second)
	w.do(reserve(&logpb.Reserve{Holder: "b", Items: []*logpb.Item{itemOf("h", 1)}, WaitNs: 5 * minute}))
	w.sleep(minute)
	w.resets()
	for _, e := range w.last.Events {
		if e.Kind == effect.EventGranted && e.Holder == "b" {
			return
		}
	}
	t.Fatalf("nothing was granted: %v", w.last.Events)
}

// TestResetClock_ViewsNeverGoBack: however often the clock is reset; at the end of time a reset is refused.
func TestResetClock_ViewsNeverGoBack(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("h", 10), anchored("p", 10))
	was := w.m.State().Clock()
	for range 100 {
		w.sleep(second)
		w.wrongBy(year, consumesAtOnce("a", itemOf("h", 1), itemOf("p", 1)))
		w.sleep(second)
		r := w.do(resetClock())
		now := w.m.State().Clock()
		if now.WallEarly < was.WallEarly || now.Shift < was.Shift || now.WallLate < now.WallEarly {
			t.Fatalf("from %+v to %+v", was, now)
		}
		if was = now; r.GetFailure() != nil {
			if r.GetFailure().Reason != logpb.Reason_REASON_INVALID {
				t.Fatal(r)
			}
			return
		}
	}
	t.Fatal("time has no end")
}

// arrival is an amount that reached the provider, at a moment of true time.
type arrival struct {
	at, amount int64
	// after: it was consumed after the reset.
	after bool
}

// TestResetClock_NoWindowSeesTooMuch: clocks are right, once far ahead, and right again; then the clock is reset. A
// window of the provider's true time that received amounts consumed after the reset never saw more than usable,
// whatever it saw before.
func TestResetClock_NoWindowSeesTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const usable = 10
		w := newWorld(t)
		provider := rapid.Int64Range(0, hour-1).Draw(t, "the provider's window begins") // of p
		w.quotas(hourly("h", usable), anchored("p", usable), lengthOf("m", 5*minute, usable))
		arrivals, lengths := map[string][]arrival{}, map[string]int64{"h": hour, "p": hour, "m": 5 * minute}
		offset := map[string]int64{"p": provider}
		for _, name := range []string{"h", "m"} {
			offset[name] = rapid.Int64Range(-second, second).Draw(t, "the provider's clock of "+name)
		}
		wall := epochStart + rapid.Int64Range(0, hour).Draw(t, "begins") // true time; cluster time is never faster
		w.now = second
		reset := false
		var leases []arrivalOf
		step := func(wrong, most int64) {
			passed := rapid.Int64Range(0, most).Draw(t, "passed")
			wall += passed
			w.now += passed * rapid.SampledFrom([]int64{1, 1, 1, 0}).Draw(t, "time runs") // not without a leader
			early, late := wall-rapid.Int64Range(0, second/5).Draw(t, "behind"), wall+rapid.Int64Range(0, second/5).Draw(t, "ahead")
			if rapid.IntRange(0, 5).Draw(t, "restored") == 0 {
				w.reborn()
			}
			var command *logpb.Command
			name := rapid.SampledFrom([]string{"h", "p", "m"}).Draw(t, "quota")
			amount := rapid.Int64Range(1, usable).Draw(t, "amount")
			said := rapid.IntRange(0, 9).Draw(t, "command")
			switch {
			case said < 6:
				command = consumesAtOnce(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "holder"), itemOf(name, amount))
			case said < 8 && len(leases) > 0:
				l := rapid.SampledFrom(leases).Draw(t, "lease")
				left := provider + hour - floorMod(l.at, hour)
				left = floorMod(left, hour)
				command = reports(l.lease, 1, signal(l.quota, ordinary, resetAfter(max(left-(wall-l.at), 1))))
			default:
				w.sampled(early+wrong, late+wrong)
				return
			}
			result := w.sampled(early+wrong, late+wrong, command)[0]
			if err := w.m.State().Verify(); err != nil {
				t.Fatal(err)
			}
			granted := result.GetGranted()
			if granted == nil {
				return
			}
			until := min(granted.Consumed.SpendByNs-w.now, granted.Consumed.SpendByWallNs-w.m.State().Clock().WallLate)
			at := wall + rapid.Int64Range(0, until).Draw(t, "arrives")
			arrivals[name] = append(arrivals[name], arrival{at: at, amount: amount, after: reset})
			leases = append(leases, arrivalOf{lease: granted.Lease, quota: name, at: wall})
		}
		for range rapid.IntRange(0, 15).Draw(t, "right") {
			step(0, 10*minute)
		}
		for range rapid.IntRange(1, 3).Draw(t, "faults") {
			wrong := rapid.Int64Range(minute, 2*year).Draw(t, "wrong by")
			for range rapid.IntRange(1, 5).Draw(t, "wrong") {
				step(wrong, minute)
			}
			for range rapid.IntRange(0, 15).Draw(t, "standing still") {
				step(0, 10*minute)
			}
		}
		r := w.sampled(wall-second/5, wall+second/5, resetClock())[0]
		if r.GetFailure() != nil && r.GetFailure().Reason != logpb.Reason_REASON_CLOCK_NOT_AHEAD {
			t.Fatal(r)
		}
		if reset = r.GetClockReset() != nil; !reset {
			return
		}
		for range rapid.IntRange(10, 40).Draw(t, "after") {
			step(0, 10*minute)
		}
		for name, all := range arrivals {
			sums, judged := map[int64]int64{}, map[int64]bool{}
			for _, a := range all {
				window := fixed.FloorDiv(a.at-offset[name], lengths[name])
				sums[window] += a.amount
				judged[window] = judged[window] || a.after
			}
			for window, sum := range sums {
				if sum > usable && judged[window] {
					t.Fatalf("%s: window %d saw %d of %d: %v", name, window, sum, usable, all)
				}
			}
		}
	})
}

// arrivalOf is a lease of one quota, consumed at a moment of true time.
type arrivalOf struct {
	lease uint64
	quota string
	at    int64
}

func floorMod(a, b int64) int64 { return a - fixed.FloorDiv(a, b)*b }

// lengthOf is a calendar window of any length.
func lengthOf(name string, length, limit int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: limit, EveryNs: length}}}
}

// TestPast_IsBounded: for a window with a wildly wrong clock the oldest amounts are merged, and none is lost.
func TestPast_IsBounded(t *testing.T) {
	var g ledger.Ledger
	for i := range int64(3 * ledger.MaxPast) {
		g.Remember(ledger.Past{Until: i + 1, Amount: 1})
	}
	var sum int64
	for i, p := range g.Past {
		if sum += p.Amount; i > 0 && p.Until <= g.Past[i-1].Until {
			t.Fatalf("out of order: %s", fmt.Sprint(g.Past))
		}
	}
	if len(g.Past) != ledger.MaxPast || sum != 3*ledger.MaxPast {
		t.Fatalf("%d amounts are %d in all", len(g.Past), sum)
	}
}
