package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
)

// repeat says when a call may be sent to another node after an attempt that failed.
type repeat int

const (
	// reads changes nothing.
	reads repeat = 1
	// withID carries a request id: an attempt that may have been applied is answered, not applied again.
	withID repeat = 2
	// ifNotAccepted: only after an attempt that certainly changed nothing.
	ifNotAccepted repeat = 3
)

// pauseBetweenRounds is how long to wait for an election before all nodes are asked again.
const pauseBetweenRounds = 200 * time.Millisecond

// call asks the nodes in turn until one answers, the timeout passes, or no node can be reached at all. Patience is how
// long an answer may take by its nature (a waiting Reserve), on top of the command's timeout.
func call[Answer any](ctx context.Context, c *cluster, again repeat, patience time.Duration,
	ask func(context.Context, node) (*Answer, error),
) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+patience)
	defer cancel()
	deadline := time.Now().Add(c.timeout)
	for {
		var last error
		reached := false
		for i, n := range c.nodes {
			share := time.Until(deadline) / time.Duration(len(c.nodes)-i)
			answer, err := attempt(ctx, n, share+patience, ask)
			if err == nil {
				return answer, nil
			}
			last = err
			reached = reached || !neverSent(err)
			if !mayRepeat(err, again) {
				return nil, settled(err, again)
			}
		}
		if !reached {
			return nil, fail(ExitUnavailable, "is a node running there? name others with --server or QUOTAD_SERVER",
				"no node answers at %s: %w", c.addresses(), errors.Unwrap(last))
		}
		if !sleep(ctx, pauseBetweenRounds) || time.Now().After(deadline) {
			return nil, settled(last, again)
		}
	}
}

// addresses lists the nodes for a message.
func (c *cluster) addresses() string {
	all := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		all[i] = n.address
	}
	return strings.Join(all, ", ")
}

// attempt asks one node, bounded so that a node that hangs leaves time for the others.
func attempt[Answer any](ctx context.Context, n node, bound time.Duration,
	ask func(context.Context, node) (*Answer, error),
) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, max(bound, time.Millisecond))
	defer cancel()
	return ask(ctx, n)
}

// mayRepeat says whether another attempt is safe and could do better.
func mayRepeat(err error, again repeat) bool {
	var rpc *connect.Error
	if !errors.As(err, &rpc) {
		return false
	}
	if neverSent(err) {
		return true
	}
	if info := infoOf(rpc); info != nil {
		if info.NotAccepted {
			return rpc.Code() == connect.CodeUnavailable
		}
		return again != ifNotAccepted && info.Reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME
	}
	return again != ifNotAccepted && lost(rpc)
}

// lost says that no answer came back.
func lost(err *connect.Error) bool {
	return err.Code() == connect.CodeUnavailable || err.Code() == connect.CodeDeadlineExceeded
}

// settled is the final error of a call: where no answer came back, it says what that means for this call.
func settled(err error, again repeat) error {
	var rpc *connect.Error
	if !errors.As(err, &rpc) || infoOf(rpc) != nil || neverSent(err) || !lost(rpc) {
		return err
	}
	if again == reads {
		return fail(ExitUnavailable, "try again, or ask another node with --server", "no answer: %w", err)
	}
	return fail(ExitUnknown, "look before you repeat it: it may have happened", "no answer: %w", err)
}

// sleep waits and says whether the context still lives.
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
