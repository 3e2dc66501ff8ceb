package task

import (
	"errors"
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// Records calls fn for the record of every task, by name, until it returns false. It reports whether it never did.
func (ts *Table) Records(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	ts.byName.Scan(func(_ string, t *task) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Task{Task: &logpb.SnapshotTask{
			Name: t.name, Holder: t.holder, Quotas: t.quotas, Phase: t.phase, MaxFailures: t.maxFailures, Failures: t.failures,
			Limited: t.limited, Attempts: t.attempts, Fence: t.fence, TtlNs: t.ttl, AtNs: t.at, Outcome: t.outcome,
			EndedNs: t.ended, Detail: t.detail, Account: t.account,
		}}})
		return going
	})
	return going
}

// Enter enters a task from a snapshot, and charges its account for it.
func (ts *Table) Enter(h Host, encoded *logpb.SnapshotTask) error {
	t := &task{
		Made: cow.In(ts.generation), name: encoded.Name, holder: encoded.Holder, quotas: ownNames(h, encoded.Quotas), phase: encoded.Phase,
		maxFailures: encoded.MaxFailures, failures: encoded.Failures, limited: encoded.Limited, attempts: encoded.Attempts,
		fence: encoded.Fence, ttl: encoded.TtlNs, at: encoded.AtNs, outcome: encoded.Outcome, ended: encoded.EndedNs,
		detail: encoded.Detail, account: encoded.Account,
	}
	if err := h.Book().ChargeOne(t.account, accounts.Tasks); err != nil {
		return err
	}
	if _, twice := ts.byName.Set(t.name, t); twice {
		return fmt.Errorf("task %q comes twice", t.name)
	}
	ts.list(t)
	return t.check()
}

// check returns the inconsistency of a task, if any.
func (t *task) check() error {
	spent := t.failures >= t.maxFailures
	switch {
	case t.phase < logpb.TaskPhase_TASK_PHASE_WAITING || t.phase > logpb.TaskPhase_TASK_PHASE_DONE:
		return fmt.Errorf("task %q is in phase %v", t.name, t.phase)
	case t.failures < 0, t.failures > t.maxFailures, t.limited < 0, t.attempts < 1, t.ttl < 1:
		return fmt.Errorf("task %q has %d of %d failures, %d limits, %d attempts of %d ns",
			t.name, t.failures, t.maxFailures, t.limited, t.attempts, t.ttl)
	case spent != (t.phase == logpb.TaskPhase_TASK_PHASE_SHELVED):
		return fmt.Errorf("task %q has %d of %d failures and is in phase %v", t.name, t.failures, t.maxFailures, t.phase)
	case t.fence == 0 && t.phase == logpb.TaskPhase_TASK_PHASE_IN_FLIGHT:
		return fmt.Errorf("an attempt of task %q has no fence", t.name)
	}
	return nil
}

// Verify checks each task, that each is in the tree of its phase under its time, and that no attempt has a fence above
// the newest one.
func (ts *Table) Verify(newest uint64) error {
	var errs []error
	listed := 0
	ts.byName.Scan(func(_ string, t *task) bool {
		errs = append(errs, t.check())
		tree := ts.tree(t.phase)
		if tree == nil {
			return true
		}
		if listed++; t.fence > newest {
			errs = append(errs, fmt.Errorf("task %q has fence %d, above %d", t.name, t.fence, newest))
		}
		if _, ok := tree.Get(dueByName{At: t.at, ID: t.name}); !ok {
			errs = append(errs, fmt.Errorf("task %q is not where its phase %v has its time", t.name, t.phase))
		}
		return true
	})
	if length := ts.underWay.Len() + ts.resting.Len(); length != listed {
		errs = append(errs, fmt.Errorf("%d tasks have a time, %d times are kept", listed, length))
	}
	return errors.Join(errs...)
}
