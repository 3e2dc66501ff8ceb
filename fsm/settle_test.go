package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

func consumesAtOnce(holder string, items ...*logpb.Item) *logpb.Command {
	return reserve(&logpb.Reserve{Holder: holder, Items: items, Consume: true})
}

// TestOperations: the number of a Consume identifies it permanently (design 3).
func TestOperations(t *testing.T) {
	r := rateOf("r", 100, minute)
	tell(t, []story{
		{"a part of what is held", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, consumes(1, 7, itemOf("r", 4)), "op 7 spends r=4 by 2s"},
			{second, consumes(1, 3, itemOf("r", 4)), "op 3 spends r=4 by 3s"},
			{0, consumes(1, 4, itemOf("r", 3)), "! NOT_HELD"},
			{0, consumes(1, 5), "op 5 spends r=2 by 3s"},
			{0, consumes(1, 6), "! NOT_HELD"},
		}},
		{"again under the same number, the same answer and no more", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, consumes(1, 1, itemOf("r", 4)), "op 1 spends r=4 by 2s"},
			{second, consumes(1, 1, itemOf("r", 4)), "op 1 spends r=4 by 2s"},
			{0, consumes(1, 2), "op 2 spends r=6 by 3s"},
		}},
		{"a number is for one thing", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, consumes(1, 1, itemOf("r", 4)), "op 1 spends r=4 by 2s"},
			{0, consumes(1, 1, itemOf("r", 5)), "! OPERATION_REUSED"},
			{0, consumes(1, 1), "! OPERATION_REUSED"},
		}},
		{"below the low-water mark it is over", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, consumes(1, 1, itemOf("r", 1)), "op 1 spends r=1 by 2s"},
			{0, consumeCmd(&logpb.Consume{Lease: 1, Fence: 1, Op: 2, Items: []*logpb.Item{itemOf("r", 1)}, DoneBelow: 2}), "op 2 spends r=1 by 2s"},
			{0, consumes(1, 1, itemOf("r", 1)), "! STALE_OPERATION"},
			{0, used(1, 1, itemOf("r", 1)), "! STALE_OPERATION"},
		}},
		{"a slot has nothing to consume", []*logpb.Quota{slotsOf("s", 2), r}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, consumes(1, 1), "! NOT_HELD"},
		}},
		{"a dead fence consumes nothing", []*logpb.Quota{r}, []line{
			{0, asks("a", minute, itemOf("r", 10)), "lease 1: r=10 until 1m0s"},
			{minute, consumes(1, 1), "! STALE_FENCE"},
		}},
	})
}

// TestOperations_OpenAreBounded: a lease keeps at most 1,024 open operations, and settled ones make room.
func TestOperations_OpenAreBounded(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1<<20, minute))
	g := w.granted(ask("a", itemOf("r", 5000)))
	for op := uint64(1); op <= 1024; op++ {
		if r := w.do(consumes(g.Lease, op, itemOf("r", 1))); r.GetConsumed() == nil {
			t.Fatalf("operation %d: %v", op, r)
		}
	}
	w.fails(consumes(g.Lease, 1025, itemOf("r", 1)), logpb.Reason_REASON_TOO_MANY_OPERATIONS)
	if r := w.do(consumeCmd(&logpb.Consume{
		Lease: g.Lease, Fence: g.Fence, Op: 1025, Items: []*logpb.Item{itemOf("r", 1)}, DoneBelow: 100,
	})); r.GetConsumed() == nil {
		t.Fatalf("after 99 were done with: %v", r)
	}
}

// TestSettle: returned and added amounts, and how often (design 2, estimates).
func TestSettle(t *testing.T) {
	r := rateOf("r", 100, minute)
	most := with(rateOf("m", 100, minute), func(q *logpb.Quota) { q.Settle = logpb.SettleMode_SETTLE_MODE_MAX })
	atEnd := with(rateOf("d", 10, minute), func(q *logpb.Quota) { q.Charged, q.MaxCallNs = logpb.Charged_CHARGED_END, minute })
	tell(t, []story{
		{"what was not spent goes back, once, until the spend-by", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 100)), "lease 1: r=100 until 5m0s; op 1 spends r=100 by 2s"},
			{2 * second, unspends(1, 1, itemOf("r", 30)), "settled; back r=30"},
			{0, unspends(1, 1, itemOf("r", 30)), "settled; back r=30"},
			{0, unspends(1, 1, itemOf("r", 31)), "! ALREADY_SETTLED"},
			{0, consumesAtOnce("b", itemOf("r", 30)), "lease 2: r=30 until 5m2s; op 1 spends r=30 by 4s"},
			{0, consumesAtOnce("c", itemOf("r", 1)), "EXHAUSTED r again at 1m2.400000001s"},
		}},
		{"after the spend-by nothing is unspent any more", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 100)), "lease 1: r=100 until 5m0s; op 1 spends r=100 by 2s"},
			{2*second + 1, unspends(1, 1, itemOf("r", 30)), "! PAST_SPEND_BY"},
		}},
		{"actual below the estimate returns what the provider will not count", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 100)), "lease 1: r=100 until 5m0s; op 1 spends r=100 by 2s"},
			{30 * second, used(1, 1, itemOf("r", 60)), "settled; back r=40"},
			{0, used(1, 1, itemOf("r", 60)), "settled; back r=40"},
			{0, used(1, 1, itemOf("r", 50)), "! ALREADY_SETTLED"},
			{0, consumesAtOnce("b", itemOf("r", 40)), "lease 2: r=40 until 5m30s; op 1 spends r=40 by 32s"},
		}},
		{"but not where it counts the estimate", []*logpb.Quota{most}, []line{
			{0, consumesAtOnce("a", itemOf("m", 100)), "lease 1: m=100 until 5m0s; op 1 spends m=100 by 2s"},
			{30 * second, used(1, 1, itemOf("m", 60)), "settled"},
			{0, consumesAtOnce("b", itemOf("m", 1)), "EXHAUSTED m again at 1m2.400000001s"},
		}},
		{"unspent first, actual later", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 100)), "lease 1: r=100 until 5m0s; op 1 spends r=100 by 2s"},
			{second, unspends(1, 1, itemOf("r", 30)), "settled; back r=30"},
			{second, used(1, 1, itemOf("r", 60)), "settled; back r=10"},
			{0, consumesAtOnce("b", itemOf("r", 40)), "lease 2: r=40 until 5m2s; op 1 spends r=40 by 4s"},
		}},
		{"an overrun is charged when it is reported, and nothing is granted until there is room", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 60)), "lease 1: r=60 until 5m0s; op 1 spends r=60 by 2s"},
			{30 * second, used(1, 1, itemOf("r", 120)), "settled; over r=60"},
			{0, consumesAtOnce("b", itemOf("r", 1)), "EXHAUSTED r again at 1m2.400000001s"},
			{33 * second, consumesAtOnce("b", itemOf("r", 41)), "EXHAUSTED r again at 1m30.000000001s"},
			{0, consumesAtOnce("b", itemOf("r", 40)), "lease 2: r=40 until 6m3s; op 1 spends r=40 by 1m5s"},
		}},
		{"a dead fence may still tell an overrun, once, and gets nothing back", []*logpb.Quota{r}, []line{
			{
				0, reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("r", 60)}, Consume: true, TtlNs: 10 * second}),
				"lease 1: r=60 until 10s; op 1 spends r=60 by 2s",
			},
			{20 * second, used(1, 1, itemOf("r", 50)), "! STALE_FENCE"},
			{0, unspends(1, 1, itemOf("r", 1)), "! STALE_FENCE"},
			{0, used(1, 1, itemOf("r", 70)), "settled; over r=10"},
			{0, used(1, 1, itemOf("r", 80)), "! ALREADY_SETTLED"},
			{0, consumesAtOnce("b", itemOf("r", 31)), "EXHAUSTED r again at 1m2.400000001s"},
		}},
		{"what was never consumed is not settled", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, used(1, 1, itemOf("r", 5)), "! STALE_OPERATION"},
			{0, consumes(1, 1, itemOf("r", 5)), "op 1 spends r=5 by 2s"},
			{0, unspends(1, 1, itemOf("r", 6)), "! NOT_HELD"},
		}},
		{"settling may end the lease too", []*logpb.Quota{r, slotsOf("s", 1)}, []line{
			{0, consumesAtOnce("a", itemOf("r", 10), itemOf("s", 1)), "lease 1: r=10 s=1 until 5m0s; op 1 spends r=10 by 2s"},
			{0, settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1, Actual: []*logpb.Item{itemOf("r", 4)}, Release: true}), "settled; back r=6; ended"},
			{0, asks("b", 0, itemOf("s", 1)), "lease 2: s=1 until 5m0s"},
		}},
		{"where the provider charges at the end, an operation counts from its final settle", []*logpb.Quota{atEnd}, []line{
			{0, consumesAtOnce("a", itemOf("d", 10)), "lease 1: d=10 until 5m0s; op 1 spends d=10 by 2s"},
			{4 * minute, consumesAtOnce("b", itemOf("d", 1)), "EXHAUSTED d again at 4m5s"}, // it may be settled at any time
			{0, settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1, Final: true}), "settled"},
			{0, consumesAtOnce("b", itemOf("d", 1)), "EXHAUSTED d again at 5m0.000000001s"},
			{61 * second, consumesAtOnce("b", itemOf("d", 10)), "lease 2: d=10 until 10m1s; op 1 spends d=10 by 5m3s"},
		}},
	})
}

// TestSettle_AnAncestorCountsNoMoreThanItCan: overruns of its other descendants reduce the largest further overrun.
func TestSettle_AnAncestorCountsNoMoreThanItCan(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("org", 1000, day), under(rateOf("org/a", 1000, day), "org"), under(rateOf("org/b", 1000, day), "org"))
	w.do(consumesAtOnce("a", itemOf("org/a", 1)))
	const most = 200
	for range most {
		w.raw(consumesAtOnce("b", itemOf("org/b", 1)))
	}
	lease := uint64(2)
	for ; w.raw(used(lease, 1, itemOf("org/b", fixed.MaxAmount)))[0].GetSettled() != nil; lease++ {
		if lease > most {
			t.Fatal("the other descendant never ends")
		}
	}
	w.fails(used(1, 1, itemOf("org/a", fixed.MaxAmount)), logpb.Reason_REASON_INVALID)
}
