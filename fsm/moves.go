package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// A holder's waiters are ordered by its virtual time, which each of its grants changes. An entry reorders as many of them as it may, and the
// entries that follow reorder the rest. Until then some keep their old places: another waiter may be first for a moment, but nobody gets more.
//
// What follows goes round: each entry begins with the holder after the last one that was moved, and goes through the waiters of each once. So
// a holder whose virtual time moves with every entry takes nothing from those after it.

// maxMovedPerEntry bounds how many waiters, by their items, one entry reorders: all that two holders may have waiting for one quota each.
const maxMovedPerEntry = 2 * maxWaitersOfHolder

// moving is how far a holder's waiters were reordered by its virtual time.
type moving struct {
	// from is the ticket to go on with.
	from uint64
	// again: the virtual time has moved since, so that all are gone through once more, when it is the holder's time again.
	again bool
}

// setVirtualTime sets a holder's virtual time and reorders its waiters.
func (qu *queue) setVirtualTime(h *holder, virtualTime uint64) {
	h.virtualTime = virtualTime
	if h.waiting == 0 {
		return
	}
	at, under := qu.moving.Get(h.name)
	at.again = under
	qu.moveWaiters(h.name, at)
}

// moveMore goes on with moving waiters, in the order of holders from the one after the last: once round, as far as the entry may.
func (qu *queue) moveMore() {
	last := qu.movedLast
	qu.moveTurnsOf(last, "")
	if last != "" {
		qu.moveTurnsOf("", last)
	}
}

// moveTurnsOf does so for the holders after one, up to another one (empty: all).
func (qu *queue) moveTurnsOf(after, upTo string) {
	for qu.bounds.moves.left > 0 {
		name, at, ok := qu.movingAfter(after)
		if !ok || upTo != "" && name > upTo {
			return
		}
		after, qu.movedLast = name, name
		qu.moveWaiters(name, at)
	}
}

// movingAfter returns the first holder after one of whom waiters are still to be moved.
func (qu *queue) movingAfter(after string) (name string, at moving, ok bool) {
	qu.moving.Ascend(after, func(next string, its moving) bool {
		if next != after {
			name, at, ok = next, its, true
		}
		return !ok
	})
	return name, at, ok
}

// firstTicket is the first ticket that is ever given out.
const firstTicket = 1

// moveWaiters moves waiters of a holder to its virtual time, from a ticket on and as far as the entry may.
func (qu *queue) moveWaiters(name string, at moving) {
	at.from = qu.moveFrom(name, at.from)
	if at.from == 0 && at.again {
		at = moving{from: firstTicket}
	}
	if at.from == 0 {
		if qu.moving.Delete(name); qu.moving.Len() == 0 {
			qu.movedLast = ""
		}
		return
	}
	qu.moving.Set(name, at)
}

// moveFrom does so once, and returns the ticket to go on with; 0: there are no more.
func (qu *queue) moveFrom(name string, from uint64) (next uint64) {
	var tickets []uint64
	cost := 0
	qu.eachFrom(name, from, func(w *waiter) bool {
		if cost >= qu.bounds.moves.left {
			next = w.ticket
			return false
		}
		tickets = append(tickets, w.ticket)
		cost += w.cost()
		return true
	})
	qu.bounds.moves.spend(max(cost, 1)) // one that waits for nothing any more is looked at too
	h, _ := qu.holders.byName.Get(name)
	for _, ticket := range tickets {
		w, _ := qu.waiters.Get(ticket)
		if w.virtualTime == h.virtualTime {
			continue
		}
		qu.change(w, func(moved *waiter) { moved.virtualTime = h.virtualTime })
		l, _ := qu.waitSets.Get(w.waitSet)
		for _, number := range l.quotas {
			qu.reordered[number] = true
		}
	}
	return next
}

// lagsBehind tells whether a waiter may still have an older virtual time than its holder.
func (qu *queue) lagsBehind(w *waiter) bool {
	at, ok := qu.moving.Get(w.req.Holder)
	return ok && (at.again || w.ticket >= at.from)
}

// encodeMoving says of which holders some waiters are still to be moved.
func (qu *queue) encodeMoving(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	qu.moving.Scan(func(name string, at moving) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Moving{Moving: &logpb.SnapshotMoving{Holder: name, From: at.from, Again: at.again}}})
		return going
	})
	return going
}

// verifyMoving looks at the holders of whom some waiters are still to be moved.
func (s *State) verifyMoving() (err error) {
	if s.queue.moving.Len() == 0 && s.queue.movedLast != "" {
		return fmt.Errorf("waiters of holder %q were moved last, and nobody's are still to be moved", s.queue.movedLast)
	}
	s.queue.moving.Scan(func(name string, at moving) bool {
		if name == "" || at.from == 0 || at.from > s.queue.lastTicket {
			err = fmt.Errorf("waiters of holder %q are moved from ticket %d on, which was not given out", name, at.from)
		}
		return err == nil
	})
	return err
}
