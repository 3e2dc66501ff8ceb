package dedup

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/logpb"
)

// Host is the machine as it is to requests: what carries them out, and where those of them stand that wait.
type Host interface {
	// Moment returns what holds while the present command is carried out.
	Moment() Moment
	// Payer returns whom the present command is charged to. Apply may change that: a report's payer is known once its lease is.
	Payer() accounts.Payer
	// Apply carries a command out. Where it waits, its final result is to be stored under from (Table.Complete).
	Apply(command *logpb.Command, from RequestID) *logpb.Result
	// Digest returns the digest of the present command: two of the same digest are the same request.
	Digest(command *logpb.Command) uint64
	// Freeable returns how much a command may free itself: what the present entry has left for that, and at least a little where others have
	// used that up; with 0, what it has left.
	Freeable(least int) int
	// Freed records that so much was freed.
	Freed(cost int)
	// WaitCost returns what it takes of an entry's work to withdraw the Reserve that waits under a ticket; 0: none does.
	WaitCost(ticket uint64) int
	// Withdraw refuses the Reserve that waits under a ticket, if any: nobody could learn of a grant.
	Withdraw(ticket uint64)
}

// Moment is what holds while a command is carried out, or what is due.
type Moment struct {
	// Now is cluster time.
	Now int64
	// Generation is that of objects that no frozen state has.
	Generation uint64
	// Level is the highest version of an entry applied.
	Level uint32
	// Accounts are charged with what is remembered.
	Accounts *accounts.Book
}

// RequestID identifies the request of a waiting Reserve: its final result is stored there.
type RequestID struct {
	Session, Seq uint64
	Key          string
}
