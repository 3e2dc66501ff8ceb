package fsm

import (
	"errors"
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// TaskView is a task as a reader sees it at some Clock. Durations are nanoseconds.
type TaskView struct {
	Name, Holder string
	Quotas       []string
	Phase        logpb.TaskPhase
	// Failures are counted since it was made or put back; at MaxFailures it is shelved. Limited counts limits in a row.
	Failures, MaxFailures, Limited int32
	// Attempts counts those that were begun.
	Attempts int64
	// Fence and Left are those of the attempt that is under way.
	Fence uint64
	Left  int64
	// RetryIn is when the next attempt may begin; 0 where it may now, or never by itself.
	RetryIn int64
	// Outcome and Detail are those of the last attempt that ended, EndedAgo is since when.
	Outcome  logpb.TaskOutcome
	Detail   string
	EndedAgo int64
}

// Tasks returns up to limit tasks by name, above the name after, of names that start with prefix, of a holder (empty: any)
// and in a phase (unspecified: any), whatever that costs: for simulations and checks.
func (s *State) Tasks(prefix, holder string, phase logpb.TaskPhase, after string, limit int, at Clock) (views []TaskView) {
	for going := true; going && len(views) < limit; going = after != "" {
		var page []TaskView
		page, after = s.TaskPage(TaskFilter{Prefix: prefix, Holder: holder, Phase: phase}, after, limit-len(views), at)
		views = append(views, page...)
	}
	return views
}

func viewTask(t *task, at Clock) TaskView {
	v := TaskView{
		Name: t.name, Holder: t.holder, Quotas: t.quotas, Phase: t.phase, Failures: t.failures, MaxFailures: t.maxFailures,
		Limited: t.limited, Attempts: t.attempts, Outcome: t.outcome, Detail: t.detail,
	}
	if t.outcome != logpb.TaskOutcome_TASK_OUTCOME_UNSPECIFIED {
		v.EndedAgo = max(at.Now-t.ended, 0)
	}
	switch t.phase {
	case logpb.TaskPhase_TASK_PHASE_UNDER_WAY:
		v.Fence, v.Left = t.fence, max(t.at-at.Now, 0)
	case logpb.TaskPhase_TASK_PHASE_WAITING:
		if v.RetryIn = max(t.at-at.Now, 0); v.RetryIn == 0 {
			v.Phase = logpb.TaskPhase_TASK_PHASE_READY
		}
	case logpb.TaskPhase_TASK_PHASE_SHELVED, logpb.TaskPhase_TASK_PHASE_DONE, logpb.TaskPhase_TASK_PHASE_READY, logpb.TaskPhase_TASK_PHASE_UNSPECIFIED:
	}
	return v
}

// nextTask returns when an attempt is lost, if one is under way, and whether somebody waits for the time of a next one: a
// time that a leader does not let pass would make that wait longer.
func (s *State) nextTask() (at int64, due, pending bool) {
	first, due := s.underWay.Min()
	last, rests := s.resting.Max()
	return first.At, due, rests && last.At > s.clock.Now
}

// shelved counts the tasks that are shelved: those that stand in no tree of times.
func (s *State) shelved() int64 {
	return int64(s.tasks.Len() - s.underWay.Len() - s.resting.Len())
}

// taskRecords are the tasks.
func (s *State) taskRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.tasks.Scan(func(_ string, t *task) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Task{Task: &logpb.SnapshotTask{
			Name: t.name, Holder: t.holder, Quotas: t.quotas, Phase: t.phase, MaxFailures: t.maxFailures, Failures: t.failures,
			Limited: t.limited, Attempts: t.attempts, Fence: t.fence, TtlNs: t.ttl, AtNs: t.at, Outcome: t.outcome,
			EndedNs: t.ended, Detail: t.detail, Account: t.account,
		}}})
		return going
	})
	return going
}

func (m *Machine) takeTask(encoded *logpb.SnapshotTask) error {
	t := &task{
		Made: cow.In(m.generation), name: encoded.Name, holder: encoded.Holder, quotas: m.ownNames(encoded.Quotas), phase: encoded.Phase,
		maxFailures: encoded.MaxFailures, failures: encoded.Failures, limited: encoded.Limited, attempts: encoded.Attempts,
		fence: encoded.Fence, ttl: encoded.TtlNs, at: encoded.AtNs, outcome: encoded.Outcome, ended: encoded.EndedNs, detail: encoded.Detail,
		account: encoded.Account,
	}
	if err := m.accounts.ChargeOne(t.account, accounts.Tasks); err != nil {
		return err
	}
	if _, twice := m.tasks.Set(t.name, t); twice {
		return fmt.Errorf("task %q comes twice", t.name)
	}
	m.listTask(t)
	return t.check()
}

// check says what cannot be of a task.
func (t *task) check() error {
	spent := t.failures >= t.maxFailures
	switch {
	case t.phase < logpb.TaskPhase_TASK_PHASE_WAITING || t.phase > logpb.TaskPhase_TASK_PHASE_DONE:
		return fmt.Errorf("task %q is in phase %v", t.name, t.phase)
	case t.failures < 0, t.failures > t.maxFailures, t.limited < 0, t.attempts < 1, t.ttl < 1:
		return fmt.Errorf("task %q has %d of %d failures, %d limits, %d attempts of %d ns", t.name, t.failures, t.maxFailures, t.limited, t.attempts, t.ttl)
	case spent != (t.phase == logpb.TaskPhase_TASK_PHASE_SHELVED):
		return fmt.Errorf("task %q has %d of %d failures and is in phase %v", t.name, t.failures, t.maxFailures, t.phase)
	case t.fence == 0 && t.phase == logpb.TaskPhase_TASK_PHASE_UNDER_WAY:
		return fmt.Errorf("an attempt of task %q has no fence", t.name)
	}
	return nil
}

// verifyTasks checks each task, and that each stands in the tree of its phase, under its time.
func (s *State) verifyTasks() error {
	var errs []error
	listed := 0
	s.tasks.Scan(func(_ string, t *task) bool {
		errs = append(errs, t.check())
		tree := s.taskTree(t.phase)
		if tree == nil {
			return true
		}
		if listed++; t.fence > s.fence() {
			errs = append(errs, fmt.Errorf("task %q has fence %d, above %d", t.name, t.fence, s.fence()))
		}
		if _, ok := tree.Get(dueByName{At: t.at, ID: t.name}); !ok {
			errs = append(errs, fmt.Errorf("task %q is not where its phase %v has its time", t.name, t.phase))
		}
		return true
	})
	if length := s.underWay.Len() + s.resting.Len(); length != listed {
		errs = append(errs, fmt.Errorf("%d tasks have a time, %d times are kept", listed, length))
	}
	return errors.Join(errs...)
}
