package workflow

import (
	"errors"
	"fmt"
	"slices"
)

// Verify checks the places of holders in workflows, and the reviews. No baton may have a fence above the newest one.
func (t *Table) Verify(newest uint64) error {
	return errors.Join(t.verifySizes(), t.verifySteps(newest))
}

// verifySizes compares the sizes of tables that mirror each other.
func (t *Table) verifySizes() error {
	var steps, reviewed, due, placed int
	t.workflows.Scan(func(name string, w *workflow) bool {
		steps += len(w.steps)
		if _, ok := t.reviews.Get(review{At: w.due, ID: name}); ok {
			reviewed++
		}
		if w.due != 0 {
			due++
		}
		return true
	})
	t.stepsOf.Scan(func(_ string, of []stepOf) bool {
		placed += len(of)
		return true
	})
	if steps != placed || due != reviewed || due != t.reviews.Len() {
		return fmt.Errorf("%d steps of workflows, %d by holder; %d due, %d of %d looked at", steps, placed, due, reviewed, t.reviews.Len())
	}
	return nil
}

// verifySteps checks the place of each step.
func (t *Table) verifySteps(newest uint64) (err error) {
	t.workflows.Scan(func(name string, w *workflow) bool {
		for at, holder := range w.holders {
			if !slices.Contains(t.stepsIn(holder), stepOf{workflow: name, at: at}) {
				err = fmt.Errorf("holder %q is step %d of workflow %q, and is not listed as such", holder, at, name)
			}
		}
		if w.definition.Name != name || len(w.steps) != len(w.holders) || w.baton.fence > newest {
			err = fmt.Errorf("workflow %q has %d steps of %d holders, and a baton of fence %d", name, len(w.steps), len(w.holders), w.baton.fence)
		}
		return err == nil
	})
	return err
}
