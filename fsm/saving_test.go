package fsm

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/logpb"
)

// flooded is a world in which critical calls take each slot that comes free, and somebody waits for three at once.
func flooded(t tester, ageing int64, class int32) (w *world, ticket uint64, turn func()) {
	w = newWorld(t)
	w.quotas(policed(slotsOf("s", 4), &logpb.Policy{AgeingNs: ageing}))
	w.do(holders(&logpb.HolderRule{Pattern: "crit*", Class: classCritical}, &logpb.HolderRule{Pattern: "big", Class: class}))
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

// TestSavedUp: who is first in line below critical calls for as long as ageing says goes before them.
func TestSavedUp(t *testing.T) {
	for _, class := range []int32{classStandard, classBackground} {
		w, ticket, turn := flooded(t, 5*minute, class)
		for w.now < 5*minute {
			turn()
			if !w.m.State().Waiting(ticket) {
				t.Fatalf("class %d: served at %d s, before critical calls", class, w.now/second)
			}
		}
		w.reborn()
		for range 8 {
			turn()
		}
		if w.m.State().Waiting(ticket) {
			t.Fatalf("class %d: it still waits at %d s", class, w.now/second)
		}
	}
}

// TestNothingIsSavedUpWithoutAgeing: the order of classes is strict.
func TestNothingIsSavedUpWithoutAgeing(t *testing.T) {
	w, ticket, turn := flooded(t, 0, classStandard)
	for w.now < 9*minute {
		turn()
	}
	if !w.m.State().Waiting(ticket) {
		t.Fatal("it was served before critical calls")
	}
}

// TestOneIsSavedUpForAtATime: a quota is never kept from critical calls for two.
func TestOneIsSavedUpForAtATime(t *testing.T) {
	w, _, turn := flooded(t, minute, classStandard)
	for range 3 {
		w.waiting(waits("big", 0, 10*minute, itemOf("s", 4)))
	}
	for w.now < 8*minute {
		turn()
		saved := 0
		w.m.waiters.Scan(func(_ uint64, waiting *waiter) bool {
			if waiting.saved {
				saved++
			}
			return true
		})
		if saved > 1 {
			t.Fatalf("%d are saved up for at %d s", saved, w.now/second)
		}
	}
}

// TestWhoIsWithheldIsNotSavedUpFor: policy keeps it waiting, not a shortage.
func TestWhoIsWithheldIsNotSavedUpFor(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(hourly("h", 100), &logpb.Policy{AgeingNs: minute, Zones: logpb.Zones_ZONES_STRICT}))
	w.do(holders(&logpb.HolderRule{Pattern: "crit*", Class: classCritical}))
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

// TestNobodyWaitsForEver: where ageing is on, whoever waits is served, whatever amounts critical calls take.
func TestNobodyWaitsForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.quotas(policed(rateOf("r", 20, 10*second), &logpb.Policy{AgeingNs: 20 * second}))
		w.do(holders(&logpb.HolderRule{Pattern: "crit*", Class: classCritical}, &logpb.HolderRule{Pattern: "back*", Class: classBackground}))
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
