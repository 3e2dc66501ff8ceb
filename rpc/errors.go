package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// codes maps the reason of an error to its Connect code. Refusals are ordinary answers and have none.
var codes = map[quotav1.Reason]connect.Code{ //nolint:exhaustive // refusals have none
	quotav1.Reason_REASON_INVALID:             connect.CodeInvalidArgument,
	quotav1.Reason_REASON_UNKNOWN_QUOTA:       connect.CodeNotFound,
	quotav1.Reason_REASON_STALE_FENCE:         connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_NEVER_ISSUED:        connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_STALE_OPERATION:     connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_OPERATION_REUSED:    connect.CodeAlreadyExists,
	quotav1.Reason_REASON_TOO_MANY_OPERATIONS: connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_ITEM_CLOSED:         connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_NOT_HELD:            connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_ALREADY_SETTLED:     connect.CodeAlreadyExists,
	quotav1.Reason_REASON_PAST_SPEND_BY:       connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_FOREIGN_LEASE:       connect.CodePermissionDenied,
	quotav1.Reason_REASON_UNKNOWN_SESSION:     connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_SEQ_TOO_OLD:         connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_SEQ_REUSED:          connect.CodeAlreadyExists,
	quotav1.Reason_REASON_SESSIONS_FULL:       connect.CodeResourceExhausted,
	quotav1.Reason_REASON_TOO_MANY_IN_FLIGHT:  connect.CodeResourceExhausted,
	quotav1.Reason_REASON_UNKNOWN_TICKET:      connect.CodeNotFound,
	quotav1.Reason_REASON_QUOTA_IN_USE:        connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_KIND_CHANGE:         connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_UNKNOWN_LEASE:       connect.CodeNotFound,
	quotav1.Reason_REASON_EPOCH_NOT_RAISED:    connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_FOREIGN_CLUSTER:     connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_IMPOSSIBLE_QUOTA:    connect.CodeInvalidArgument,
	quotav1.Reason_REASON_UNKNOWN_TASK:        connect.CodeNotFound,
	quotav1.Reason_REASON_STALE_ATTEMPT:       connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_TASKS_FULL:          connect.CodeResourceExhausted,
	quotav1.Reason_REASON_FOREIGN_TASK:        connect.CodePermissionDenied,
	quotav1.Reason_REASON_IMPOSSIBLE_WORKFLOW: connect.CodeInvalidArgument,
	quotav1.Reason_REASON_UNKNOWN_WORKFLOW:    connect.CodeNotFound,
	quotav1.Reason_REASON_NO_LEADER:           connect.CodeUnavailable,
	quotav1.Reason_REASON_OVERLOADED:          connect.CodeResourceExhausted,
	quotav1.Reason_REASON_UNKNOWN_OUTCOME:     connect.CodeUnavailable,
	quotav1.Reason_REASON_STOPPING:            connect.CodeUnavailable,
	quotav1.Reason_REASON_NO_TOKEN:            connect.CodeUnauthenticated,
	quotav1.Reason_REASON_NOT_ALLOWED:         connect.CodePermissionDenied,
	quotav1.Reason_REASON_COMPACTED:           connect.CodeOutOfRange,
	quotav1.Reason_REASON_TESTING_ONLY:        connect.CodePermissionDenied,
	quotav1.Reason_REASON_SLOW_WATCHER:        connect.CodeResourceExhausted,
	quotav1.Reason_REASON_TOO_LARGE:           connect.CodeResourceExhausted,
	quotav1.Reason_REASON_UNFIT_MEMBER:        connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_UNKNOWN_MEMBER:      connect.CodeNotFound,
	quotav1.Reason_REASON_CANCELED:            connect.CodeDeadlineExceeded,
	quotav1.Reason_REASON_DISK_FULL:           connect.CodeUnavailable,
	quotav1.Reason_REASON_CALLER_BUDGET:       connect.CodeResourceExhausted,
	quotav1.Reason_REASON_BUDGET_FULL:         connect.CodeResourceExhausted,
	quotav1.Reason_REASON_MEMORY_FULL:         connect.CodeUnavailable,
	quotav1.Reason_REASON_CLOCK_UNSURE:        connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_CLOCK_NOT_AHEAD:     connect.CodeFailedPrecondition,
	quotav1.Reason_REASON_INTERNAL:            connect.CodeInternal,
}

// newError makes an error with info as its detail, and sets the outcome in info.
func newError(message string, info *quotav1.ErrorInfo) *connect.Error {
	code, known := codes[info.Reason]
	if !known {
		code = connect.CodeInternal
	}
	err := connect.NewError(code, errors.New(message))
	info.Outcome = outcomeOf(info)
	if detail, detailErr := connect.NewErrorDetail(info); detailErr == nil {
		err.AddDetail(detail)
	}
	setStatus(err, info)
	return err
}

// setStatus sets an error's HTTP status where Connect's code would give the wrong one.
func setStatus(err *connect.Error, info *quotav1.ErrorInfo) {
	if info.Reason == quotav1.Reason_REASON_TOO_LARGE {
		err.Meta().Set(statusHeader, "413")
	}
}

// outcomeOf returns the outcome of a command that was answered with an error.
func outcomeOf(info *quotav1.ErrorInfo) quotav1.Outcome {
	switch {
	case info.NotAccepted:
		return quotav1.Outcome_OUTCOME_NOT_ACCEPTED
	case info.Reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME, info.Reason == quotav1.Reason_REASON_INTERNAL,
		info.Reason == quotav1.Reason_REASON_CANCELED:
		return quotav1.Outcome_OUTCOME_UNKNOWN
	case info.Reason < quotav1.Reason_REASON_NO_LEADER:
		return quotav1.Outcome_OUTCOME_APPLIED
	}
	return quotav1.Outcome_OUTCOME_NOT_ACCEPTED
}

// invalid makes the error of a malformed field.
func invalid(field, message, hint string) *connect.Error {
	return newError(fmt.Sprintf("%s: %s", field, message), &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_INVALID, Field: field, Hint: hint, NotAccepted: true,
	})
}

// tooLargeError makes the error of a message above the server's limit.
func tooLargeError(message string) *connect.Error {
	return newError(message, &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_TOO_LARGE, Hint: "split the request", NotAccepted: true,
	})
}

// failed converts a failure of the state machine to an error.
func failed(f *logpb.Failure) *connect.Error {
	info := &quotav1.ErrorInfo{
		Reason: quotav1.Reason(f.Reason), Hint: hintFor(f.Reason, f.Hint), Quota: f.Quota, FenceCounter: f.FenceCounter, Budget: f.Budget,
	}
	if !ofBudget(info.Reason) {
		return newError(messageFor(f), info)
	}
	info.RetryAfter = durationpb.New(retryBudget)
	err := newError(messageFor(f), info)
	setRetryAfter(err.Meta(), retryBudget)
	return err
}

// ofBudget tells whether a reason is a used-up budget that callers share. Refusals and errors have the same two reasons.
func ofBudget(reason quotav1.Reason) bool {
	return reason == quotav1.Reason_REASON_CALLER_BUDGET || reason == quotav1.Reason_REASON_BUDGET_FULL
}

// When a retry is worthwhile: retrySoon after an election or a full queue, retryFullDisk when an operator may have made room, retryBudget
// when something of the caller's may have ended.
const (
	retrySoon     = 250 * time.Millisecond
	retryBudget   = time.Second
	retryFullDisk = 5 * time.Second
)

// nodeError converts an error of the node to one of the API.
func nodeError(err error) *connect.Error {
	var notAccepted *raftnode.NotAcceptedError
	var unknown *raftnode.UnknownError
	var member *raftnode.MemberError
	var compacted *raftnode.CompactedError
	var foreign *raftnode.ForeignBackupError
	var differ *raftnode.ClocksDifferError
	var already *connect.Error
	switch {
	case errors.As(err, &already):
		return already
	case errors.As(err, &notAccepted):
		return notAcceptedError(notAccepted)
	case errors.As(err, &unknown):
		return newError("the outcome is unknown: "+unknown.Err.Error(), &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_UNKNOWN_OUTCOME, Hint: "send it again with the same request id",
			RetryAfter: durationpb.New(retrySoon),
		})
	case errors.As(err, &member):
		reason := quotav1.Reason_REASON_UNFIT_MEMBER
		if member.Absent {
			reason = quotav1.Reason_REASON_UNKNOWN_MEMBER
		}
		return newError(member.Error(), &quotav1.ErrorInfo{Reason: reason, Field: "id", Hint: member.Hint, NotAccepted: true})
	case errors.As(err, &foreign):
		return newError(foreign.Error(), &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_FOREIGN_CLUSTER, NotAccepted: true,
			Hint: "to restore it anyway, set from_other_cluster, or use quotad restore --from-other-cluster",
		})
	case errors.As(err, &differ):
		return newError(differ.Error(), &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_CLOCK_UNSURE, Hint: "correct the members' clocks first; quotad status shows which one is wrong",
			NotAccepted: true,
		})
	case errors.As(err, &compacted):
		return newError(compacted.Error(), &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_COMPACTED, Hint: "read the state, then watch from now",
		})
	case errors.Is(err, raftnode.ErrTestingOnly):
		return newError(err.Error(), &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_TESTING_ONLY, NotAccepted: true})
	case errors.Is(err, raftnode.ErrSlowWatcher):
		return newError(err.Error(), &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_SLOW_WATCHER, Hint: "resume after the last index of which you have all events",
		})
	case errors.Is(err, raftnode.ErrWatchEnded):
		return stoppingError()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return newError("the call was canceled, or its deadline passed, before the answer",
			&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CANCELED})
	}
	return newError(err.Error(), &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_INTERNAL, Hint: "see the node's log"})
}

func notAcceptedError(e *raftnode.NotAcceptedError) *connect.Error {
	if e.Full != nil && e.Full.Own {
		return budgetError(e.Full)
	}
	info := &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true, Leader: e.Leader, LeaderAddress: e.LeaderAPIAddress,
		Hint: "ask the leader, or retry in a moment", RetryAfter: durationpb.New(retrySoon),
	}
	message := "this node does not lead"
	if e.Leader == "" {
		message, info.Hint = "no leader is known", "retry in a moment; quotad status shows which nodes do not answer"
	}
	switch e.Cause {
	case raftnode.NotLeader:
	case raftnode.NotReady:
		message, info.Hint = "the leader is not ready: it was just elected, or a restore or a transfer is running", "retry in a moment"
	case raftnode.QueueFull:
		info.Reason, info.Hint, message = quotav1.Reason_REASON_OVERLOADED, "send fewer requests at the same time, or retry later",
			"the leader's queue is full"
	case raftnode.Stopping:
		info.Reason, info.Hint, message = quotav1.Reason_REASON_STOPPING, "send it to another node", "the node is stopping"
	case raftnode.TooLarge:
		info.Reason, message = quotav1.Reason_REASON_TOO_LARGE, "the command is too large for the log"
		info.RetryAfter, info.Hint = nil, "split the command"
	case raftnode.DiskFull:
		info.Reason, message = quotav1.Reason_REASON_DISK_FULL, "the leader's disk is nearly full: new grants are refused"
		info.Hint, info.RetryAfter = "ask the operator to free disk or memory; calls that free quota still work", durationpb.New(retryFullDisk)
	case raftnode.MemoryFull:
		info.Reason, message = quotav1.Reason_REASON_MEMORY_FULL, "the leader's memory is nearly used up: new grants are refused"
		info.Hint, info.RetryAfter = "ask the operator to free disk or memory; calls that free quota still work", durationpb.New(retryFullDisk)
	case raftnode.OldMember:
		info.Reason, message = quotav1.Reason_REASON_UNFIT_MEMBER, "a member of the cluster runs a build that does not support this command"
		info.Hint, info.RetryAfter = "upgrade all nodes first; quotad status shows their versions", nil
	case raftnode.Canceled:
		info.Reason, message = quotav1.Reason_REASON_CANCELED, "the caller's deadline passed before the command was accepted"
	}
	return newError(message, info)
}

func stoppingError() *connect.Error {
	return notAcceptedError(&raftnode.NotAcceptedError{Cause: raftnode.Stopping})
}

// infoOf returns an error's detail, nil where it has none.
func infoOf(err error) *quotav1.ErrorInfo {
	var connectErr *connect.Error
	if !errors.As(err, &connectErr) {
		return nil
	}
	for _, detail := range connectErr.Details() {
		if value, valueErr := detail.Value(); valueErr == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}
