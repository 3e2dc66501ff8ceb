package sim

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// taskNames is the number of tasks, which all runners share.
const taskNames = 8

// runner begins attempts of tasks and reports their ends, or crashes.
type runner struct {
	*client
	// begun are the running attempts, over those that ended or were lost.
	begun, over []*attempted
}

// attempted is an attempt as its runner knows it.
type attempted struct {
	task    string
	fence   uint64
	outcome logpb.TaskOutcome
}

// outcomes are possible outcomes of attempts.
var outcomes = []logpb.TaskOutcome{
	logpb.TaskOutcome_TASK_OUTCOME_FAILED, logpb.TaskOutcome_TASK_OUTCOME_FAILED, logpb.TaskOutcome_TASK_OUTCOME_SATURATED,
	logpb.TaskOutcome_TASK_OUTCOME_SATURATED, logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED, logpb.TaskOutcome_TASK_OUTCOME_DONE,
	logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED,
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
		r.leave(under)
	case n < 67 && under != nil: // it crashes: the attempt is never reported, or too late
		r.leave(under)
	case n < 72 && after != nil:
		r.renew(ctx, after)
	case n < 82 && after != nil:
		outcome := after.outcome
		if outcome == 0 || r.rand.IntN(5) == 0 {
			outcome = outcomes[r.rand.IntN(len(outcomes))]
		}
		r.end(ctx, after, outcome)
	case n < 88:
		r.list(ctx)
	case n < 91:
		r.send(ctx, &logpb.Command{Kind: &logpb.Command_RetryTask{RetryTask: &logpb.RetryTask{Task: r.task()}}})
	case n < 92:
		r.send(ctx, &logpb.Command{Kind: &logpb.Command_ForgetTask{ForgetTask: &logpb.ForgetTask{Task: r.task()}}})
	case n < 97:
		r.repeat(ctx)
	case n < 98: // it sleeps longer than its session lives, and continues in it
		time.Sleep(sessionIdle * 3 / 2)
		r.repeat(ctx)
		r.begin(ctx)
	}
}

func (r *runner) task() string { return fmt.Sprintf("task-%d", r.rand.IntN(taskNames)) }

// send sends a command under the next number, and sometimes repeats it.
func (r *runner) send(ctx context.Context, command *logpb.Command) *logpb.Result {
	result := r.do(ctx, r.numbered(command))
	if r.rand.IntN(7) == 0 {
		r.attempt(ctx, command, r.anyNode(), prompt)
	}
	return result
}

func (r *runner) begin(ctx context.Context) {
	begin := &logpb.BeginTask{
		Task: r.task(), Holder: r.name, MaxFailures: r.rand.Int32N(4), TtlNs: int64(time.Second) + r.rand.Int64N(int64(3*time.Second)),
	}
	if r.rand.IntN(5) < 2 {
		begin.Quotas = []string{"tasks"}
	}
	if r.rand.IntN(5) == 0 {
		begin.Attempt = 1 + r.rand.Int64N(2)
	}
	result := r.send(ctx, &logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: begin}})
	if begun := result.GetTaskBegun(); begun.GetAttempt() != 0 {
		r.begun = append(r.begun, &attempted{task: begin.Task, fence: begun.Fence})
	}
}

func (r *runner) renew(ctx context.Context, a *attempted) {
	r.send(ctx, &logpb.Command{Kind: &logpb.Command_RenewTask{RenewTask: &logpb.RenewTask{Task: a.task, Fence: a.fence}}})
}

// end reports the end of an attempt, sometimes twice as two requests.
func (r *runner) end(ctx context.Context, a *attempted, outcome logpb.TaskOutcome) {
	a.outcome = outcome
	end := &logpb.EndTask{Task: a.task, Fence: a.fence, Outcome: outcome, Detail: "of " + r.name}
	limited := outcome == logpb.TaskOutcome_TASK_OUTCOME_SATURATED || outcome == logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED
	if limited && r.rand.IntN(5) > 0 {
		end.WaitNs = new(r.rand.Int64N(int64(2 * time.Second)))
		if r.rand.IntN(5) == 0 {
			end.Report = logpb.Cause_CAUSE_SATURATED
		}
	}
	r.send(ctx, &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: end}})
	if r.rand.IntN(7) == 0 {
		r.send(ctx, &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: proto.CloneOf(end)}})
	}
}

// leave moves an attempt to those that are over.
func (r *runner) leave(a *attempted) {
	for i := range r.begun {
		if r.begun[i] == a {
			r.begun = append(r.begun[:i], r.begun[i+1:]...)
			break
		}
	}
	if r.over = append(r.over, a); len(r.over) > 20 {
		r.over = r.over[1:]
	}
}

// list reads the state of some tasks.
func (r *runner) list(ctx context.Context) {
	r.read(ctx, func(state *fsm.State, clock fsm.Clock) proto.Message {
		answer := &quotav1.ListTasksResponse{}
		for _, t := range state.Tasks("task-", "", logpb.TaskPhase_TASK_PHASE_UNSPECIFIED, "", taskNames, clock) {
			answer.Tasks = append(answer.Tasks, &quotav1.TaskStatus{
				Task: t.Name, Phase: quotav1.TaskPhase(t.Phase), Failures: t.Failures, MaxFailures: t.MaxFailures, Attempts: t.Attempts,
				Fence: t.Fence, Outcome: quotav1.TaskOutcome(t.Outcome),
			})
		}
		return answer
	})
}
