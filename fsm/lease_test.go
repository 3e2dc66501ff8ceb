package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestLease: the length of a lease, changes of its deadline, and the effects of its fence afterwards (design 3).
func TestLease(t *testing.T) {
	r, s := rateOf("r", 10, minute), slotsOf("s", 2)
	tell(t, []story{
		{"five minutes where no length is asked", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 1)), "lease 1: r=1 until 5m0s"},
		}},
		{"the length asked", []*logpb.Quota{r}, []line{
			{0, asks("a", 30*second, itemOf("r", 1)), "lease 1: r=1 until 30s"},
		}},
		{"the held part comes back at the deadline, not before", []*logpb.Quota{r}, []line{
			{0, asks("a", 30*second, itemOf("r", 10)), "lease 1: r=10 until 30s"},
			{30*second - 1, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 34.999999999s"},
			{1, asks("b", 30*second, itemOf("r", 10)), "lease 2: r=10 until 1m0s"},
		}},
		{"a command that meets an expired lease before its expiry does", []*logpb.Quota{r}, []line{
			{0, asks("a", 30*second, itemOf("r", 10)), "lease 1: r=10 until 30s"},
			{30 * second, renews(1, minute), "! STALE_FENCE"},
		}},
		{"renewing moves the deadline, never to an earlier time", []*logpb.Quota{r}, []line{
			{0, asks("a", minute, itemOf("r", 1)), "lease 1: r=1 until 1m0s"},
			{10 * second, renews(1, 0), "until 1m10s"},
			{0, renews(1, 10*second), "until 1m10s"},
			{0, renews(1, 2*minute), "until 2m10s"},
			{2*minute - second, renews(1, minute), "until 3m9s"},
		}},
		{"releasing all ends it, once", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 3)), "lease 1: r=3 until 5m0s"},
			{0, releases(1), "back r=3; ended"},
			{0, releases(1), "! STALE_FENCE"},
			{0, asks("a", 0, itemOf("r", 10)), "lease 2: r=10 until 5m0s"},
		}},
		{"releasing a part keeps the rest", []*logpb.Quota{r, s}, []line{
			{0, asks("a", 0, itemOf("r", 3), itemOf("s", 2)), "lease 1: r=3 s=2 until 5m0s"},
			{0, releases(1, itemOf("r", 2)), "back r=2"},
			{0, releases(1, itemOf("r", 2)), "! NOT_HELD"},
			{0, releases(1, all("r")), "back r=1"},
			{0, releases(1, itemOf("s", 1)), "back s=1"},
			{0, asks("b", 0, itemOf("s", 1)), "lease 2: s=1 until 5m0s"},
			{0, releases(1), "back s=1; ended"},
		}},
		{"any fence but its own is stale, one above the counter was never issued", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 1)), "lease 1: r=1 until 5m0s"},
			{0, asks("b", 0, itemOf("r", 1)), "lease 2: r=1 until 5m0s"},
			{0, renew(&logpb.Renew{Lease: 1, Fence: 2}), "! STALE_FENCE"},
			{0, renew(&logpb.Renew{Lease: 2, Fence: 1}), "! STALE_FENCE"},
			{0, renew(&logpb.Renew{Lease: 1, Fence: 3}), "! NEVER_ISSUED"},
			{0, renew(&logpb.Renew{Lease: 9, Fence: 2}), "! STALE_FENCE"},
		}},
		{"a slot frees at the deadline and a grace of a tenth", []*logpb.Quota{s}, []line{
			{0, asks("a", 100*second, itemOf("s", 2)), "lease 1: s=2 until 1m40s"},
			{100 * second, renews(1, minute), "! STALE_FENCE"},
			{9 * second, asks("b", 0, itemOf("s", 1)), "EXHAUSTED s again at 1m50s"},
			{second, asks("b", 0, itemOf("s", 2)), "lease 2: s=2 until 6m50s"},
		}},
		{"a slot that is released frees at once", []*logpb.Quota{s}, []line{
			{0, asks("a", 100*second, itemOf("s", 2)), "lease 1: s=2 until 1m40s"},
			{0, releases(1), "back s=2; ended"},
			{0, asks("b", 0, itemOf("s", 2)), "lease 2: s=2 until 5m0s"},
		}},
		{"resuming ends one's older leases first, and nobody else's", []*logpb.Quota{r, s}, []line{
			{0, asks("a", 0, itemOf("r", 6), itemOf("s", 1)), "lease 1: r=6 s=1 until 5m0s"},
			{0, asks("b", 0, itemOf("r", 2), itemOf("s", 1)), "lease 2: r=2 s=1 until 5m0s"},
			{
				0, reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("r", 8), itemOf("s", 1)}, Resume: true}),
				"lease 3: r=8 s=1 until 5m0s",
			},
			{0, renews(1, 0), "! STALE_FENCE"},
			{0, renews(2, 0), "until 5m0s"},
		}},
		{"a revoked lease is dead", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 6)), "lease 1: r=6 until 5m0s"},
			{0, &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: 1}}}, "back r=6; ended"},
			{0, consumes(1, 1), "! STALE_FENCE"},
			{0, &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: 1}}}, "! UNKNOWN_LEASE"},
		}},
		{"a window's item ends with its window, the lease and its other items live on", []*logpb.Quota{hourly("h", 10), r}, []line{
			{0, asks("a", 2*hour, itemOf("h", 4), itemOf("r", 4)), "lease 1: h=4 r=4 until 2h0m0s"},
			{hour + 2*second, consumes(1, 1, itemOf("h", 1)), "! ITEM_CLOSED"},
			{0, consumes(1, 1, itemOf("r", 1)), "op 1 spends r=1 by 1h0m4s"},
			{0, asks("b", 0, itemOf("h", 10)), "lease 2: h=10 until 1h5m2s"},
		}},
		{"a foreign lease is not touched", []*logpb.Quota{r}, []line{
			{0, asks("ralph@1", 0, itemOf("r", 1)), "lease 1: r=1 until 5m0s"},
			{0, with(renews(1, 0), func(c *logpb.Command) { c.By = "picard*" }), "! FOREIGN_LEASE"},
			{0, with(releases(1), func(c *logpb.Command) { c.By = "picard*" }), "! FOREIGN_LEASE"},
			{0, with(consumes(1, 1), func(c *logpb.Command) { c.By = "picard*" }), "! FOREIGN_LEASE"},
			{0, with(renews(1, 0), func(c *logpb.Command) { c.By = "ralph*" }), "until 5m0s"},
		}},
	})
}

// TestReserve: possible requests, in the documented precedence of refusals (design 2 and 6).
func TestReserve(t *testing.T) {
	clamped := with(rateOf("c", 10, minute), func(q *logpb.Quota) { most := int64(4); q.MaxHold = &most })
	clamping := with(rateOf("k", 9, minute), func(q *logpb.Quota) { q.ClampHold = true })
	estimated := with(rateOf("e", 10, minute), func(q *logpb.Quota) { q.DefaultEstimate = 3 })
	head := with(rateOf("p", 10, minute), func(q *logpb.Quota) { q.HeadroomPpm = 250_000 })
	tell(t, []story{
		{"an unknown quota is an error, whatever else is asked", []*logpb.Quota{rateOf("r", 10, minute)}, []line{
			{0, asks("a", 0, itemOf("r", 1), itemOf("nowhere", 1)), "! UNKNOWN_QUOTA"},
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
		}},
		{"what can never fit is said before what does not fit now", []*logpb.Quota{rateOf("r", 10, minute)}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, asks("b", 0, itemOf("r", 11)), "NEVER_FITS r"},
			{0, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 5s"}, // a holder may release some at any time
		}},
		{"headroom is kept, rounded down", []*logpb.Quota{head}, []line{
			{0, asks("a", 0, itemOf("p", 8)), "NEVER_FITS p"},
			{0, asks("a", 0, itemOf("p", 7)), "lease 1: p=7 until 5m0s"},
		}},
		{"a limit of 0 suspends", []*logpb.Quota{rateOf("z", 0, minute)}, []line{
			{0, asks("a", 0, itemOf("z", 1)), "SUSPENDED z"},
		}},
		{"one hold can be bounded", []*logpb.Quota{clamped}, []line{
			{0, asks("a", 0, itemOf("c", 5)), "ABOVE_CLAMP c"},
			{0, asks("a", 0, itemOf("c", 4)), "lease 1: c=4 until 5m0s"},
			{0, asks("a", 0, itemOf("c", 4)), "lease 2: c=4 until 5m0s"},
		}},
		{"or to half of usable, rounded up", []*logpb.Quota{clamping}, []line{
			{0, asks("a", 0, itemOf("k", 6)), "ABOVE_CLAMP k"},
			{0, asks("a", 0, itemOf("k", 5)), "lease 1: k=5 until 5m0s"},
		}},
		{"no estimate is the quota's default, never none", []*logpb.Quota{estimated, rateOf("r", 10, minute)}, []line{
			{0, asks("a", 0, all("e"), all("r")), "lease 1: e=3 r=1 until 5m0s"},
		}},
		{"all or nothing, whichever binds, in any order", []*logpb.Quota{rateOf("r", 10, minute), rateOf("q", 3, minute)}, []line{
			{0, asks("a", 0, itemOf("r", 4), itemOf("q", 3)), "lease 1: r=4 q=3 until 5m0s"},
			{0, asks("b", 0, itemOf("r", 1), itemOf("q", 1)), "EXHAUSTED q again at 5s"},
			{0, asks("b", 0, itemOf("q", 1), itemOf("r", 1)), "EXHAUSTED q again at 5s"},
			{0, asks("b", 0, itemOf("r", 6)), "lease 2: r=6 until 5m0s"},
		}},
		{"a retry after what was said is granted where nobody else asked", []*logpb.Quota{rateOf("r", 10, minute)}, []line{
			{
				0, reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("r", 10)}, Consume: true}),
				"lease 1: r=10 until 5m0s; op 1 spends r=10 by 2s",
			},
			{second, asks("b", 0, itemOf("r", 10)), "EXHAUSTED r again at 1m2.400000001s"}, // spend-by, period, bucket
			{61*second + 400*millisecond, asks("b", 0, itemOf("r", 10)), "EXHAUSTED r again at 1m2.400000001s"},
			{1, asks("b", 0, itemOf("r", 10)), "lease 2: r=10 until 6m2.400000001s"},
		}},
	})
}
