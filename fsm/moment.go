package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
)

// moment is the context in which an entry is applied: its place in the log, the clock, the remaining bounds, and the
// events so far. The parts of a state share its moment. A frozen state has the moment of the last entry before the
// freeze.
type moment struct {
	index, term uint64
	clock       Clock
	// featureLevel is the highest version of an entry applied.
	featureLevel uint32
	// generation tells objects that a frozen State may share (older ones) from those that may be changed in place.
	generation uint64
	events     []effect.Event
	// asker identifies the requester within the entry: the position of a command, or the ticket of a waiter.
	asker uint64
	// ticked says that a second of cluster time began with the entry.
	ticked bool
	// commanded says that a command is being carried out.
	commanded bool
	// payer is charged for the present command.
	payer accounts.Payer
	// bounds are the limits of work of the entry.
	bounds bounds
}

// maxEventRoom is the largest capacity for events that is kept for the next entry: more than usual entries need.
const maxEventRoom = 1 << 14

// begin resets the moment for a new entry.
func (at *moment) begin() {
	if clear(at.events); cap(at.events) > maxEventRoom {
		at.events = nil
	}
	at.events, at.asker = at.events[:0], 0
	at.bounds.begin()
}

func (at *moment) emit(event effect.Event) { at.events = append(at.events, event) }

// frozen returns the moment of a state that never changes again.
func (at *moment) frozen() *moment {
	c := *at
	c.events = nil
	return &c
}
