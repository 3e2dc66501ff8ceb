package fsm

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// policed gives a quota a policy.
func policed(q *logpb.Quota, p *logpb.Policy) *logpb.Quota {
	q.Policy = p
	return q
}

func smooth(q *logpb.Quota) *logpb.Quota {
	return policed(q, &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH})
}

func strict(q *logpb.Quota) *logpb.Quota {
	return policed(q, &logpb.Policy{Zones: logpb.Zones_ZONES_STRICT})
}

// emergency marks a Reserve as an emergency.
func emergency(command *logpb.Command) *logpb.Command {
	command.GetReserve().Emergency = true
	return command
}

// TestZones: the zones of a window (design 6.4). The world begins at a full hour.
func TestZones(t *testing.T) {
	h := func() *logpb.Quota { return hourly("h", 1000) }
	who := holders(
		&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical}, &logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground},
	)
	tell(t, []story{
		{"smooth: in amber background is paced, standard half as much, critical not at all", []*logpb.Quota{smooth(h())}, []line{
			{0, who, "applied"},
			{0, asks("x", 0, itemOf("h", 500)), "lease 1: h=500 until 5m0s"},
			{0, asks("back", 0, itemOf("h", 175)), "lease 2: h=175 until 5m0s"}, // 500 left before: green
			{0, asks("std", 0, itemOf("h", 1)), "lease 3: h=1 until 5m0s"},      // 325 left: the first has no delay
			{0, asks("std", 0, itemOf("h", 1)), "ZONE h again at 304ms"},        // (0.40 - 0.324) / 0.25 of 2 s, halved
			{0, asks("back", 0, itemOf("h", 1)), "ZONE h again at 608ms"},
			{0, asks("crit", 0, itemOf("h", 1)), "lease 4: h=1 until 5m0s"},
			{0, asks("crit", 0, itemOf("h", 1)), "lease 5: h=1 until 5m0s"},
			{304 * millisecond, asks("std", 0, itemOf("h", 1)), "ZONE h again at 312ms"}, // less is left by now
			{8 * millisecond, asks("std", 0, itemOf("h", 1)), "lease 6: h=1 until 5m0.312s"},
			{0, asks("back", 0, itemOf("h", 1)), "ZONE h again at 632ms"},
		}},
		{"smooth: in red background waits for the last of the window, standard comes once a second", []*logpb.Quota{smooth(h())}, []line{
			{0, who, "applied"},
			{0, asks("x", 0, itemOf("h", 900)), "lease 1: h=900 until 5m0s"},
			// The remaining 0.10 equal 0.15 x (left / 6 min) when 4 min are left: at 56 min, less the second of skew.
			{0, asks("back", 0, itemOf("h", 1)), "ZONE h again at 55m59s"},
			{0, asks("std", 0, itemOf("h", 1)), "lease 2: h=1 until 5m0s"},
			{0, asks("std", 0, itemOf("h", 1)), "ZONE h again at 1s"},
			{0, asks("other", 0, itemOf("h", 1)), "lease 3: h=1 until 5m0s"},
			{0, asks("crit", 0, itemOf("h", 1)), "lease 4: h=1 until 5m0s"},
			{second, asks("std", 0, itemOf("h", 1)), "lease 5: h=1 until 5m1s"},
		}},
		{"strict: the last fifth is for critical calls, the last twentieth for emergencies", []*logpb.Quota{strict(h())}, []line{
			{0, who, "applied"},
			{0, asks("x", 0, itemOf("h", 799)), "lease 1: h=799 until 5m0s"},
			{0, asks("std", 0, itemOf("h", 1)), "lease 2: h=1 until 5m0s"},     // 20.1 % left are green
			{0, asks("std", 0, itemOf("h", 1)), "ZONE h again at 53m59.0018s"}, // 20 % are not
			{0, emergency(asks("std", 0, itemOf("h", 1))), "ZONE h again at 53m59.0018s"},
			{0, asks("crit", 0, itemOf("h", 149)), "lease 3: h=149 until 5m0s"},
			{0, asks("crit", 0, itemOf("h", 1)), "lease 4: h=1 until 5m0s"},     // 5.1 % left are amber
			{0, asks("crit", 0, itemOf("h", 1)), "ZONE h again at 53m59.0072s"}, // 5 % are not
			{0, emergency(asks("crit", 0, itemOf("h", 1))), "lease 5: h=1 until 5m0s"},
		}},
		{"who is parked comes when the thresholds shrink, and takes what is left", []*logpb.Quota{smooth(h())}, []line{
			{0, who, "applied"},
			{0, asks("x", hour, itemOf("h", 900)), "lease 1: h=900 until 1h0m0s"},
			{55*minute + 58*second, asks("back", 0, itemOf("h", 1)), "ZONE h again at 55m59s"},
			{second, asks("back", 0, itemOf("h", 1)), "lease 2: h=1 until 1h0m59s"},
			{3*minute + 55*second, asks("back", 0, itemOf("h", 80)), "lease 3: h=80 until 1h4m54s"},
			{4 * second, asks("back", 0, itemOf("h", 18)), "lease 4: h=18 until 1h4m58s"},
		}},
		{"in the queue it is passed over, and who stands behind it is served", []*logpb.Quota{smooth(h()), slotsOf("s", 1)}, []line{
			{0, who, "applied"},
			{0, asks("x", 0, itemOf("h", 900), itemOf("s", 1)), "lease 1: h=900 s=1 until 5m0s"},
			{0, waits("std", 0, minute, itemOf("h", 1), itemOf("s", 1)), "waits as 1 until 1m0s"},
			{0, waits("back", 0, minute, itemOf("h", 1), itemOf("s", 1)), "waits as 3 until 1m0s"},
			{0, asks("std", 0, itemOf("h", 1)), "lease 2: h=1 until 5m0s"}, // its pace counts for its waiter
			{0, asks("other", 0, itemOf("h", 1)), "lease 3: h=1 until 5m0s"},
			{0, releases(1, itemOf("s", 1)), "back s=1"},
			{0, asks("y", 0, itemOf("h", 1), itemOf("s", 1)), "lease 4: h=1 s=1 until 5m0s"},
		}},
	})
}

// fleetShares are those of the fleet profile.
func fleetShares() *logpb.Shares {
	return &logpb.Shares{CriticalPpm: 400_000, StandardPpm: 350_000, BackgroundPpm: 250_000}
}

// TestShares: the parts of a window that are kept, and for which class (design 6.2, 6.3).
func TestShares(t *testing.T) {
	shared := func() *logpb.Quota { return policed(hourly("h", 1000), &logpb.Policy{Shares: fleetShares()}) }
	who := holders(
		&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical}, &logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground},
	)
	tell(t, []story{
		{"standard leaves what critical has not used, less and less", []*logpb.Quota{shared()}, []line{
			{0, who, "applied"},
			{second, asks("std", 0, itemOf("h", 600)), "lease 1: h=600 until 5m1s"}, // 400 are critical's
			{0, asks("std", 0, itemOf("h", 2)), "SHARE h again at 8.004s"},          // when at most 399 of its 400 are kept
			{0, asks("crit", 0, itemOf("h", 100)), "lease 2: h=100 until 5m1s"},     // of its own
			{0, asks("std", 0, itemOf("h", 1)), "SHARE h again at 14m59.004s"},      // 300 are left, all of them its
			{30 * minute, asks("std", 0, itemOf("h", 100)), "lease 3: h=100 until 35m1s"},
		}},
		{"background takes its share, then the pool while it holds 30 %", []*logpb.Quota{shared()}, []line{
			{0, who, "applied"},
			{second, asks("std", 0, itemOf("h", 1)), "lease 1: h=1 until 5m1s"}, // there is demand
			{0, asks("back", hour, itemOf("h", 250)), "lease 2: h=250 until 1h0m1s"},
			{0, asks("back", 0, itemOf("h", 2)), "SHARE h again at 8.004s"}, // 749 are left; 400 and 349 are kept
			{30 * minute, asks("std", 0, itemOf("h", 1)), "lease 3: h=1 until 35m1s"},
			{0, asks("back", 0, itemOf("h", 400)), "SHARE h again at 31m56.004s"}, // half is left, and half of 400 and 350 too
			{0, asks("back", 0, itemOf("h", 370)), "lease 4: h=370 until 35m1s"},
			{0, asks("back", 0, itemOf("h", 79)), "SHARE h again at 35m50.004s"},
		}},
		{"without demand from above background may use everything", []*logpb.Quota{shared()}, []line{
			{0, who, "applied"},
			{second, asks("back", 0, itemOf("h", 900)), "lease 1: h=900 until 5m1s"},
			{0, asks("std", 0, itemOf("h", 200)), "EXHAUSTED h again at 6s"}, // an attempt is demand, granted or not
			{0, asks("back", 0, itemOf("h", 1)), "SHARE h again at 57m59.002s"},
			{15 * minute, asks("back", 0, itemOf("h", 1)), "lease 2: h=1 until 20m1s"},
		}},
		{"critical has a cap, and what is larger can never fit", []*logpb.Quota{shared()}, []line{
			{0, who, "applied"},
			{second, asks("crit", 0, itemOf("h", 901)), "NEVER_FITS h"},
			{0, asks("crit", 0, itemOf("h", 900)), "lease 1: h=900 until 5m1s"},
			{0, asks("crit", 0, itemOf("h", 1)), "CAP h again at 59m59s"},
			{0, asks("std", 0, itemOf("h", 100)), "lease 2: h=100 until 5m1s"},
			{0, releases(1, itemOf("h", 10)), "back h=10"},
			{0, asks("crit", 0, itemOf("h", 10)), "lease 3: h=10 until 5m1s"},
		}},
		{"what is returned, unspent or settled lower, is not used", []*logpb.Quota{shared()}, []line{
			{0, who, "applied"},
			{second, consumesAtOnce("crit", itemOf("h", 900)), "lease 1: h=900 until 5m1s; op 1 spends h=900 by 1m1s"},
			{0, unspends(1, 1, itemOf("h", 400)), "settled; back h=400"},
			{0, used(1, 1, itemOf("h", 300)), "settled; back h=200"},
			{0, asks("crit", 0, itemOf("h", 600)), "lease 2: h=600 until 5m1s"},
			{0, asks("crit", 0, itemOf("h", 1)), "CAP h again at 59m59s"},
		}},
		{"a new window starts with nothing used", []*logpb.Quota{shared()}, []line{
			{0, who, "applied"},
			{second, consumesAtOnce("crit", itemOf("h", 900)), "lease 1: h=900 until 5m1s; op 1 spends h=900 by 1m1s"},
			{0, used(1, 1, itemOf("h", 900)), "settled"},
			{hour, asks("crit", 0, itemOf("h", 900)), "lease 2: h=900 until 1h5m1s"},
		}},
	})
}

// TestAgeing: background work that is granted nothing for long counts as standard (design 6.5).
func TestAgeing(t *testing.T) {
	aging := &logpb.Policy{AgeingNs: 5 * minute}
	who := holders(&logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground})
	tell(t, []story{
		{"in the queue, among those that need the same", []*logpb.Quota{policed(rateOf("r", 10, minute), aging), slotsOf("s", 1)}, []line{
			{0, who, "applied"},
			{second, asks("x", hour, itemOf("s", 1), itemOf("r", 1)), "lease 1: s=1 r=1 until 1h0m1s"},
			{0, waits("back", 0, 10*minute, itemOf("s", 1), itemOf("r", 1)), "waits as 1 until 10m1s"},
			{minute, waits("std", 0, 10*minute, itemOf("s", 1), itemOf("r", 1)), "waits as 3 until 11m1s"},
			// Five minutes later both are standard, and with equal virtual times the older ticket goes first.
			{4 * minute, nil, ""},
			{0, releases(1, itemOf("s", 1)), "back s=1"},
			{0, withdraw(1), "! UNKNOWN_TICKET"},
			{0, withdraw(3), "done"},
		}},
		{"a younger one stays behind", []*logpb.Quota{policed(rateOf("r", 10, minute), aging), slotsOf("s", 1)}, []line{
			{0, who, "applied"},
			{second, asks("x", hour, itemOf("s", 1), itemOf("r", 1)), "lease 1: s=1 r=1 until 1h0m1s"},
			{0, waits("back", 0, 10*minute, itemOf("s", 1), itemOf("r", 1)), "waits as 1 until 10m1s"},
			{minute, waits("std", 0, 10*minute, itemOf("s", 1), itemOf("r", 1)), "waits as 3 until 11m1s"},
			{3 * minute, releases(1, itemOf("s", 1)), "back s=1"},
			{0, withdraw(3), "! UNKNOWN_TICKET"},
		}},
		{"without waiting too, since its first denial, until it is granted something", []*logpb.Quota{
			policed(hourly("h", 1000), &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH, AgeingNs: 5 * minute}),
		}, []line{
			{0, who, "applied"},
			{second, asks("x", hour, itemOf("h", 900)), "lease 1: h=900 until 1h0m1s"},
			{0, asks("back", 0, itemOf("h", 1)), "ZONE h again at 55m59s"},
			{4 * minute, asks("back", 0, itemOf("h", 1)), "ZONE h again at 55m59s"},
			{minute, asks("back", 0, itemOf("h", 1)), "lease 2: h=1 until 10m1s"}, // as standard: one a second
			{minute, asks("back", 0, itemOf("h", 1)), "ZONE h again at 56m1.4s"},
		}},
	})
}

// TestZones_PassedOverWaiterWakesInTime: an entry is due when the pace lets the first one through.
func TestZones_PassedOverWaiterWakesInTime(t *testing.T) {
	w := newWorld(t)
	w.quotas(smooth(hourly("h", 1000)))
	w.do(asks("x", 0, itemOf("h", 900)))
	w.do(asks("std", 0, itemOf("h", 1)))
	if r := w.do(waits("std", 0, minute, itemOf("h", 1))); r.GetWaiting() == nil {
		t.Fatal(r)
	}
	at, pending := w.m.State().NextDue()
	if at != second || !pending {
		t.Fatalf("due at %d, pending %v", at, pending)
	}
	w.sleep(second)
	if w.m.State().Counts().Waiting != 0 {
		t.Error("it still waits")
	}
}

// TestRamp: a quota reopens slowly (design 6.6).
func TestRamp(t *testing.T) {
	ramp := &logpb.Policy{RampNs: 20 * second}
	tell(t, []story{
		{"a rate climbs from a tenth", []*logpb.Quota{policed(rateOf("r", 600, minute), ramp)}, []line{
			{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(10*second))), "reported: r closed until 10s"},
			{10 * second, asks("b", 0, itemOf("r", 1)), "lease 2: r=1 until 5m10s"}, // the probe
			{0, asks("b", 0, itemOf("r", 1)), "REOPENING r again at 11.497s"},       // 1 s at a tenth, and a little more
			{2 * second, asks("b", 0, itemOf("r", 1)), "lease 3: r=1 until 5m12s"},
			{8 * second, asks("b", 0, itemOf("r", 40)), "REOPENING r again at 21.62s"},
			{10 * second, asks("b", 0, itemOf("r", 500)), "lease 4: r=500 until 5m30s"},
		}},
		{
			"what was held before goes through it when it is consumed, what was granted since does not",
			[]*logpb.Quota{policed(rateOf("r", 600, minute), ramp)},
			[]line{
				{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
				{0, asks("b", 0, itemOf("r", 100)), "lease 2: r=100 until 5m0s"}, // the last one before it reopens
				{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(10*second))), "reported: r closed until 10s"},
				{10 * second, consumes(2, 1, itemOf("r", 1)), "op 1 spends r=1 by 12s"},
				{0, consumes(2, 2, itemOf("r", 99)), "REOPENING r again at 28.977s"},
				{5 * second, asks("c", 0, itemOf("r", 5)), "lease 3: r=5 until 5m15s"},
				{0, consumes(3, 1, itemOf("r", 5)), "op 1 spends r=5 by 17s"},
				{0, asks("c", 0, itemOf("r", 5)), "REOPENING r again at 15.115s"},
			},
		},
		{"slots climb from a tenth", []*logpb.Quota{policed(slotsOf("s", 20), ramp)}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, reports(1, 0, signal("s", logpb.Cause_CAUSE_SATURATED, retryAfter(10*second))), "reported: s closed until 10s"},
			{10 * second, asks("b", 0, itemOf("s", 1)), "lease 2: s=1 until 5m10s"},
			{0, asks("b", 0, itemOf("s", 1)), "REOPENING s again at 11.112s"},
			{20 * second, asks("b", 0, itemOf("s", 18)), "lease 3: s=18 until 5m30s"},
		}},
		{"the first in the order waits for it, and nobody passes", []*logpb.Quota{policed(rateOf("r", 600, minute), ramp)}, []line{
			{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(10*second))), "reported: r closed until 10s"},
			{10 * second, waits("b", 0, minute, itemOf("r", 30)), "waits as 1 until 1m10s"},
			{0, asks("c", 0, itemOf("r", 1)), "BEHIND_WAITERS r again at 11s"},
			{9*second + 600*millisecond, asks("c", 0, itemOf("r", 1)), "REOPENING r again at 19.725s"}, // b was served meanwhile
		}},
	})
}

// TestBreaker: five refusals in a row close a quota for one holder (design 6.8).
func TestBreaker(t *testing.T) {
	r := policed(rateOf("r", 100, minute), &logpb.Policy{Breaker: &logpb.Breaker{Failures: 2}})
	const full, ok, other = logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_OVERLOADED
	call := func(holder string) *logpb.Command { return consumesAtOnce(holder, itemOf("r", 1)) }
	tell(t, []story{{"it opens, lets one try, and closes when that is answered", []*logpb.Quota{r}, []line{
		{0, call("a"), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
		{0, reports(1, 1, signal("r", full, retryAfter(second))), "reported: r closed until 1s"},
		{second, reports(1, 1, signal("r", other)), "reported: r"}, // not a refusal for the limit: it neither counts nor ends the series
		{0, reports(1, 1, signal("r", full, retryAfter(second))), "reported: r closed until 2s"},
		{second, call("a"), "BREAKER_OPEN r again at 1m1s"},
		{0, call("b"), "lease 2: r=1 until 5m2s; op 1 spends r=1 by 4s"},
		{minute, call("a"), "lease 3: r=1 until 6m2s; op 1 spends r=1 by 1m4s"},
		{0, call("a"), "BREAKER_OPEN r again at 2m2s"},
		{0, reports(3, 1, signal("r", full, retryAfter(second))), "reported: r closed until 1m3s"},
		{minute, call("a"), "lease 4: r=1 until 7m2s; op 1 spends r=1 by 2m4s"},
		{0, reports(4, 1, signal("r", ok)), "reported: r"},
		{0, call("a"), "lease 5: r=1 until 7m2s; op 1 spends r=1 by 2m4s"},
		{0, call("a"), "lease 6: r=1 until 7m2s; op 1 spends r=1 by 2m4s"},
	}}})
}

// TestObserve: a quota that observes grants everything and counts the grants that it would have refused (design 2).
func TestObserve(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(hourly("h", 10), &logpb.Policy{Observe: true, Zones: logpb.Zones_ZONES_STRICT}), rateOf("r", 100, minute))
	for i, c := range []struct {
		amount   int64
		observed int64
	}{{7, 0}, {2, 0}, {1, 1}, {5, 2}, {50, 3}} { // 30 % are green, 10 % are kept for critical calls, the rest is not available
		if r := w.do(asks("a", 0, itemOf("h", c.amount), itemOf("r", 1))); r.GetGranted() == nil {
			t.Fatal(say(r))
		}
		view, _ := w.m.State().Quota("h", w.m.State().Clock())
		if view.Observed != c.observed {
			t.Errorf("after grant %d: %d observed, want %d", i+1, view.Observed, c.observed)
		}
	}
	if r := w.do(asks("a", 0, itemOf("h", 1), itemOf("r", 96))); say(r) != "EXHAUSTED r again at 1m2.0s" && r.GetRefusal() == nil {
		t.Errorf("the quota next to it: %s", say(r))
	}
}

// TestApplyQuotas_RefusesImpossiblePolicies: policies that cannot work are refused when they are applied.
func TestApplyQuotas_RefusesImpossiblePolicies(t *testing.T) {
	for name, q := range map[string]*logpb.Quota{
		"zones of a rate":      smooth(rateOf("q", 1, minute)),
		"zones of slots":       strict(slotsOf("q", 1)),
		"unknown zones":        policed(hourly("q", 1), &logpb.Policy{Zones: 9}),
		"a ramp without end":   policed(hourly("q", 1), &logpb.Policy{RampNs: 2 * hour}),
		"a ramp into the past": policed(hourly("q", 1), &logpb.Policy{RampNs: -1}),
		"shares of slots":      policed(slotsOf("q", 1), &logpb.Policy{Shares: fleetShares()}),
		"a holder's of a rate": policed(rateOf("q", 1, minute), &logpb.Policy{Shares: &logpb.Shares{Holders: []*logpb.HolderShare{{
			Holder:   "a",
			SharePpm: 1,
		}}}}),
		"shares above 1":      policed(hourly("q", 1), &logpb.Policy{Shares: &logpb.Shares{CriticalPpm: 600_000, StandardPpm: 600_000}}),
		"a share below 0":     policed(hourly("q", 1), &logpb.Policy{Shares: &logpb.Shares{CriticalPpm: -1}}),
		"a cap below a share": policed(hourly("q", 1), &logpb.Policy{Shares: &logpb.Shares{CriticalPpm: 500_000, CapPpm: 400_000}}),
		"a floor above 1":     policed(hourly("q", 1), &logpb.Policy{Shares: &logpb.Shares{FloorPpm: new(int32(2_000_000))}}),
		"quiet for days":      policed(hourly("q", 1), &logpb.Policy{Shares: &logpb.Shares{QuietNs: 2 * day}}),
		"no failures":         policed(hourly("q", 1), &logpb.Policy{Breaker: &logpb.Breaker{}}),
		"closed for days":     policed(hourly("q", 1), &logpb.Policy{Breaker: &logpb.Breaker{Failures: 1, ClosedNs: day}}),
	} {
		if r := newWorld(t).do(applyQuotas(q)); r.GetFailure().GetReason() != logpb.Reason_REASON_IMPOSSIBLE_QUOTA {
			t.Errorf("%s: %s", name, say(r))
		}
	}
}

// TestHolderStats_GoWithHolderAndQuota: statistics end with their holders, and with their quota.
func TestHolderStats_GoWithHolderAndQuota(t *testing.T) {
	w := newWorld(t)
	w.quotas(smooth(hourly("h", 1000)), smooth(hourly("other", 1000)))
	for _, name := range []string{"a", "b", "c"} {
		w.do(asks(name, second, itemOf("h", 1), itemOf("other", 1)))
	}
	if n := w.m.holders.stats.Len(); n != 6 {
		t.Fatalf("%d tallies", n)
	}
	w.sleep(2 * hour)
	if n := w.m.holders.stats.Len(); n != 0 {
		t.Errorf("%d tallies of holders that are forgotten", n)
	}
	w.do(asks("a", second, itemOf("h", 1), itemOf("other", 1)))
	w.do(&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: "other", Force: true}}})
	if n := w.m.holders.stats.Len(); n != 1 {
		t.Errorf("%d tallies, one of them of a quota that is gone", n)
	}
}

// TestRamp_NeverFalls: the amount that a reopening quota lets through never falls with time, and ends at no more than
// the rate.
func TestRamp_NeverFalls(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := ledger.Rule{
			Kind: ledger.KindRate, Usable: rapid.Int64Range(1, fixed.MaxAmount).Draw(rt, "usable"),
			Period: rapid.Int64Range(second, 31*day).Draw(rt, "period"),
		}
		if rapid.Bool().Draw(rt, "slots") {
			r.Kind = ledger.KindSlots
		}
		r.Policy.Ramp = rapid.Int64Range(1, ledger.MaxRamp).Draw(rt, "ramp")
		a := rapid.Int64Range(0, r.Policy.Ramp).Draw(rt, "a")
		b := rapid.Int64Range(a, r.Policy.Ramp).Draw(rt, "b")
		early, late := r.Ramped(a), r.Ramped(b)
		most := max(1, fixed.MulDivCeil(r.Usable, b, r.Period))
		if r.Kind == ledger.KindSlots {
			most = r.Usable
		}
		if early < 1 || late < early || late > most {
			rt.Fatalf("%d after %d, %d after %d, at most %d", early, a, late, b, most)
		}
	})
}
