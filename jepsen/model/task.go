package model

import (
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// The wait of a task (docs/tasks.md): after its first, second and later failures, and after a limit for which the provider gave no time.
var retryAfter = [...]int64{5 * minute, 15 * minute, 30 * minute}

const (
	afterLimit = minute
	afterPlan  = 30 * minute
	// Each of several consecutive limits waits longer than the one before, from a minute for the second on.
	secondLimit = minute
	lastLimit   = 30 * minute
	// attemptTTL is the life of an attempt without a given time, mostFailures the budget of a task without a given number.
	attemptTTL   = 10 * minute
	mostFailures = 3
)

// task is a piece of work with a retry budget.
type task struct {
	number       uint64
	name, holder string
	quotas       []string
	phase        logpb.TaskPhase
	// at is the attempt's deadline, the earliest next beginning, or the end of the task.
	at                      int64
	failures, most, limited int32
	attempts                int64
	fence                   uint64
	ttl                     int64
	outcome                 logpb.TaskOutcome
}

const (
	waitingTask  = logpb.TaskPhase_TASK_PHASE_WAITING
	taskUnderWay = logpb.TaskPhase_TASK_PHASE_IN_FLIGHT
	shelvedTask  = logpb.TaskPhase_TASK_PHASE_SHELVED
	doneTask     = logpb.TaskPhase_TASK_PHASE_DONE
)

// task returns a task; nil: there is none.
func (j *Judge) task(name string) *task {
	if t := j.tasks[name]; t != nil && !j.isForgotten(t) {
		return t
	}
	delete(j.tasks, name)
	return nil
}

// isForgotten says whether a task has been done, or ready to begin, for too long, by the bound at the beginning of the entry.
func (j *Judge) isForgotten(t *task) bool {
	return (t.phase == waitingTask || t.phase == doneTask) && plus(t.at, j.entry.taskLife) <= j.clock.Now
}

// rest enters a task that is done, or waits to be begun.
func (j *Judge) rest(t *task, phase logpb.TaskPhase, at int64) {
	t.phase, t.at = phase, at
	j.taskRest.add(at, t.number)
}

// forgetTasks forgets the tasks whose life is over.
func (j *Judge) forgetTasks() {
	for first, ok := j.taskRest.first(j.clock.Now); ok &&
		plus(first.at, j.entry.taskLife) <= j.clock.Now; first, ok = j.taskRest.first(j.clock.Now) {
		j.taskRest.take()
		if t := j.taskNamed[first.id]; j.tasks[t.name] == t && t.at == first.at && j.isForgotten(t) {
			delete(j.tasks, t.name)
		}
	}
}

// beginTask judges the answer to a BeginTask.
func (j *Judge) beginTask(asked *logpb.BeginTask, result *logpb.Result) {
	t := j.task(asked.Task)
	if refusal := result.GetRefusal(); refusal != nil {
		j.stats.Refused++
		if !j.keepsBack(t, asked, refusal) {
			j.violate("false-refusal", "%v at %d is not true of task %q, which is %v", refusal.Reason, refusal.RetryAtNs, asked.Task, t)
		}
		return
	}
	begun := result.GetTaskBegun()
	switch {
	case begun == nil:
		j.violate("unexplained", "a BeginTask of %q has the result %v", asked.Task, result)
	case begun.Attempt == 0:
		if t == nil || t.phase != doneTask || begun.Failures != t.failures || begun.MaxFailures != t.most {
			j.violate("task-attempt", "task %q is said to be done, %v, and is %+v", asked.Task, begun, t)
		}
	default:
		j.begin(t, asked, begun)
	}
}

// begin judges the beginning of an attempt: the task need not wait, and its budget is unchanged.
func (j *Judge) begin(t *task, asked *logpb.BeginTask, begun *logpb.TaskBegun) {
	j.stats.Attempts++
	if t == nil {
		j.lastTask++
		t = &task{number: j.lastTask, name: asked.Task, phase: waitingTask, at: j.clock.Now, most: mostFailures}
		j.tasks[t.name], j.taskNamed[t.number] = t, t
	}
	if t.phase != waitingTask || t.at > j.clock.Now {
		j.violate("task-attempt", "attempt %d of task %q begins at %d, and it is in phase %v until %d", begun.Attempt, t.name, j.clock.Now,
			t.phase, t.at)
	}
	for _, name := range asked.Quotas {
		for _, q := range j.quotas[name].path() {
			if q.cooling(j.clock.Now) && !q.rule.observe {
				j.violate("cooldown", "task %q begins, and %s is closed until %d", t.name, q.name, q.closedUntil)
			}
		}
	}
	if asked.MaxFailures != 0 {
		t.most = max(asked.MaxFailures, t.failures+1)
	}
	t.holder, t.quotas, t.ttl = asked.Holder, asked.Quotas, asked.TtlNs
	if t.ttl == 0 {
		t.ttl = attemptTTL
	}
	t.attempts++
	if begun.Attempt != t.attempts || asked.Attempt != 0 && asked.Attempt != begun.Attempt {
		j.violate("task-attempt", "attempt %d of task %q begins, %d was asked for, and it is the one numbered %d", begun.Attempt, t.name,
			asked.Attempt, t.attempts)
	}
	if begun.Failures != t.failures || begun.MaxFailures != t.most {
		j.violate("task-budget", "attempt %d of task %q begins with %d of %d failures, it had %d of %d", begun.Attempt, t.name, begun.Failures,
			begun.MaxFailures, t.failures, t.most)
	}
	if begun.Fence <= j.lastFence {
		j.violate("fence-order", "attempt %d of task %q has fence %d, and there was fence %d", begun.Attempt, t.name, begun.Fence, j.lastFence)
	}
	if begun.DeadlineNs != j.clock.Now+t.ttl {
		j.violate("task-attempt", "attempt %d of task %q ends at %d, it is %d and it lives for %d", begun.Attempt, t.name, begun.DeadlineNs,
			j.clock.Now, t.ttl)
	}
	j.lastFence = max(j.lastFence, begun.Fence)
	t.fence, t.phase, t.at = begun.Fence, taskUnderWay, begun.DeadlineNs
	j.taskDue.add(t.at, t.number)
}

// keepsBack says whether the reason for which an attempt does not begin is true.
func (j *Judge) keepsBack(t *task, asked *logpb.BeginTask, refusal *logpb.Refusal) bool {
	switch refusal.Reason {
	case logpb.Reason_REASON_TASK_SHELVED:
		return t != nil && t.phase == shelvedTask && refusal.RetryAtNs == 0
	case logpb.Reason_REASON_TASK_IN_FLIGHT:
		return t != nil && t.phase == taskUnderWay && refusal.RetryAtNs == t.at
	case logpb.Reason_REASON_TASK_LATER:
		return t != nil && t.phase == waitingTask && t.at > j.clock.Now && refusal.RetryAtNs == t.at
	case logpb.Reason_REASON_SUSPENDED, logpb.Reason_REASON_COOLDOWN:
		for _, name := range asked.Quotas {
			for _, q := range j.quotas[name].path() {
				if q.name == refusal.Quota {
					return (t == nil || t.phase == waitingTask) && (q.cooling(j.clock.Now) || q.rule.usable == 0)
				}
			}
		}
	default:
	}
	return false
}

// working returns the task of which a command names the present attempt, running or ended; nil: the fence is dead.
func (j *Judge) working(name string, fence uint64) *task {
	t := j.task(name)
	if t == nil || fence == 0 || t.fence != fence || t.outcome == logpb.TaskOutcome_TASK_OUTCOME_LOST && t.phase != taskUnderWay {
		return nil
	}
	return t
}

func (j *Judge) renewTask(asked *logpb.RenewTask, renewed *logpb.Renewed) {
	t := j.working(asked.Task, asked.Fence)
	if t == nil || t.phase != taskUnderWay || t.at <= j.clock.Now {
		j.violate("dead-fence", "RenewTask worked with task %q and fence %d, which has no running attempt", asked.Task, asked.Fence)
		return
	}
	if asked.TtlNs != 0 {
		t.ttl = asked.TtlNs
	}
	t.at = max(t.at, j.clock.Now+t.ttl)
	if renewed.GetDeadlineNs() != t.at {
		j.violate("task-attempt", "task %q is renewed until %d, not %d", t.name, renewed.GetDeadlineNs(), t.at)
	}
	j.taskDue.add(t.at, t.number)
}

// endTask judges the reported end of an attempt. A repeated report changes nothing.
func (j *Judge) endTask(command *logpb.Command, ended *logpb.TaskEnded) {
	asked := command.GetEndTask()
	t := j.working(asked.Task, asked.Fence)
	switch {
	case t == nil:
		j.violate("dead-fence", "EndTask worked with task %q and fence %d, which is dead", asked.Task, asked.Fence)
		return
	case t.phase != taskUnderWay && t.outcome != asked.Outcome:
		j.violate("task-attempt", "the attempt of task %q had ended as %v, and ends as %v", t.name, t.outcome, asked.Outcome)
		return
	case t.phase == taskUnderWay:
		if !ended.GetReportLeftOut() {
			j.tellQuotas(callerOf(command, t.holder), t, asked)
		}
		j.finishTask(t, asked.Outcome, j.clock.Now, asked.WaitNs)
	default:
		j.stats.Repeated++
	}
	want := &logpb.TaskEnded{Phase: t.phase, Failures: t.failures, MaxFailures: t.most}
	if t.phase == waitingTask {
		want.NextNs = t.at
	}
	if ended.GetPhase() != want.Phase || ended.GetFailures() != want.Failures || ended.GetMaxFailures() != want.MaxFailures ||
		ended.GetNextNs() != want.NextNs {
		j.violate("task-budget", "task %q ended as %v: the result should be %v, and is %v", t.name, asked.Outcome, want, ended)
	}
}

// finishTask ends an attempt as of some time.
func (j *Judge) finishTask(t *task, outcome logpb.TaskOutcome, at int64, wait *int64) {
	t.outcome = outcome
	j.entry.taskEnds[t.name]++
	switch outcome {
	case logpb.TaskOutcome_TASK_OUTCOME_DONE, logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED:
		j.rest(t, doneTask, at)
	case logpb.TaskOutcome_TASK_OUTCOME_SATURATED, logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED:
		t.limited++
		j.rest(t, waitingTask, plus(at, limitDelay(outcome, wait, t.limited)))
	case logpb.TaskOutcome_TASK_OUTCOME_FAILED, logpb.TaskOutcome_TASK_OUTCOME_LOST, logpb.TaskOutcome_TASK_OUTCOME_UNSPECIFIED:
		t.failures++
		t.limited = 0
		if t.failures < t.most {
			j.rest(t, waitingTask, plus(at, retryAfter[min(int(t.failures), len(retryAfter))-1]))
			return
		}
		t.phase, t.at = shelvedTask, at
		j.stats.Shelved++
		j.entry.shelved[t.name]++
	}
}

// limitDelay is the wait of a task after a number of consecutive limits.
func limitDelay(outcome logpb.TaskOutcome, asked *int64, limited int32) int64 {
	wait := afterLimit
	if outcome == logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED {
		wait = afterPlan
	}
	if asked != nil {
		wait = *asked
	}
	least := int64(0)
	for n := int32(2); n <= limited && least < lastLimit; n++ {
		least = min(max(2*least, secondLimit), lastLimit)
	}
	return max(wait, least)
}

// tellQuotas applies the provider's answer to an attempt: as a Report on each of its task's quotas.
func (j *Judge) tellQuotas(caller string, t *task, asked *logpb.EndTask) {
	if asked.Report == logpb.Cause_CAUSE_UNSPECIFIED {
		return
	}
	for _, name := range t.quotas {
		if q := j.quotas[name]; q != nil {
			q.advance(j.clock)
			signal := &logpb.Signal{Quota: name, Cause: asked.Report, RetryAfterNs: asked.WaitNs}
			j.answered(t.holder, q, asked.Report)
			j.closes(caller, q, signal)
		}
	}
}

// retryTask gives a task a fresh budget.
func (j *Judge) retryTask(asked *logpb.RetryTask) {
	t := j.task(asked.Task)
	if t == nil {
		j.violate("unexplained", "task %q is put back, and there is none", asked.Task)
		return
	}
	j.stats.PutBack++
	t.failures, t.limited = 0, 0
	if t.phase != taskUnderWay {
		t.fence = 0
		j.rest(t, waitingTask, j.clock.Now)
	}
}

func (j *Judge) forgetTask(asked *logpb.ForgetTask) {
	if j.task(asked.Task) == nil {
		j.violate("unexplained", "task %q is forgotten, and there is none", asked.Task)
	}
	delete(j.tasks, asked.Task)
}

// taskCommand judges an applied command about a task.
func (j *Judge) taskCommand(command *logpb.Command, result *logpb.Result) {
	switch k := command.Kind.(type) {
	case *logpb.Command_BeginTask:
		j.beginTask(k.BeginTask, result)
	case *logpb.Command_RenewTask:
		j.renewTask(k.RenewTask, result.GetRenewed())
	case *logpb.Command_EndTask:
		j.endTask(command, result.GetTaskEnded())
	case *logpb.Command_RetryTask:
		j.retryTask(k.RetryTask)
	case *logpb.Command_ForgetTask:
		j.forgetTask(k.ForgetTask)
	}
}

// happenTask handles an event of a task.
func (j *Judge) happenTask(event *effect.Event) {
	lost := event.Kind == effect.EventTaskEnded && event.Outcome == logpb.TaskOutcome_TASK_OUTCOME_LOST
	switch {
	case lost:
		j.loseTask(event)
	case event.Kind == effect.EventTaskShelved:
		if j.entry.shelved[event.Task]--; j.entry.shelved[event.Task] < 0 || event.Amount != int64(j.tasks[event.Task].failed()) {
			j.violate("task-budget", "task %q is shelved after %d failures, and is %+v", event.Task, event.Amount, j.tasks[event.Task])
		}
		return
	default:
		j.belongs(event, func(command *logpb.Command, result *logpb.Result) bool { return aboutTask(event, command, result) })
	}
	if event.Kind == effect.EventTaskEnded {
		if j.entry.taskEnds[event.Task]--; j.entry.taskEnds[event.Task] < 0 {
			j.violate("task-attempt", "an attempt of task %q ends twice, as %v", event.Task, event.Outcome)
		}
	}
}

func (t *task) failed() int32 {
	if t == nil {
		return -1
	}
	return t.failures
}

// aboutTask says whether a command explains an event of a task.
func aboutTask(event *effect.Event, command *logpb.Command, result *logpb.Result) bool {
	switch event.Kind {
	case effect.EventTaskBegun:
		begun := result.GetTaskBegun()
		return command.GetBeginTask().GetTask() == event.Task && begun.GetFence() == event.Fence && begun.GetAttempt() == event.Amount
	case effect.EventTaskEnded:
		end := command.GetEndTask()
		return end.GetTask() == event.Task && end.GetFence() == event.Fence && end.GetOutcome() == event.Outcome && result.GetTaskEnded() != nil
	case effect.EventTaskRetried:
		return command.GetRetryTask() != nil && command.GetRetryTask().Task == event.Task && result.GetDone() != nil
	default:
		return false
	}
}

// loseTask handles the loss of an attempt without a report: at its deadline, and not before.
func (j *Judge) loseTask(event *effect.Event) {
	j.stats.Lost++
	j.entry.lost++
	t := j.tasks[event.Task]
	if t == nil || t.phase != taskUnderWay || t.fence != event.Fence || t.at > j.clock.Now {
		j.violate("task-attempt", "the attempt of task %q with fence %d is lost at %d, and it is %+v", event.Task, event.Fence, j.clock.Now, t)
		return
	}
	j.finishTask(t, event.Outcome, t.at, nil)
}

// overdueTasks finds attempts whose deadline has passed and that are not lost.
func (j *Judge) overdueTasks() {
	j.forgetTasks()
	for first, ok := j.taskDue.first(j.clock.Now); ok && j.entry.lost < mostDue; first, ok = j.taskDue.first(j.clock.Now) {
		j.taskDue.take()
		if t := j.taskNamed[first.id]; t != nil && j.tasks[t.name] == t && t.phase == taskUnderWay && t.at == first.at {
			j.violate("late-expiry", "the attempt of task %q is running at %d, its deadline was %d", t.name, j.clock.Now, t.at)
		}
	}
	for name, count := range j.entry.shelved {
		if count != 0 {
			j.violate("task-budget", "task %q used its budget up, and no event says that it is shelved", name)
		}
	}
	for name, count := range j.entry.taskEnds {
		if count != 0 {
			j.violate("unexplained", "an attempt of task %q ended, and no event says so", name)
		}
	}
}

// taskFailure judges whether an error about a task is true.
func (j *Judge) taskFailure(command *logpb.Command, failure *logpb.Failure) (isTrue, judged bool) {
	name, fence := command.GetEndTask().GetTask(), command.GetEndTask().GetFence()
	if renew := command.GetRenewTask(); renew != nil {
		name, fence = renew.Task, renew.Fence
	}
	switch failure.Reason {
	case logpb.Reason_REASON_NEVER_ISSUED:
		return fence > j.lastFence, true
	case logpb.Reason_REASON_STALE_FENCE:
		return j.working(name, fence) == nil, true
	case logpb.Reason_REASON_UNKNOWN_TASK:
		return j.task(command.GetRetryTask().GetTask()) == nil && j.task(command.GetForgetTask().GetTask()) == nil, true
	case logpb.Reason_REASON_STALE_ATTEMPT:
		if begin := command.GetBeginTask(); begin != nil {
			t := j.task(begin.Task)
			return begin.Attempt != 0 && (t == nil && begin.Attempt != 1 || t != nil && begin.Attempt != t.attempts+1), true
		}
		t := j.working(name, fence)
		return t != nil && t.phase != taskUnderWay && (command.GetRenewTask() != nil || t.outcome != command.GetEndTask().GetOutcome()), true
	case logpb.Reason_REASON_UNKNOWN_QUOTA:
		for _, quota := range command.GetBeginTask().GetQuotas() {
			if quota == failure.Quota {
				return j.quotas[quota] == nil, true
			}
		}
		return false, true
	default:
		return false, false
	}
}

// isOfTask says whether a command is about a task.
func isOfTask(command *logpb.Command) bool {
	switch command.Kind.(type) {
	case *logpb.Command_BeginTask, *logpb.Command_RenewTask, *logpb.Command_EndTask, *logpb.Command_RetryTask, *logpb.Command_ForgetTask:
		return true
	}
	return false
}
