package fsm

import (
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Clock is a moment as the cluster knows it.
type Clock = ledger.Clock

// Applied is what one log entry came to.
type Applied struct {
	// Index and Term are the log entry's.
	Index, Term uint64
	// Clock is the state's clock after the entry.
	Clock Clock
	// Results are the commands' results, by position; nil where they are nobody's (Follow).
	Results []*logpb.Result
	// Events are what happened, in order. They are the same on every replica, and last until the next entry is applied.
	Events []effect.Event
}

// QuotaView is a quota as a reader sees it at some Clock.
type QuotaView struct {
	Definition *logpb.Quota
	Usable     int64
	Held       int64
	Consumed   int64
	// Available may be below 0 after an overrun.
	Available            int64
	AvailableWithParents int64
	Zone                 logpb.Zone
	// CooldownLeft is nanoseconds, 0 for none.
	CooldownLeft int64
	// ClosedFor is for how long a cooldown of the quota or of an ancestor keeps calls from it (nanoseconds); 0: none does.
	ClosedFor int64
	// WindowLeft is nanoseconds until the window closes, -1 where there is none or its reset is not known.
	WindowLeft int64
	Waiting    int64
	Leases     int64
	Overrun    int64
	// CappedTo is the total to which a report lowered the window or the rate, -1 for none.
	CappedTo int64
	// ReopensIn is nanoseconds until it is fully open again after a cooldown, 0 where it is.
	ReopensIn int64
	// Observed counts grants that it would have refused if it did more than observe.
	Observed int64
	// Broken are the first holders, by name, for whom it is closed.
	Broken []string
	// Classes is what each class has of the window; nil: there are no shares.
	Classes []ClassUse
	// Circuit says whether it lets calls pass.
	Circuit Circuit
	// Forecast is what is predicted; nil: nothing. Samples is how many reports say so, or would.
	Forecast *logpb.Forecast
	Samples  int
	// Override is a limit in place of its own; nil: none.
	Override *OverrideView
	// ObservedLimit is the limit that the provider named last, -1 for none; ObservedAgo is how long ago it did (nanoseconds).
	ObservedLimit, ObservedAgo int64
	// Others is what others use of a rate's key in one period, by the provider's word; KeptForOthers is what is held back for them.
	Others, KeptForOthers int64
	// Pacer is that of a rate with shares; nil: it has none.
	Pacer *PacerView
	// Members are those of a pool, in their order. Its amounts are the sums of theirs, but for AvailableWithParents, which is the most that
	// one of those has that are open, and CooldownLeft is that of the first to open where all are closed.
	Members []PoolMemberView
}

// PacerView is how far a rate's grants are ahead of what comes back.
type PacerView struct {
	// Ahead is how long what was granted takes to come back, one after the other; LendsIn is when the next is lent (nanoseconds).
	Ahead, LendsIn int64
	// Reserve is what background work leaves for the classes above it that ask.
	Reserve int64
	// Zone says how much there is: green, all may take what is free; amber, it lends to lower classes; red, critical calls are short.
	Zone logpb.Zone
}

// PoolMemberView is a member of a pool.
type PoolMemberView struct {
	Name string
	// Quota is its quota; that is never a pool.
	Quota QuotaView
}

// OverrideView is a limit in place of a quota's own.
type OverrideView struct {
	Limit int64
	// Left is nanoseconds until it ends.
	Left int64
	Note string
}

// Circuit says whether a quota lets calls pass, in the words of circuit breakers. The numbers are those of the API's
// quota.v1.Circuit.
type Circuit int32

const (
	// CircuitClosed lets calls pass.
	CircuitClosed Circuit = 1
	// CircuitPreemptive will be used up before it closes, and acts upon that.
	CircuitPreemptive Circuit = 2
	// CircuitOpen was closed by the provider: nothing passes.
	CircuitOpen Circuit = 3
	// CircuitHalfOpen reopens slowly.
	CircuitHalfOpen Circuit = 4
)

// ClassUse is what one class has of a window, or of a rate with shares.
type ClassUse struct {
	Class int32
	// Share is its share, of a rate of what others leave. Used is what it holds and has consumed; of a rate this is known of critical calls
	// alone. Kept is what is kept for it now; of a rate its share while it asks.
	Share, Used, Kept int64
	// Lent is what is open to others of a share that is not used, Borrowed what is used beyond the share; of windows.
	Lent, Borrowed int64
	// Takes is, of a rate, the most that one call of the class could be granted now by it and its ancestors, if nobody waits.
	Takes int64
}

// MeterCounts is what a holder did with a quota, since it is remembered.
type MeterCounts struct {
	// Answered are answers of the provider that were no refusal, Limited its refusals for a limit.
	Answered, Limited int64
	// Waits are Reserves that were granted after a wait, WaitedNs how long these waited in all.
	Waits, WaitedNs int64
	// Granted and Consumed are amounts; Returned is what of the consumed came back, Overrun what was used beyond estimates.
	Granted, Consumed, Returned, Overrun int64
	// Denials are refusals by reason, in the order of reasons.
	Denials []Denial
}

// Denial is how often a holder was refused for a reason.
type Denial struct {
	Reason logpb.Reason
	Times  int64
}

// UsageView is what one holder does with one quota.
type UsageView struct {
	Holder, Quota string
	Class         int32
	// Share is what is kept for it of a window, 0 where it has none of its own. Reserved is what its leases hold, Used what
	// it holds and has consumed in the present window, -1 where the quota is none. Lent is what is open to others of its
	// share, Borrowed what it used beyond.
	Share, Reserved, Used, Lent, Borrowed int64
	MeterCounts
}

// LeaseView is a live lease as a reader sees it at some Clock.
type LeaseView struct {
	ID, Fence uint64
	Holder    string
	Class     int32
	// Held and Consumed are by item; Until is absolute cluster time.
	Held, Consumed []*logpb.GrantedItem
	// Left is nanoseconds until the deadline.
	Left       int64
	Operations int
}

// MemberView is a node whose API address the state knows.
type MemberView struct {
	ID, APIAddress string
}

// Counts are sizes of the state's tables.
type Counts struct {
	Quotas, Leases, Operations, Holders, Waiting, Sessions int64
	ResultBytes                                            int64
	// Of the tasks, TasksUnderWay have an attempt under way, and TasksShelved failed as often as they may.
	Tasks, TasksUnderWay, TasksShelved int64
}
