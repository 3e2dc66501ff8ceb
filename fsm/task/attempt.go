package task

import (
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Delays of a task after an attempt that did not finish it.
const (
	firstRetry  = 5 * fixed.Minute
	secondRetry = 15 * fixed.Minute
	laterRetry  = 30 * fixed.Minute

	// saturatedWait and planWait are used if the provider named no time.
	saturatedWait = fixed.Minute
	planWait      = 30 * fixed.Minute
	// From the second limit in a row on, each waits at least twice as long as the one before. An agent that meets a
	// limit as soon as it starts pays for its prompt each time, whatever the provider says.
	firstLimitFloor = fixed.Minute
	lastLimitFloor  = 30 * fixed.Minute
	maxLimitDouble  = 5
)

// Begin begins a task's next attempt, or returns why it cannot. A task has one attempt at a time, and each has a
// deadline, so that the attempt of a runner that is gone ends as well.
func (ts *Table) Begin(h Host, req *logpb.BeginTask, by string) *logpb.Result {
	if failure := checkBegin(h, req); failure != nil {
		return effect.Failed(failure)
	}
	t, failure := ts.find(h, req.Task, by)
	switch {
	case failure != nil:
		return effect.Failed(failure)
	case t != nil && t.phase == logpb.TaskPhase_TASK_PHASE_DONE:
		return begun(t, 0)
	case t == nil:
		if full := ts.noneLeft(h); full != nil {
			return full
		}
	}
	if refusal := notNow(h, t, req); refusal != nil {
		return effect.Refused(refusal)
	}
	if t == nil {
		t = &task{Made: cow.In(ts.generation), name: req.Task, maxFailures: defaultMaxFailures}
	}
	if req.Attempt != 0 && req.Attempt != t.attempts+1 {
		return effect.Fail(logpb.Reason_REASON_STALE_ATTEMPT, fmt.Sprintf("attempt %d of %d is not the next one", req.Attempt, t.attempts),
			"leave the number out to begin the next")
	}
	if t.attempts == 0 {
		t.account = h.Book().Bill(h.Payer(), accounts.Tasks, 1)
	}
	ts.byName.Set(t.name, t)
	t.holder, t.quotas = req.Holder, ownNames(h, req.Quotas)
	if req.MaxFailures != 0 {
		t.maxFailures = max(req.MaxFailures, t.failures+1) // an attempt that begins may fail
	}
	if t.ttl = req.TtlNs; t.ttl == 0 {
		t.ttl = DefaultTTL
	}
	t.attempts++
	t.fence = h.NextFence()
	ts.move(t, logpb.TaskPhase_TASK_PHASE_IN_FLIGHT, h.Now()+t.ttl)
	h.Emit(effect.Event{Kind: effect.EventTaskBegun, Task: t.name, Holder: t.holder, Fence: t.fence, Amount: t.attempts})
	return begun(t, t.attempts)
}

// noneLeft returns why there is no room for a task; nil: there is.
func (ts *Table) noneLeft(h Host) *logpb.Result {
	const hint = "forget those that are shelved and not wanted any more; done ones go by themselves"
	switch h.Book().Taking(h.Payer(), accounts.Tasks, h.Now()) {
	case accounts.AtBudget:
		return h.OverBudget(accounts.Tasks, hint)
	case accounts.AllTaken:
		return effect.Fail(logpb.Reason_REASON_TASKS_FULL, fmt.Sprintf("there are %d tasks", ts.byName.Len()), hint)
	case accounts.MayTake:
	}
	return nil
}

func begun(t *task, attempt int64) *logpb.Result {
	b := &logpb.TaskBegun{Attempt: attempt, Failures: t.failures, MaxFailures: t.maxFailures}
	if attempt != 0 {
		b.Fence, b.DeadlineNs = t.fence, t.at
	}
	return &logpb.Result{Kind: &logpb.Result_TaskBegun{TaskBegun: b}}
}

// notNow returns why a task's next attempt cannot begin now; nil: it can. The task's own state comes first: a shelved
// task gains nothing from waiting for a quota to reopen.
func notNow(h Host, t *task, req *logpb.BeginTask) *logpb.Refusal {
	switch {
	case t == nil:
	case t.phase == logpb.TaskPhase_TASK_PHASE_SHELVED:
		return &logpb.Refusal{
			Reason: logpb.Reason_REASON_TASK_SHELVED,
			Advice: fmt.Sprintf("it failed %d times: see why, then put it back with quotad task retry", t.failures),
		}
	case t.phase == logpb.TaskPhase_TASK_PHASE_IN_FLIGHT:
		return &logpb.Refusal{
			Reason: logpb.Reason_REASON_TASK_IN_FLIGHT, RetryAtNs: t.at,
			Advice: "it ends by itself at the latest then, if nothing is heard of it",
		}
	case t.at > h.Now():
		return &logpb.Refusal{Reason: logpb.Reason_REASON_TASK_LATER, RetryAtNs: t.at, Advice: "come back then"}
	}
	return h.Closed(req.Holder, req.Quotas)
}

// attempt returns the task whose present attempt has this fence, or why there is none.
func (ts *Table) attempt(h Host, name string, fence uint64, by string) (*task, *logpb.Failure) {
	newest := h.FenceCounter()
	if fence > newest {
		return nil, effect.NeverIssued(fence, newest)
	}
	t, failure := ts.find(h, name, by)
	if failure == nil && (t == nil || t.fence != fence || fence == 0 ||
		t.outcome == logpb.TaskOutcome_TASK_OUTCOME_LOST && t.phase != logpb.TaskPhase_TASK_PHASE_IN_FLIGHT) {
		failure = &logpb.Failure{
			Reason: logpb.Reason_REASON_STALE_FENCE, FenceCounter: newest,
			Message: fmt.Sprintf("the attempt of task %q has ended, or this is not its fence", name),
			Hint:    "stop working on it: another attempt may be under way",
		}
	}
	return t, failure
}

// Renew extends an attempt; it never shortens it.
func (ts *Table) Renew(h Host, command *logpb.RenewTask, by string) *logpb.Result {
	if command.TtlNs != 0 && (command.TtlNs < minTTL || command.TtlNs > maxTTL) {
		return effect.Failed(effect.Invalid("the ttl is not within 1 s to 24 h", "leave it out for the length that was begun with"))
	}
	t, failure := ts.attempt(h, command.Task, command.Fence, by)
	switch {
	case failure != nil:
		return effect.Failed(failure)
	case t.phase != logpb.TaskPhase_TASK_PHASE_IN_FLIGHT:
		return endedBefore(t)
	case command.TtlNs != 0:
		t.ttl = command.TtlNs
	}
	if deadline := h.Now() + t.ttl; deadline > t.at {
		ts.move(t, t.phase, deadline)
	}
	return &logpb.Result{Kind: &logpb.Result_Renewed{Renewed: &logpb.Renewed{DeadlineNs: t.at}}}
}

func endedBefore(t *task) *logpb.Result {
	return effect.Fail(logpb.Reason_REASON_STALE_ATTEMPT, fmt.Sprintf("attempt %d of task %q has ended before", t.attempts, t.name),
		"its first end counts")
}

// End records how an attempt ended. A repeat gets the same answer; another outcome fails.
func (ts *Table) End(h Host, from *logpb.Command) *logpb.Result {
	command := from.GetEndTask()
	if failure := checkEnd(command); failure != nil {
		return effect.Failed(failure)
	}
	t, failure := ts.attempt(h, command.Task, command.Fence, from.By)
	switch {
	case failure != nil:
		return effect.Failed(failure)
	case t.phase != logpb.TaskPhase_TASK_PHASE_IN_FLIGHT && t.outcome == command.Outcome:
		return ended(t)
	case t.phase != logpb.TaskPhase_TASK_PHASE_IN_FLIGHT:
		return endedBefore(t)
	}
	// The outcome counts even if no more reports are accepted: a command that releases something does not fail for a
	// budget.
	leftOut := command.Report != logpb.Cause_CAUSE_UNSPECIFIED && !h.Report(from, t.holder, t.quotas)
	t.outcome, t.ended, t.detail = command.Outcome, h.Now(), command.Detail
	switch command.Outcome {
	case logpb.TaskOutcome_TASK_OUTCOME_DONE, logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED:
		ts.move(t, logpb.TaskPhase_TASK_PHASE_DONE, t.ended)
	case logpb.TaskOutcome_TASK_OUTCOME_SATURATED, logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED:
		t.limited = min(t.limited+1, maxLimitDouble+2)
		ts.move(t, logpb.TaskPhase_TASK_PHASE_WAITING, fixed.AddSaturated(t.ended, limitWait(t, command.WaitNs)))
	case logpb.TaskOutcome_TASK_OUTCOME_FAILED, logpb.TaskOutcome_TASK_OUTCOME_LOST, logpb.TaskOutcome_TASK_OUTCOME_UNSPECIFIED:
		ts.countFailure(t)
	}
	emitEnded(h, t)
	result := ended(t)
	result.GetTaskEnded().ReportLeftOut = leftOut
	return result
}

func checkEnd(command *logpb.EndTask) *logpb.Failure {
	switch {
	case command.Outcome < logpb.TaskOutcome_TASK_OUTCOME_DONE || command.Outcome > logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED:
		return effect.Invalid("the outcome is missing, unknown, or not a runner's to say", "")
	case command.WaitNs != nil && (*command.WaitNs < 0 || *command.WaitNs > maxWait):
		return effect.Invalid("the wait is not within 0 to 31 days", "leave it out where the provider named no time")
	case len(command.Detail) > MaxDetail:
		return effect.Invalid(fmt.Sprintf("a detail of %d bytes is longer than %d", len(command.Detail), MaxDetail), "cut it")
	case command.Report < logpb.Cause_CAUSE_UNSPECIFIED || command.Report > logpb.Cause_CAUSE_NOT_A_LIMIT:
		return effect.Invalid("the cause is not known", "")
	}
	return nil
}

// ended returns the state of a task after its last attempt.
func ended(t *task) *logpb.Result {
	e := &logpb.TaskEnded{Phase: t.phase, Failures: t.failures, MaxFailures: t.maxFailures}
	if t.phase == logpb.TaskPhase_TASK_PHASE_WAITING {
		e.NextNs = t.at
	}
	return &logpb.Result{Kind: &logpb.Result_TaskEnded{TaskEnded: e}}
}

// lose ends an attempt at its deadline, without news of its runner. It counts as a failure, so that a runner that
// crashes at each start stops.
func (ts *Table) lose(h Host, t *task) {
	t.outcome, t.ended, t.detail = logpb.TaskOutcome_TASK_OUTCOME_LOST, t.at, "nothing was heard of its runner until the deadline"
	ts.countFailure(t)
	emitEnded(h, t)
}

// countFailure uses up one failure of a task's budget, at the time when its attempt ended.
func (ts *Table) countFailure(t *task) {
	t.failures++
	t.limited = 0
	if t.failures >= t.maxFailures {
		ts.move(t, logpb.TaskPhase_TASK_PHASE_SHELVED, t.ended)
		return
	}
	ts.move(t, logpb.TaskPhase_TASK_PHASE_WAITING, fixed.AddSaturated(t.ended, retryDelay(t.failures)))
}

func emitEnded(h Host, t *task) {
	h.Emit(effect.Event{Kind: effect.EventTaskEnded, Task: t.name, Holder: t.holder, Fence: t.fence, Amount: t.attempts, Outcome: t.outcome})
	if t.phase == logpb.TaskPhase_TASK_PHASE_SHELVED {
		h.Emit(effect.Event{Kind: effect.EventTaskShelved, Task: t.name, Holder: t.holder, Amount: int64(t.failures), Outcome: t.outcome})
	}
}

// retryDelay returns the delay after the n-th failure before a task's next attempt.
func retryDelay(failures int32) int64 {
	switch failures {
	case 1:
		return firstRetry
	case 2:
		return secondRetry
	}
	return laterRetry
}

// limitWait returns how long a task waits after an attempt that met a limit.
func limitWait(t *task, asked *int64) int64 {
	wait := saturatedWait
	if t.outcome == logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED {
		wait = planWait
	}
	if asked != nil {
		wait = *asked
	}
	if t.limited > 1 {
		wait = max(wait, min(firstLimitFloor<<min(t.limited-2, maxLimitDouble), lastLimitFloor))
	}
	return wait
}
