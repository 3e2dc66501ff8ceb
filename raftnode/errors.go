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

// NotAcceptedError says that the commands were certainly not accepted: sending them elsewhere is safe.
type NotAcceptedError struct {
	// Cause says why.
	Cause NotAcceptedCause
	// Leader and LeaderAPIAddress name the leader where one is known.
	Leader, LeaderAPIAddress string
	// Full says, of a full queue, whose part of it is used up; nil: all that take quota have theirs.
	Full *budget.FullError
}

// NotAcceptedCause says why commands were not accepted.
type NotAcceptedCause int

// The causes.
const (
	NotLeader  NotAcceptedCause = 1  // this node does not lead
	NotReady   NotAcceptedCause = 2  // it leads, but its barrier is not applied yet
	QueueFull  NotAcceptedCause = 3  // the proposer's queue is full, for all or for this caller
	Stopping   NotAcceptedCause = 4  // the node is stopping
	DiskFull   NotAcceptedCause = 5  // the disk is nearly full and the command would grant
	Canceled   NotAcceptedCause = 6  // the caller's context ended while the command was still queued
	TooLarge   NotAcceptedCause = 7  // the command is larger than an entry may be
	MemoryFull NotAcceptedCause = 9  // memory is nearly used up and the command would take more
	OldMember  NotAcceptedCause = 10 // a member runs a build that does not know what the commands ask for, and would stop at them
	NotAMember NotAcceptedCause = 8  // a member operation names an unknown or unfit member
)

// Error implements error.
func (e *NotAcceptedError) Error() string {
	return fmt.Sprintf("not accepted: cause %d, leader %q", e.Cause, e.Leader)
}

// UnknownError says that the commands may or may not be applied: they are only safe to send again under the same
// request id.
type UnknownError struct{ Err error }

// Error implements error.
func (e *UnknownError) Error() string { return "outcome unknown: " + e.Err.Error() }

// Unwrap returns the cause. That something was not accepted, such as a later part of the same call, is not found below: who
// looks for it asks whether there was no effect.
func (e *UnknownError) Unwrap() error {
	if _, refused := errors.AsType[*NotAcceptedError](e.Err); refused {
		return nil
	}
	return e.Err
}

// CompactedError says that events before Oldest are gone.
type CompactedError struct{ Oldest uint64 }

// Error implements error.
func (e *CompactedError) Error() string {
	return fmt.Sprintf("events before index %d are gone", e.Oldest)
}
