package workload

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The tasks: some new ones in each span, which all runners share, and those of earlier spans.
const (
	taskSpan    = 10 * time.Second
	tasksOfSpan = 8
	// taskMemory is how far back a runner looks for work: a task waits for five minutes after its first failure.
	taskMemory = 8 * time.Minute
	// doze is how long a runner sometimes sleeps, longer than its session lives; then it repeats an earlier request.
	doze = SessionIdle * 3 / 2
)

// runner begins attempts of tasks and reports their ends, or crashes.
type runner struct {
	*actor
	// begun are the running attempts, over those that ended or were lost.
	begun, over []*attempted
}

// attempted is an attempt as its runner knows it.
type attempted struct {
	task    string
	fence   uint64
	outcome quotav1.TaskOutcome
}

// tasks works on tasks.
func tasks(ctx context.Context, w *worker, number int) {
	r := &runner{actor: &actor{caller: w.caller(number), habits: habits{twice: 15}}}
	for w.rest(ctx, r.rand) {
		r.act(ctx)
	}
}

func (r *runner) act(ctx context.Context) {
	var under, after *attempted
	if len(r.begun) > 0 {
		under = r.begun[r.rand.IntN(len(r.begun))]
	}
	if len(r.over) > 0 {
		after = r.over[r.rand.IntN(len(r.over))]
	}
	switch n := r.rand.IntN(100); {
	case n < 35 && len(r.begun) < 3:
		r.begin(ctx)
	case n < 40 && under != nil:
		r.renew(ctx, under)
	case n < 62 && under != nil:
		r.end(ctx, under, outcomes[r.rand.IntN(len(outcomes))])
		r.leaveAttempt(under)
	case n < 67 && under != nil: // it crashes: the attempt is never reported, or too late
		r.leaveAttempt(under)
	case n < 72 && after != nil:
		r.renew(ctx, after)
	case n < 82 && after != nil:
		outcome := after.outcome
		if outcome == 0 || r.chance(20) {
			outcome = outcomes[r.rand.IntN(len(outcomes))]
		}
		r.end(ctx, after, outcome)
	case n < 88:
		r.at = r.rand.IntN(len(r.services))
		_, _ = attempt(ctx, r.caller, service.ListTasks, &quotav1.ListTasksRequest{Prefix: r.task(), PageSize: 20}, 0)
	case n < 90:
		_, _ = send(ctx, r.actor, service.RetryTask, &quotav1.RetryTaskRequest{RequestId: r.id(ctx), Task: r.task()}, 0)
	case n < 91:
		_, _ = send(ctx, r.actor, service.ForgetTask, &quotav1.ForgetTaskRequest{RequestId: r.id(ctx), Task: r.task()}, 0)
	case n < 93 && len(r.old) > 0:
		r.sleep(ctx)
	}
}

// outcomes are possible outcomes of attempts.
var outcomes = []quotav1.TaskOutcome{
	quotav1.TaskOutcome_TASK_OUTCOME_FAILED, quotav1.TaskOutcome_TASK_OUTCOME_FAILED, quotav1.TaskOutcome_TASK_OUTCOME_SATURATED,
	quotav1.TaskOutcome_TASK_OUTCOME_SATURATED, quotav1.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED, quotav1.TaskOutcome_TASK_OUTCOME_DONE,
	quotav1.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED,
}

// task is the name of a task, most often one of the present span.
func (r *runner) task() string {
	spans := history.Now() / int64(taskSpan)
	if r.chance(30) {
		spans -= r.rand.Int64N(int64(taskMemory / taskSpan))
	}
	return fmt.Sprintf("task-%d-%d", spans, r.rand.IntN(tasksOfSpan))
}

func (r *runner) begin(ctx context.Context) {
	request := &quotav1.BeginTaskRequest{
		RequestId: r.id(ctx), Task: r.task(), Holder: r.holder, MaxFailures: r.rand.Int32N(4),
		Ttl: durationpb.New(time.Second + time.Duration(r.rand.Int64N(int64(3*time.Second)))),
	}
	if r.chance(40) {
		request.Quotas = []string{taskQuota}
	}
	if r.chance(20) {
		request.Attempt = 1 + r.rand.Int64N(2)
	}
	res, err := send(ctx, r.actor, service.BeginTask, request, 0)
	if err == nil && res.GetAttempt() != nil {
		r.begun = append(r.begun, &attempted{task: request.Task, fence: res.GetAttempt().Fence})
	}
}

func (r *runner) renew(ctx context.Context, a *attempted) {
	_, _ = send(ctx, r.actor, service.RenewTask, &quotav1.RenewTaskRequest{RequestId: r.id(ctx), Task: a.task, Fence: a.fence}, 0)
}

// end reports the end of an attempt, sometimes twice as two requests.
func (r *runner) end(ctx context.Context, a *attempted, outcome quotav1.TaskOutcome) {
	a.outcome = outcome
	request := &quotav1.EndTaskRequest{RequestId: r.id(ctx), Task: a.task, Fence: a.fence, Outcome: outcome, Detail: "of " + r.holder}
	limited := outcome == quotav1.TaskOutcome_TASK_OUTCOME_SATURATED || outcome == quotav1.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED
	if limited && r.chance(80) {
		request.Wait = durationpb.New(time.Duration(r.rand.Int64N(int64(2 * time.Second))))
	}
	if limited && request.Wait != nil && r.chance(20) {
		request.Report = quotav1.Cause_CAUSE_SATURATED
	}
	_, _ = send(ctx, r.actor, service.EndTask, request, 0)
	if r.chance(r.twice) {
		request.RequestId = r.id(ctx)
		_, _ = send(ctx, r.actor, service.EndTask, request, 0)
	}
}

// leaveAttempt moves an attempt to those that are over.
func (r *runner) leaveAttempt(a *attempted) {
	for i := range r.begun {
		if r.begun[i] == a {
			r.begun = append(r.begun[:i], r.begun[i+1:]...)
			break
		}
	}
	if len(r.over) < keptResults {
		r.over = append(r.over, a)
		return
	}
	r.over[r.rand.IntN(len(r.over))] = a
}

// sleep outlives the session, and continues in it.
func (r *runner) sleep(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(doze):
	}
	r.old[r.rand.IntN(len(r.old))](ctx)
	r.begin(ctx)
}
