package fsm

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestPool_MembersMayBeAncestorsOfOtherItems: a waiter already requests all quotas that its pool may draw on.
// It is still granted the member, not the pool.
func TestPool_MembersMayBeAncestorsOfOtherItems(t *testing.T) {
	for _, consume := range []bool{false, true} {
		w := newWorld(t)
		w.quotas(rateOf("m", 10, minute), under(rateOf("m/child", 10, minute), "m"), poolOf("pool", "m"))
		all := w.granted(ask("x", itemOf("m", 10)))
		wants := waitsFor("y", minute, itemOf("pool", 4), itemOf("m/child", 1))
		wants.Consume = consume
		ticket := w.queued(wants)
		w.reborn()
		w.do(release(&logpb.Release{Lease: all.Lease, Fence: all.Fence}))
		if got, ok := w.served()[ticket]; !ok || got != "a" {
			t.Fatalf("consume %t: served %v", consume, w.served())
		}
		if left := w.available("m"); left != 5 {
			t.Errorf("consume %t: %d are left", consume, left)
		}
	}
}

// TestPool_WaitersLeaveAfterMembersAreDeleted: the waiters of a deleted pool leave over several entries. Meanwhile its members
// may be deleted, and another pool for which they also wait may be applied again.
func TestPool_WaitersLeaveAfterMembersAreDeleted(t *testing.T) {
	w := newWorld(t)
	both := func() []*logpb.Quota {
		return []*logpb.Quota{poolOf("first", "a1", "a2"), poolOf("second", "b1", "b2")}
	}
	w.quotas(append([]*logpb.Quota{slotsOf("a1", 1), slotsOf("a2", 1), slotsOf("b1", 1), slotsOf("b2", 1)}, both()...)...)
	for _, member := range []string{"a", "b"} {
		w.granted(pins("x", member, itemOf("first", 1), itemOf("second", 1)))
	}
	for range 40 {
		w.queued(waitsFor("y", minute, itemOf("first", 1), itemOf("second", 1)))
	}
	later := w.queued(waitsFor("z", minute, itemOf("second", 1)))
	w.m.bounds.refusals.most, w.m.bounds.serves.most, w.m.bounds.tries.most = 1, 1, 1
	forced := func(name string) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: name, Force: true}}}
	}
	w.do(forced("first"))
	w.do(forced("a1"))
	w.quotas(both()[1])
	w.quotas(poolOf("second", "b2"))
	w.reborn()
	for range 120 {
		w.sleep(second / 4)
	}
	if _, waits := w.m.queue.waiters.Get(later); !waits || w.m.queue.waiters.Len() != 1 {
		t.Errorf("%d wait", w.m.queue.waiters.Len())
	}
}

// TestRefusalsOfWaiters_AreTheSameOnEveryReplica: a waiter's refusal depends on nothing that a snapshot leaves out,
// such as the number of commands in the previous entry.
func TestRefusalsOfWaiters_AreTheSameOnEveryReplica(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	g := w.granted(&logpb.Reserve{Holder: "x", Items: []*logpb.Item{itemOf("r", 10)}, Consume: true})
	opened := w.do(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "y"}}})
	session := opened.GetSessionOpened().GetSession()
	wants := numbered(session, 1, 0, reserve(waitsFor("y", 2*minute, itemOf("r", 1))))
	if r := w.do(wants); r.GetWaiting() == nil {
		t.Fatal(r)
	}
	w.closes(g, "r", 5*minute)
	w.now += second
	w.apply(withdraw(70), withdraw(71), withdraw(72))
	restored, err := Restore(bytes.NewReader(snapshotOf(t, w.m.State())))
	if err != nil {
		t.Fatal(err)
	}
	w.now += 3 * minute
	w.apply()
	twin := restored.Apply(w.index, 1, w.entries[len(w.entries)-1])
	same := func(a, b effect.Event) bool {
		return a.Kind == b.Kind && a.Ticket == b.Ticket && proto.Equal(a.Result, b.Result)
	}
	if !slices.EqualFunc(w.last.Events, twin.Events, same) || len(twin.Events) == 0 {
		t.Errorf("%v, and of the replica %v", w.last.Events, twin.Events)
	}
	ours, _ := w.m.State().Hash()
	if theirs, _ := restored.State().Hash(); ours != theirs {
		t.Error("the replicas differ")
	}
}

// TestPool_FittingWaiterPassesOneThatNeverFits: the first waiter waits for a member that is large enough. Waiters behind
// it may use another member where it never fits.
func TestPool_FittingWaiterPassesOneThatNeverFits(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("large", 4), slotsOf("small", 1), poolOf("pool", "large", "small"))
	w.granted(pins("y", "a", itemOf("pool", 2)))
	w.queued(waitsFor("x", minute, itemOf("pool", 3)))
	behind := waitsFor("z", minute, itemOf("pool", 1))
	if ticket := w.do(reserve(behind)); ticket.GetGranted() == nil && len(w.served()) == 0 {
		t.Fatalf("%v, and a member is free", ticket)
	}
}

// TestPool_NewcomersQueueBehind: a new request for a pool does not overtake waiters for the member that it would get.
func TestPool_NewcomersQueueBehind(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("k1", 1), slotsOf("k2", 1), poolOf("pool", "k1", "k2"))
	w.granted(pins("z", "b", itemOf("pool", 1)))
	back := func(g *logpb.Granted) *logpb.Command { return release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}) }
	for range 50 {
		w.do(back(w.granted(ask("old", itemOf("k1", 1)))))
	}
	g := w.granted(ask("old", itemOf("k1", 1)))
	old := w.queued(waitsFor("old", 9*minute, itemOf("k1", 1)))
	for before := 0; ; before++ {
		w.queued(waitsFor("new", 9*minute, itemOf("pool", 1)))
		w.do(back(g))
		if _, done := w.served()[old]; done {
			return
		}
		if before > 2 {
			t.Fatalf("a newcomer was served %d times before", before)
		}
		for _, e := range w.last.Events {
			if granted := e.Result.GetGranted(); granted != nil {
				g = granted
			}
		}
	}
}
