package dedup

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/logpb"
)

// Host is the machine as seen by this package: it carries requests out, and knows the waiting ones.
type Host interface {
	// Moment returns the context of the present command.
	Moment() Moment
	// Payer returns the payer of the present command. Apply may change it: a report's payer is known once its lease is.
	Payer() accounts.Payer
	// Apply carries out a command. If it waits, its final result is to be stored under from (Table.Complete).
	Apply(command *logpb.Command, from RequestID) *logpb.Result
	// Digest returns the digest of the present command: equal digests mean the same request.
	Digest(command *logpb.Command) uint64
	// Freeable returns how much a command may free itself: the rest of the present entry's bound, and no less than least if
	// others have used that up. With 0 it returns that rest.
	Freeable(least int) int
	// Freed records work that was done to free results.
	Freed(cost int)
	// WaitCost returns the work of withdrawing the Reserve that waits under a ticket; 0: none does.
	WaitCost(ticket uint64) int
	// Withdraw refuses the Reserve that waits under a ticket, if any: nobody could learn of a grant.
	Withdraw(ticket uint64)
}

// Moment is the context of a command or of due work.
type Moment struct {
	// Now is cluster time.
	Now int64
	// Generation is the present one: no frozen state has its objects.
	Generation uint64
	// Level is the highest version of an entry applied.
	Level uint32
	// Accounts are charged with sessions, results and keys.
	Accounts *accounts.Book
}

// RequestID identifies the request of a waiting Reserve: its final result is stored there.
type RequestID struct {
	Session, Seq uint64
	Key          string
}
