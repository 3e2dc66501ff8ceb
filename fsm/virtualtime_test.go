package fsm

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestQueue_Order: which waiters are passed over, and what changes the order (design 6.5); queue_test.go has more.
func TestQueue_Order(t *testing.T) {
	r, s := rateOf("r", 10, minute), slotsOf("s", 1)
	under := with(rateOf("org/a", 10, minute), func(q *logpb.Quota) { q.Parent = "org" })
	resuming := reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("s", 1)}, WaitNs: minute, Resume: true})
	tell(t, []story{
		{"a wait is ten minutes at most", []*logpb.Quota{s}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, waits("b", 0, 10*minute+1, itemOf("s", 1)), "! INVALID"},
			{0, waits("b", 0, 10*minute, itemOf("s", 1)), "waits as 1 until 10m0s"},
		}},
		{"a holder that waits for what is closed keeps nothing from others", []*logpb.Quota{r, s}, []line{
			{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(20*second))), "reported: r closed until 20s"},
			{0, waits("b", 0, minute, itemOf("r", 1), itemOf("s", 1)), "waits as 1 until 1m0s"},
			{0, asks("c", 0, itemOf("s", 1)), "lease 2: s=1 until 5m0s"},
			{10 * second, releases(2), "back s=1; ended"},
			{10 * second, nil, ""}, // it reopens, and the waiter is served
			{0, renews(3, 0), "until 5m20s"},
		}},
		{"who could be served at once would not wait, though it asked to", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 5)), "lease 1: r=5 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("r", 5)), "lease 2: r=5 until 5m0s"},
		}},
		{"what a wait ahead kept comes free with its end", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 8)), "lease 1: r=8 until 5m0s"},
			{0, waits("b", 0, 10*second, itemOf("r", 5)), "waits as 1 until 10s"},
			{0, waits("c", 0, minute, itemOf("r", 2)), "waits as 3 until 1m0s"},
			{10*second - 1, renews(2, 0), "! NEVER_ISSUED"},
			{1, renews(2, 0), "until 5m10s"},
		}},
		{"or with its withdrawal", []*logpb.Quota{r}, []line{
			{0, asks("a", 0, itemOf("r", 8)), "lease 1: r=8 until 5m0s"},
			{0, waits("b", 0, 10*second, itemOf("r", 5)), "waits as 1 until 10s"},
			{0, waits("c", 0, minute, itemOf("r", 2)), "waits as 3 until 1m0s"},
			{second, withdraw(1), "done"},
			{0, renews(2, 0), "until 5m1s"},
		}},
		{"a line for a child is one for its parent", []*logpb.Quota{rateOf("org", 10, minute), under}, []line{
			{0, asks("a", 0, itemOf("org", 8)), "lease 1: org=8 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("org/a", 5)), "waits as 1 until 1m0s"},
			{0, asks("c", 0, itemOf("org", 2)), "BEHIND_WAITERS org again at 1s"},
			{0, withdraw(1), "done"},
			{0, asks("c", 0, itemOf("org", 2)), "lease 2: org=2 until 5m0s"},
		}},
		{"time alone serves too", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 10)), "lease 1: r=10 until 5m0s; op 1 spends r=10 by 2s"},
			{0, waits("b", 0, 2*minute, itemOf("r", 10)), "waits as 1 until 2m0s"},
			{minute + 2*second + 400*millisecond, renews(2, 0), "! NEVER_ISSUED"},
			{1, renews(2, 0), "until 6m2.400000001s"},
		}},
		{"what a settle returns serves", []*logpb.Quota{r}, []line{
			{0, consumesAtOnce("a", itemOf("r", 10)), "lease 1: r=10 until 5m0s; op 1 spends r=10 by 2s"},
			{0, waits("b", 0, minute, itemOf("r", 4)), "waits as 1 until 1m0s"},
			{second, used(1, 1, itemOf("r", 7)), "settled; back r=3"},
			{0, renews(2, 0), "! NEVER_ISSUED"},
			{0, withdraw(1), "done"},
			{0, waits("b", 0, minute, itemOf("r", 3)), "lease 2: r=3 until 5m1s"},
		}},
		{"who resumes may be served by what it held itself", []*logpb.Quota{s}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, resuming, "lease 2: s=1 until 5m0s"},
		}},
	})
}

// TestQueue_KeepsOrderWithinHolder: even across classes, for the same quota.
func TestQueue_KeepsOrderWithinHolder(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	w.granted(ask("first", itemOf("s", 1)))
	low := w.waiting(reserve(&logpb.Reserve{
		Holder: "a", Items: []*logpb.Item{itemOf("s", 1)}, WaitNs: minute,
		Class: new(ledger.ClassBackground),
	}))
	want := []uint64{
		w.waiting(waits("a", 0, minute, itemOf("s", 1))), w.waiting(waits("a", 0, minute, itemOf("s", 1))),
		w.waiting(waits("a", 0, minute, itemOf("s", 1))), low,
	}
	var got []uint64
	for lease := uint64(1); lease <= 4; lease++ {
		w.reborn()
		w.do(releases(lease))
		got = append(got, w.grantedTickets()...)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("granted %v, want %v", got, want)
	}
}

// TestVirtualTime_ReturnsUnused: a holder whose virtual time was restored in full goes before one that used less than it
// took.
func TestVirtualTime_ReturnsUnused(t *testing.T) {
	for name, back := range map[string]*logpb.Command{
		"unspent":  unspends(2, 1, itemOf("r", 40)),
		"actual":   used(2, 1, itemOf("r", 0)),
		"a higher": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("r", 100, minute))
			w.granted(ask("holds", itemOf("r", 40)))
			w.do(consumesAtOnce("big", itemOf("r", 40)))
			w.do(consumesAtOnce("small", itemOf("r", 20)))
			if back != nil {
				w.do(back)
				w.granted(ask("fills", itemOf("r", 40)))
			}
			small := w.waiting(waits("small", 0, minute, itemOf("r", 10)))
			want := w.waiting(waits("big", 0, minute, itemOf("r", 10)))
			if back == nil {
				want = small // it really used more
			}
			w.do(releases(1, itemOf("r", 10)))
			if got := w.grantedTickets(); !slices.Equal(got, []uint64{want}) {
				t.Fatalf("granted %v, want %d", got, want)
			}
		})
	}
}

// TestRefusal_CountsRequestsAhead: the waiters for the binding quota that come first.
func TestRefusal_CountsRequestsAhead(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), rateOf("r", 10, minute))
	w.granted(ask("first", itemOf("s", 1)))
	for n := range int64(4) {
		if r := w.refused(ask("x", itemOf("s", 1), itemOf("r", 1)), logpb.Reason_REASON_EXHAUSTED); r.Ahead != n || r.Quota != "s" ||
			r.Available != 0 {
			t.Fatalf("%d wait: %v", n, r)
		}
		w.waiting(waits("b", 0, minute, itemOf("s", 1)))
	}
}
