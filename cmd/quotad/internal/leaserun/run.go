// Package leaserun runs a command while it holds a lease: it reserves, starts the command, renews the lease, and gives back what the
// command held.
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
	// Client asks the cluster. Required, as are Request.Items and Args.
	Client *client.Client
	// Request is what to reserve. Its Wait and Consume are set by Run.
	Request client.ReserveRequest
	// Wait is how long to wait for the grant, 0: not at all. It may be longer than client.MaxWait.
	Wait time.Duration
	// StopOnLoss stops the command when the lease is lost.
	StopOnLoss bool
	// Args are the command and its arguments, Environ its environment, to which the lease's number and fence are added.
	Args, Environ []string
	// In, Out and Err are its streams.
	In       io.Reader
	Out, Err io.Writer
	// Tell takes what happens, line by line.
	Tell func(format string, values ...any)
}

// The variables by which a command knows its lease. Later settings of the same name win.
const (
	LeaseVariable = "QUOTAD_LEASE"
	FenceVariable = "QUOTAD_FENCE"
)

// Result is how the command ended.
type Result struct {
	// Code is its exit code, 128 and the signal's number where a signal ended it.
	Code int
	// Lost is why the lease was lost while the command ran; nil: it was not.
	Lost error
}

// endTimeout bounds how long to go on giving back what was held. What the cluster does not hear of returns at the lease's deadline.
const endTimeout = 10 * time.Second

// Run reserves, runs the command, and gives back. Slots are held while the command runs. Everything else is consumed before the
// command starts and counts as used, unless the command settles it itself; it goes back if the command cannot be started.
//
// A *client.RefusalError is the cluster's no; a *child.NotStartedError says that the command could not be started.
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
	// A signal that ended this process's context must not keep the cluster from hearing of the end.
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
	// maxAsked is how often to ask for an allowance that is young enough when it arrives.
	maxAsked = 3
	// shortestPause keeps a quota that may be free any moment from being asked for all the time.
	shortestPause = 200 * time.Millisecond
)

// begin reserves and consumes, as soon as that can be had within Wait.
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

// ended prefers why a context has ended to what came of it.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// watch waits until the command or the lease has ended, and returns why the lease was lost. A lease that holds nothing besides what it
// consumed cannot be lost: what is consumed stays so.
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

// end gives back what a lease holds, and what it consumed if the command did not start. The command may have settled and released
// already. What the cluster does not hear of returns at the deadline.
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

// heldBy returns what a lease holds as long as it lives: slots.
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

// itemsText writes items as anthropic/streams=1.
func itemsText(items []client.Item) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = fmt.Sprintf("%s=%d", item.Quota, item.Amount)
	}
	return strings.Join(words, " ")
}

// said is an error's text without the name of the package that it comes from.
func said(err error) string { return strings.TrimPrefix(err.Error(), "quotad: ") }

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
