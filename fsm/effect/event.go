package effect

import "github.com/quotad/quotad/fsm/logpb"

// EventKind is the kind of an event. The numbers are those of the API's quota.v1.EventKind.
type EventKind int32

// Kinds of events.
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
	EventForecast     EventKind = 17
	EventOverride     EventKind = 18
	EventTaskBegun    EventKind = 20
	EventTaskEnded    EventKind = 21
	EventTaskShelved  EventKind = 22
	EventTaskRetried  EventKind = 23
	EventBackPressure EventKind = 24
	EventSequential   EventKind = 25
	EventBaton        EventKind = 26
	EventParallel     EventKind = 27

	EventReopenedByOperator EventKind = 40
)

// Event is something that happened while an entry was applied. Fields that do not apply are zero.
type Event struct {
	Kind   EventKind
	Quota  string
	Holder string
	Lease  uint64
	Fence  uint64
	// Ticket is set for a waiting Reserve.
	Ticket uint64
	Amount int64
	Reason logpb.Reason
	// Duration is nanoseconds.
	Duration int64
	// Task is the name of the task, Outcome how its attempt ended.
	Task    string
	Outcome logpb.TaskOutcome
	// Workflow and Step are set for workflows; Step is the limited holder.
	Workflow, Step string
	// Result is the final result of a waiting Reserve (EventGranted with a Ticket, EventWaitEnded).
	Result *logpb.Result
}
