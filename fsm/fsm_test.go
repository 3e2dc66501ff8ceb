package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

func TestLease_FromReserveToRelease(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("t/core", 10, minute))
	g := w.granted(ask("me", itemOf("t/core", 7)))
	if got := w.available("t/core"); got != 3 {
		t.Fatalf("available %d, want 3", got)
	}
	w.refused(ask("you", itemOf("t/core", 4)), logpb.Reason_REASON_EXHAUSTED)
	w.refused(ask("you", itemOf("t/core", 11)), logpb.Reason_REASON_NEVER_FITS)

	r := w.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1, Items: []*logpb.Item{itemOf("t/core", 5)}}))
	if r.GetConsumed().GetSpendByNs() != 2*second {
		t.Fatalf("consumed: %v", r)
	}
	s := w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Actual: []*logpb.Item{itemOf("t/core", 3)}}))
	if len(s.GetSettled().GetReturned()) != 1 || s.GetSettled().Returned[0].Amount != 2 {
		t.Fatalf("settled: %v", s)
	}
	if got := w.available("t/core"); got != 5 {
		t.Fatalf("available %d, want 5", got)
	}
	rel := w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
	if !rel.GetReleased().GetEnded() || rel.GetReleased().Returned[0].Amount != 2 {
		t.Fatalf("released: %v", rel)
	}
	w.fails(renew(&logpb.Renew{Lease: g.Lease, Fence: g.Fence}), logpb.Reason_REASON_STALE_FENCE)
	w.fails(renew(&logpb.Renew{Lease: g.Lease, Fence: g.Fence + 1}), logpb.Reason_REASON_NEVER_ISSUED)
	w.sleep(minute + second)
	if got := w.available("t/core"); got != 10 {
		t.Fatalf("available %d, want 10", got)
	}
}

func TestReserve_ConsumesInSameEntry(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute), slotsOf("s", 2), hourly("h", 100))
	a := ask("me", itemOf("r", 1), itemOf("s", 1), itemOf("h", 1))
	a.Consume = true
	g := w.granted(a)
	if g.Consumed.GetOp() != 1 || len(g.Consumed.Items) != 2 || len(g.Items) != 3 {
		t.Fatalf("granted: %v", g)
	}
	w.granted(a)
	w.refused(a, logpb.Reason_REASON_EXHAUSTED)
	w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Final: true, Release: true}))
	w.granted(a)
}

func TestSlots_FreeAtDeadlinePlusGrace(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	a := ask("me", itemOf("s", 1))
	a.TtlNs = 20 * second
	w.granted(a)
	w.sleep(20 * second)
	w.refused(a, logpb.Reason_REASON_EXHAUSTED)
	w.sleep(2*second - 1)
	w.refused(a, logpb.Reason_REASON_EXHAUSTED)
	w.sleep(1)
	w.granted(a)
}

func TestQueue_ServesByClass(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	w.do(holders(&logpb.HolderRule{Pattern: "boss", Class: 0}, &logpb.HolderRule{Pattern: "low*", Class: 2}))
	g := w.granted(ask("first", itemOf("s", 1)))
	var tickets []uint64
	for _, name := range []string{"low1", "std", "boss"} {
		a := ask(name, itemOf("s", 1))
		a.WaitNs = minute
		r := w.do(reserve(a))
		if r.GetWaiting() == nil {
			t.Fatalf("%s: %v", name, r)
		}
		tickets = append(tickets, r.GetWaiting().Ticket)
	}
	w.reborn()
	for _, want := range []uint64{tickets[2], tickets[1], tickets[0]} {
		w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
		var got *effect.Event
		for i := range w.last.Events {
			if e := &w.last.Events[i]; e.Kind == effect.EventGranted {
				got = e
			}
		}
		if got == nil || got.Ticket != want {
			t.Fatalf("granted %v, want ticket %d", got, want)
		}
		g = got.Result.GetGranted()
		if g.DeadlineNs != w.now+provisionalTTL {
			t.Fatalf("first deadline %d, want %d", g.DeadlineNs, w.now+provisionalTTL)
		}
	}
}
