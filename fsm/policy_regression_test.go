package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// criticalAndBackground maps holders by their names.
func criticalAndBackground() *logpb.Command {
	return holders(
		&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical}, &logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground},
	)
}

// TestAgeing_PromotedUseQuietTimes: an aged holder may use everything in quiet times, like other background work.
func TestAgeing_PromotedUseQuietTimes(t *testing.T) {
	for _, ageing := range []int64{0, 5 * minute} {
		w := newWorld(t)
		w.quotas(policed(hourly("h", 1000), &logpb.Policy{Shares: fleetShares(), AgeingNs: ageing}))
		w.do(criticalAndBackground())
		w.now = second
		w.granted(ask("crit", itemOf("h", 1)))
		w.granted(with(ask("std", itemOf("h", 550)), func(a *logpb.Reserve) { a.TtlNs = 2 * hour }))
		at := int64(0)
		for w.now < 55*minute && at == 0 {
			w.now += minute
			if r := w.do(asks("back", 0, itemOf("h", 300))); r.GetGranted() != nil {
				at = w.now
			}
		}
		t.Logf("ageing %d min: granted at %d min", ageing/minute, at/minute)
		if at == 0 || at > 18*minute {
			t.Errorf("ageing %d min: nobody above asked for 15 min, and background was let through at %d min only", ageing/minute, at/minute)
		}
	}
}

// TestShares_OffWithoutKnownReset: while no reset is known an anchored window is a sliding rate: use of long ago counts
// against no share and no cap.
func TestShares_OffWithoutKnownReset(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(anchored("h", 100), &logpb.Policy{Shares: fleetShares()}))
	w.do(criticalAndBackground())
	for i := range 40 {
		r := w.do(consumesAtOnce("crit", itemOf("h", 10)))
		g := r.GetGranted()
		if g == nil {
			v := w.view("h")
			t.Fatalf("call %d, at %d h: %s (available %d of %d)", i+1, w.now/hour, say(r), v.Available, v.Usable)
		}
		w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Actual: []*logpb.Item{itemOf("h", 10)}, Release: true}))
		w.sleep(2 * hour)
	}
}

// TestAgeing_RemembersRefusedHolder: a holder that continues to ask ages, even if that takes longer than holders are
// remembered.
func TestAgeing_RemembersRefusedHolder(t *testing.T) {
	for _, ageing := range []int64{30 * minute, 2 * hour} {
		w := newWorld(t)
		daily := hourly("d", 100)
		daily.GetWindow().Every = logpb.Every_EVERY_DAY
		w.quotas(policed(daily, &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH, AgeingNs: ageing}))
		w.do(criticalAndBackground())
		w.now = second
		w.granted(with(ask("x", itemOf("d", 90)), func(a *logpb.Reserve) { a.TtlNs = day }))
		at := int64(0)
		for w.now < 7*hour && at == 0 {
			w.now += minute
			if r := w.do(asks("back", 0, itemOf("d", 1))); r.GetGranted() != nil {
				at = w.now
			}
		}
		if at == 0 || at > ageing+5*minute {
			t.Errorf("ageing %d min: asked every minute for 7 h, granted at %d min", ageing/minute, at/minute)
		}
	}
}

// TestStarvation_TwoShortQuotasAreReserved: the first waiter for two quotas gets a reserve, whichever of them is short.
func TestStarvation_TwoShortQuotasAreReserved(t *testing.T) {
	w := newWorld(t)
	p := func() *logpb.Policy { return &logpb.Policy{AgeingNs: minute} }
	w.quotas(policed(slotsOf("a", 1), p()), policed(slotsOf("b", 1), p()))
	w.do(criticalAndBackground())
	long := func(q string) *logpb.Command { return asks("crit", hour, itemOf(q, 1)) }
	held := w.do(long("a")).GetGranted()
	ticket := w.waiting(waits("std", 0, 10*minute, itemOf("a", 1), itemOf("b", 1)))
	next := "b"
	for w.now < 9*minute && w.m.State().Waiting(ticket) {
		w.now += second
		var g *logpb.Granted
		if g = w.do(long(next)).GetGranted(); g == nil {
			w.do(release(&logpb.Release{Lease: held.Lease, Fence: held.Fence}))
			break
		}
		w.do(release(&logpb.Release{Lease: held.Lease, Fence: held.Fence}))
		held = g
		if next == "a" {
			next = "b"
		} else {
			next = "a"
		}
	}
	if w.m.State().Waiting(ticket) {
		t.Errorf("waits for %d s, ageing is 60 s", w.now/second)
	}
}

// TestMetering_ImmediateGrantIsNoWait: a Reserve granted at once despite a queue did not wait.
func TestMetering_ImmediateGrantIsNoWait(t *testing.T) {
	w := newWorld(t)
	w.quotas(metered(rateOf("r", 10, minute)), slotsOf("s", 1))
	w.granted(ask("x", itemOf("s", 1)))
	w.waiting(waits("y", 0, minute, itemOf("r", 1), itemOf("s", 1)))
	w.granted(ask("b", itemOf("r", 1)))
	if u := w.usage("b", "r"); u.Waits != 0 {
		t.Errorf("b never waited: waits %d, waited %d ns", u.Waits, u.WaitedNs)
	}
}

// TestObserve_CausesNoFallback: an observing quota grants the requested quota, not its fallback.
func TestObserve_CausesNoFallback(t *testing.T) {
	w := newWorld(t)
	q := insteadOf(predicted(hourly("h", 10_000)), "other")
	q.Policy.Observe = true
	w.quotas(q, hourly("other", 5))
	for i := range int64(3) {
		w.provided("a", "h", 820-10*i)
		w.sleep(second)
	}
	w.sleep(5 * second)
	if g := w.do(elsewhere(asks("b", 0, itemOf("h", 1)))).GetGranted(); g.GetItems()[0].GetQuota() != "h" {
		t.Errorf("a quota that observes stood in the way: granted %v", g.GetItems())
	}
}

// TestHolders_RefusedNamesAreNotStored: names that were never granted anything get no records.
func TestHolders_RefusedNamesAreNotStored(t *testing.T) {
	w := newWorld(t)
	w.quotas(metered(rateOf("r", 1, hour)))
	w.granted(ask("x", itemOf("r", 1)))
	for i := range 5000 {
		w.raw(asks(fmt.Sprintf("random-%d", i), 0, itemOf("r", 1)))
	}
	if n := w.m.holders.meters.Len(); n > 1000 {
		t.Errorf("%d meters and %d holders of whom each was refused once", n, w.m.holders.byName.Len())
	}
}

// TestFallback_OnAnyForecast: a Reserve uses the fallback if any of its quotas should, not only the one used up first.
func TestFallback_OnAnyForecast(t *testing.T) {
	w := newWorld(t)
	w.quotas(predicted(hourly("x", 10_000)), insteadOf(predicted(hourly("y", 10_000)), "z"), hourly("z", 100))
	for i := range int64(3) {
		w.provided("a", "x", 700-10*i) // it lasts 70 s
		w.provided("a", "y", 750-10*i) // it lasts 75 s
		w.sleep(second)
	}
	g := w.do(elsewhere(asks("b", 0, itemOf("x", 1), itemOf("y", 1)))).GetGranted()
	if v := w.view("y").Forecast; v.GetFallback() != "z" || g.GetItems()[1].GetQuota() != "z" {
		t.Errorf("y says fallback %q, and the grant is of %v", v.GetFallback(), g.GetItems())
	}
}

// TestRamp_SpreadsParkedHolders: thirty that waited for a cooldown's end go one after the other, faster and faster,
// and the provider sees no second burst (seen in teamclaude 84). Without a ramp all of them go in the same second.
func TestRamp_SpreadsParkedHolders(t *testing.T) {
	const parked = 30
	for _, ramp := range []int64{0, 20 * second} {
		w := newWorld(t)
		w.quotas(policed(rateOf("r", 600, minute), &logpb.Policy{RampNs: ramp}))
		w.do(consumesAtOnce("first", itemOf("r", 1)))
		w.do(reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(minute))))
		for n := range parked {
			w.waiting(waits(fmt.Sprintf("h%d", n), 0, 10*minute, itemOf("r", 1)))
		}
		w.sleep(minute - second)
		var bySecond []int
		for all := 0; all < parked; all += bySecond[len(bySecond)-1] {
			if len(bySecond) == 20 {
				t.Fatalf("a ramp of %d s: %v in 20 seconds", ramp/second, bySecond)
			}
			granted := 0
			for range 10 {
				w.sleep(second / 10)
				granted += len(w.grantedTickets())
			}
			bySecond = append(bySecond, granted)
		}
		t.Logf("a ramp of %d s: %v", ramp/second, bySecond)
		if ramp == 0 {
			if bySecond[len(bySecond)-1] != parked {
				t.Errorf("without a ramp: %v", bySecond)
			}
			continue
		}
		for i, n := range bySecond[1:] { // a tenth of ten a second, and half a call more with each second, rounded
			if n > 2+(i+1)/2 || n+1 < bySecond[i] && i+2 < len(bySecond) {
				t.Errorf("second %d: %v", i+1, bySecond)
			}
		}
	}
}

// TestShares_BackgroundAloneLeavesRoom: with shares and only background work active, background gets all that the documentation
// promises. The first standard call after that finds room, if background left any (seen in PostHog pull request 88224,
// where an unused reserve took a third of the window).
func TestShares_BackgroundAloneLeavesRoom(t *testing.T) {
	begin := func() *world {
		w := newWorld(t)
		w.quotas(policed(hourly("h", 1000), &logpb.Policy{Shares: fleetShares()}))
		w.do(criticalAndBackground())
		w.now = second
		return w
	}
	takes := func(w *world, holder string, most int64) (taken int64) {
		for taken < most && w.do(consumesAtOnce(holder, itemOf("h", 10))).GetGranted() != nil {
			taken += 10
		}
		return taken
	}
	if all := takes(begin(), "back", 1010); all != 1000 {
		t.Errorf("alone it took %d of 1000", all)
	}
	w := begin()
	takes(w, "back", 500)
	w.granted(ask("std", itemOf("h", 10)))
	if more := takes(w, "back", 500); more != 0 {
		t.Errorf("it took %d more although others were there", more)
	}
	if got := takes(w, "std", 500); got != 90 {
		t.Errorf("standard took %d of the 490 that were left, of which 400 are kept for critical calls", got)
	}
	if got := takes(w, "crit", 500); got != 400 {
		t.Errorf("critical calls took %d of their 400", got)
	}
}

// TestReport_ChargesUsageAtOnce: a caller that settles afterwards is charged at once, even below zero. A caller that
// reports nothing shows in the provider's remainder (the question of RFC 0021 of Kuadrant/architecture: reserving next
// to only reporting).
func TestReport_ChargesUsageAtOnce(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("h", 100))
	w.do(consumesAtOnce("reserves", itemOf("h", 50)))
	w.do(consumesAtOnce("tells", itemOf("h", 1)))
	w.do(used(2, 1, itemOf("h", 60)))
	if got := w.available("h"); got != -10 {
		t.Fatalf("available %d after 50 and 60 of 100", got)
	}
	w.refused(ask("reserves", itemOf("h", 1)), logpb.Reason_REASON_EXHAUSTED)
	w.sleep(hour + 2*second)
	w.do(consumesAtOnce("reserves", itemOf("h", 10)))
	w.do(reports(3, 1, signal("h", logpb.Cause_CAUSE_OK, remaining(30)))) // 60 went elsewhere
	if got := w.available("h"); got != 30 {
		t.Fatalf("available %d, and the provider has 30 left", got)
	}
}
