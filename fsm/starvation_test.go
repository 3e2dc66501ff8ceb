package fsm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// flooded is a world in which critical calls take each slot that becomes free, and a waiter needs three at once.
func flooded(t tester, ageing int64, class int32) (w *world, ticket uint64, round func()) {
	w = newWorld(t)
	w.quotas(policed(slotsOf("s", 4), &logpb.Policy{AgeingNs: ageing}))
	w.do(holders(&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical}, &logpb.HolderRule{Pattern: "big", Class: class}))
	critical := func() *logpb.Command { return waits("crit", 10*minute, 10*minute, itemOf("s", 1)) }
	var live []*logpb.Granted
	learn := func() {
		for i := range w.last.Results {
			if g := w.last.Results[i].GetGranted(); g != nil {
				live = append(live, g)
			}
		}
		for i := range w.last.Events {
			if g := w.last.Events[i].Result.GetGranted(); g != nil && w.last.Events[i].Holder == "crit" {
				live = append(live, g)
			}
		}
	}
	for range 4 {
		w.do(critical())
		learn()
	}
	w.do(critical())
	ticket = w.waiting(waits("big", 0, 10*minute, itemOf("s", 3)))
	return w, ticket, func() {
		w.now += second
		w.do(critical())
		learn()
		if len(live) > 0 {
			w.do(release(&logpb.Release{Lease: live[0].Lease, Fence: live[0].Fence}))
			live = live[1:]
			learn()
		}
	}
}

// TestStarvation_ReservesForFirstInLine: a waiter that has been first below critical calls for as long as ageing says goes before them.
func TestStarvation_ReservesForFirstInLine(t *testing.T) {
	for _, class := range []int32{ledger.ClassStandard, ledger.ClassBackground} {
		w, ticket, round := flooded(t, 5*minute, class)
		for w.now < 5*minute {
			round()
			if !w.m.State().Waiting(ticket) {
				t.Fatalf("class %d: served at %d s, before critical calls", class, w.now/second)
			}
		}
		w.reborn()
		for range 8 {
			round()
		}
		if w.m.State().Waiting(ticket) {
			t.Fatalf("class %d: it still waits at %d s", class, w.now/second)
		}
	}
}

// TestStarvation_ReservesNothingWithoutAgeing: without ageing the order of classes is strict.
func TestStarvation_ReservesNothingWithoutAgeing(t *testing.T) {
	w, ticket, round := flooded(t, 0, ledger.ClassStandard)
	for w.now < 9*minute {
		round()
	}
	if !w.m.State().Waiting(ticket) {
		t.Fatal("it was served before critical calls")
	}
}

// TestStarvation_ReservesForOneAtATime: a quota is kept from critical calls for one waiter at a time.
func TestStarvation_ReservesForOneAtATime(t *testing.T) {
	w, _, round := flooded(t, minute, ledger.ClassStandard)
	for range 3 {
		w.waiting(waits("big", 0, 10*minute, itemOf("s", 4)))
	}
	for w.now < 8*minute {
		round()
		saved := 0
		w.m.queue.waiters.Scan(func(_ uint64, waiting *waiter) bool {
			if waiting.starved {
				saved++
			}
			return true
		})
		if saved > 1 {
			t.Fatalf("%d are saved up for at %d s", saved, w.now/second)
		}
	}
}

// TestStarvation_ReservesNothingForWithheld: policy keeps it waiting, not a shortage.
func TestStarvation_ReservesNothingForWithheld(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(hourly("h", 100), &logpb.Policy{AgeingNs: minute, Zones: logpb.Zones_ZONES_STRICT}))
	w.do(holders(&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical}))
	w.do(asks("x", hour, itemOf("h", 85)))
	ticket := w.waiting(waits("std", 0, 10*minute, itemOf("h", 10)))
	for range 300 {
		w.sleep(second)
	}
	if !w.m.State().Waiting(ticket) {
		t.Fatal("what is kept for critical calls was taken")
	}
	w.granted(ask("crit", itemOf("h", 5)))
}

// TestWaiters_AreServedWhereAgeingIsOn: with ageing each waiter is served, whatever amounts critical calls take.
func TestWaiters_AreServedWhereAgeingIsOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.quotas(policed(rateOf("r", 20, 10*second), &logpb.Policy{AgeingNs: 20 * second}))
		w.do(holders(&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical},
			&logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground}))
		class := rapid.SampledFrom([]string{"std", "back"}).Draw(t, "who")
		spends := func(holder string, amount int64) *logpb.Command {
			command := waits(holder, 0, 10*minute, itemOf("r", amount))
			command.GetReserve().Consume = true
			return command
		}
		for range 20 {
			w.do(spends("crit", rapid.Int64Range(5, 20).Draw(t, "critical")))
		}
		ticket := w.waiting(spends(class, rapid.Int64Range(1, 20).Draw(t, "amount")))
		for range 120 {
			w.now += second
			w.do(spends("crit", rapid.Int64Range(5, 20).Draw(t, "critical")))
		}
		if w.m.State().Waiting(ticket) {
			t.Fatalf("%s waited for two minutes", class)
		}
	})
}

// firstByHand returns the first waiter in line for a quota below critical ones, found by a search of all waiters.
func (w *world) firstByHand(q *quota) (ticket uint64) {
	var first *waiter
	scanned := map[uint32]int{}
	w.m.queue.order.Scan(func(p place) bool {
		one, _ := w.m.queue.waiters.Get(p.ticket)
		ws, _ := w.m.queue.waitSets.Get(one.waitSet)
		if p.rank < ledger.ClassStandard || !slices.Contains(ws.quotas, q.number) {
			return true
		}
		scanned[one.waitSet]++
		allowed, lacking := w.m.queue.keptByShortage(one)
		lacking = lacking || w.m.quotas.get(q.number).ahead.critical > 0
		if scanned[one.waitSet] <= maxFirstScanned && allowed && lacking && (first == nil || before(p, first.place())) {
			first = one
		}
		return true
	})
	if first == nil {
		return 0
	}
	return first.ticket
}

// TestStarvation_FindsFirstInLine: even with the smallest bound, after two rounds over the wait sets each quota has its
// first waiter in line.
func TestStarvation_FindsFirstInLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		const quotas = 4
		for i := range quotas {
			w.quotas(policed(slotsOf(fmt.Sprint("q", i), 4), &logpb.Policy{AgeingNs: hour}))
			w.granted(ask("first", itemOf(fmt.Sprint("q", i), rapid.Int64Range(1, 4).Draw(t, "taken"))))
		}
		w.quotas(slotsOf("free", 1000))
		w.do(holders(&logpb.HolderRule{Pattern: "h0", Class: ledger.ClassCritical},
			&logpb.HolderRule{Pattern: "h1", Class: ledger.ClassBackground}))
		w.m.bounds.scans = bound{most: rapid.IntRange(1, 40).Draw(t, "most")}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			holder := fmt.Sprint("h", rapid.IntRange(0, 4).Draw(t, "who"))
			var items []*logpb.Item
			for i := range quotas {
				if rapid.Bool().Draw(t, "needs it") {
					items = append(items, itemOf(fmt.Sprint("q", i), rapid.Int64Range(1, 4).Draw(t, "amount")))
				}
			}
			if len(items) == 0 {
				items = append(items, itemOf("free", 1)) // its virtual time changes
			}
			w.now += rapid.SampledFrom([]int64{0, millisecond, second}).Draw(t, "sleep")
			r := w.do(waits(holder, hour, 10*minute, items...))
			if rapid.IntRange(0, 9).Draw(t, "withdraws") == 0 {
				w.do(withdraw(r.GetWaiting().GetTicket()))
			}
		}
		w.reborn()
		for range 2 * (w.m.queue.waitSets.Len() + 1) {
			w.sleep(second)
		}
		for i := range quotas {
			q := w.m.quotas.named(fmt.Sprint("q", i))
			if _, waits := w.m.queue.waiters.Get(q.first); !waits && q.waiting == 0 {
				continue // nothing searches any more
			}
			if first := w.firstByHand(q); first != q.first {
				t.Fatalf("ticket %d is first in line for %s, and %d was found", first, q.name, q.first)
			}
		}
	})
}

// TestStarvation_NewWaitSetsDelayNobody: the first waiter is found and gets its reserve within a round, although each
// second brings as many new wait sets as are examined. No second examines more than its bound.
func TestStarvation_NewWaitSetsDelayNobody(t *testing.T) {
	w, ticket, round := flooded(t, minute, ledger.ClassStandard)
	const others, each = 60, 8
	for i := range others {
		w.quotas(slotsOf(fmt.Sprint("o", i), 1))
		w.granted(ask("first", itemOf(fmt.Sprint("o", i), 1)))
	}
	var waiting []uint64
	next := 0
	add := func() {
		items := []*logpb.Item{itemOf("s", 1), itemOf(fmt.Sprint("o", next%others), 1), itemOf(fmt.Sprint("o", (next+1+next/others)%others), 1)}
		next++
		waiting = append(waiting, w.waiting(waits("other", 0, 10*minute, items...)))
	}
	for range 80 {
		add()
	}
	w.m.bounds.scans = bound{most: each * 3} // that many wait sets, of three quotas
	for w.now < 3*minute && w.m.State().Waiting(ticket) {
		from := w.m.queue.scannedFrom
		round()
		for range each {
			w.do(withdraw(waiting[0]))
			waiting = waiting[1:]
			add()
		}
		if to := w.m.queue.scannedFrom; from > 0 && to > 0 && to < from {
			passed := 0
			w.m.queue.waitSets.Ascend(to+1, func(number uint32, _ *waitSet) bool {
				passed++
				return number < from
			})
			if passed > each {
				t.Fatalf("a second looked at %d wait sets", passed)
			}
		}
	}
	if w.m.State().Waiting(ticket) {
		t.Fatalf("it still waits at %d s", w.now/second)
	}
}
