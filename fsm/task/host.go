package task

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// Host is the rest of the state machine, as seen by tasks during a command or due work.
type Host interface {
	// Now returns cluster time.
	Now() int64
	// FenceCounter returns the newest fence.
	FenceCounter() uint64
	// NextFence issues the next fence.
	NextFence() uint64
	// Book returns the use of the budgets.
	Book() *accounts.Book
	// Payer returns the payer of the present command.
	Payer() accounts.Payer
	// OverBudget counts and returns the failure of a payer that has used up its part of a budget.
	OverBudget(b accounts.Budget, hint string) *logpb.Result
	// Covers reports whether a caller that may act for the holders of a pattern may act for this one.
	Covers(pattern, holder string) bool
	// QuotaName returns a quota's name as the string of the state, to avoid copies, or why there is no such quota.
	QuotaName(name string) (own string, failure *logpb.Failure)
	// Closed refuses a holder's work if one of its quotas is closed; nil: all of them, which must exist, are open.
	Closed(holder string, quotas []string) *logpb.Refusal
	// Report applies what the provider told an attempt that ends with a command, for each quota of its task, within the
	// bounds of a Report. It returns false, without effect, if the caller has used up its reports of this minute.
	Report(end *logpb.Command, holder string, quotas []string) bool
	// Emit emits an event.
	Emit(event effect.Event)
}
