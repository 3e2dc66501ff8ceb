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
func (m *Machine) setVirtualTime(h *holder, virtualTime uint64) {
	h.virtualTime = virtualTime
	if h.waiting == 0 {
		return
	}
	at, under := m.moving.Get(h.name)
	at.again = under
	m.moveWaiters(h.name, at)
}

// continueMoves goes on with moving waiters, in the order of holders from the one after the last: once round, as far as the entry may.
func (m *Machine) continueMoves() {
	last := m.movedLast
	m.moveTurnsOf(last, "")
	if last != "" {
		m.moveTurnsOf("", last)
	}
}

// moveTurnsOf does so for the holders after one, up to another one (empty: all).
func (m *Machine) moveTurnsOf(after, upTo string) {
	for m.bounds.moves.left > 0 {
		name, at, ok := m.movingAfter(after)
		if !ok || upTo != "" && name > upTo {
			return
		}
		after, m.movedLast = name, name
		m.moveWaiters(name, at)
	}
}

// movingAfter returns the first holder after one of whom waiters are still to be moved.
func (s *State) movingAfter(after string) (name string, at moving, ok bool) {
	s.moving.Ascend(after, func(next string, its moving) bool {
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
func (m *Machine) moveWaiters(name string, at moving) {
	at.from = m.moveFrom(name, at.from)
	if at.from == 0 && at.again {
		at = moving{from: firstTicket}
	}
	if at.from == 0 {
		if m.moving.Delete(name); m.moving.Len() == 0 {
			m.movedLast = ""
		}
		return
	}
	m.moving.Set(name, at)
}

// moveFrom does so once, and returns the ticket to go on with; 0: there are no more.
func (m *Machine) moveFrom(name string, from uint64) (next uint64) {
	var tickets []uint64
	cost := 0
	m.eachWaiterFrom(name, from, func(w *waiter) bool {
		if cost >= m.bounds.moves.left {
			next = w.ticket
			return false
		}
		tickets = append(tickets, w.ticket)
		cost += w.cost()
		return true
	})
	m.bounds.moves.spend(max(cost, 1)) // one that waits for nothing any more is looked at too
	h, _ := m.holders.byName.Get(name)
	for _, ticket := range tickets {
		w, _ := m.waiters.Get(ticket)
		if w.virtualTime == h.virtualTime {
			continue
		}
		m.changeWaiter(w, func(moved *waiter) { moved.virtualTime = h.virtualTime })
		l, _ := m.waitSets.Get(w.waitSet)
		for _, number := range l.quotas {
			m.reordered[number] = true
		}
	}
	return next
}

// lagsBehind tells whether a waiter may still have an older virtual time than its holder.
func (s *State) lagsBehind(w *waiter) bool {
	at, ok := s.moving.Get(w.req.Holder)
	return ok && (at.again || w.ticket >= at.from)
}

// movingRecords are the holders of whom some waiters are still to be moved.
func (s *State) movingRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.moving.Scan(func(name string, at moving) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Moving{Moving: &logpb.SnapshotMoving{Holder: name, From: at.from, Again: at.again}}})
		return going
	})
	return going
}

// verifyMoving looks at the holders of whom some waiters are still to be moved.
func (s *State) verifyMoving() (err error) {
	if s.moving.Len() == 0 && s.movedLast != "" {
		return fmt.Errorf("waiters of holder %q were moved last, and nobody's are still to be moved", s.movedLast)
	}
	s.moving.Scan(func(name string, at moving) bool {
		if name == "" || at.from == 0 || at.from > s.lastTicket {
			err = fmt.Errorf("waiters of holder %q are moved from ticket %d on, which was not given out", name, at.from)
		}
		return err == nil
	})
	return err
}
