package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// A holder's waiting Reserves stand at its turn, which each of its grants moves. They are moved with it as far as an entry may, and the rest with
// the entries that follow. Until then some stand where they stood: who is first may be another one for a moment, and nobody gets more.

// maxMovedPerEntry bounds how many waiters one entry moves because their holders' turns moved: all that two holders may have waiting.
const maxMovedPerEntry = 2 * maxWaitersOfHolder

// moving is how far a holder's waiters were moved to its turn.
type moving struct {
	// from is the ticket to go on with.
	from uint64
	// again: the turn has moved since, so that all are gone through once more.
	again bool
}

// setTurn sets a holder's turn and moves its waiters to it.
func (m *Machine) setTurn(h *holder, turn uint64) {
	h.turn = turn
	if h.waiting == 0 {
		return
	}
	at, under := m.moving.Get(h.name)
	at.again = under
	m.moveWaiters(h.name, at)
}

// moveTurns goes on with moving waiters, in the order of holders.
func (m *Machine) moveTurns() {
	for m.bounds.moves.left > 0 {
		name, at, ok := m.moving.Min()
		if !ok {
			return
		}
		m.moveWaiters(name, at)
	}
}

// moveWaiters moves waiters of a holder to its turn, from a ticket on and as far as the entry may.
func (m *Machine) moveWaiters(name string, at moving) {
	if at.from = m.moveFrom(name, at.from); at.from == 0 && at.again {
		at.again = false
		at.from = m.moveFrom(name, 0)
	}
	if at.from == 0 {
		m.moving.Delete(name)
		return
	}
	m.moving.Set(name, at)
}

// moveFrom does so once, and returns the ticket to go on with; 0: there are no more.
func (m *Machine) moveFrom(name string, from uint64) (next uint64) {
	var tickets []uint64
	m.eachWaiterFrom(name, from, func(w *waiter) bool {
		if len(tickets) == m.bounds.moves.left {
			next = w.ticket
			return false
		}
		tickets = append(tickets, w.ticket)
		return true
	})
	m.bounds.moves.spend(len(tickets))
	h, _ := m.holders.Get(name)
	for _, ticket := range tickets {
		w, _ := m.waiters.Get(ticket)
		if w.turn == h.turn {
			continue
		}
		m.changeWaiter(w, func(moved *waiter) { moved.turn = h.turn })
		l, _ := m.lanes.Get(w.lane)
		for _, number := range l.quotas {
			m.moved[number] = true
		}
	}
	return next
}

// standsAside tells whether a waiter may still stand at another turn than its holder's.
func (s *State) standsAside(w *waiter) bool {
	at, ok := s.moving.Get(w.ask.Holder)
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
	s.moving.Scan(func(name string, at moving) bool {
		if name == "" || at.from == 0 || at.from > s.lastTicket {
			err = fmt.Errorf("waiters of holder %q are moved from ticket %d on, which was not given out", name, at.from)
		}
		return err == nil
	})
	return err
}
