package taskrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/child"
	"github.com/quotad/quotad/rpc/signals"
)

// Runner runs a command under a task's retry budget.
type Runner struct {
	// Client is the client of the cluster. Required, as are Request.Task and Args.
	Client  *client.Client
	Request client.TaskRequest
	// Args are the command and its arguments.
	Args []string
	// In, Out and Err are its streams.
	In       io.Reader
	Out, Err io.Writer
	// Texts are the messages about limits. Required.
	Texts *signals.Texts
	// Done matches a line of standard output of a finished task; nil: a task is finished when its command exits with 0.
	Done *regexp.Regexp
	// Wait is how long to wait until an attempt may begin; 0: no wait.
	Wait time.Duration
	// UntilDone continues with the next attempt, as long as one may begin within Wait.
	UntilDone bool
	// Tell receives messages for the user, line by line.
	Tell func(format string, values ...any)

	// blind: this holder's token does not allow reading quotas.
	blind bool
}

// Result is the result of the last attempt.
type Result struct {
	// Code is its child's exit code; if a signal ended it, 128 plus the signal's number.
	Code int
	// Ending is its outcome, Ended the state of its task afterwards.
	Ending client.Ending
	Ended  client.Ended
	// Attempt is its number.
	Attempt int64
}

// LostError says that the attempt was lost while the command ran, and that the command was stopped.
type LostError struct{ Err error }

// Error implements error.
func (e *LostError) Error() string {
	return "the attempt was lost, and the command stopped: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// Run begins an attempt, runs the command and reports the outcome to the cluster; with UntilDone repeatedly, until the task
// is done or shelved. The error is a *client.RefusalError if an attempt may not begin, and client.ErrTaskDone if none is
// needed.
func (r *Runner) Run(ctx context.Context) (Result, error) {
	var last Result
	for {
		attempt, err := r.begin(ctx)
		if err != nil {
			if _, refused := errors.AsType[*client.RefusalError](err); refused && last.Attempt > 0 {
				return last, nil // the last attempt's result is more informative, and says when to retry
			}
			return last, err
		}
		if last, err = r.attempt(ctx, attempt); err != nil {
			return last, err
		}
		again := r.UntilDone && last.Ended.RetryAfter >= 0 && ctx.Err() == nil
		if !again {
			return last, nil
		}
		r.Tell("task %s: %s", r.Request.Task, last.Words())
	}
}

const (
	// pollEvery is the longest pause before another request for a task with an attempt in flight: it may end long before
	// its deadline.
	pollEvery = 15 * time.Second
	// refillPoll is the interval of requests for amounts that return bit by bit.
	refillPoll = 2 * time.Second
	// shortestWait bounds the rate of requests for an attempt that may begin at any moment.
	shortestWait = 200 * time.Millisecond
)

// begin begins an attempt, as soon as one may begin within Wait.
func (r *Runner) begin(ctx context.Context) (*client.Attempt, error) {
	until := time.Now().Add(r.Wait)
	reported := false
	for {
		attempt, err := r.ask(ctx)
		refusal, refused := errors.AsType[*client.RefusalError](err)
		if !refused || refusal.RetryAfter < 0 {
			return attempt, err
		}
		left, pause := time.Until(until), refusal.RetryAfter
		if refusal.Reason == client.ReasonTaskInFlight || refusal.Reason == client.ReasonExhausted {
			pause = min(pause, pollEvery, max(left, 0))
		}
		if left <= 0 || pause > left {
			return nil, err
		}
		if !reported {
			r.Tell("task %s: %s; waiting up to %v", r.Request.Task, Why(refusal), r.Wait)
			reported = true
		}
		pause = max(pause, shortestWait)
		if !sleep(ctx, pause+rand.N(shortestWait)) {
			return nil, context.Cause(ctx)
		}
	}
}

// ask begins an attempt, unless nothing is available of a quota: the attempt would hit the limit at once. The cluster
// itself refuses only for quotas that are closed.
func (r *Runner) ask(ctx context.Context) (*client.Attempt, error) {
	for _, name := range r.Request.Quotas {
		if r.blind {
			break
		}
		quota, err := r.Client.Quota(ctx, name)
		switch {
		case errors.Is(err, client.ReasonNotAllowed):
			r.blind = true
			r.Tell("task %s: cannot read what is available of its quotas: use a token with the verb read", r.Request.Task)
		case err != nil:
			return nil, err
		case quota.AvailableWithParents <= 0 && quota.Usable > 0 && quota.CooldownLeft == 0 && !quota.Observes:
			return nil, &client.RefusalError{
				Reason: client.ReasonExhausted, Quota: name, RetryAfter: refill(quota), Available: quota.AvailableWithParents,
				Advice: "retry then, or wait with --wait",
			}
		}
	}
	return r.Client.BeginTask(ctx, r.Request)
}

// refill is the time after which to check again a quota of which nothing is available: the end of its window, or soon,
// because a rate and slots return bit by bit.
func refill(quota client.Quota) time.Duration {
	if quota.WindowClosesIn > 0 {
		return quota.WindowClosesIn
	}
	return refillPoll
}

// Why describes a refusal in a few words.
func Why(refusal *client.RefusalError) string {
	at := ""
	if refusal.RetryAfter >= 0 {
		at = ", to begin in " + round(refusal.RetryAfter)
	}
	switch refusal.Reason { //nolint:exhaustive // the others are said as they are
	case client.ReasonTaskShelved:
		return "shelved: too many failures"
	case client.ReasonTaskInFlight:
		return "another attempt runs, for at most " + round(refusal.RetryAfter)
	case client.ReasonTaskLater:
		return "not yet" + at
	case client.ReasonExhausted:
		if refusal.RetryAfter <= refillPoll {
			at = "" // it may be free at any moment
		}
		return "nothing is available of " + refusal.Quota + at
	}
	return fmt.Sprintf("%s of %s%s", refusal.Reason, refusal.Quota, at)
}

func round(d time.Duration) string {
	if d >= 10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// tellTimeout bounds the attempts to report an outcome to the cluster. An attempt without a report counts as a failure.
const tellTimeout = time.Minute

// attempt runs the command once.
func (r *Runner) attempt(ctx context.Context, attempt *client.Attempt) (Result, error) {
	result := Result{Attempt: attempt.Number()}
	hears := &listener{texts: r.Texts, done: r.Done, now: time.Now}
	out, errs := &tee{to: r.Out, each: hears.hearOut}, &tee{to: r.Err, each: hears.hearErr}
	command := child.Command{Args: r.Args, In: r.In, Out: out, Err: errs, Stop: attempt.Done()}
	state, err := command.Run(context.WithoutCancel(ctx)) // an attempt that has begun runs to its end, which is then reported
	out.end()
	errs.end()
	lost := attempt.Err()
	switch {
	case err != nil:
		result.Ending = client.Ending{Outcome: client.OutcomeFailed, Detail: tidy(err.Error())}
	default:
		var words string
		result.Code, words = child.ExitOf(state)
		result.Ending = verdict(result.Code, words, hears.heard())
	}
	if len(r.Request.Quotas) == 0 {
		result.Ending.Report = 0
	}
	// A signal that stops this process must not prevent the report to the cluster.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
	defer cancel()
	result.Ended, lost = r.end(ctx, attempt, result.Ending, lost)
	switch {
	case lost != nil:
		return result, lost
	case err != nil:
		return result, err
	}
	return result, nil
}

// end reports an attempt's outcome to the cluster, even for a lost attempt: differing clocks may have caused the loss.
func (r *Runner) end(ctx context.Context, attempt *client.Attempt, how client.Ending, lost error) (client.Ended, error) {
	ended, err := attempt.End(ctx, how)
	if errors.Is(err, client.ReasonNotAllowed) && how.Report != 0 {
		r.Tell("task %s: cannot report the limit to its quotas: use a token with the verb report", r.Request.Task)
		how.Report = 0
		ended, err = attempt.End(ctx, how)
	}
	switch {
	case err == nil:
		return ended, nil
	case lost != nil:
		return ended, &LostError{Err: lost}
	case errors.Is(err, client.ReasonStaleFence), errors.Is(err, client.ReasonStaleAttempt):
		return ended, &LostError{Err: err}
	}
	return ended, err
}

// Words describes the result of an attempt.
func (r Result) Words() string {
	var how string
	switch r.Ending.Outcome {
	case client.OutcomeDone:
		how = "is done"
	case client.OutcomeFinishedThenLimited:
		how = "is done, and then met a limit"
	case client.OutcomeSaturated:
		how = "met a limit (" + r.Ending.Detail + ")"
	case client.OutcomePlanExhausted:
		how = "met a used-up plan (" + r.Ending.Detail + ")"
	case client.OutcomeFailed:
		how = "failed (" + r.Ending.Detail + ")"
	}
	parts := []string{fmt.Sprintf("attempt %d %s", r.Attempt, how)}
	if r.Ended.Failures > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d failures", r.Ended.Failures, r.Ended.MaxFailures))
	}
	switch {
	case r.Ended.Shelved:
		parts = append(parts, "shelved")
	case r.Ended.RetryAfter >= 0:
		parts = append(parts, "the next may begin in "+round(r.Ended.RetryAfter))
	}
	return strings.Join(parts, "; ")
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
