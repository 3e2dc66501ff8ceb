package workflow

import (
	"fmt"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// Records calls fn for the records of all workflows in a snapshot, until it returns false, and reports whether it did
// not.
func (t *Table) Records(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	t.workflows.Scan(func(_ string, w *workflow) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Workflow{Workflow: w.encode()}})
		return going
	})
	return going
}

func (w *workflow) encode() *logpb.SnapshotWorkflow {
	encoded := &logpb.SnapshotWorkflow{
		Definition: w.definition, Sequential: w.sequential, ChangedNs: w.changed, LastNs: w.last, Next: int32(w.next), Owed: uint64(w.owed),
		ReviewNs: &w.due,
	}
	if b := w.baton; b != (baton{}) {
		encoded.Baton = &logpb.SnapshotBaton{Place: int32(b.at), After: b.after, Fence: b.fence, BeganNs: b.began, DeadlineNs: b.deadline}
	}
	for i := range w.steps {
		if s := &w.steps[i]; *s != (step{}) {
			encoded.Steps = append(encoded.Steps, &logpb.SnapshotStep{
				Place: int32(i), LimitedNs: s.limited, UntilNs: s.until, Quota: s.quota, AskedNs: s.asked, PausedNs: s.paused,
				ShortQuota: s.short.Quota, ShortAmount: s.short.Amount,
			})
		}
	}
	return encoded
}

// Restore enters a workflow with its state from its record.
func (t *Table) Restore(encoded *logpb.SnapshotWorkflow, now int64) error {
	if encoded.Definition == nil {
		return fmt.Errorf("a workflow without a definition")
	}
	p, failure := newPlan(encoded.Definition)
	if failure != nil {
		return fmt.Errorf("%s", failure.Message)
	}
	w := &workflow{
		Made: cow.In(t.generation), Plan: p, steps: make([]step, len(p.holders)),
		sequential: encoded.Sequential, changed: encoded.ChangedNs, last: encoded.LastNs, next: int(encoded.Next), owed: stepSet(encoded.Owed),
	}
	outside := func(place int32) bool { return place < 0 || int(place) >= len(w.steps) }
	if b := encoded.Baton; b != nil {
		w.baton = baton{at: int(b.Place), after: b.After, fence: b.Fence, began: b.BeganNs, deadline: b.DeadlineNs}
	}
	if outside(encoded.Next) || outside(encoded.Baton.GetPlace()) || encoded.Owed>>len(w.steps) != 0 {
		return fmt.Errorf("workflow %q has a baton outside of its steps", p.definition.Name)
	}
	for _, of := range encoded.Steps {
		if outside(of.Place) {
			return fmt.Errorf("workflow %q has no step %d", p.definition.Name, of.Place)
		}
		w.steps[of.Place] = step{
			limited: of.LimitedNs, until: of.UntilNs, quota: of.Quota, asked: of.AskedNs, paused: of.PausedNs,
			short: Shortage{of.ShortQuota, of.ShortAmount},
		}
	}
	t.add(w)
	if encoded.ReviewNs == nil {
		t.schedule(w, now)
		return nil
	}
	// The review does not follow from the rest: Rebase advances time, and work that became due is still to be carried
	// out.
	t.list(w, *encoded.ReviewNs)
	return nil
}
