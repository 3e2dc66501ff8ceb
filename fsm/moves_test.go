package fsm

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// apart counts the waiters of a holder that do not have its virtual time.
func (w *world) apart(name string) (count int) {
	h, _ := w.m.holders.byName.Get(name)
	w.m.queue.eachOf(name, func(one *waiter) bool {
		if one.virtualTime != h.virtualTime {
			count++
		}
		return true
	})
	return count
}

// TestMoveWaiters_GoesRound: one holder's virtual time changes several times with each entry, and its waiters take half
// an entry's moves. It does not prevent the moves of other holders, whatever their names.
func TestMoveWaiters_GoesRound(t *testing.T) {
	for _, churns := range []string{"a", "z"} {
		w := newWorld(t)
		w.quotas(slotsOf("s", 1), rateOf("free", 1<<40, minute))
		w.granted(ask("first", itemOf("s", 1)))
		for range 8 {
			for _, name := range []string{churns, "m", "n"} {
				w.waiting(waits(name, 0, 10*minute, itemOf("s", 1)))
			}
		}
		w.m.bounds.moves = bound{most: 16}
		again := asks(churns, 0, itemOf("free", 1))
		for range 5 {
			w.now += millisecond
			w.apply(again, again, again, asks("m", 0, itemOf("free", 1<<30)), asks("n", 0, itemOf("free", 1<<30)))
		}
		for range 3 { // each moves two
			w.now += millisecond
			w.reborn()
			w.apply(again, again, again)
		}
		if m, n := w.apart("m"), w.apart("n"); m+n > 0 {
			t.Errorf("while the turn of %q moves, %d of m's waiters and %d of n's do not stand at theirs", churns, m, n)
		}
	}
}

// TestMoveWaiters_ServesHoldersAlternately: two holders are served in turn, also while a third one's virtual time moves with each entry.
func TestMoveWaiters_ServesHoldersAlternately(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), slotsOf("never", 1), rateOf("free", 1<<40, minute))
	w.granted(ask("first", itemOf("never", 1)))
	lease := w.granted(ask("first", itemOf("s", 1))).Lease
	for range 8 {
		w.waiting(waits("a", 0, 10*minute, itemOf("never", 1)))
	}
	for _, name := range []string{"z", "m"} {
		for range 8 {
			w.waiting(waits(name, 0, 10*minute, itemOf("s", 1)))
		}
	}
	w.m.bounds.moves = bound{most: 16}
	again, served := asks("a", 0, itemOf("free", 1<<20)), ""
	for range 16 {
		w.now += millisecond
		w.apply(again, again, again, releases(lease))
		for _, e := range w.last.Events {
			if e.Kind == effect.EventGranted && e.Ticket != 0 {
				served, lease = served+e.Holder, e.Lease
			}
		}
	}
	if served != "zmzmzmzmzmzmzmzm" {
		t.Errorf("served %s", served)
	}
}

// TestMoveWaiters_EndsForAll: once virtual times no longer change, all waiters are moved within one round, however few an
// entry moves, and across restores.
func TestMoveWaiters_EndsForAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.quotas(slotsOf("s", 1), rateOf("free", 1<<40, minute))
		w.granted(ask("first", itemOf("s", 1)))
		const holders = 5
		all := 0
		for i := range holders {
			for range rapid.IntRange(1, 6).Draw(t, "waiters") {
				w.waiting(waits(fmt.Sprint("h", i), 0, 10*minute, itemOf("s", 1)))
				all++
			}
		}
		w.m.bounds.moves = bound{most: rapid.IntRange(1, 8).Draw(t, "most")}
		churn := func(below int) {
			var commands []*logpb.Command
			for range rapid.IntRange(0, 4).Draw(t, "grants") {
				commands = append(commands, asks(fmt.Sprint("h", rapid.IntRange(0, below-1).Draw(t, "whose")), 0, itemOf("free", 1<<20)))
			}
			w.now += millisecond
			w.apply(commands...)
		}
		for range rapid.IntRange(1, 20).Draw(t, "entries") {
			churn(holders)
		}
		w.reborn()
		stays := rapid.IntRange(1, holders).Draw(t, "the holder that continues")
		for range 2*all + holders { // twice: a holder in progress may have to start again
			churn(stays)
		}
		for i := stays; i < holders; i++ {
			if apart := w.apart(fmt.Sprint("h", i)); apart > 0 {
				t.Fatalf("%d waiters of h%d do not stand at its turn", apart, i)
			}
		}
	})
}
