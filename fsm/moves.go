package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// A holder's waiters are ordered by its virtual time, which each of its grants changes. An entry reorders as many of
// them as its bound allows, and later entries reorder the rest. Until then some keep their old places: another waiter
// may be first for a moment, but no holder gets more.
//
// The rest is done in rounds: each entry begins with the holder after the last one that was moved, and visits the
// waiters of each once. So a holder whose virtual time moves with every entry does not delay the holders after it.

// maxMovedPerEntry bounds how many waiters, by their items, one entry reorders: all that two holders may have at one
// quota each.
const maxMovedPerEntry = 2 * maxWaitersOfHolder

// moving is the progress of reordering a holder's waiters.
type moving struct {
	// from is the next ticket.
	from uint64
	// again: the virtual time has moved since, so all waiters are visited once more in the holder's next round.
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

// moveMore continues moving waiters, one round over the holders from the one after the last, within the entry's bound.
func (qu *queue) moveMore() {
	last := qu.movedLast
	qu.moveWaitersOf(last, "")
	if last != "" {
		qu.moveWaitersOf("", last)
	}
}

// moveWaitersOf moves the waiters of the holders between after and upTo (empty: no end).
func (qu *queue) moveWaitersOf(after, upTo string) {
	for qu.bounds.moves.left > 0 {
		name, at, ok := qu.movingAfter(after)
		if !ok || upTo != "" && name > upTo {
			return
		}
		after, qu.movedLast = name, name
		qu.moveWaiters(name, at)
	}
}

// movingAfter returns the next holder whose waiters are still to be moved.
func (qu *queue) movingAfter(after string) (name string, at moving, ok bool) {
	qu.moving.Ascend(after, func(next string, its moving) bool {
		if next != after {
			name, at, ok = next, its, true
		}
		return !ok
	})
	return name, at, ok
}

// firstTicket is the lowest ticket.
const firstTicket = 1

// moveWaiters moves waiters of a holder to its virtual time, from a ticket on, within the entry's bound.
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

// moveFrom does one pass, and returns the next ticket; 0: there are no more.
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
	qu.bounds.moves.spend(max(cost, 1)) // a waiter that needs nothing any more costs too
	h, _ := qu.holders.byName.Get(name)
	for _, ticket := range tickets {
		w, _ := qu.waiters.Get(ticket)
		if w.virtualTime == h.virtualTime {
			continue
		}
		qu.change(w, func(moved *waiter) { moved.virtualTime = h.virtualTime })
		ws, _ := qu.waitSets.Get(w.waitSet)
		for _, number := range ws.quotas {
			qu.reordered[number] = true
		}
	}
	return next
}

// lagsBehind reports whether a waiter may still have an older virtual time than its holder.
func (qu *queue) lagsBehind(w *waiter) bool {
	at, ok := qu.moving.Get(w.req.Holder)
	return ok && (at.again || w.ticket >= at.from)
}

// encodeMoving encodes the holders whose waiters are still to be moved.
func (qu *queue) encodeMoving(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	qu.moving.Scan(func(name string, at moving) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Moving{Moving: &logpb.SnapshotMoving{
			Holder: name, From: at.from, Again: at.again,
		}}})
		return going
	})
	return going
}

// verifyMoving checks the holders whose waiters are still to be moved.
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
