package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// queued queues a Reserve and returns its ticket.
func (w *world) queued(req *logpb.Reserve) uint64 {
	w.t.Helper()
	r := w.do(reserve(req))
	if r.GetWaiting() == nil {
		w.t.Fatalf("does not wait: %v", r)
	}
	return r.GetWaiting().Ticket
}

// served returns the last entry's grants to waiters: by ticket, the members of the items.
func (w *world) served() map[uint64]string {
	all := map[uint64]string{}
	for _, e := range w.last.Events {
		if g := e.Result.GetGranted(); g != nil {
			all[e.Ticket] = members(g)
		}
	}
	return all
}

// TestPool_WaitsForTheFirstMember: a waiter for a pool is served by the first member that opens.
func TestPool_WaitsForTheFirstMember(t *testing.T) {
	w := keysWorld(t)
	w.quotas(rateOf("b/requests", 10, minute))
	take := func(member string, amount int64) *logpb.Granted {
		r := pins("y", member, itemOf("requests", amount))
		r.Consume = true
		return w.granted(r)
	}
	onA := take("a", 10)
	w.sleep(second)
	take("b", 10)
	w.closes(onA, "a/requests", 20*second)
	ticket := w.queued(waitsFor("x", 5*minute, itemOf("requests", 3), itemOf("tokens", 10)))
	w.reborn()
	w.now += 2 * second
	if r := w.do(settle(&logpb.Settle{
		Lease: w.m.liveOne("b/requests").id, Fence: w.m.liveOne("b/requests").fence, Op: 1,
		Actual: []*logpb.Item{itemOf("b/requests", 4)}, Final: true,
	})); r.GetSettled() == nil {
		t.Fatal(r)
	}
	if got := w.served(); got[ticket] != "bb" {
		t.Fatalf("served %v", got)
	}
}

// TestPool_WaitersAreServedByTime: without a command, when a member's period has passed.
func TestPool_WaitersAreServedByTime(t *testing.T) {
	w := keysWorld(t)
	for _, member := range []string{"a", "b"} {
		r := pins("y", member, itemOf("requests", 10))
		r.Consume = true
		w.granted(r)
		w.sleep(5 * second)
	}
	ticket := w.queued(waitsFor("x", 5*minute, itemOf("requests", 1)))
	for range 120 {
		w.sleep(second)
		if got, served := w.served()[ticket]; served {
			if got != "a" || w.now < minute || w.now > 70*second {
				t.Fatalf("served by %q at %d s", got, w.now/second)
			}
			return
		}
	}
	t.Fatal("never served")
}

// TestPool_OrderHoldsAcrossMembers: freed amounts go to the first waiter, on any member.
func TestPool_OrderHoldsAcrossMembers(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("k1", 1), slotsOf("k2", 1), poolOf("pool", "k1", "k2"))
	w.do(holders(&logpb.HolderRule{Pattern: "boss", Class: 0}, &logpb.HolderRule{Pattern: "low*", Class: 2}))
	first, second := w.granted(ask("y", itemOf("pool", 1))), w.granted(ask("y", itemOf("pool", 1)))
	low := w.queued(waitsFor("low", minute, itemOf("pool", 1)))
	busy := w.queued(waitsFor("y", minute, itemOf("pool", 1)))
	fresh := w.queued(waitsFor("z", minute, itemOf("pool", 1)))
	boss := w.queued(waitsFor("boss", minute, itemOf("pool", 1)))
	for i, free := range []*logpb.Granted{second, first} {
		w.do(release(&logpb.Release{Lease: free.Lease, Fence: free.Fence}))
		want := map[uint64]string{boss: "b"}
		if i == 1 {
			want = map[uint64]string{fresh: "a"} // y has drawn twice, z not yet
		}
		if got := w.served(); len(got) != 1 || got[boss]+got[fresh] != want[boss]+want[fresh] {
			t.Fatalf("release %d served %v", i+1, got)
		}
	}
	for _, ticket := range []uint64{low, busy} {
		if !w.m.State().Waiting(ticket) {
			t.Fatalf("ticket %d does not wait any more", ticket)
		}
	}
}

// TestPool_FirstWaiterIsNotOvertaken: while the first waiter lacks room on every member, no waiter behind it takes
// freed amounts there. Waiters for other quotas are not delayed.
func TestPool_FirstWaiterIsNotOvertaken(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("k1", 4), slotsOf("k2", 4), slotsOf("other", 1), poolOf("pool", "k1", "k2"))
	var held []*logpb.Granted
	for range 8 {
		held = append(held, w.granted(ask("y", itemOf("pool", 1))))
	}
	large := w.queued(waitsFor("x", minute, itemOf("pool", 3)))
	small := w.queued(waitsFor("z", minute, itemOf("pool", 1)))
	direct := w.queued(waitsFor("v", minute, itemOf("k2", 1)))
	w.granted(ask("u", itemOf("other", 1)))
	for _, i := range []int{0, 1, 3} { // k1, k2, k2: two become free on k2
		w.do(release(&logpb.Release{Lease: held[i].Lease, Fence: held[i].Fence}))
		w.reborn()
		if got := w.served(); len(got) != 0 {
			t.Fatalf("served %v", got)
		}
	}
	w.refused(ask("u", itemOf("pool", 1)), logpb.Reason_REASON_BEHIND_WAITERS)
	w.do(release(&logpb.Release{Lease: held[5].Lease, Fence: held[5].Fence}))
	if got := w.served(); got[large] != "b" || got[small] != "a" || len(got) != 2 {
		t.Fatalf("served %v, the large one is %d, the small one %d, the direct one %d", got, large, small, direct)
	}
}

// TestPool_WaitsWithOtherQuotas: all or nothing, even if the lacking quota is not a member.
func TestPool_WaitsWithOtherQuotas(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("k1", 1), slotsOf("k2", 1), slotsOf("machine", 1), poolOf("pool", "k1", "k2"))
	on := w.granted(ask("y", itemOf("machine", 1)))
	both := w.queued(waitsFor("x", minute, itemOf("pool", 1), itemOf("machine", 1)))
	if got := members(w.granted(ask("z", itemOf("pool", 1)))); got != "b" {
		t.Fatalf("drew on %s: a is set aside for the first in line", got)
	}
	w.do(release(&logpb.Release{Lease: on.Lease, Fence: on.Fence}))
	if got := w.served(); got[both] != "a" {
		t.Fatalf("served %v", got)
	}
}

// TestPool_MembersChangeWhileSomeWait: waiters are served by a member that joins, and no longer by one that left.
func TestPool_MembersChangeWhileSomeWait(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("k1", 1), slotsOf("k2", 1), slotsOf("k3", 1), poolOf("pool", "k1", "k2"))
	first := w.granted(ask("y", itemOf("pool", 1)))
	w.granted(ask("y", itemOf("pool", 1)))
	waiting := w.queued(waitsFor("x", minute, itemOf("pool", 1)))
	w.quotas(poolOf("pool", "k2"))
	w.reborn()
	w.do(release(&logpb.Release{Lease: first.Lease, Fence: first.Fence}))
	if got := w.served(); len(got) != 0 {
		t.Fatalf("served %v by a member that left", got)
	}
	if r := w.do(deletesQuota("k1", false)); r.GetQuotasApplied() == nil {
		t.Fatalf("what is no member, and not waited for, is not deleted: %v", r)
	}
	w.quotas(poolOf("pool", "k2", "k3"))
	if got := w.served(); got[waiting] != "b" {
		t.Fatalf("served %v", got)
	}
}

// TestPool_IsDeletedWhileSomeWait: its waiters are refused, and its members continue.
func TestPool_IsDeletedWhileSomeWait(t *testing.T) {
	w := newWorld(t)
	w.m.bounds = tight(1)
	w.quotas(slotsOf("k1", 1), poolOf("pool", "k1"))
	w.granted(ask("y", itemOf("k1", 1)))
	for range 3 {
		w.queued(waitsFor("x", minute, itemOf("pool", 1)))
	}
	w.fails(deletesQuota("pool", false), logpb.Reason_REASON_QUOTA_IN_USE)
	if r := w.do(deletesQuota("pool", true)); r.GetQuotasApplied() == nil {
		t.Fatal(r)
	}
	w.reborn()
	for range 5 {
		w.sleep(millisecond)
	}
	if v, _ := w.m.State().Quota("k1", w.clock()); v.Waiting != 0 || w.m.State().queue.waiters.Len() != 0 {
		t.Fatalf("%d still wait", v.Waiting)
	}
}

// TestPool_RefusesWaitThatCannotBeServed: a wait that would end before any member opens is refused at once.
func TestPool_RefusesWaitThatCannotBeServed(t *testing.T) {
	w := keysWorld(t)
	for member, closed := range map[string]int64{"a": 40 * second, "b": 30 * second} {
		r := pins("y", member, itemOf("requests", 1))
		r.Consume = true
		w.closes(w.granted(r), member+"/requests", closed)
	}
	refusal := w.refused(waitsFor("x", 10*second, itemOf("requests", 1)), logpb.Reason_REASON_CANNOT_SERVE_IN_TIME)
	from, to := RetryWindow(ledger.ClassStandard)
	if late := refusal.RetryAtNs - w.now - 30*second; late < from || late >= to {
		t.Fatalf("says to come back in %d s", (refusal.RetryAtNs-w.now)/second)
	}
	w.queued(waitsFor("x", 30*second, itemOf("requests", 1)))
}
