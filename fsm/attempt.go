package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// How long a task waits after an attempt that did not finish it.
const (
	firstRetry  = 5 * fixed.Minute
	secondRetry = 15 * fixed.Minute
	laterRetry  = 30 * fixed.Minute

	// saturatedWait and planWait stand for what the provider did not say.
	saturatedWait = fixed.Minute
	planWait      = 30 * fixed.Minute
	// Of several limits in a row each waits at least twice as long as the one before, from the second on: an agent that
	// meets one as soon as it starts costs its prompt each time, whatever the provider says.
	firstLimitFloor = fixed.Minute
	lastLimitFloor  = 30 * fixed.Minute
	maxLimitDouble  = 5
)

// beginTask begins a task's next attempt, or says why not. Only one is under way at a time, and it has a deadline, so that
// one whose runner is gone ends as well.
func (m *Machine) beginTask(req *logpb.BeginTask, by string) *logpb.Result {
	if failure := m.checkBegin(req); failure != nil {
		return effect.Failed(failure)
	}
	t, failure := m.task(req.Task, by)
	switch {
	case failure != nil:
		return effect.Failed(failure)
	case t != nil && t.phase == logpb.TaskPhase_TASK_PHASE_DONE:
		return begun(t, 0)
	case t == nil:
		if full := m.noTaskLeft(); full != nil {
			return full
		}
	}
	if refusal := m.notNow(t, req); refusal != nil {
		return effect.Refused(refusal)
	}
	if t == nil {
		t = &task{Made: cow.In(m.generation), name: req.Task, maxFailures: defaultMaxFailures}
	}
	if req.Attempt != 0 && req.Attempt != t.attempts+1 {
		return effect.Fail(logpb.Reason_REASON_STALE_ATTEMPT, fmt.Sprintf("attempt %d of %d is not the next one", req.Attempt, t.attempts),
			"leave the number out to begin the next")
	}
	if t.attempts == 0 {
		t.account = m.accounts.Bill(m.payer, accounts.Tasks, 1)
	}
	m.tasks.Set(t.name, t)
	t.holder, t.quotas = req.Holder, m.ownNames(req.Quotas)
	if req.MaxFailures != 0 {
		t.maxFailures = max(req.MaxFailures, t.failures+1) // an attempt that begins may fail
	}
	if t.ttl = req.TtlNs; t.ttl == 0 {
		t.ttl = defaultTaskTTL
	}
	t.attempts++
	m.grants++
	t.fence = m.fence()
	m.moveTask(t, logpb.TaskPhase_TASK_PHASE_UNDER_WAY, m.clock.Now+t.ttl)
	m.emit(effect.Event{Kind: effect.EventTaskBegun, Task: t.name, Holder: t.holder, Fence: t.fence, Amount: t.attempts})
	return begun(t, t.attempts)
}

// noTaskLeft says why there is no room for a task; nil: there is.
func (m *Machine) noTaskLeft() *logpb.Result {
	const hint = "forget those that are shelved and not wanted any more; done ones go by themselves"
	switch m.taking(accounts.Tasks) {
	case accounts.AtBudget:
		return m.overBudget(accounts.Tasks, hint)
	case accounts.AllTaken:
		return effect.Fail(logpb.Reason_REASON_TASKS_FULL, fmt.Sprintf("there are %d tasks", m.tasks.Len()), hint)
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

// notNow says why a task's next attempt cannot begin now; nil: it can. The task itself comes first: of one that is shelved
// no quota's reopening is worth waiting for.
func (m *Machine) notNow(t *task, req *logpb.BeginTask) *logpb.Refusal {
	switch {
	case t == nil:
	case t.phase == logpb.TaskPhase_TASK_PHASE_SHELVED:
		return &logpb.Refusal{
			Reason: logpb.Reason_REASON_TASK_SHELVED,
			Advice: fmt.Sprintf("it failed %d times: see why, then put it back with quotad task retry", t.failures),
		}
	case t.phase == logpb.TaskPhase_TASK_PHASE_UNDER_WAY:
		return &logpb.Refusal{
			Reason: logpb.Reason_REASON_TASK_UNDER_WAY, RetryAtNs: t.at,
			Advice: "it ends by itself at the latest then, if nothing is heard of it",
		}
	case t.at > m.clock.Now:
		return &logpb.Refusal{Reason: logpb.Reason_REASON_TASK_LATER, RetryAtNs: t.at, Advice: "come back then"}
	}
	var worst *logpb.Refusal
	for _, name := range req.Quotas {
		worst = worse(worst, m.closedFor(req.Holder, m.editQuotaNow(m.quotaNamed(name).number)))
	}
	return worst
}

// closedFor refuses what lives on a quota that is closed, or has an ancestor that is; of a pool, all of whose members are. nil: it is open.
func (m *Machine) closedFor(holder string, q *quota) (worst *logpb.Refusal) {
	for _, member := range q.definition.GetPool().GetMembers() {
		closed := m.closedFor(holder, m.editQuotaNow(m.quotaNamed(member.Quota).number))
		if closed == nil {
			return nil
		}
		worst = m.milder(worst, closed)
	}
	if q.rule.Kind == ledger.KindPool {
		return worst
	}
	for _, q := range m.ancestors(q) {
		switch {
		case q.rule.Policy.Observe:
		case q.rule.Limit == 0:
			worst = worse(worst, m.refusal(logpb.Reason_REASON_SUSPENDED, q, 0, "its limit is 0: ask the operator"))
		case q.cooling(m.clock.Now):
			class, _ := m.byRules(holder)
			worst = worse(worst, m.coolingRefusal(q, holder, class, q.cooldown))
		}
	}
	return worst
}

// attempt returns the task whose present attempt has this fence, or why there is none.
func (m *Machine) attempt(name string, fence uint64, by string) (*task, *logpb.Failure) {
	if fence > m.fence() {
		return nil, m.neverIssued(fence)
	}
	t, failure := m.task(name, by)
	if failure == nil && (t == nil || t.fence != fence || fence == 0 || t.outcome == logpb.TaskOutcome_TASK_OUTCOME_LOST && t.phase != logpb.TaskPhase_TASK_PHASE_UNDER_WAY) {
		failure = &logpb.Failure{
			Reason: logpb.Reason_REASON_STALE_FENCE, FenceCounter: m.fence(),
			Message: fmt.Sprintf("the attempt of task %q has ended, or this is not its fence", name),
			Hint:    "stop working on it: another attempt may be under way",
		}
	}
	return t, failure
}

// renewTask moves an attempt's deadline, never to an earlier time.
func (m *Machine) renewTask(command *logpb.RenewTask, by string) *logpb.Result {
	if command.TtlNs != 0 && (command.TtlNs < minTTL || command.TtlNs > maxTTL) {
		return effect.Failed(effect.Invalid("the ttl is not within 1 s to 24 h", "leave it out for the length that was begun with"))
	}
	t, failure := m.attempt(command.Task, command.Fence, by)
	switch {
	case failure != nil:
		return effect.Failed(failure)
	case t.phase != logpb.TaskPhase_TASK_PHASE_UNDER_WAY:
		return endedBefore(t)
	case command.TtlNs != 0:
		t.ttl = command.TtlNs
	}
	if deadline := m.clock.Now + t.ttl; deadline > t.at {
		m.moveTask(t, t.phase, deadline)
	}
	return &logpb.Result{Kind: &logpb.Result_Renewed{Renewed: &logpb.Renewed{DeadlineNs: t.at}}}
}

func endedBefore(t *task) *logpb.Result {
	return effect.Fail(logpb.Reason_REASON_STALE_ATTEMPT, fmt.Sprintf("attempt %d of task %q has ended before", t.attempts, t.name),
		"its first end counts")
}

// endTask takes over how an attempt ended. Told again, it answers again; told otherwise, it fails.
func (m *Machine) endTask(from *logpb.Command) *logpb.Result {
	command := from.GetEndTask()
	if failure := checkEnd(command); failure != nil {
		return effect.Failed(failure)
	}
	t, failure := m.attempt(command.Task, command.Fence, from.By)
	switch {
	case failure != nil:
		return effect.Failed(failure)
	case t.phase != logpb.TaskPhase_TASK_PHASE_UNDER_WAY && t.outcome == command.Outcome:
		return ended(t)
	case t.phase != logpb.TaskPhase_TASK_PHASE_UNDER_WAY:
		return endedBefore(t)
	}
	// How an attempt ended counts even where no report is taken any more: what gives back fails for no budget.
	leftOut := command.Report != logpb.Cause_CAUSE_UNSPECIFIED && m.noReportLeft(t.holder) != nil
	if command.Report != logpb.Cause_CAUSE_UNSPECIFIED && !leftOut {
		m.accounts.CountReport(m.payer, m.clock.Now)
		m.tellQuotas(reporterOf(from, t.holder), t, command)
	}
	t.outcome, t.ended, t.detail = command.Outcome, m.clock.Now, command.Detail
	switch command.Outcome {
	case logpb.TaskOutcome_TASK_OUTCOME_DONE, logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED:
		m.moveTask(t, logpb.TaskPhase_TASK_PHASE_DONE, t.ended)
	case logpb.TaskOutcome_TASK_OUTCOME_SATURATED, logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED:
		t.limited = min(t.limited+1, maxLimitDouble+2)
		m.moveTask(t, logpb.TaskPhase_TASK_PHASE_WAITING, fixed.AddSaturated(t.ended, limitWait(t, command.WaitNs)))
	case logpb.TaskOutcome_TASK_OUTCOME_FAILED, logpb.TaskOutcome_TASK_OUTCOME_LOST, logpb.TaskOutcome_TASK_OUTCOME_UNSPECIFIED:
		m.countFailure(t)
	}
	m.emitEnded(t)
	result := ended(t)
	result.GetTaskEnded().ReportLeftOut = leftOut
	return result
}

func checkEnd(command *logpb.EndTask) *logpb.Failure {
	switch {
	case command.Outcome < logpb.TaskOutcome_TASK_OUTCOME_DONE || command.Outcome > logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED:
		return effect.Invalid("the outcome is missing, unknown, or not a runner's to say", "")
	case command.WaitNs != nil && (*command.WaitNs < 0 || *command.WaitNs > maxTaskWait):
		return effect.Invalid("the wait is not within 0 to 31 days", "leave it out where the provider named no time")
	case len(command.Detail) > maxTaskDetail:
		return effect.Invalid(fmt.Sprintf("a detail of %d bytes is longer than %d", len(command.Detail), maxTaskDetail), "cut it")
	case command.Report < logpb.Cause_CAUSE_UNSPECIFIED || command.Report > logpb.Cause_CAUSE_NOT_A_LIMIT:
		return effect.Invalid("the cause is not known", "")
	}
	return nil
}

// ended tells where a task stands after its last attempt.
func ended(t *task) *logpb.Result {
	e := &logpb.TaskEnded{Phase: t.phase, Failures: t.failures, MaxFailures: t.maxFailures}
	if t.phase == logpb.TaskPhase_TASK_PHASE_WAITING {
		e.NextNs = t.at
	}
	return &logpb.Result{Kind: &logpb.Result_TaskEnded{TaskEnded: e}}
}

// loseAttempt ends an attempt of which nothing was heard until its deadline. It counts as a failure, since a runner that
// crashes at each start must not do so forever.
func (m *Machine) loseAttempt(t *task) {
	t.outcome, t.ended, t.detail = logpb.TaskOutcome_TASK_OUTCOME_LOST, t.at, "nothing was heard of its runner until the deadline"
	m.countFailure(t)
	m.emitEnded(t)
}

// countFailure uses up one failure of a task's budget, as of when its attempt ended.
func (m *Machine) countFailure(t *task) {
	t.failures++
	t.limited = 0
	if t.failures >= t.maxFailures {
		m.moveTask(t, logpb.TaskPhase_TASK_PHASE_SHELVED, t.ended)
		return
	}
	m.moveTask(t, logpb.TaskPhase_TASK_PHASE_WAITING, fixed.AddSaturated(t.ended, retryDelay(t.failures)))
}

func (m *Machine) emitEnded(t *task) {
	m.emit(effect.Event{Kind: effect.EventTaskEnded, Task: t.name, Holder: t.holder, Fence: t.fence, Amount: t.attempts, Outcome: t.outcome})
	if t.phase == logpb.TaskPhase_TASK_PHASE_SHELVED {
		m.emit(effect.Event{Kind: effect.EventTaskShelved, Task: t.name, Holder: t.holder, Amount: int64(t.failures), Outcome: t.outcome})
	}
}

// retryDelay returns how long after its n-th failure a task's next attempt may begin.
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

// tellQuotas takes over what the provider said to an attempt, for each quota that its task lives on, within the bounds of
// a Report. The attempt's fence stands for the lease: its holder showed, under a deadline, that it uses these quotas. It does not show
// which member of a pool it used.
func (m *Machine) tellQuotas(by reporter, t *task, command *logpb.EndTask) {
	for _, name := range t.quotas {
		if q := m.quotaNamed(name); q != nil && q.rule.Kind != ledger.KindPool {
			m.takeSignal(by, nil, m.editQuotaNow(q.number), &logpb.Signal{Quota: name, Cause: command.Report, RetryAfterNs: command.WaitNs})
		}
	}
}
