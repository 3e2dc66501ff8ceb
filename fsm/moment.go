package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
)

// moment is what holds while an entry is applied: its place in the log, the clock, how much more it may do, and what it has brought about.
// Parts of the state see the moment of their state. A frozen state has that of the last entry before it was frozen.
type moment struct {
	index, term uint64
	clock       Clock
	// featureLevel is the highest version of an entry applied.
	featureLevel uint32
	// generation tells objects that a frozen State may share (older ones) from those that may be changed in place.
	generation uint64
	events     []effect.Event
	// asker tells who asks from others in the same entry: the position of a command, the ticket of a waiter.
	asker uint64
	// ticked tells whether a second of cluster time began with the entry.
	ticked bool
	// commanded says that a command is being carried out.
	commanded bool
	// payer is whom the present command is charged to.
	payer accounts.Payer
	// bounds is how much work an entry carries out.
	bounds bounds
}

// maxEventRoom bounds the room for events that is kept for the next entry: more than usual entries need.
const maxEventRoom = 1 << 14

// begin begins an entry.
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
