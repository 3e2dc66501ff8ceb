package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/cmd/quotad/internal/neterr"
	"github.com/quotad/quotad/rpc/quotav1"
)

// repeat says when a call may be sent to another node after a failed attempt.
type repeat int

const (
	// reads: the call changes nothing.
	reads repeat = 1
	// withID: the call carries the number of a session's request. A repeated request gets the first answer and is not
	// applied again.
	withID repeat = 2
	// ifNotAccepted: only after an attempt that certainly changed nothing.
	ifNotAccepted repeat = 3
	// byNature: the call is idempotent.
	byNature repeat = 4
	// removes: as byNature. If an earlier attempt may have been applied and the object is gone, that attempt removed it.
	removes repeat = 5
	// withRoom: as byNature, but not after a refusal for lack of room, which may last.
	withRoom repeat = 6
)

// pauseBetweenRounds is how long to wait for an election before the next round over all nodes. If a node has answered
// already, no attempt begins with less than shortest left: a cut-off attempt would make a known outcome unknown.
const (
	pauseBetweenRounds = 200 * time.Millisecond
	shortest           = 250 * time.Millisecond
)

// call tries the nodes in turn until one answers, the timeout passes, or no node can be reached at all. patience is how
// long an answer may take by its nature (a waiting Reserve), in addition to the command's timeout.
func call[Answer any](ctx context.Context, c *cluster, again repeat, patience time.Duration,
	ask func(context.Context, node) (*Answer, error),
) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+patience)
	defer cancel()
	deadline := time.Now().Add(c.timeout)
	tries := tries{again: again, reported: make([]error, len(c.nodes))}
	for {
		for i, n := range c.nodes {
			left := time.Until(deadline)
			if left < shortest && tries.best() >= answered {
				return nil, tries.failure(c)
			}
			answer, err := attempt(ctx, n, left/time.Duration(len(c.nodes)-i)+patience, ask)
			if err == nil {
				return answer, nil
			}
			if again == removes && tries.open != nil && isGone(err) {
				return new(Answer), nil
			}
			if !mayRepeat(err, again) {
				if tries.open != nil && again != withRoom && wasNotAccepted(err) {
					err = tries.open // this refusal says nothing of the attempt that may have been applied
				}
				return nil, settled(err, again)
			}
			tries.add(i, err)
		}
		if tries.best() <= unreached || !sleep(ctx, pauseBetweenRounds) || time.Now().After(deadline) {
			return nil, tries.failure(c)
		}
	}
}

// How much a failed attempt reveals.
const (
	unreached  = 1 // no connection
	unanswered = 2 // no answer arrived
	answered   = 3 // the node gave a reason
)

func telling(err error) int {
	var rpc *connect.Error
	switch {
	case err == nil:
		return 0
	case neverSent(err):
		return unreached
	case errors.As(err, &rpc) && infoOf(rpc) == nil && lost(rpc):
		return unanswered
	}
	return answered
}

// tries collects the outcomes of a call's attempts.
type tries struct {
	again repeat
	// reported holds each node's most telling error; open is the error of the newest attempt that may have changed something.
	reported []error
	open     error
}

func (t *tries) add(node int, err error) {
	var rpc *connect.Error
	if errors.As(err, &rpc) && !neverSent(err) && t.again != reads {
		if info := infoOf(rpc); info == nil || !info.NotAccepted {
			t.open = err
		}
	}
	if telling(err) >= telling(t.reported[node]) {
		t.reported[node] = err
	}
}

func (t *tries) best() (best int) {
	for _, err := range t.reported {
		best = max(best, telling(err))
	}
	return best
}

// failure is the error of the whole call. It is one of these, in this order: the outcome is unknown; the most telling
// answer; a line for each node.
func (t *tries) failure(c *cluster) error {
	if t.open != nil {
		return settled(t.open, t.again)
	}
	best := t.best()
	if best >= answered {
		return settled(t.reported[slices.IndexFunc(t.reported, func(err error) bool { return telling(err) == best })], t.again)
	}
	message, hint := "no answer", "try again, or ask another node with --server"
	if best == unreached {
		message, hint = "no quotad node answers at "+c.addresses(), "is a node running there? name others with --server or QUOTAD_SERVER"
	}
	lines := make([]error, len(c.nodes))
	for i, n := range c.nodes {
		cause := t.reported[i]
		if telling(cause) == unreached {
			cause = rootCause(cause)
		}
		if len(c.nodes) == 1 {
			return fail(ExitUnavailable, hint, "%s: %w", message, cause)
		}
		lines[i] = fmt.Errorf("%s: %w", n.address, cause)
	}
	return fail(ExitUnavailable, hint, "%s\n%w", message, errors.Join(lines...))
}

// rootCause is the reason for a failed connection in the system's words. It omits the API's code, because no API answered,
// and the address, which the message already contains.
func rootCause(err error) error {
	if system, ok := errors.AsType[*os.SyscallError](err); ok {
		return system.Err
	}
	if operation, ok := errors.AsType[*net.OpError](err); ok {
		return operation.Err
	}
	return errors.Unwrap(err)
}

// addresses lists the nodes for a message.
func (c *cluster) addresses() string {
	all := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		all[i] = n.address
	}
	return strings.Join(all, ", ")
}

// attempt calls one node. The bound leaves time for other nodes if this one hangs.
func attempt[Answer any](ctx context.Context, n node, bound time.Duration,
	ask func(context.Context, node) (*Answer, error),
) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, max(bound, time.Millisecond))
	defer cancel()
	return ask(ctx, n)
}

// mayRepeat reports whether another attempt is safe and may succeed.
func mayRepeat(err error, again repeat) bool {
	var rpc *connect.Error
	if !errors.As(err, &rpc) {
		return false
	}
	if neverSent(err) {
		return true
	}
	if info := infoOf(rpc); info != nil {
		if again == withRoom && lacksRoom(err) {
			return false
		}
		if info.NotAccepted {
			return rpc.Code() == connect.CodeUnavailable
		}
		return again != ifNotAccepted && info.Reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME
	}
	return again != ifNotAccepted && lost(rpc)
}

// wasNotAccepted reports whether a node refused an attempt before it was proposed.
func wasNotAccepted(err error) bool {
	var rpc *connect.Error
	return errors.As(err, &rpc) && infoOf(rpc).GetNotAccepted()
}

// lacksRoom reports whether the cluster had no room for a session or for the result of a session's request.
func lacksRoom(err error) bool {
	var rpc *connect.Error
	if !errors.As(err, &rpc) {
		return false
	}
	info := infoOf(rpc)
	switch info.GetReason() {
	case quotav1.Reason_REASON_SESSIONS_FULL, quotav1.Reason_REASON_TOO_MANY_IN_FLIGHT, quotav1.Reason_REASON_MEMORY_FULL:
		return true
	case quotav1.Reason_REASON_CALLER_BUDGET, quotav1.Reason_REASON_BUDGET_FULL:
		return info.Budget == "sessions" || info.Budget == "result_bytes"
	default:
		return false
	}
}

// isGone reports whether the object to remove does not exist.
func isGone(err error) bool {
	var rpc *connect.Error
	if !errors.As(err, &rpc) || infoOf(rpc) == nil {
		return false
	}
	switch infoOf(rpc).Reason {
	case quotav1.Reason_REASON_UNKNOWN_QUOTA, quotav1.Reason_REASON_UNKNOWN_LEASE, quotav1.Reason_REASON_UNKNOWN_TASK,
		quotav1.Reason_REASON_UNKNOWN_WORKFLOW, quotav1.Reason_REASON_UNKNOWN_MEMBER:
		return true
	default:
		return false
	}
}

// lost reports whether no answer arrived. The RPC library reports a connection that the node reset as a call canceled here.
func lost(err *connect.Error) bool {
	if err.Code() == connect.CodeCanceled {
		return neterr.Reset(err)
	}
	return err.Code() == connect.CodeUnavailable || err.Code() == connect.CodeDeadlineExceeded
}

// settled is the final error of a call: where no answer arrived, it says whether the call may have happened.
func settled(err error, again repeat) error {
	var rpc *connect.Error
	if !errors.As(err, &rpc) || neverSent(err) {
		return err
	}
	if info := infoOf(rpc); info != nil && (again != reads || info.Reason != quotav1.Reason_REASON_UNKNOWN_OUTCOME) ||
		info == nil && !lost(rpc) {
		return err
	}
	if again == reads {
		return fail(ExitUnavailable, "try again, or ask another node with --server", "no answer: %w", err)
	}
	return fail(ExitUnknown, "it may have happened: check before you repeat it", "no answer: %w", err)
}

// sleep waits for length; it returns false if the context ends first.
func sleep(ctx context.Context, length time.Duration) bool {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
