package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestSpendBy: how long after its Consume an amount may reach the provider, and how much earlier the holder must start
// its last call (design 2).
func TestSpendBy(t *testing.T) {
	burst := rateOf("q", 60, minute)
	burst.GetRate().Burst = 2
	daily := hourly("q", 100)
	daily.GetWindow().Every = logpb.Every_EVERY_DAY
	for _, c := range []struct {
		name             string
		quotas           []*logpb.Quota
		at               int64
		spendBy, transit int64
	}{
		{"a rate per second: at least 250 ms", []*logpb.Quota{rateOf("q", 100, second)}, 0, 250 * millisecond, 125 * millisecond},
		{"a rate: a thirtieth of the period", []*logpb.Quota{rateOf("q", 100, 30*second)}, 0, second, 500 * millisecond},
		{"a rate per hour: at most 2 s", []*logpb.Quota{rateOf("q", 100, hour)}, 0, 2 * second, second},
		{"a burst: what it may pile up, half of it", []*logpb.Quota{burst}, 0, second, 500 * millisecond},
		{"a window: 60 s", []*logpb.Quota{hourly("q", 100)}, 0, minute, second},
		{"a day: 60 s", []*logpb.Quota{daily}, 0, minute, second},
		{"a window: until its boundary begins", []*logpb.Quota{hourly("q", 100)}, hour - 31*second, 30*second - 1, second},
		{"a window, less than 1 s before: 1 s", []*logpb.Quota{hourly("q", 100)}, hour - 1500*millisecond, second, 500 * millisecond},
		{"as configured", []*logpb.Quota{with(rateOf("q", 100, minute), func(q *logpb.Quota) {
			q.SpendByNs, q.TransitNs = 10*second, 3*second
		})}, 0, 10 * second, 3 * second},
		{
			"of several the shortest",
			[]*logpb.Quota{hourly("q", 100), rateOf("p", 100, second), slotsOf("s", 1)},
			0, 250 * millisecond,
			125 * millisecond,
		},
		{"in any order", []*logpb.Quota{rateOf("q", 100, second), hourly("p", 100)}, 0, 250 * millisecond, 125 * millisecond},
		{"and the longest transit", []*logpb.Quota{
			hourly("q", 100), with(rateOf("p", 100, minute), func(q *logpb.Quota) { q.TransitNs = 1500 * millisecond }),
		}, 0, 2 * second, 1500 * millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(c.quotas...)
			w.now = c.at
			a := &logpb.Reserve{Holder: "a", Consume: true}
			for _, q := range c.quotas {
				a.Items = append(a.Items, itemOf(q.Name, 1))
			}
			got := w.granted(a).Consumed
			if got.SpendByNs != c.at+c.spendBy || got.TransitNs != c.transit {
				t.Fatalf("spend by %d, transit %d; want %d, %d", got.SpendByNs-c.at, got.TransitNs, c.spendBy, c.transit)
			}
		})
	}
}

// TestConsume_AtBoundaryChargesBothWindows: one that is spent before it only to the older.
func TestConsume_AtBoundaryChargesBothWindows(t *testing.T) {
	for at, want := range map[int64]int64{hour - 30*second: 100, hour - 1500*millisecond: 60} {
		w := newWorld(t)
		w.quotas(hourly("h", 100))
		w.now = at
		w.do(consumesAtOnce("a", itemOf("h", 40)))
		w.now = hour + 1100*millisecond
		w.apply()
		if got := w.available("h"); got != want {
			t.Fatalf("consumed %d ms before: %d are available in the next window, want %d", (hour-at)/millisecond, got, want)
		}
		w.now = 2*hour + 1100*millisecond
		if got := w.available("h"); got != 100 {
			t.Fatalf("%d are available in the one after", got)
		}
	}
}

// TestConsume: parts, marks, bursts (design 2 and 3); settle_test.go has more.
func TestConsume(t *testing.T) {
	r, q, s := rateOf("r", 10, minute), rateOf("q", 10, minute), slotsOf("s", 1)
	burst := rateOf("b", 60, minute)
	burst.GetRate().Burst = 10
	marked := func(op, mark uint64) *logpb.Command {
		return consumeCmd(&logpb.Consume{Lease: 1, Fence: 1, Op: op, Items: []*logpb.Item{itemOf("r", 1)}, DoneBelow: mark})
	}
	tell(t, []story{
		{"no items: all that is held but slots", []*logpb.Quota{r, s, q}, []line{
			{0, asks("a", 0, itemOf("r", 3), itemOf("s", 1), itemOf("q", 2)), "lease 1: r=3 s=1 q=2 until 5m0s"},
			{0, consumes(1, 1, itemOf("q", 1)), "op 1 spends q=1 by 2s"},
			{0, consumes(1, 2), "op 2 spends r=3 q=1 by 2s"},
			{0, consumes(1, 3), "! NOT_HELD"},
		}},
		{"no amount: all that is held of it", []*logpb.Quota{r, q}, []line{
			{0, asks("a", 0, itemOf("r", 3), itemOf("q", 2)), "lease 1: r=3 q=2 until 5m0s"},
			{0, consumes(1, 1, all("r")), "op 1 spends r=3 by 2s"},
			{0, consumes(1, 2, all("r")), "! NOT_HELD"},
			{0, consumes(1, 2, all("q")), "op 2 spends q=2 by 2s"},
		}},
		{"all or nothing", []*logpb.Quota{r, q}, []line{
			{0, asks("a", 0, itemOf("r", 3), itemOf("q", 2)), "lease 1: r=3 q=2 until 5m0s"},
			{0, consumes(1, 1, itemOf("r", 3), itemOf("q", 3)), "! NOT_HELD"},
			{0, consumes(1, 1, itemOf("r", 0)), "! INVALID"},
			{0, consumes(1, 1, itemOf("r", 1<<53)), "! INVALID"},
			{0, consumes(1, 1, itemOf("r", 3), itemOf("q", 2)), "op 1 spends r=3 q=2 by 2s"},
		}},
		{"the order of items is a part of what was asked", []*logpb.Quota{r, q}, []line{
			{0, asks("a", 0, itemOf("r", 3), itemOf("q", 2)), "lease 1: r=3 q=2 until 5m0s"},
			{0, consumes(1, 1, itemOf("r", 1), itemOf("q", 1)), "op 1 spends r=1 q=1 by 2s"},
			{0, consumes(1, 1, itemOf("q", 1), itemOf("r", 1)), "! OPERATION_REUSED"},
			{0, consumes(1, 1, itemOf("r", 1), itemOf("q", 1)), "op 1 spends r=1 q=1 by 2s"},
		}},
		{"a mark above its own number", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 3)), "lease 1: r=3 until 5m0s"},
			{0, marked(4, 5), "! STALE_OPERATION"},
			{0, marked(5, 5), "op 5 spends r=1 by 2s"},
		}},
		{"a mark does not fall", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 5)), "lease 1: r=5 until 5m0s"},
			{0, marked(5, 3), "op 5 spends r=1 by 2s"},
			{0, marked(6, 1), "op 6 spends r=1 by 2s"},
			{0, marked(2, 0), "! STALE_OPERATION"},
			{0, marked(3, 0), "op 3 spends r=1 by 2s"},
		}},
		{"what is done with counts on", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, consumes(1, 1, itemOf("r", 9)), "op 1 spends r=9 by 2s"},
			{0, marked(2, 2), "op 2 spends r=1 by 2s"},
			{61 * second, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 1m2.400000001s"},
		}},
		{"a burst refills, and what did not fit is still held", []*logpb.Quota{burst}, []line{
			{0, asks("a", 0, itemOf("b", 20)), "lease 1: b=20 until 5m0s"},
			{0, consumes(1, 1, itemOf("b", 8)), "op 1 spends b=8 by 2s"}, // ten less what two seconds may add
			{0, consumes(1, 2, itemOf("b", 3)), "EXHAUSTED b again at 3s"},
			{3*second - 1, consumes(1, 2, itemOf("b", 3)), "EXHAUSTED b again at 3s"},
			{1, consumes(1, 2, itemOf("b", 3)), "op 2 spends b=3 by 5s"},
			{20 * second, consumes(1, 3, itemOf("b", 9)), "NEVER_FITS b"},
			{0, consumes(1, 3, itemOf("b", 8)), "op 3 spends b=8 by 25s"},
			{0, releases(1), "back b=1; ended"},
		}},
	})
}

// TestSettle_Parts: unspent, actual and final in their combinations (design 2, estimates); settle_test.go has more.
func TestSettle_Parts(t *testing.T) {
	r, q := rateOf("r", 100, minute), rateOf("q", 100, minute)
	most := with(rateOf("m", 100, minute), func(q *logpb.Quota) { q.Settle = logpb.SettleMode_SETTLE_MODE_MAX })
	first := line{0, consumesAtOnce("a", itemOf("r", 100)), "lease 1: r=100 until 5m0s; op 1 spends r=100 by 2s"}
	briefly := line{0, reserve(&logpb.Reserve{
		Holder: "a", Items: []*logpb.Item{itemOf("r", 60)}, Consume: true, TtlNs: 10 * second,
	}), "lease 1: r=60 until 10s; op 1 spends r=60 by 2s"}
	parts := func(unspent, actual int64) *logpb.Command {
		return settle(&logpb.Settle{
			Lease: 1, Fence: 1, Op: 1, Unspent: []*logpb.Item{itemOf("r", unspent)}, Actual: []*logpb.Item{itemOf("r", actual)},
		})
	}
	final := settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1, Final: true})
	tell(t, []story{
		{"unspent and actual together", []*logpb.Quota{r}, []line{
			first,
			{0, parts(30, 50), "settled; back r=30 r=20"},
			{0, asks("b", 0, itemOf("r", 51)), "EXHAUSTED r again at 1m0.000000001s"},
			{0, asks("b", 0, itemOf("r", 50)), "lease 2: r=50 until 5m0s"},
		}},
		{"an overrun is what goes beyond what was not returned", []*logpb.Quota{r}, []line{
			first,
			{0, unspends(1, 1, itemOf("r", 30)), "settled; back r=30"},
			{0, used(1, 1, itemOf("r", 90)), "settled; over r=20"},
			{0, used(1, 1, itemOf("r", 90)), "settled; over r=20"},
			{0, asks("b", 0, itemOf("r", 10)), "lease 2: r=10 until 5m0s"},
		}},
		{"unspent without an amount is all of it", []*logpb.Quota{r}, []line{
			first,
			{0, unspends(1, 1, all("r")), "settled; back r=100"},
			{0, unspends(1, 1, all("r")), "settled; back r=100"},
			{0, asks("b", 0, itemOf("r", 100)), "lease 2: r=100 until 5m0s"},
		}},
		{"an actual of 0 is one, and one without an amount is none", []*logpb.Quota{r}, []line{
			first,
			{0, used(1, 1, all("r")), "! INVALID"},
			{0, used(1, 1, itemOf("r", 0)), "settled; back r=100"},
		}},
		{"final alone is the estimate", []*logpb.Quota{r}, []line{
			first,
			{0, final, "settled"},
			{0, final, "settled"},
			{0, used(1, 1, itemOf("r", 5)), "! ALREADY_SETTLED"},
			{0, unspends(1, 1, itemOf("r", 5)), "! ALREADY_SETTLED"},
		}},
		{"what is not named was used as consumed", []*logpb.Quota{r, q}, []line{
			{0, consumesAtOnce("a", itemOf("r", 60), itemOf("q", 60)), "lease 1: r=60 q=60 until 5m0s; op 1 spends r=60 q=60 by 2s"},
			{0, used(1, 1, itemOf("r", 10)), "settled; back r=50"},
			{0, used(1, 1, itemOf("q", 10)), "! ALREADY_SETTLED"},
			{0, asks("b", 0, itemOf("r", 90), itemOf("q", 40)), "lease 2: r=90 q=40 until 5m0s"},
		}},
		{"a settle ends the exposure, and never lengthens it", []*logpb.Quota{r}, []line{
			first,
			{0, final, "settled"}, // spent at once, it ends a period from now
			{minute, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 1m0.000000001s"},
			{1, asks("b", 0, itemOf("r", 100)), "lease 2: r=100 until 6m0.000000001s"},
		}},
		{"a late settle leaves the end where it was", []*logpb.Quota{r}, []line{
			first,
			{50 * second, final, "settled"},
			{12*second + 400*millisecond, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 1m2.400000001s"},
			{1, asks("b", 0, itemOf("r", 100)), "lease 2: r=100 until 6m2.400000001s"},
		}},
		{"where the estimate counts, unspent goes back all the same and more is more", []*logpb.Quota{most}, []line{
			{0, consumesAtOnce("a", itemOf("m", 100)), "lease 1: m=100 until 5m0s; op 1 spends m=100 by 2s"},
			{0, unspends(1, 1, itemOf("m", 30)), "settled; back m=30"},
			{0, used(1, 1, itemOf("m", 80)), "settled; over m=10"},
			{0, asks("b", 0, itemOf("m", 20)), "lease 2: m=20 until 5m0s"},
		}},
		{"an overrun is charged to the window in which it is reported", []*logpb.Quota{hourly("h", 100)}, []line{
			{
				0, reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("h", 40)}, Consume: true, TtlNs: day}),
				"lease 1: h=40 until 24h0m0s; op 1 spends h=40 by 1m0s",
			},
			{hour + 2*second, used(1, 1, itemOf("h", 60)), "settled; over h=20"},
			{0, asks("b", 0, itemOf("h", 81)), "EXHAUSTED h again at 2h0m1s"},
			{0, asks("b", 0, itemOf("h", 80)), "lease 2: h=80 until 1h5m2s"},
		}},
		{"a dead fence tells its overrun again, until nothing of it counts", []*logpb.Quota{r}, []line{
			briefly,
			{20 * second, used(1, 1, itemOf("r", 70)), "settled; over r=10"},
			{0, used(1, 1, itemOf("r", 70)), "settled; over r=10"},
			{0, asks("b", 0, itemOf("r", 30)), "lease 2: r=30 until 5m20s"},
			{3 * minute, used(1, 1, itemOf("r", 70)), "! STALE_FENCE"},
		}},
		{"a dead fence does nothing else", []*logpb.Quota{r, q}, []line{
			briefly,
			{20 * second, final, "! STALE_FENCE"},
			{0, parts(1, 90), "! STALE_FENCE"},
			{0, settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1, Actual: []*logpb.Item{itemOf("r", 90)}, Release: true}), "! STALE_FENCE"},
			{0, used(1, 2, itemOf("r", 90)), "! STALE_FENCE"},
			{0, settle(&logpb.Settle{Lease: 1, Op: 1, Actual: []*logpb.Item{itemOf("r", 90)}}), "! STALE_FENCE"},
			{0, by("b*", used(1, 1, itemOf("r", 90))), "! STALE_FENCE"},
			{0, used(1, 1, itemOf("r", 60)), "settled"},
			{0, used(1, 1, itemOf("r", 90)), "! ALREADY_SETTLED"},
		}},
	})
}

// TestExposure_WithoutSettleEnds: if the provider charges at the end, an exposure lasts until one longest call after the
// lease's deadline.
func TestExposure_WithoutSettleEnds(t *testing.T) {
	atEnd := with(rateOf("d", 10, minute), func(q *logpb.Quota) { q.Charged, q.MaxCallNs = logpb.Charged_CHARGED_DURING, minute })
	tell(t, []story{
		{"a crashed holder", []*logpb.Quota{atEnd}, []line{
			{
				0, reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("d", 10)}, Consume: true, TtlNs: 30 * second}),
				"lease 1: d=10 until 30s; op 1 spends d=10 by 2s",
			},
			{30 * second, nil, ""},
			{2 * minute, asks("b", 0, itemOf("d", 1)), "EXHAUSTED d again at 2m30.000000001s"},
			{1, asks("b", 0, itemOf("d", 10)), "lease 2: d=10 until 7m30.000000001s"},
		}},
		{"a holder that is done with it and does not say what it used", []*logpb.Quota{atEnd, rateOf("r", 10, minute)}, []line{
			{0, asks("a", 30*second, itemOf("d", 10), itemOf("r", 1)), "lease 1: d=10 r=1 until 30s"},
			{0, consumes(1, 1, itemOf("d", 10)), "op 1 spends d=10 by 2s"},
			{0, consumeCmd(&logpb.Consume{Lease: 1, Fence: 1, Op: 2, DoneBelow: 2}), "op 2 spends r=1 by 2s"},
			{0, releases(1), "back; ended"},
			{2*minute + 30*second, asks("b", 0, itemOf("d", 1)), "EXHAUSTED d again at 2m30.000000001s"},
			{1, asks("b", 0, itemOf("d", 10)), "lease 2: d=10 until 7m30.000000001s"},
		}},
	})
}

// TestParent_SharesEachStep: each step of a child's amount applies to its ancestors' shares.
func TestParent_SharesEachStep(t *testing.T) {
	under := func(name, parent string) *logpb.Quota {
		return with(rateOf(name, 100, minute), func(q *logpb.Quota) { q.Parent = parent })
	}
	w := newWorld(t)
	w.quotas(rateOf("org", 100, minute), under("org/team", "org"), under("org/team/agent", "org/team"))
	item := func(n int64) *logpb.Item { return itemOf("org/team/agent", n) }
	for _, step := range []struct {
		name                      string
		command                   *logpb.Command
		held, consumed, available int64
		overrun                   int64
	}{
		{"held", asks("a", 0, item(50)), 50, 0, 50, 0},
		{"consumed", consumes(1, 1, item(30)), 20, 30, 50, 0},
		{"consumed again", consumes(1, 2, item(10)), 10, 40, 50, 0},
		{"a part released", releases(1, item(4)), 6, 40, 54, 0},
		{"a part unspent", unspends(1, 1, item(5)), 6, 35, 59, 0},
		{"the rest settled lower", used(1, 1, item(20)), 6, 30, 64, 0},
		{"the other settled higher", used(1, 2, item(80)), 6, 100, -6, 70},
		{"released", releases(1), 0, 100, 0, 70},
	} {
		if r := w.do(step.command); r.GetFailure() != nil || r.GetRefusal() != nil {
			t.Fatalf("%s: %v", step.name, r)
		}
		for _, quota := range []string{"org", "org/team", "org/team/agent"} {
			v, _ := w.m.State().Quota(quota, w.clock())
			if v.Held != step.held || v.Consumed != step.consumed || v.Available != step.available || v.Overrun != step.overrun {
				t.Fatalf("%s, %s: %+v", step.name, quota, v)
			}
		}
	}
	w.sleep(2 * minute)
	for _, quota := range []string{"org", "org/team", "org/team/agent"} {
		if got := w.available(quota); got != 100 {
			t.Fatalf("%s: %d are available at the end", quota, got)
		}
	}
}
