package fsm

import (
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Clock is a moment as the cluster knows it.
type Clock = ledger.Clock

// Applied is the outcome of one log entry.
type Applied struct {
	// Index and Term are the log entry's.
	Index, Term uint64
	// Clock is the state's clock after the entry.
	Clock Clock
	// Results are the commands' results, by position; nil for an entry that needs none (Follow).
	Results []*logpb.Result
	// Events are in the order in which they happened. They are the same on every replica, and valid until the next
	// entry is applied.
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
	// ClosedFor is how long a cooldown of the quota or of an ancestor still blocks calls (nanoseconds); 0: no cooldown.
	ClosedFor int64
	// WindowLeft is nanoseconds until the window closes; -1: not a window, or its reset is not known.
	WindowLeft int64
	Waiting    int64
	Leases     int64
	Overrun    int64
	// CappedTo is the total to which a report lowered the window or the rate, -1 for none.
	CappedTo int64
	// ReopensIn is nanoseconds until it is fully open again after a cooldown; 0: fully open.
	ReopensIn int64
	// Observed counts grants that the quota would have refused if it did not only observe.
	Observed int64
	// Broken are the first holders, by name, whose breaker is open.
	Broken []string
	// Classes are the parts of each class in the window; nil: there are no shares.
	Classes []ClassUse
	// Circuit says whether it lets calls pass.
	Circuit Circuit
	// Forecast is the prediction; nil: none. Samples is how many reports it is based on, or would be.
	Forecast *logpb.Forecast
	Samples  int
	// Override is a limit that replaces its own; nil: none.
	Override *OverrideView
	// ObservedLimit is the limit that the provider named last, -1 for none. ObservedAgo is its age (nanoseconds).
	ObservedLimit, ObservedAgo int64
	// Others is the use of a rate's key by others in one period, as reported by the provider. KeptForOthers is held
	// back for them.
	Others, KeptForOthers int64
	// Pacer is the pacer of a rate with shares; nil: none.
	Pacer *PacerView
	// Members are the members of a pool, in their order. The pool's amounts are the sums of theirs, with two
	// exceptions. AvailableWithParents is the largest of an open member. CooldownLeft is that of the first member to
	// open, if all are closed.
	Members []PoolMemberView
}

// PacerView is how far a rate's grants are ahead of its returns.
type PacerView struct {
	// Ahead is how long the granted amounts take to return, one after the other. LendsIn is when the next one is lent
	// (nanoseconds).
	Ahead, LendsIn int64
	// Reserve is the amount that background work leaves for higher classes that ask.
	Reserve int64
	// Zone: green, each class may take what is free; amber, the rate lends to lower classes; red, critical calls are
	// short.
	Zone logpb.Zone
}

// PoolMemberView is a member of a pool.
type PoolMemberView struct {
	Name string
	// Quota is its quota, never a pool.
	Quota QuotaView
}

// OverrideView is a limit that replaces a quota's own.
type OverrideView struct {
	Limit int64
	// Left is nanoseconds until it ends.
	Left int64
	Note string
}

// Circuit says whether a quota lets calls pass, in the terms of circuit breakers. The numbers are those of the API's
// quota.v1.Circuit.
type Circuit int32

const (
	// CircuitClosed lets calls pass.
	CircuitClosed Circuit = 1
	// CircuitPreemptive will be used up before its window closes, and limits calls because of that.
	CircuitPreemptive Circuit = 2
	// CircuitOpen was closed by the provider: nothing passes.
	CircuitOpen Circuit = 3
	// CircuitHalfOpen reopens slowly.
	CircuitHalfOpen Circuit = 4
)

// ClassUse is the part of one class in a window, or in a rate with shares.
type ClassUse struct {
	Class int32
	// Share is the class's share; of a rate, of what others leave. Used is its held and consumed amount; of a rate,
	// known for critical calls only. Kept is the amount kept for it now; of a rate, its share while it asks.
	Share, Used, Kept int64
	// Lent is the unused part of the share that is open to others, Borrowed the use beyond the share; windows only.
	Lent, Borrowed int64
	// Takes, for rates, is the largest call of the class that it and its ancestors could grant now, if nobody waits.
	Takes int64
}

// MeterCounts are a holder's counters for a quota, since its record was created.
type MeterCounts struct {
	// Answered are the provider's answers other than refusals, Limited its refusals for a limit.
	Answered, Limited int64
	// Waits are Reserves that were granted after a wait, WaitedNs the sum of these waits.
	Waits, WaitedNs int64
	// Granted and Consumed are amounts; Returned is the consumed amount that returned, Overrun the use beyond
	// estimates.
	Granted, Consumed, Returned, Overrun int64
	// Denials are refusals by reason, in the order of reasons.
	Denials []Denial
}

// Denial counts refusals of a holder for one reason.
type Denial struct {
	Reason logpb.Reason
	Times  int64
}

// UsageView is one holder's use of one quota.
type UsageView struct {
	Holder, Quota string
	Class         int32
	// Share is the holder's own share of a window, 0 for none. Reserved is the amount held by its leases. Used is its
	// held and consumed amount in the present window, -1 if the quota is not a window. Lent is the part of its share
	// that is open to others, Borrowed its use beyond the share.
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
	// TasksUnderWay are tasks with a running attempt, TasksShelved those whose retry budget is used up.
	Tasks, TasksUnderWay, TasksShelved int64
}
