package task

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Bounds and defaults of tasks. The API checks the same bounds earlier, with longer messages.
const (
	// MaxName and MaxDetail bound a task's name and its runner's detail of an end, in bytes; MaxQuotas bounds a task's
	// quotas.
	MaxName   = 128
	MaxDetail = 300
	MaxQuotas = 16
	// DefaultTTL is how long an attempt lives without a renewal, if its runner names no time.
	DefaultTTL = 10 * fixed.Minute

	minTTL             = fixed.Second
	maxTTL             = fixed.Day
	maxFailures        = 100
	maxWait            = 31 * fixed.Day
	defaultMaxFailures = 3
)

// task is a piece of work with a retry budget. The state keeps the budget, not the runner, so neither a restart nor a
// second runner resets it.
type task struct {
	cow.Made
	name, holder string
	// quotas are the names of its quotas; some may not exist any more. The slice is replaced, never changed.
	quotas []string
	// phase is its phase; a ready task is a waiting one whose time has come.
	phase logpb.TaskPhase
	// at is the deadline of the running attempt, when the next one may begin, or since when the task is shelved or
	// done.
	at int64
	// failures are counted since it was made or retried; limited counts limits in a row.
	maxFailures, failures, limited int32
	// attempts counts begun attempts; fence is the last one's, 0 if there is none since a retry.
	attempts int64
	fence    uint64
	// ttl is how long the last attempt lives without a renewal.
	ttl int64
	// outcome, ended and detail are how and when the last attempt ended.
	outcome logpb.TaskOutcome
	ended   int64
	detail  string
	// account is charged with it: that of the caller that began it first.
	account uint64
}

// ownNames returns names of quotas as strings of the state, so that tasks share them instead of copies.
func ownNames(h Host, names []string) []string {
	own := make([]string, len(names))
	for i, name := range names {
		known, failure := h.QuotaName(name)
		if own[i] = known; failure != nil {
			own[i] = name
		}
	}
	return own
}

// find returns a task for update, nil if there is none, or why the caller may not use it. It ends an attempt past its
// deadline as lost, so that a command that finds it early gets the same answer as later.
func (ts *Table) find(h Host, name, by string) (*task, *logpb.Failure) {
	t, ok := ts.byName.Get(name)
	if !ok {
		return nil, nil
	}
	if by != "" && !h.Covers(by, t.holder) {
		return nil, &logpb.Failure{
			Reason:  logpb.Reason_REASON_FOREIGN_TASK,
			Message: fmt.Sprintf("task %q belongs to a holder outside of what your token covers", name),
			Hint:    "use the token of the task's holder, or another name for the task",
		}
	}
	t = ts.edit(t)
	if t.phase == logpb.TaskPhase_TASK_PHASE_IN_FLIGHT && t.at <= h.Now() {
		ts.lose(h, t)
	}
	return t, nil
}

// LoseAttempts ends attempts whose deadline has passed, up to most.
func (ts *Table) LoseAttempts(h Host, most int) {
	now := h.Now()
	for _, late := range cow.TakeDue(ts.underWay, most, func(d dueByName) bool { return d.At <= now }) {
		t, _ := ts.byName.Get(late.ID)
		ts.lose(h, ts.edit(t))
	}
}

// ForgetOld drops up to most tasks that have been done or waiting for the task life. Shelved tasks stay until somebody
// has seen them.
func (ts *Table) ForgetOld(h Host, most int) {
	book, now := h.Book(), h.Now()
	isOld := func(d dueByName) bool { return fixed.AddSaturated(d.At, book.Limits.TaskLife) <= now }
	for _, old := range cow.TakeDue(ts.resting, most, isOld) {
		t, _ := ts.byName.Delete(old.ID)
		book.Add(t.account, accounts.Tasks, -1)
	}
}

// Retry gives a task a full budget and lets it begin at once. A running attempt continues under the new budget.
func (ts *Table) Retry(h Host, command *logpb.RetryTask, by string) *logpb.Result {
	t, failure := ts.known(h, command.Task, by)
	if failure != nil {
		return effect.Failed(failure)
	}
	t.failures, t.limited = 0, 0
	if t.phase != logpb.TaskPhase_TASK_PHASE_IN_FLIGHT {
		t.fence = 0
		ts.move(t, logpb.TaskPhase_TASK_PHASE_WAITING, h.Now())
	}
	h.Emit(effect.Event{Kind: effect.EventTaskRetried, Task: t.name, Holder: t.holder})
	return effect.Done()
}

// Forget removes a task. The fence of a running attempt becomes invalid.
func (ts *Table) Forget(h Host, command *logpb.ForgetTask, by string) *logpb.Result {
	t, failure := ts.known(h, command.Task, by)
	if failure != nil {
		return effect.Failed(failure)
	}
	ts.unlist(t)
	ts.byName.Delete(t.name)
	h.Book().Add(t.account, accounts.Tasks, -1)
	return effect.Done()
}

func (ts *Table) known(h Host, name, by string) (*task, *logpb.Failure) {
	t, failure := ts.find(h, name, by)
	if t == nil && failure == nil {
		failure = &logpb.Failure{
			Reason: logpb.Reason_REASON_UNKNOWN_TASK, Message: fmt.Sprintf("there is no task %q", name),
			Hint: "list the tasks; one that is done or that nobody begins is forgotten after some days",
		}
	}
	return t, failure
}

// checkBegin validates a BeginTask.
func checkBegin(h Host, req *logpb.BeginTask) *logpb.Failure {
	switch {
	case req.Task == "" || len(req.Task) > MaxName:
		return effect.Invalid(fmt.Sprintf("a task's name of %d bytes is not within 1 to %d", len(req.Task), MaxName), "")
	case req.Holder == "":
		return effect.Invalid("a BeginTask needs a holder", "any stable name")
	case req.MaxFailures < 0 || req.MaxFailures > maxFailures:
		return effect.Invalid(fmt.Sprintf("max_failures is not within 1 to %d", maxFailures), "leave it out for 3")
	case req.TtlNs != 0 && (req.TtlNs < minTTL || req.TtlNs > maxTTL):
		return effect.Invalid("the ttl is not within 1 s to 24 h", "leave it out for 10 min")
	case req.Attempt < 0:
		return effect.Invalid("attempts are numbered from 1", "")
	case len(req.Quotas) > MaxQuotas:
		return effect.Invalid(fmt.Sprintf("%d quotas are more than %d", len(req.Quotas), MaxQuotas), "")
	}
	for i, name := range req.Quotas {
		if slices.Contains(req.Quotas[:i], name) {
			return effect.Invalid(fmt.Sprintf("quota %q is named twice", name), "")
		}
		if _, failure := h.QuotaName(name); failure != nil {
			return failure
		}
	}
	return nil
}
