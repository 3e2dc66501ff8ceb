package task

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// Host is the rest of the state machine, as tasks see it while a command, or what is due, is carried out.
type Host interface {
	// Now returns cluster time.
	Now() int64
	// FenceCounter returns the newest fence.
	FenceCounter() uint64
	// NextFence issues the next fence.
	NextFence() uint64
	// Book returns what callers have of each budget.
	Book() *accounts.Book
	// Payer returns whom the present command is charged to.
	Payer() accounts.Payer
	// OverBudget records and says that the payer has its part of a budget.
	OverBudget(b accounts.Budget, hint string) *logpb.Result
	// Covers tells whether a caller that may act for the holders of a pattern may act for this one.
	Covers(pattern, holder string) bool
	// QuotaName returns a quota's name as the state has it, so that who keeps it keeps no copy, or why there is no such quota.
	QuotaName(name string) (own string, failure *logpb.Failure)
	// Closed refuses a holder work that lives on quotas of which one is closed; nil: all of them, which must exist, are open.
	Closed(holder string, quotas []string) *logpb.Refusal
	// Report takes over what the provider said to an attempt that ends with a command, for each quota that its task lives on, within the
	// bounds of a Report; false: its caller has reported too often in this minute, and nothing was taken over.
	Report(end *logpb.Command, holder string, quotas []string) bool
	// Emit says that something happened.
	Emit(event effect.Event)
}
