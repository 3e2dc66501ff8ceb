package fsm

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestQueue_GrantWakesNewFirst: a grant that moves its holder's other waiters back makes another waiter
// first.
func TestQueue_GrantWakesNewFirst(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 10), slotsOf("x", 1))
	hold := func(name, q string, n int64) *logpb.Granted {
		a := ask(name, itemOf(q, n))
		a.TtlNs = hour
		return w.granted(a)
	}
	hold("z", "s", 5)
	gx := hold("z", "x", 1)
	wait := func(name, q string, n int64) uint64 {
		a := ask(name, itemOf(q, n))
		a.WaitNs = 10 * minute
		r := w.do(reserve(a))
		if r.GetWaiting() == nil {
			t.Fatalf("%v", r)
		}
		return r.GetWaiting().Ticket
	}
	wait("h", "s", 10)
	wait("h", "x", 1)
	small := wait("k", "s", 5)
	w.do(release(&logpb.Release{Lease: gx.Lease, Fence: gx.Fence}))
	for range 30 {
		w.sleep(second)
	}
	if w.m.State().Waiting(small) {
		v, _ := w.m.State().Quota("s", w.clock())
		t.Fatalf("first in the order for 30 s, needs 5, available %d, and still waits", v.Available)
	}
}

// TestResume_ServesWaitersOfFreedAmounts: even if the Reserve that resumed is refused.
func TestResume_ServesWaitersOfFreedAmounts(t *testing.T) {
	w := newWorld(t)
	w.do(holders(&logpb.HolderRule{Pattern: "boss", Class: 0}))
	w.quotas(slotsOf("s", 1), slotsOf("x", 1))
	hold := func(name, q string, n int64) *logpb.Granted {
		a := ask(name, itemOf(q, n))
		a.TtlNs = hour
		return w.granted(a)
	}
	hold("z", "s", 1)
	hold("boss", "x", 1)
	a := ask("k", itemOf("x", 1))
	a.WaitNs = 10 * minute
	ticket := w.do(reserve(a)).GetWaiting().Ticket
	b := ask("boss", itemOf("s", 1), itemOf("x", 1))
	b.Resume = true
	r := w.do(reserve(b))
	if r.GetRefusal() == nil {
		t.Fatalf("%v", r)
	}
	for range 30 {
		w.sleep(second)
	}
	if w.m.State().Waiting(ticket) {
		v, _ := w.m.State().Quota("x", w.clock())
		t.Fatalf("the only waiter of x, available %d, still waits after 30 s", v.Available)
	}
}

// TestVirtualTime_ParkedWaiterSavesNone: a holder that waits for an unavailable quota keeps no old virtual time for other
// quotas.
func TestVirtualTime_ParkedWaiterSavesNone(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("dead", 1), slotsOf("y", 10))
	d := ask("z", itemOf("dead", 1))
	d.TtlNs = day
	w.granted(d)
	wait := func(name, q string) uint64 {
		a := ask(name, itemOf(q, 1))
		a.WaitNs, a.TtlNs = 10*minute, hour
		return w.do(reserve(a)).GetWaiting().GetTicket()
	}
	wait("sly", "dead") // virtual time 0
	var held []*logpb.Granted
	for range 10 {
		a := ask("b", itemOf("y", 1))
		a.TtlNs = hour
		held = append(held, w.granted(a))
	}
	serve := func() (got []string) {
		g := held[0]
		held = held[1:]
		w.now += 100 * millisecond
		w.raw(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
		for _, e := range slices.Clone(w.last.Events) {
			if e.Kind == effect.EventGranted {
				got = append(got, e.Holder)
				held = append(held, e.Result.GetGranted())
				w.raw(renew(&logpb.Renew{Lease: e.Lease, Fence: e.Fence}))
				wait(e.Holder, "y")
			}
		}
		return got
	}
	wait("b", "y")
	wait("c", "y")
	for range 300 {
		serve()
	}
	wait("sly", "y")
	count := map[string]int{}
	for range 60 {
		for _, n := range serve() {
			count[n]++
		}
	}
	if count["sly"] > 30 {
		t.Fatalf("of 60 turns after it came: %v", count)
	}
}

// TestVirtualTime_ReleaseByItemReturnsIt: a release of named items restores virtual time like a full release.
func TestVirtualTime_ReleaseByItemReturnsIt(t *testing.T) {
	virtualTime := func(items ...*logpb.Item) uint64 {
		w := newWorld(t)
		w.quotas(rateOf("q", 10, minute))
		g := w.granted(ask("me", itemOf("q", 10)))
		w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence, Items: items}))
		h, _ := w.m.holders.byName.Get("me")
		return h.virtualTime
	}
	if whole, named := virtualTime(), virtualTime(itemOf("q", 10)); whole != named {
		t.Fatalf("all released without items: turn %d; by name: turn %d", whole, named)
	}
}

// TestVirtualTime_DoesNotWrap: virtual time saturates, however much is used.
func TestVirtualTime_DoesNotWrap(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("q", 10, minute))
	var last uint64
	for op := uint64(1); op <= 4; op++ {
		a := ask("me", itemOf("q", 1))
		a.Consume, a.TtlNs = true, second
		w.now += 2 * minute
		g := w.granted(a)
		w.raw(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Actual: []*logpb.Item{itemOf("q", fixed.MaxAmount)}}))
		h, _ := w.m.holders.byName.Get("me")
		if h.virtualTime < last {
			t.Fatalf("turn fell from %d to %d by using more", last, h.virtualTime)
		}
		last = h.virtualTime
		w.now += 2 * minute
	}
}

// TestQueue_GrantsNoneAfterTheirWait: even if more waits end than one entry can end.
func TestQueue_GrantsNoneAfterTheirWait(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), slotsOf("x", 2000))
	g := w.granted(ask("z", itemOf("s", 1)))
	for range 1500 {
		a := ask("h", itemOf("s", 1))
		a.WaitNs = second
		w.raw(reserve(a))
	}
	w.now = 5 * second
	w.raw(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
	for _, e := range w.last.Events {
		if e.Kind == effect.EventGranted {
			t.Fatalf("ticket %d waited until 1 s and was granted at 5 s", e.Ticket)
		}
	}
}

// TestCloseSession_EndsItsWaits: nobody could learn of the grant.
func TestCloseSession_EndsItsWaits(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("q", 10, minute))
	id := w.do(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{}}}).GetSessionOpened().Session
	a := ask("me", itemOf("q", 10))
	a.Consume, a.TtlNs = true, second
	w.granted(a)
	b := ask("you", itemOf("q", 10))
	b.Consume, b.WaitNs = true, 5*minute
	c := reserve(b)
	c.Session, c.Seq = id, 1
	w.do(c)
	w.do(&logpb.Command{Session: id, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}})
	w.sleep(minute + 10*second)
	for _, e := range w.last.Events {
		if e.Kind == effect.EventGranted {
			t.Fatalf("10 of 10 consumed for a caller whose session is closed: %v", e)
		}
	}
}

// TestQueue_LeavesNoServableWaiter: after each entry of any history no waiter could be served.
func TestQueue_LeavesNoServableWaiter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		h := &history{T: rt, seq: map[uint64]uint64{}}
		w.apply(applyQuotas(randomWorldQuotas()...))
		for range rapid.IntRange(1, 80).Draw(rt, "entries") {
			w.now += rapid.SampledFrom([]int64{0, millisecond, 300 * millisecond, second, 4 * second, minute}).Draw(rt, "sleep")
			var commands []*logpb.Command
			for range rapid.IntRange(0, 4).Draw(rt, "commands") {
				commands = append(commands, h.command())
			}
			w.apply(commands...)
			h.learn(w.last)
			other, err := Restore(bytes.NewReader(snapshotOf(rt, w.m.State())))
			if err != nil {
				rt.Fatal(err)
			}
			other.quotas.byNumber.Scan(func(n uint32, _ *quota) bool { other.quotas.dirty[n] = true; return true })
			other.events = nil
			other.queue.serve()
			for _, e := range other.events {
				if e.Kind == effect.EventGranted {
					for _, data := range w.entries {
						en := new(logpb.Entry)
						_ = proto.Unmarshal(data, en)
						rt.Logf("ENTRY %v %v", time.Duration(en.StampNs), en.Commands)
					}
					rt.Fatalf("ticket %d of %s could have been served: %d of %s", e.Ticket, e.Holder, e.Amount, e.Quota)
				}
			}
		}
	})
}
