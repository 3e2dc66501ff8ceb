package fsm

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestQueue_Waits: which requests wait, for how long, and how a wait ends (design 6.5).
func TestQueue_Waits(t *testing.T) {
	s, r := slotsOf("s", 1), rateOf("r", 10, minute)
	classOf := func(class int32, c *logpb.Command) *logpb.Command {
		c.GetReserve().Class = &class
		return c
	}
	tell(t, []story{
		{"what fits does not wait", []*logpb.Quota{s}, []line{
			{0, waits("a", 0, minute, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
		}},
		{"what can never fit does not wait either", []*logpb.Quota{s}, []line{
			{0, waits("a", 0, minute, itemOf("s", 2)), "NEVER_FITS s"},
		}},
		{"a wait ends at its deadline", []*logpb.Quota{s}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("s", 1)), "waits as 1 until 1m0s"},
			{minute, withdraw(1), "! UNKNOWN_TICKET"},
			{0, releases(1), "back s=1; ended"},
			{0, asks("c", 0, itemOf("s", 1)), "lease 2: s=1 until 6m0s"},
		}},
		{"a wait can be withdrawn, once", []*logpb.Quota{s}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("s", 1)), "waits as 1 until 1m0s"},
			{0, with(withdraw(1), func(c *logpb.Command) { c.By = "c*" }), "! FOREIGN_LEASE"},
			{0, withdraw(1), "done"},
			{0, withdraw(1), "! UNKNOWN_TICKET"},
			{0, releases(1), "back s=1; ended"},
			{0, asks("c", 0, itemOf("s", 1)), "lease 2: s=1 until 5m0s"},
		}},
		{"a granted waiter has five seconds to show that it is there", []*logpb.Quota{s}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, waits("b", 10*minute, minute, itemOf("s", 1)), "waits as 1 until 1m0s"},
			{0, releases(1), "back s=1; ended"},
			{4 * second, renews(2, 0), "until 10m4s"},
		}},
		{"and without that it ends", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
			{0, waits("b", 10*minute, minute, itemOf("r", 10)), "waits as 1 until 1m0s"},
			{0, releases(1), "back r=10; ended"},
			{5 * second, consumes(2, 1), "! STALE_FENCE"},
			{0, asks("c", 0, itemOf("r", 10)), "lease 3: r=10 until 5m5s"},
		}},
		{"without a wait one stands behind those who wait", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 8)), "lease 1: r=8 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("r", 5)), "waits as 1 until 1m0s"},
			{0, asks("c", 0, itemOf("r", 2)), "BEHIND_WAITERS r again at 1s"},
			{0, releases(1), "back r=8; ended"},
			{0, asks("c", 0, itemOf("r", 5)), "lease 3: r=5 until 5m0s"},
		}},
		{"unless one's class goes before theirs", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 8)), "lease 1: r=8 until 5m0s"},
			{0, classOf(2, waits("b", 0, minute, itemOf("r", 5))), "waits as 1 until 1m0s"},
			{0, asks("c", 0, itemOf("r", 2)), "lease 2: r=2 until 5m0s"},
		}},
		{"a caller may lower its class, not raise it", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 8)), "lease 1: r=8 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("r", 5)), "waits as 1 until 1m0s"},
			{0, classOf(0, asks("c", 0, itemOf("r", 2))), "BEHIND_WAITERS r again at 1s"},
		}},
		{"what cannot be served in time is said at once", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 10)), "lease 1: r=10 until 5m0s; op 1 spends r=10 by 2s"},
			{3 * second, waits("b", 0, 30*second, itemOf("r", 10)), "waits as 1 until 33s"}, // some may still be returned
			{0, withdraw(1), "done"},
			{0, settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1, Final: true, DoneBelow: 2}), "settled"}, // and now no longer
			{0, waits("b", 0, 30*second, itemOf("r", 10)), "CANNOT_SERVE_IN_TIME r again at 1m2.400000001s"},
			{0, waits("b", 0, minute, itemOf("r", 10)), "waits as 2 until 1m3s"},
			{59*second + 500*millisecond, consumes(2, 1), "op 1 spends r=10 by 1m4.5s"},
		}},
	})
}

// grantedTickets returns the tickets that the last entry granted, in order.
func (w *world) grantedTickets() (tickets []uint64) {
	for i := range w.last.Events {
		if e := &w.last.Events[i]; e.Kind == effect.EventGranted && e.Ticket != 0 && e.Result != nil {
			tickets = append(tickets, e.Ticket)
		}
	}
	return tickets
}

func (w *world) waiting(command *logpb.Command) uint64 {
	w.t.Helper()
	r := w.do(command)
	if r.GetWaiting() == nil {
		w.t.Fatalf("does not wait: %v", r)
	}
	return r.GetWaiting().Ticket
}

// TestQueue_OnlyFirstOfShortQuotaReserves: others that need it are passed over; waiters that do not need it are served.
func TestQueue_OnlyFirstOfShortQuotaReserves(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), rateOf("r", 10, minute), rateOf("x", 10, minute))
	w.granted(ask("holds", itemOf("s", 1)))
	both := w.waiting(waits("both", 0, minute, itemOf("s", 1), itemOf("r", 8))) // sets 8 of r aside
	w.refused(ask("late", itemOf("r", 3)), logpb.Reason_REASON_BEHIND_WAITERS)
	w.granted(ask("late", itemOf("r", 2)))
	w.granted(ask("else", itemOf("x", 10)))
	second := w.waiting(waits("next", 0, minute, itemOf("s", 1), itemOf("r", 1)))
	w.do(releases(1))
	if got := w.grantedTickets(); !slices.Equal(got, []uint64{both}) {
		t.Fatalf("granted %v, want %d alone: ticket %d needs the slot too", got, both, second)
	}
}

// TestVirtualTime_FollowsWeights: of two holders of one class that always wait, one of weight 3 gets three times as much.
func TestVirtualTime_FollowsWeights(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	w.do(holders(&logpb.HolderRule{Pattern: "heavy", Class: 1, Weight: 3}, &logpb.HolderRule{Pattern: "light", Class: 1, Weight: 1}))
	w.granted(ask("first", itemOf("s", 1)))
	of := map[uint64]string{}
	for _, name := range []string{"heavy", "light"} {
		of[w.waiting(waits(name, 0, 10*minute, itemOf("s", 1)))] = name
	}
	served := map[string]int{}
	for lease := uint64(1); lease <= 80; lease++ {
		w.do(releases(lease))
		tickets := w.grantedTickets()
		if len(tickets) != 1 {
			t.Fatalf("%d were granted", len(tickets))
		}
		name := of[tickets[0]]
		served[name]++
		of[w.waiting(waits(name, 0, 10*minute, itemOf("s", 1)))] = name
	}
	if served["heavy"] < 58 || served["heavy"] > 62 {
		t.Fatalf("served %v, want 60 to 20", served)
	}
}

// TestVirtualTime_FollowsWeightsWithSmallGrants: a grant costs less than the heavy holder's weight, and still counts;
// also over restores.
func TestVirtualTime_FollowsWeightsWithSmallGrants(t *testing.T) {
	const usable, grants = 1_000_000_000_000, 1500
	w := newWorld(t)
	w.quotas(slotsOf("s", usable))
	w.do(holders(&logpb.HolderRule{Pattern: "heavy", Class: 1, Weight: 100}, &logpb.HolderRule{Pattern: "light", Class: 1, Weight: 1}))
	all := ask("all", itemOf("s", usable-1))
	all.TtlNs = day
	w.granted(all)
	w.granted(ask("first", itemOf("s", 1)))
	of := map[uint64]string{}
	for _, name := range []string{"light", "heavy"} {
		of[w.waiting(waits(name, 0, 10*minute, itemOf("s", 1)))] = name
	}
	served := map[string]int{}
	for lease := uint64(2); lease < 2+grants; lease++ {
		w.do(releases(lease))
		tickets := w.grantedTickets()
		if len(tickets) != 1 {
			t.Fatalf("%d were granted", len(tickets))
		}
		name := of[tickets[0]]
		served[name]++
		of[w.waiting(waits(name, 0, 10*minute, itemOf("s", 1)))] = name
		if lease%100 == 0 {
			w.reborn()
		}
	}
	if served["light"] < 14 || served["light"] > 17 {
		t.Fatalf("served %v, want 15 to the light one of %d", served, grants)
	}
}

// TestVirtualTime_AbsentHolderSavesNone: a holder that was away takes turns from now on, and does not catch up.
func TestVirtualTime_AbsentHolderSavesNone(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	w.granted(ask("busy", itemOf("s", 1)))
	for lease := uint64(1); lease <= 20; lease++ {
		w.waiting(waits("busy", 0, 10*minute, itemOf("s", 1)))
		w.do(releases(lease))
	}
	var order []string
	of := map[uint64]string{}
	for range 4 {
		of[w.waiting(waits("busy", 0, 10*minute, itemOf("s", 1)))] = "busy"
		of[w.waiting(waits("away", 0, 10*minute, itemOf("s", 1)))] = "away"
	}
	for lease := uint64(21); lease < 29; lease++ {
		w.do(releases(lease))
		for _, ticket := range w.grantedTickets() {
			order = append(order, of[ticket])
		}
	}
	away := 0
	for _, name := range order[:4] {
		if name == "away" {
			away++
		}
	}
	if len(order) != 8 || away > 3 {
		t.Fatalf("served %v: who was away took all turns", order)
	}
}

// TestQueue_IsBounded: a full queue refuses, and leaving waiters make room.
func TestQueue_IsBounded(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	most := int64(3)
	w.do(&logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{MaxWaiters: &most}}})
	w.granted(ask("first", itemOf("s", 1)))
	last := uint64(0)
	for range 3 {
		last = w.waiting(waits("a", 0, minute, itemOf("s", 1)))
	}
	if got := say(w.do(waits("b", 0, minute, itemOf("s", 1)))); got[:10] != "QUEUE_FULL" {
		t.Fatal(got)
	}
	w.do(withdraw(last))
	w.waiting(waits("b", 0, minute, itemOf("s", 1)))
}

// TestQueue_EachFreedSlotWakesNext: whatever frees a slot (release, expiry, revocation, a raised limit), the next
// waiter is served in the same entry.
func TestQueue_EachFreedSlotWakesNext(t *testing.T) {
	free := map[string]func(*world){
		"release": func(w *world) { w.do(releases(1)) },
		"expiry":  func(w *world) { w.sleep(5*minute + 30*second) },
		"revocation": func(w *world) {
			w.do(&logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: 1}}})
			w.sleep(5*minute + 30*second) // its deadline and the grace: its holder may not know of it
		},
		"a raised limit": func(w *world) { w.quotas(slotsOf("s", 2)) },
		"resumption": func(w *world) {
			w.do(reserve(&logpb.Reserve{Holder: "first", Items: []*logpb.Item{itemOf("r", 1)}, Resume: true}))
		},
	}
	for name, fn := range free {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(slotsOf("s", 1), rateOf("r", 10, minute))
			w.granted(ask("first", itemOf("s", 1)))
			ticket := w.waiting(waits("b", 0, 10*minute, itemOf("s", 1)))
			fn(w)
			if got := w.grantedTickets(); !slices.Equal(got, []uint64{ticket}) {
				t.Fatalf("granted %v", got)
			}
		})
	}
}
