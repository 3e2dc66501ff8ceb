package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Bounds and defaults of tasks. The API's table refuses the same earlier and with more words.
const (
	maxTaskName        = 128
	maxTaskQuotas      = 16
	maxTaskDetail      = 300
	maxTaskFailures    = 100
	maxTaskWait        = 31 * fixed.Day
	defaultTaskTTL     = 10 * fixed.Minute
	defaultMaxFailures = 3
)

// task is a piece of work with a retry budget. The budget is kept here, and not with who works on it, so that neither a
// restart nor a second runner gets a fresh one.
type task struct {
	cow.Made
	name, holder string
	// quotas are the names of those that it lives on; one may not exist any more. The slice is replaced, never changed.
	quotas []string
	// phase is where it stands; a task that is ready is one that waits for a time that has come.
	phase logpb.TaskPhase
	// at is the deadline of the attempt that is under way, when the next one may begin, or since when it is shelved or done.
	at int64
	// failures are counted since it was made or put back; limited counts limits in a row.
	maxFailures, failures, limited int32
	// attempts counts those that were begun; fence is the last one's, 0 where there is none since it was put back.
	attempts int64
	fence    uint64
	// ttl is how long the last attempt lives without a renewal.
	ttl int64
	// outcome, ended and detail are how and when the last attempt ended.
	outcome logpb.TaskOutcome
	ended   int64
	detail  string
	// account is charged with it: that of who began it first.
	account uint64
}

// taskTree returns the tree in which a task stands by its time: attempts by their deadline; what waits for somebody, or is
// done, by since when that is so. What is shelved stands in none: nothing of it is ever due.
func (s *State) taskTree(phase logpb.TaskPhase) *cow.Set[dueByName] {
	switch phase {
	case logpb.TaskPhase_TASK_PHASE_UNDER_WAY:
		return s.underWay
	case logpb.TaskPhase_TASK_PHASE_WAITING, logpb.TaskPhase_TASK_PHASE_DONE:
		return s.resting
	case logpb.TaskPhase_TASK_PHASE_SHELVED, logpb.TaskPhase_TASK_PHASE_READY, logpb.TaskPhase_TASK_PHASE_UNSPECIFIED:
	}
	return nil
}

// ownNames returns names of quotas as the state has them: whoever keeps them keeps no copies.
func (s *State) ownNames(names []string) []string {
	own := make([]string, len(names))
	for i, name := range names {
		if own[i] = name; s.quotaNamed(name) != nil {
			own[i] = s.quotaNamed(name).name
		}
	}
	return own
}

// editTask returns a task that may be changed.
func (m *Machine) editTask(t *task) *task {
	t, _ = cow.Edit(m.tasks, t.name, t, m.generation)
	return t
}

// moveTask puts a task into a phase, with its time.
func (m *Machine) moveTask(t *task, phase logpb.TaskPhase, at int64) {
	m.unlistTask(t)
	t.phase, t.at = phase, at
	m.listTask(t)
}

func (m *Machine) listTask(t *task) {
	if tree := m.taskTree(t.phase); tree != nil {
		tree.Set(dueByName{At: t.at, ID: t.name})
	}
}

func (m *Machine) unlistTask(t *task) {
	if tree := m.taskTree(t.phase); tree != nil {
		tree.Delete(dueByName{At: t.at, ID: t.name})
	}
}

func (m *Machine) dropTask(t *task) {
	m.unlistTask(t)
	m.tasks.Delete(t.name)
	m.accounts.Add(t.account, accounts.Tasks, -1)
}

// task returns a task that may be changed, nil where there is none, or why the caller may not touch it. An attempt past
// its deadline is lost here, so that who meets it before that was carried out finds what comes after.
func (m *Machine) task(name, by string) (*task, *logpb.Failure) {
	t, ok := m.tasks.Get(name)
	if !ok {
		return nil, nil
	}
	if by != "" && !Match(by, t.holder) {
		return nil, &logpb.Failure{
			Reason:  logpb.Reason_REASON_FOREIGN_TASK,
			Message: fmt.Sprintf("task %q belongs to a holder outside of what your token covers", name),
			Hint:    "use the token of the task's holder, or another name for the task",
		}
	}
	t = m.editTask(t)
	if t.phase == logpb.TaskPhase_TASK_PHASE_UNDER_WAY && t.at <= m.clock.Now {
		m.loseAttempt(t)
	}
	return t, nil
}

// loseAttempts ends attempts whose deadline has passed.
func (m *Machine) loseAttempts() {
	for _, late := range cow.TakeDue(m.underWay, maxDuePerEntry, func(d dueByName) bool { return d.At <= m.clock.Now }) {
		t, _ := m.tasks.Get(late.ID)
		m.loseAttempt(m.editTask(t))
	}
}

// forgetTasks forgets tasks that are done, and those that nobody has begun, for long enough. What is shelved stays until
// somebody has seen it.
func (m *Machine) forgetTasks() {
	isOld := func(d dueByName) bool { return fixed.AddSaturated(d.At, m.accounts.Limits.TaskLife) <= m.clock.Now }
	for _, old := range cow.TakeDue(m.resting, maxDuePerEntry, isOld) {
		t, _ := m.tasks.Delete(old.ID)
		m.accounts.Add(t.account, accounts.Tasks, -1)
	}
}

// retryTask gives a task a fresh budget and lets it begin at once. An attempt that is under way goes on under it.
func (m *Machine) retryTask(command *logpb.RetryTask, by string) *logpb.Result {
	t, failure := m.knownTask(command.Task, by)
	if failure != nil {
		return effect.Failed(failure)
	}
	t.failures, t.limited = 0, 0
	if t.phase != logpb.TaskPhase_TASK_PHASE_UNDER_WAY {
		t.fence = 0
		m.moveTask(t, logpb.TaskPhase_TASK_PHASE_WAITING, m.clock.Now)
	}
	m.emit(effect.Event{Kind: effect.EventTaskPutBack, Task: t.name, Holder: t.holder})
	return effect.Done()
}

// forgetTask removes a task. Whoever works on it finds its fence dead.
func (m *Machine) forgetTask(command *logpb.ForgetTask, by string) *logpb.Result {
	t, failure := m.knownTask(command.Task, by)
	if failure != nil {
		return effect.Failed(failure)
	}
	m.dropTask(t)
	return effect.Done()
}

func (m *Machine) knownTask(name, by string) (*task, *logpb.Failure) {
	t, failure := m.task(name, by)
	if t == nil && failure == nil {
		failure = &logpb.Failure{
			Reason: logpb.Reason_REASON_UNKNOWN_TASK, Message: fmt.Sprintf("there is no task %q", name),
			Hint: "list the tasks; one that is done or that nobody begins is forgotten after some days",
		}
	}
	return t, failure
}

// checkBegin checks what a BeginTask asks for.
func (m *Machine) checkBegin(req *logpb.BeginTask) *logpb.Failure {
	switch {
	case req.Task == "" || len(req.Task) > maxTaskName:
		return effect.Invalid(fmt.Sprintf("a task's name of %d bytes is not within 1 to %d", len(req.Task), maxTaskName), "")
	case req.Holder == "":
		return effect.Invalid("a BeginTask needs a holder", "any stable name")
	case req.MaxFailures < 0 || req.MaxFailures > maxTaskFailures:
		return effect.Invalid(fmt.Sprintf("max_failures is not within 1 to %d", maxTaskFailures), "leave it out for 3")
	case req.TtlNs != 0 && (req.TtlNs < minTTL || req.TtlNs > maxTTL):
		return effect.Invalid("the ttl is not within 1 s to 24 h", "leave it out for 10 min")
	case req.Attempt < 0:
		return effect.Invalid("attempts are numbered from 1", "")
	case len(req.Quotas) > maxTaskQuotas:
		return effect.Invalid(fmt.Sprintf("%d quotas are more than %d", len(req.Quotas), maxTaskQuotas), "")
	}
	for i, name := range req.Quotas {
		if slices.Contains(req.Quotas[:i], name) {
			return effect.Invalid(fmt.Sprintf("quota %q is named twice", name), "")
		}
		if m.quotaNamed(name) == nil {
			return unknownQuota(name)
		}
	}
	return nil
}
