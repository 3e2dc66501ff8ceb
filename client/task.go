package client

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// ErrTaskDone says that the task is done and needs no further attempt.
var ErrTaskDone = errors.New("quotad: the task is done")

// ErrAttemptEnded is the cause of an attempt whose outcome was reported with End.
var ErrAttemptEnded = errors.New("quotad: the attempt has ended")

// ErrAttemptExpired is the cause of an attempt that was lost at its deadline.
var ErrAttemptExpired = errors.New("quotad: the attempt's deadline has passed")

// TaskRequest requests the next attempt of a task.
type TaskRequest struct {
	// Task is the task's name, 1 to 128 bytes without blanks. An unknown name is a new task.
	Task string
	// Quotas are the quotas that the task depends on, at most 16. While one is closed, no attempt begins.
	Quotas []string
	// MaxFailures is the number of failures at which the task is shelved, 1 to 100; 0: as before, 3 for a new task.
	MaxFailures int
	// TTL is how long the attempt lives after its last renewal, 1 s to 24 h; 0: the cluster's 10 min. The client renews it in time.
	TTL time.Duration
	// Holder is the holder to ask for; empty: the client's.
	Holder string
}

// Outcome is how an attempt of a task ended.
type Outcome int32

// The outcomes.
const (
	// OutcomeDone: the task is done.
	OutcomeDone Outcome = 1
	// OutcomeFailed: it uses up one failure of the task's budget.
	OutcomeFailed Outcome = 2
	// OutcomeSaturated: the provider was overloaded, or called too fast. The budget is unchanged.
	OutcomeSaturated Outcome = 3
	// OutcomePlanExhausted: the plan is used up. The budget is unchanged.
	OutcomePlanExhausted Outcome = 4
	// OutcomeFinishedThenLimited: the work was finished before a limit was reached. The task is done.
	OutcomeFinishedThenLimited Outcome = 5
)

// Ending is the outcome of an attempt, with details.
type Ending struct {
	Outcome Outcome
	// Wait is the provider's requested wait, at most 31 days; nil: none.
	Wait *time.Duration
	// Detail is a text for people; it is truncated to 300 bytes.
	Detail string
	// Report is the cause to report for all of the task's quotas; 0: no report.
	Report Cause
}

// Ended is the state of a task after an attempt.
type Ended struct {
	// Done: nothing is left to do. Shelved: the task used up its failures, and needs an operator.
	Done, Shelved bool
	// Failures are the failures so far, of MaxFailures.
	Failures, MaxFailures int
	// RetryAfter is when the next attempt may begin; -1: none will without an operator.
	RetryAfter time.Duration
}

// BeginTask begins the next attempt of a task, and keeps it alive until it has ended. A refusal is a *RefusalError:
// [ReasonTaskShelved], [ReasonTaskInFlight] or [ReasonTaskLater], or [ReasonCooldown] or [ReasonSuspended] of one of its quotas. If the
// task is done, the error is ErrTaskDone.
func (c *Client) BeginTask(ctx context.Context, request TaskRequest) (*Attempt, error) {
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer done()
	message := &quotav1.BeginTaskRequest{
		Task: request.Task, Holder: request.Holder, Quotas: request.Quotas, MaxFailures: int32(min(max(request.MaxFailures, -1), 101)),
		Ttl: durationOrNil(request.TTL),
	}
	if message.Holder == "" {
		message.Holder = c.holder
	}
	a, err := c.beginOnce(ctx, message)
	if err != nil {
		return nil, err
	}
	switch {
	case a.value.GetDone():
		return nil, ErrTaskDone
	case a.value.GetRefusal() != nil:
		return nil, c.refused(a.value.GetRefusal())
	case a.value.GetAttempt() == nil:
		return nil, &UnknownOutcomeError{Err: errors.New("the answer is neither an attempt nor a refusal")}
	}
	return newAttempt(c, request.Task, a.value.GetAttempt(), a.stamp(a.value.GetMeta())), nil
}

// beginOnce sends a BeginTask under a number of the session: a lost answer must not leave an attempt behind that counts as a failure.
func (c *Client) beginOnce(ctx context.Context, message *quotav1.BeginTaskRequest) (attempt[*quotav1.BeginTaskResponse], error) {
	for {
		cmd, err := c.identity(ctx)
		if err != nil {
			return attempt[*quotav1.BeginTaskResponse]{}, err
		}
		request := proto.CloneOf(message)
		request.RequestId = cmd.id
		a, err := insist(ctx, c, func(ctx context.Context, to *node) (*quotav1.BeginTaskResponse, error) {
			return to.tasks.BeginTask(ctx, request)
		})
		c.sessions.finish(cmd)
		wrong, isWrong := errors.AsType[*RequestError](err)
		if !isWrong || wrong.Reason != ReasonUnknownSession {
			return a, err
		}
		c.sessions.forget(cmd.session) // it was idle for too long, so nothing was begun
	}
}

// identity takes a number of the session for a request that travels alone. It retries until ctx ends.
func (c *Client) identity(ctx context.Context) (*command, error) {
	var pause backoff
	for {
		cmd := newCommand(&quotav1.Command{})
		err := c.sessions.number(ctx, []*command{cmd}, c.openSession)
		if err == nil {
			return cmd, nil
		}
		if _, wrong := errors.AsType[*RequestError](err); wrong || errors.Is(err, ReasonTooManyInFlight) || errors.Is(err, ReasonCallerBudget) {
			return nil, err
		}
		if pause.wait(ctx); ctx.Err() != nil {
			return nil, &NotAcceptedError{Err: joined(context.Cause(ctx), c.absent(err))}
		}
	}
}

// Attempt is one try at a task. The client keeps it alive in the background until End. If that fails for too long, or the cluster
// reports that another attempt has replaced it, the attempt is lost: its work has to stop, since the next attempt may begin. It is safe
// for concurrent use.
type Attempt struct {
	client      *Client
	task        string
	number      int64
	fence       uint64
	failures    int
	maxFailures int
	// ctx ends with the attempt, with the same cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	deadline moment
	due      time.Time
}

func newAttempt(c *Client, task string, begun *quotav1.Attempt, at stamp) *Attempt {
	a := &Attempt{
		client: c, task: task, number: begun.GetNumber(), fence: begun.GetFence(), failures: int(begun.GetFailures()),
		maxFailures: int(begun.GetMaxFailures()),
	}
	a.ctx, a.cancel = context.WithCancelCause(c.ctx)
	a.prolong(durationOf(begun.GetExpiresIn(), 0), at)
	c.tasks.Go(a.keep)
	return a
}

// Task returns the task's name.
func (a *Attempt) Task() string { return a.task }

// Number returns the attempt's number, from 1.
func (a *Attempt) Number() int64 { return a.number }

// Fence returns the attempt's fencing token, from the leases' counter: a later attempt has a higher one.
func (a *Attempt) Fence() uint64 { return a.fence }

// Failures returns the task's failures before this attempt, and the number at which it is shelved.
func (a *Attempt) Failures() (failed, most int) { return a.failures, a.maxFailures }

// Done returns a channel that is closed when the attempt has ended or is lost.
func (a *Attempt) Done() <-chan struct{} { return a.ctx.Done() }

// Err returns why the attempt is over: ErrAttemptEnded, ErrAttemptExpired, ErrClosed, or a *RequestError, such as one with
// ReasonStaleFence; nil while it runs.
func (a *Attempt) Err() error {
	switch cause := context.Cause(a.ctx); {
	case a.client.ctx.Err() != nil && errors.Is(cause, context.Canceled):
		return ErrClosed
	default:
		return cause
	}
}

// End reports the attempt's outcome to the cluster. The same outcome may be reported again.
func (a *Attempt) End(ctx context.Context, how Ending) (Ended, error) {
	c := a.client
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return Ended{}, err
	}
	defer done()
	message := &quotav1.EndTaskRequest{
		Task: a.task, Fence: a.fence, Outcome: quotav1.TaskOutcome(how.Outcome), Detail: cut(strings.ToValidUTF8(how.Detail, "?"), maxDetail),
		Report: quotav1.Cause(how.Report),
	}
	if how.Wait != nil {
		message.Wait = durationpb.New(min(max(*how.Wait, 0), maxTaskWait))
	}
	answer, err := insist(ctx, c, func(ctx context.Context, to *node) (*quotav1.EndTaskResponse, error) {
		return to.tasks.EndTask(ctx, message)
	})
	if err != nil {
		a.learn(err)
		return Ended{}, err
	}
	a.cancel(ErrAttemptEnded)
	res := answer.value
	return Ended{
		Done: res.GetPhase() == quotav1.TaskPhase_TASK_PHASE_DONE, Shelved: res.GetPhase() == quotav1.TaskPhase_TASK_PHASE_SHELVED,
		Failures: int(res.GetFailures()), MaxFailures: int(res.GetMaxFailures()), RetryAfter: durationOf(res.GetRetryAfter(), -1),
	}, nil
}

// Bounds that the cluster enforces.
const (
	maxDetail   = 300
	maxTaskWait = 31 * 24 * time.Hour
)

// cut truncates a text to at most so many bytes, at a character boundary.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// keep renews the attempt like a lease, and ends it locally when its deadline passes.
func (a *Attempt) keep() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-a.ctx.Done():
			return
		}
		left, due := a.times()
		if left > 0 && due <= 0 {
			a.renew(left)
			left, due = a.times()
			due = max(due, longestBackoff)
		}
		if left <= 0 {
			a.cancel(ErrAttemptExpired)
			return
		}
		pause.Reset(min(left, due, longestNap))
	}
}

// times returns the time until the deadline, and until the next renewal.
func (a *Attempt) times() (left, due time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	return a.deadline.left(now, a.client.wall()), a.due.Sub(now)
}

// renew requests a later deadline, and tries until the present one at the latest.
func (a *Attempt) renew(left time.Duration) {
	ctx, cancel := context.WithTimeout(a.ctx, min(left, a.client.callTimeout))
	defer cancel()
	answer, err := insist(ctx, a.client, func(ctx context.Context, to *node) (*quotav1.RenewTaskResponse, error) {
		return to.tasks.RenewTask(ctx, &quotav1.RenewTaskRequest{Task: a.task, Fence: a.fence})
	})
	if err != nil {
		a.learn(err)
		return
	}
	a.prolong(durationOf(answer.value.GetExpiresIn(), 0), answer.stamp(answer.value.GetMeta()))
}

func (a *Attempt) prolong(left time.Duration, stamp stamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deadline = at(stamp.deadline(left), time.Now(), a.client.wall())
	a.due = stamp.sent.Add(left * renewAt / 100)
}

// learn ends the attempt locally if the cluster reports that it is over.
func (a *Attempt) learn(err error) {
	for _, reason := range []Reason{ReasonStaleFence, ReasonNeverIssued, ReasonStaleAttempt, ReasonForeignTask} {
		if errors.Is(err, reason) {
			a.cancel(err)
		}
	}
}

// stamp places the attempt's answer on this machine's clock.
func (a attempt[T]) stamp(meta *quotav1.Meta) stamp {
	return stamp{sent: a.sent, received: a.received, servedIn: durationOf(meta.GetServedIn(), 0)}
}

// insist sends a request that may be repeated unchanged, until it is answered or ctx ends.
func insist[T any](ctx context.Context, c *Client, send sender[T]) (attempt[T], error) {
	var pause backoff
	var failed error
	inDoubt := false
	for {
		a, doubt := race(ctx, c, c.prompt(), send)
		inDoubt = inDoubt || doubt || a.outcome == unknown
		switch wrong, isWrong := errors.AsType[*RequestError](a.err); {
		case a.outcome == answered && isWrong && (wrong.beforeApply || wrong.Reason == ReasonUnknownSession) && inDoubt:
			return a, c.inDoubt(wrong)
		case a.outcome == answered:
			c.note(nil)
			return a, a.err
		case ctx.Err() == nil:
			failed = a.err
			c.note(a.err)
		}
		if noRoom(a.err) && !inDoubt {
			return a, a.err
		}
		if pause.wait(ctx); ctx.Err() == nil {
			continue
		}
		reason := context.Cause(ctx)
		if failed != nil {
			reason = joined(reason, c.absent(failed))
		}
		if inDoubt {
			c.counters.unknown.Add(1)
			return a, &UnknownOutcomeError{Err: reason}
		}
		return a, &NotAcceptedError{Err: reason}
	}
}
