package fsm

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestDeadlines: graces, lengths and clamps (design 2 and 3); lease_test.go has more.
func TestDeadlines(t *testing.T) {
	r, s := rateOf("r", 10, minute), slotsOf("s", 1)
	graced := slotsOf("g", 1)
	graced.GetSlots().GraceNs = 20 * second
	tell(t, []story{
		{"a short lease's slot has a grace of a second", []*logpb.Quota{s}, []line{
			{0, asks("a", 2*second, itemOf("s", 1)), "lease 1: s=1 until 2s"},
			{3*second - 1, asks("b", 0, itemOf("s", 1)), "EXHAUSTED s again at 3s"},
			{1, asks("b", 0, itemOf("s", 1)), "lease 2: s=1 until 5m3s"},
		}},
		{"a grace as configured", []*logpb.Quota{graced}, []line{
			{0, asks("a", 10*second, itemOf("g", 1)), "lease 1: g=1 until 10s"},
			{30*second - 1, asks("b", 0, itemOf("g", 1)), "EXHAUSTED g again at 30s"},
			{1, asks("b", 0, itemOf("g", 1)), "lease 2: g=1 until 5m30s"},
		}},
		{"in its grace nobody can release a slot", []*logpb.Quota{s}, []line{
			{0, asks("a", 100*second, itemOf("s", 1)), "lease 1: s=1 until 1m40s"},
			{101 * second, releases(1), "! STALE_FENCE"},
			{0, settle(&logpb.Settle{Lease: 1, Fence: 1, Actual: []*logpb.Item{itemOf("s", 5)}}), "! STALE_FENCE"},
			{0, reports(1, 0, signal("s", logpb.Cause_CAUSE_SATURATED)), "! STALE_FENCE"},
			{0, asks("b", 0, itemOf("s", 1)), "EXHAUSTED s again at 1m50s"},
		}},
		{"a renewed slot is kept from its last deadline on", []*logpb.Quota{s}, []line{
			{0, asks("a", 10*second, itemOf("s", 1)), "lease 1: s=1 until 10s"},
			{5 * second, renews(1, 10*second), "until 15s"},
			{11*second - 1, asks("b", 0, itemOf("s", 1)), "EXHAUSTED s again at 16s"},
			{1, asks("b", 0, itemOf("s", 1)), "lease 2: s=1 until 5m16s"},
		}},
		{"a length is a second to a day", []*logpb.Quota{r}, []line{
			{0, asks("a", second-1, itemOf("r", 1)), "! INVALID"},
			{0, asks("a", day+1, itemOf("r", 1)), "! INVALID"},
			{0, asks("a", second, itemOf("r", 1)), "lease 1: r=1 until 1s"},
			{0, renews(1, second-1), "! INVALID"},
			{0, renews(1, -second), "! INVALID"},
			{0, renews(1, day+1), "! INVALID"},
			{0, renews(1, day), "until 24h0m0s"},
		}},
		{"renewing without a length is for the length that was asked", []*logpb.Quota{r}, []line{
			{0, asks("a", 30*second, itemOf("r", 1)), "lease 1: r=1 until 30s"},
			{20 * second, renews(1, 0), "until 50s"},
			{29 * second, renews(1, 0), "until 1m19s"},
			{30 * second, renews(1, 0), "! STALE_FENCE"},
		}},
		{"of two bounds of a hold the smaller counts, and slots are not clamped", []*logpb.Quota{
			with(rateOf("a", 10, minute), func(q *logpb.Quota) { q.ClampHold, q.MaxHold = true, proto.Int64(3) }),
			with(rateOf("b", 10, minute), func(q *logpb.Quota) { q.ClampHold, q.MaxHold = true, proto.Int64(8) }),
			with(slotsOf("c", 4), func(q *logpb.Quota) { q.ClampHold = true }),
			with(rateOf("d", 1, minute), func(q *logpb.Quota) { q.ClampHold = true }),
		}, []line{
			{0, asks("x", 0, itemOf("a", 4)), "ABOVE_CLAMP a"},
			{0, asks("x", 0, itemOf("b", 6)), "ABOVE_CLAMP b"},
			{0, asks("x", 0, itemOf("a", 3), itemOf("b", 5), itemOf("c", 4), itemOf("d", 1)), "lease 1: a=3 b=5 c=4 d=1 until 5m0s"},
		}},
		{"a bound is of one quota's own holds", []*logpb.Quota{
			with(rateOf("org", 10, minute), func(q *logpb.Quota) { q.ClampHold = true }),
			with(rateOf("org/a", 10, minute), func(q *logpb.Quota) { q.Parent = "org" }),
			with(rateOf("org/b", 10, minute), func(q *logpb.Quota) { q.Parent = "org" }),
		}, []line{
			{0, asks("x", 0, itemOf("org", 6)), "ABOVE_CLAMP org"},
			{0, asks("x", 0, itemOf("org/a", 6), itemOf("org/b", 4)), "lease 1: org/a=6 org/b=4 until 5m0s"},
		}},
	})
}

// TestLease_EachItemHasItsOwnEnd: a window's item ends when the window's boundary begins, if that is before the deadline.
func TestLease_EachItemHasItsOwnEnd(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute), hourly("h", 10), anchored("p", 10))
	for ttl, want := range map[int64][]int64{
		10 * minute: {10 * minute, 10 * minute, 10 * minute},
		2 * hour:    {2 * hour, hour - second, 2 * hour},
	} {
		g := w.granted(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("r", 1), itemOf("h", 1), itemOf("p", 1)}, TtlNs: ttl})
		for i, item := range g.Items {
			if item.UntilNs != want[i] {
				t.Fatalf("of %d min, %s ends at %d s, want %d", ttl/minute, item.Quota, item.UntilNs/second, want[i]/second)
			}
		}
	}
}

// TestRefusal_PrecedenceOfReasons: of two obstacles, in any order, the refusal has the reason with precedence.
func TestRefusal_PrecedenceOfReasons(t *testing.T) {
	conditions := []struct {
		item   *logpb.Item
		reason logpb.Reason
	}{
		{itemOf("s", 2), logpb.Reason_REASON_NEVER_FITS},
		{itemOf("c", 6), logpb.Reason_REASON_ABOVE_CLAMP},
		{itemOf("zero", 1), logpb.Reason_REASON_SUSPENDED},
		{itemOf("closed", 1), logpb.Reason_REASON_COOLDOWN},
		{itemOf("full", 1), logpb.Reason_REASON_EXHAUSTED},
	}
	for i, first := range conditions {
		for _, other := range conditions[i+1:] {
			for _, items := range [][]*logpb.Item{{first.item, other.item}, {other.item, first.item}} {
				w := refusingWorld(t)
				if r := w.refused(ask("x", items...), first.reason); r.Quota != first.item.Quota {
					t.Errorf("%v: %v", items, r)
				}
			}
		}
	}
}

// TestExpiry_InOrderOfDeadlines: not in that of leases.
func TestExpiry_InOrderOfDeadlines(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	for _, ttl := range []int64{30 * second, 10 * second, 20 * second, 10 * second} {
		w.do(asks("a", ttl, itemOf("r", 1)))
	}
	w.do(renews(2, 25*second))
	w.sleep(minute)
	var ended []uint64
	for i := range w.last.Events {
		if e := &w.last.Events[i]; e.Kind == effect.EventExpired {
			ended = append(ended, e.Lease)
		}
	}
	if !slices.Equal(ended, []uint64{4, 3, 2, 1}) {
		t.Fatalf("ended in the order %v", ended)
	}
}

// TestRaiseEpoch keeps leases alive with their fences, and every later fence is above all earlier ones.
func TestRaiseEpoch(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	w.granted(ask("a", itemOf("r", 1)))
	old := w.granted(ask("b", itemOf("r", 1)))
	if got := say(w.do(raisesEpoch(3))); got != "done" {
		t.Fatal(got)
	}
	for _, epoch := range []uint32{0, 2, 3, 1 << 16} {
		w.fails(raisesEpoch(epoch), logpb.Reason_REASON_EPOCH_NOT_RAISED)
	}
	w.reborn()
	if r := w.do(renew(&logpb.Renew{Lease: old.Lease, Fence: old.Fence})); r.GetRenewed() == nil {
		t.Fatalf("%v", r)
	}
	g := w.granted(ask("c", itemOf("r", 1)))
	if g.Fence != 3<<48|1 || g.Fence <= old.Fence {
		t.Fatalf("fence %d after %d", g.Fence, old.Fence)
	}
	for fence, reason := range map[uint64]logpb.Reason{
		old.Fence:   logpb.Reason_REASON_STALE_FENCE,
		3 << 48:     logpb.Reason_REASON_STALE_FENCE,
		g.Fence + 1: logpb.Reason_REASON_NEVER_ISSUED,
		4<<48 | 1:   logpb.Reason_REASON_NEVER_ISSUED,
	} {
		if f := w.fails(renew(&logpb.Renew{Lease: g.Lease, Fence: fence}), reason); f.FenceCounter != g.Fence {
			t.Fatalf("fence %d: the counter is %d, the failure says %d", fence, g.Fence, f.FenceCounter)
		}
	}
}

// TestProvisional_DeadlineUntilConfirmed: five seconds to confirm, unless its lease is shorter or already consumed. A confirmation
// gives the lease the requested length.
func TestProvisional_DeadlineUntilConfirmed(t *testing.T) {
	for _, c := range []struct {
		name        string
		ttl         int64
		consume     bool
		show        *logpb.Command
		first, then int64
	}{
		{"not shown", 10 * minute, false, nil, 5 * second, 5 * second},
		{"a short lease", 3 * second, false, nil, 3 * second, 3 * second},
		{"consumed at once", 10 * minute, true, nil, 10 * minute, 10 * minute},
		{"a Renew", 10 * minute, false, renews(2, 0), 5 * second, 10*minute + second},
		{"a Consume", 10 * minute, false, consumes(2, 1, itemOf("r", 1)), 5 * second, 10*minute + second},
		{"a Consume that fails", 10 * minute, false, consumes(2, 1, itemOf("r", 99)), 5 * second, 5 * second},
		{"a Release of a part", 10 * minute, false, releases(2, itemOf("r", 1)), 5 * second, 5 * second},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("r", 10, minute))
			w.granted(ask("a", itemOf("r", 10)))
			a := &logpb.Reserve{Holder: "b", Items: []*logpb.Item{itemOf("r", 5)}, TtlNs: c.ttl, WaitNs: minute, Consume: c.consume}
			w.waiting(reserve(a))
			w.do(releases(1))
			g := w.last.Events[len(w.last.Events)-1].Result.GetGranted()
			if g.GetDeadlineNs() != c.first || g.GetAskedTtlNs() != c.ttl {
				t.Fatalf("%v", g)
			}
			w.sleep(second)
			if c.show != nil {
				w.do(c.show)
			}
			if _, left := w.m.State().CheckFence(2, 2, w.clock()); left != c.then-second {
				t.Fatalf("%d ms are left, want %d", left/millisecond, (c.then-second)/millisecond)
			}
		})
	}
}
