package raftnode

import (
	"errors"
	"fmt"

	"github.com/quotad/quotad/raftnode/budget"
)

// ErrNoTicket says that no Reserve waits under this ticket.
var ErrNoTicket = errors.New("no waiting Reserve has this ticket")

// ErrSlowWatcher says that a watcher read too slowly and was cut off.
var ErrSlowWatcher = errors.New("the watcher reads too slowly")

// ErrWatchEnded says that a watcher's subscription ended because the node stops.
var ErrWatchEnded = errors.New("the subscription ended")

// ErrTestingOnly says that the process was not started for testing.
var ErrTestingOnly = errors.New("only a process started for testing allows this")

// NotAcceptedError says that the commands were certainly not accepted: it is safe to send them to another node.
type NotAcceptedError struct {
	// Cause is the reason.
	Cause NotAcceptedCause
	// Leader and LeaderAPIAddress name the leader, if one is known.
	Leader, LeaderAPIAddress string
	// Full is the error of the budget that the caller has used up, for a full queue; nil: the queue has no room for any command that takes
	// quota.
	Full *budget.FullError
}

// NotAcceptedCause is the reason why commands were not accepted.
type NotAcceptedCause int

// The causes.
const (
	NotLeader  NotAcceptedCause = 1 // this node does not lead
	NotReady   NotAcceptedCause = 2 // it leads, but has no barrier yet, runs a transfer or restore, or did not take the call in time
	QueueFull  NotAcceptedCause = 3 // the proposer's queue is full, for all or for this caller
	Stopping   NotAcceptedCause = 4 // the node is stopping
	DiskFull   NotAcceptedCause = 5 // the disk is nearly full and the command would grant
	Canceled   NotAcceptedCause = 6 // the caller's context ended while the command was still queued
	TooLarge   NotAcceptedCause = 7 // a command is larger than half of MaxEntryBytes
	MemoryFull NotAcceptedCause = 8 // memory is nearly used up and the command would take more
	OldMember  NotAcceptedCause = 9 // a member runs a build that does not know these commands and would stop at them
)

// causes are the texts of the causes.
var causes = map[NotAcceptedCause]string{
	NotLeader: "not the leader", NotReady: "the leader is not ready", QueueFull: "the queue is full", Stopping: "the node is stopping",
	DiskFull: "the disk is nearly full", Canceled: "canceled", TooLarge: "too large", MemoryFull: "memory is nearly used up",
	OldMember: "a member runs an older build",
}

// String returns the cause in words.
func (c NotAcceptedCause) String() string { return causes[c] }

// Error implements error.
func (e *NotAcceptedError) Error() string {
	if e.Leader == "" {
		return "not accepted: " + e.Cause.String()
	}
	return fmt.Sprintf("not accepted: %v (the leader is %s)", e.Cause, e.Leader)
}

// UnknownError says that the commands may or may not be applied. It is safe to repeat them only under the same request id.
type UnknownError struct{ Err error }

// Error implements error.
func (e *UnknownError) Error() string { return "outcome unknown: " + e.Err.Error() }

// Unwrap returns the cause, but not a *NotAcceptedError: that another part of the call was not accepted does not mean that the call had no
// effect.
func (e *UnknownError) Unwrap() error {
	if _, refused := errors.AsType[*NotAcceptedError](e.Err); refused {
		return nil
	}
	return e.Err
}

// CompactedError says that events before index Oldest are no longer kept.
type CompactedError struct{ Oldest uint64 }

// Error implements error.
func (e *CompactedError) Error() string {
	return fmt.Sprintf("events before index %d are gone", e.Oldest)
}
