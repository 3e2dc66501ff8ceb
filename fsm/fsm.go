package fsm

import (
	"github.com/quotad/quotad/fsm/logpb"
)

// EntryVersion is the version of log entries that this package writes and the highest that it reads.
const EntryVersion = 1

// Clock is a moment as the cluster knows it. All three are nanoseconds.
type Clock struct {
	// Now is cluster time: a duration since the cluster's birth.
	Now int64
	// WallEarly is the earlier view of Unix time: no later than some honest voter's clock.
	WallEarly int64
	// WallLate is the later view of Unix time: no earlier than some honest voter's clock.
	WallLate int64
}

// Applied is what one log entry came to.
type Applied struct {
	// Index and Term are the log entry's.
	Index, Term uint64
	// Clock is the state's clock after the entry.
	Clock Clock
	// Results are the commands' results, by position.
	Results []*logpb.Result
	// Events are what happened, in order. They are the same on every replica.
	Events []Event
}

// EventKind says what happened. The numbers are those of the API's quota.v1.EventKind.
type EventKind int32

// The kinds of events.
const (
	EventGranted      EventKind = 1
	EventRefused      EventKind = 2
	EventWaiting      EventKind = 3
	EventWaitEnded    EventKind = 4
	EventReleased     EventKind = 5
	EventExpired      EventKind = 6
	EventRevoked      EventKind = 7
	EventCooldown     EventKind = 8
	EventWindowClosed EventKind = 9
	EventResetLearned EventKind = 10
	EventCapped       EventKind = 11
	EventOverrun      EventKind = 12
	EventQuotaApplied EventKind = 13
	EventQuotaDeleted EventKind = 14
	EventReopened     EventKind = 15
	EventBreaker      EventKind = 16
)

// Event is something that happened while an entry was applied. Fields that do not concern it are zero.
type Event struct {
	Kind   EventKind
	Quota  string
	Holder string
	Lease  uint64
	Fence  uint64
	// Ticket is set where a waiting Reserve is concerned.
	Ticket uint64
	Amount int64
	Reason logpb.Reason
	// Duration is nanoseconds.
	Duration int64
	// Result is the final result of a waiting Reserve (EventGranted with a Ticket, EventWaitEnded).
	Result *logpb.Result
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
	// WindowLeft is nanoseconds until the window closes, -1 where there is none or its reset is not known.
	WindowLeft int64
	Waiting    int64
	Leases     int64
	Overrun    int64
	// CappedTo is the total to which a report lowered the window, -1 for none.
	CappedTo int64
	// ReopensIn is nanoseconds until it is fully open again after a cooldown, 0 where it is.
	ReopensIn int64
	// Observed counts grants that it would have refused if it did more than observe.
	Observed int64
	// Broken are the first holders, by name, for whom it is closed.
	Broken []string
	// Classes is what each class has of the window; nil: there are no shares.
	Classes []ClassUse
}

// ClassUse is what one class has of a window.
type ClassUse struct {
	Class int32
	// Share is its share, Used what it holds and has consumed, Kept what is kept for it now.
	Share, Used, Kept int64
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
	Quotas, Leases, Operations, Waiting, Sessions int64
	ResultBytes                                   int64
}
