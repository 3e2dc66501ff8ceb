package sim

import (
	"regexp"
	"time"

	api "github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/taskrun"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/signals"
)

// The same as in `quotad task run`.
const (
	pollEvery    = int64(15 * time.Second)
	shortestWait = int64(200 * time.Millisecond)
)

// completed is the done pattern of every task.
var completed = regexp.MustCompile("^" + complete + "$")

// outcomes maps the classifications of attempts.
var outcomes = map[api.Outcome]fleet.Outcome{
	api.OutcomeDone: fleet.Done, api.OutcomeFailed: fleet.Failed, api.OutcomeSaturated: fleet.Saturated,
	api.OutcomePlanExhausted: fleet.PlanExhausted, api.OutcomeFinishedThenLimited: fleet.FinishedThenLimited,
}

// next requests a task's next attempt, until it may begin or never will.
func (g *governed) next(j *job) {
	retry := g.kind.Retry
	begin := &logpb.BeginTask{
		Task: j.name, Holder: g.name, Quotas: retry.Quotas, MaxFailures: int32(retry.MaxFailures), TtlNs: int64(retry.TTL),
	}
	g.client.do(&logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: begin}}, func(a answer) {
		begun, refusal := a.result.GetTaskBegun(), a.result.GetRefusal()
		switch {
		case begun.GetAttempt() > 0:
			t := j.begin(begun.Fence)
			t.expires = a.from + begun.DeadlineNs - a.clock.Now
			g.keep(t)
		case begun != nil:
			j.close(fleet.Done)
		case refusal.GetReason() == logpb.Reason_REASON_TASK_SHELVED:
			j.close(fleet.Failed)
		case refusal != nil && refusal.RetryAtNs > 0:
			g.book.refusedBy(refusal)
			pause := refusal.RetryAtNs - a.clock.Now
			if refusal.Reason == logpb.Reason_REASON_TASK_IN_FLIGHT {
				pause = min(pause, pollEvery) // the attempt in flight may end long before its deadline
			}
			g.askIn(j, pause)
		case refusal != nil: // suspended, for an unknown time
			g.book.refusedBy(refusal)
		default:
			g.book.failed(a.result.GetFailure())
		}
	})
}

// askIn requests the attempt again after a pause.
func (g *governed) askIn(j *job, pause int64) {
	g.in(max(pause, shortestWait)+g.dice.below(shortestWait), g.alive(func() { g.next(j) }))
}

// keep renews an attempt while its tool works, and stops the tool when its deadline has passed: it makes no further call.
func (g *governed) keep(t *attempt) {
	g.in(int64(g.kind.Retry.TTL)*renewParts/renewOf, g.alive(func() {
		if !t.open {
			return
		}
		renew := &logpb.RenewTask{Task: t.job.name, Fence: t.fence}
		g.client.do(&logpb.Command{Kind: &logpb.Command_RenewTask{RenewTask: renew}}, func(a answer) {
			if renewed := a.result.GetRenewed(); renewed != nil {
				t.expires = a.from + renewed.DeadlineNs - a.clock.Now
			}
		})
		g.keep(t)
	}))
	expires := t.expires
	g.at(expires, g.alive(func() {
		if t.open && t.expires == expires {
			t.end, t.stopped, t.task.failed = g.now, true, true
		}
	}))
}

// received classifies the end of an attempt by its tool's output, and reports it to the cluster.
func (g *governed) received(t *attempt, lines []string, code int) {
	now := time.Unix(0, g.fleet.Begins.UnixNano()+g.now).UTC()
	how := taskrun.Judge(signals.BuiltinTexts(), completed, lines, code, now)
	if t.outcome = outcomes[how.Outcome]; t.stopped {
		t.outcome = fleet.Lost
	}
	end := &logpb.EndTask{Task: t.job.name, Fence: t.fence, Outcome: logpb.TaskOutcome(how.Outcome), Detail: how.Detail}
	if how.Wait != nil {
		end.WaitNs = new(int64(*how.Wait))
	}
	if len(g.kind.Retry.Quotas) > 0 {
		end.Report = logpb.Cause(how.Report)
	}
	g.client.do(&logpb.Command{Kind: &logpb.Command_EndTask{EndTask: end}}, func(a answer) {
		ended := a.result.GetTaskEnded()
		switch {
		case ended == nil:
			g.book.failed(a.result.GetFailure())
			t.outcome = fleet.Lost
			g.askIn(t.job, 0)
		case ended.Phase == logpb.TaskPhase_TASK_PHASE_DONE:
			t.job.close(fleet.Done)
		case ended.Phase == logpb.TaskPhase_TASK_PHASE_SHELVED:
			t.job.close(fleet.Failed)
		default:
			g.askIn(t.job, ended.NextNs-a.clock.Now)
		}
	})
}
