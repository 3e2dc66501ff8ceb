// Package leaserun runs a command while it holds a lease: it reserves, starts the command, renews the lease, and returns
// the held amounts.
package leaserun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/child"
)

// Runner runs a command under a lease.
type Runner struct {
	// Client is the client of the cluster. Required, as are Request.Items and Args.
	Client *client.Client
	// Request is the reservation. Run sets its Wait and Consume.
	Request client.ReserveRequest
	// Wait is how long to wait for the grant; 0: no wait. It may be longer than client.MaxWait.
	Wait time.Duration
	// StopOnLoss stops the command when the lease is lost.
	StopOnLoss bool
	// Args are the command and its arguments. Environ is its environment; Run adds the lease's id and fence.
	Args, Environ []string
	// In, Out and Err are its streams.
	In       io.Reader
	Out, Err io.Writer
	// Tell receives messages for the user, line by line.
	Tell func(format string, values ...any)
}

// The variables with which a command finds its lease. Later settings of the same name win.
const (
	LeaseVariable = "QUOTAD_LEASE"
	FenceVariable = "QUOTAD_FENCE"
)

// Result is the command's end.
type Result struct {
	// Code is its exit code; if a signal ended it, 128 plus the signal's number.
	Code int
	// Lost is why the lease was lost while the command ran; nil: it was not.
	Lost error
}

// endTimeout bounds the attempts to return held amounts. If they fail, the amounts return at the lease's deadline.
const endTimeout = 10 * time.Second

// Run reserves, runs the command, and returns the held amounts. Slots are held while the command runs. All other amounts
// are consumed before the command starts and count as used, unless the command settles them itself. They return if the
// command cannot be started.
//
// The error is a *client.RefusalError if the cluster refused, and a *child.NotStartedError if the command could not be
// started.
func (r *Runner) Run(ctx context.Context) (Result, error) {
	lease, err := r.begin(ctx)
	if err != nil {
		return Result{}, err
	}
	var result Result
	over := make(chan struct{})
	watched := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(watched)
		result.Lost = r.watch(lease, over, stop)
	}()
	command := child.Command{
		Args: r.Args, In: r.In, Out: r.Out, Err: r.Err, Stop: stop, OwnGroup: true,
		Env: append(slices.Clone(r.Environ), LeaseVariable+"="+strconv.FormatUint(lease.ID(), 10),
			FenceVariable+"="+strconv.FormatUint(lease.Fence(), 10)),
	}
	state, err := command.Run(ctx)
	close(over)
	<-watched
	// A signal that ended this process's context must not prevent the report to the cluster.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	r.end(ctx, lease, state != nil, result.Lost)
	if state == nil {
		return Result{}, err
	}
	result.Code, _ = child.ExitOf(state)
	return result, nil
}

const (
	// maxAsked is the maximum number of grants to request until one arrives in time.
	maxAsked = 3
	// shortestPause bounds the rate of requests for a quota that may be free at any moment.
	shortestPause = 200 * time.Millisecond
)

// begin reserves and consumes, as soon as the cluster grants it within Wait.
func (r *Runner) begin(ctx context.Context) (*client.Lease, error) {
	until := time.Now().Add(r.Wait)
	late := 0
	for {
		request := r.Request
		request.Consume = true
		request.Wait = min(max(time.Until(until), 0), client.MaxWait)
		lease, err := r.Client.Reserve(ctx, request)
		refusal, refused := errors.AsType[*client.RefusalError](err)
		switch {
		case refused:
			pause := max(refusal.RetryAfter, shortestPause)
			if refusal.RetryAfter < 0 || pause > time.Until(until) || !sleep(ctx, pause) {
				return nil, ended(ctx, err)
			}
			continue
		case err != nil:
			return nil, ended(ctx, err)
		}
		if op := lease.Operation(); lease.Left() > 0 && (op == nil || op.Left() > 0) {
			lease.KeepAlive()
			return lease, nil
		}
		r.end(ctx, lease, false, nil)
		if late++; late == maxAsked {
			return nil, client.ErrLate
		}
	}
}

// ended returns the cause of an ended context instead of the error that followed from it.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// watch waits until the command or the lease has ended, and returns why the lease was lost. A lease that holds nothing
// except consumed amounts cannot be lost, because these stay consumed.
func (r *Runner) watch(lease *client.Lease, over <-chan struct{}, stop chan<- struct{}) error {
	held := heldBy(lease)
	if len(held) == 0 {
		<-over
		return nil
	}
	select {
	case <-over:
		return nil
	case <-lease.Done():
	}
	lost := lease.Err()
	what := "the command continues without it"
	if r.StopOnLoss {
		what = "stopping the command"
		close(stop)
	}
	r.Tell("lease %d was lost, and others may get its %s; %s: %s", lease.ID(), itemsText(held), what, said(lost))
	return lost
}

// end returns the held amounts of a lease, and the consumed ones if the command did not start. The command may have settled
// and released already. If the cluster cannot be reached, the amounts return at the deadline.
func (r *Runner) end(ctx context.Context, lease *client.Lease, started bool, lost error) {
	if lost != nil {
		return
	}
	if op := lease.Operation(); op != nil && len(op.Items()) > 0 {
		settlement := client.Settlement{Final: true}
		if !started {
			settlement = client.Settlement{Unspent: op.Items(), Final: true}
		}
		_, _ = op.Settle(ctx, settlement) // as above
	}
	if _, err := lease.Release(ctx); err != nil && !errors.Is(err, client.ReasonStaleFence) {
		r.Tell("cannot release lease %d, which ends at its deadline: %s", lease.ID(), said(err))
	}
}

// heldBy returns the amounts that a lease holds as long as it lives: slots.
func heldBy(lease *client.Lease) []client.Item {
	held := lease.Items()
	if op := lease.Operation(); op != nil {
		consumed := op.Items()
		held = slices.DeleteFunc(held, func(item client.Item) bool {
			return slices.ContainsFunc(consumed, func(c client.Item) bool { return c.Quota == item.Quota })
		})
	}
	return held
}

// itemsText formats items: anthropic/streams=1.
func itemsText(items []client.Item) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = fmt.Sprintf("%s=%d", item.Quota, item.Amount)
	}
	return strings.Join(words, " ")
}

// said is an error's text without the prefix of its package.
func said(err error) string { return strings.TrimPrefix(err.Error(), "quotad: ") }

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
