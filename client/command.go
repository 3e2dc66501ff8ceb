package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// The states of a command, as seen by its caller and the pipeline that carries it.
const (
	// pending: certainly not carried out: not sent, or sent without effect.
	pending  = 0
	finished = 1
	// left: the caller's context ended first; no caller waits for the outcome.
	left = 2
	// flying: it may have been carried out, or may be at any moment.
	flying = 3
	// withdrawn: the caller's context ended while it was pending; it is never sent again.
	withdrawn = 4
)

// command is one request in the queue or in flight.
type command struct {
	// pb is the request; immutable once sent.
	pb       *quotav1.Command
	numbered bool
	// size is the encoded length in bytes, with room for the identity.
	size int
	// session, seq and id are the identity, set before the first send.
	session *session
	seq     uint64
	id      *quotav1.RequestId
	// doubt: an earlier attempt may have been carried out.
	doubt bool
	// expires is when to drop a command without a waiting caller.
	expires time.Time
	// then runs in the pipeline when the command finishes without a waiting caller; nil: nothing to do. It must not start a goroutine:
	// the client may be closed by then and no longer wait for it.
	then func(*command)

	state atomic.Int32
	done  chan struct{}
	// previous and next are the neighbours in the queue; queued: it is in the queue. Guarded by the queue's lock.
	previous, next *command
	queued         bool

	// The outcome; set before done is closed.
	result *quotav1.CommandResult
	stamp  stamp
	err    error
	// trouble is the last failure that did not finish it; only the pipeline uses it.
	trouble error
}

func newCommand(pb *quotav1.Command) *command {
	return &command{pb: pb, size: proto.Size(pb) + 64, done: make(chan struct{})}
}

// finish delivers the outcome to the caller, or to then if no caller waits.
func (cmd *command) finish(result *quotav1.CommandResult, at stamp, err error) {
	cmd.result, cmd.stamp, cmd.err = result, at, err
	waited := cmd.state.CompareAndSwap(flying, finished) || cmd.state.CompareAndSwap(pending, finished)
	if !waited && cmd.then != nil {
		cmd.then(cmd)
	}
	close(cmd.done)
}

// repeatable reports whether the command may be carried out again under a new identity, being idempotent by lease,
// fence and operation. A Reserve is not, nor is a partial Release: the repeat would release the items a second time.
func (cmd *command) repeatable() bool {
	return cmd.pb.GetReserve() == nil && len(cmd.pb.GetRelease().GetItems()) == 0
}

// live reports whether to send the command (again).
func (cmd *command) live(now time.Time) bool {
	switch cmd.state.Load() {
	case pending, flying:
		return true
	case withdrawn:
		return false
	}
	return now.Before(cmd.expires)
}

// land records the end of an attempt. If no attempt can have had an effect, the caller may withdraw the command again.
func (cmd *command) land() {
	if !cmd.doubt {
		cmd.state.CompareAndSwap(flying, pending)
	}
}

// checkText rejects a command with a string that is not UTF-8, since protobuf cannot encode it.
func checkText(pb *quotav1.Command) error {
	var items []*quotav1.Item
	switch kind := pb.GetKind().(type) {
	case *quotav1.Command_Reserve:
		if holder := kind.Reserve.GetHolder(); !utf8.ValidString(holder) {
			return &RequestError{Reason: ReasonInvalid, Message: fmt.Sprintf("the holder %q is not UTF-8", holder), Field: "holder"}
		}
		items = kind.Reserve.GetItems()
	case *quotav1.Command_Consume:
		items = kind.Consume.GetItems()
	case *quotav1.Command_Release:
		items = kind.Release.GetItems()
	case *quotav1.Command_Settle:
		items = slices.Concat(kind.Settle.GetUnspent(), kind.Settle.GetActual())
	case *quotav1.Command_Report:
		for _, signal := range kind.Report.GetSignals() {
			items = append(items, &quotav1.Item{Quota: signal.GetQuota()})
		}
	}
	for _, item := range items {
		if quota := item.GetQuota(); !utf8.ValidString(quota) {
			return &RequestError{Reason: ReasonInvalid, Message: fmt.Sprintf("the quota %q is not UTF-8", quota), Quota: quota}
		}
	}
	return nil
}

// orphanLife is how long the client pursues a Reserve whose caller has left, to release its lease if it is granted.
const orphanLife = 10 * time.Second

// do sends a command and waits for its outcome until ctx ends.
func (c *Client) do(ctx context.Context, cmd *command) error {
	if err := checkText(cmd.pb); err != nil {
		return err
	}
	if err := c.queue.push(cmd); err != nil {
		return err
	}
	select {
	case <-cmd.done:
		return cmd.err
	case <-ctx.Done():
	}
	reason := context.Cause(ctx)
	if trouble := c.trouble(); trouble != nil {
		reason = joined(reason, trouble)
	}
	if c.queue.remove(cmd) || cmd.state.CompareAndSwap(pending, withdrawn) {
		return &NotAcceptedError{Err: reason}
	}
	if cmd.state.CompareAndSwap(flying, left) {
		c.counters.unknown.Add(1)
		return &UnknownOutcomeError{Err: reason}
	}
	<-cmd.done
	return cmd.err
}

// send sends commands without a waiting caller, all in one batch, and retries each until life is over. Commands that
// cannot be queued are finished before send returns.
func (c *Client) send(life time.Duration, commands ...*command) {
	if err := c.post(life, commands...); err != nil {
		for _, cmd := range commands {
			cmd.finish(nil, stamp{}, err)
		}
	}
}

// post is send for callers that hold a lock which then takes: commands that cannot be queued are not finished, so their
// then is not called.
func (c *Client) post(life time.Duration, commands ...*command) error {
	expires := time.Now().Add(life)
	for _, cmd := range commands {
		cmd.expires = expires
		cmd.state.Store(left)
	}
	return c.queue.push(commands...)
}

// joinedError is a cause and a second error about it; errors.Is finds both.
type joinedError struct{ first, second error }

func joined(first, second error) error {
	if errors.Is(first, second) {
		return first
	}
	return &joinedError{first: first, second: second}
}

// Error implements error.
func (e *joinedError) Error() string { return "quotad: " + e.detail() }

func (e *joinedError) detail() string {
	first, second := detail(e.first), detail(e.second)
	switch {
	case strings.Contains(first, second):
		return first
	case strings.Contains(second, first):
		return second
	}
	return first + ": " + second
}

// Unwrap returns both errors.
func (e *joinedError) Unwrap() []error { return []error{e.first, e.second} }
