// Package workflow keeps the steps of a workflow from hitting a limit one after the other. It decides which steps a
// limit pauses, which step of a sequential workflow has the baton, and what holders learn about it. A step is a holder;
// the machine decides its grants.
package workflow

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// Host is what workflows need of the machine. It is asked only about holders that are steps.
type Host interface {
	// Now returns cluster time.
	Now() int64
	// Fence returns the newest fence.
	Fence() uint64
	// NewestFence returns the fence of a holder's newest lease; 0: the lease has ended, or there is none.
	NewestFence(holder string) uint64
	// Waiting returns how many Reserves of a holder wait.
	Waiting(holder string) int64
	// WaitsForElse reports whether a holder waits for something that a limit by this quota does not prevent.
	WaitsForElse(holder, quota string) bool
	// Lacks reports whether a shortage still exists.
	Lacks(short Shortage) bool
	// Wake marks a holder's waiters to be tried, also during a pass.
	Wake(holder string)
	// Emit emits an event and returns its place among those of the entry, from 1. It replaces the event at place; 0:
	// none.
	Emit(event effect.Event, place int) int
}

// Shortage is an amount of a quota that was not available.
type Shortage struct {
	Quota  string
	Amount int64
}

// Table has all workflows with their states.
type Table struct {
	workflows *cow.Map[string, *workflow]
	// stepsOf are the places in workflows by holder; the slices are replaced, never changed.
	stepsOf *cow.Map[string, []stepOf]
	// reviews hold when to review a workflow again.
	reviews *cow.Set[review]
	// generation tells workflows that a copy may share (older ones) from those that may be changed in place.
	generation uint64
	// reported are the places, from 1, of the present entry's events that notify the steps of a workflow of a limit.
	reported map[string]*[MaxSteps]int
}

// review is when to review a workflow again.
type review = cow.Due[string]

// workflow is a workflow with its state.
type workflow struct {
	cow.Made
	*Plan
	// steps are in workflow order.
	steps []step
	// sequential: one step at a time is granted something. changed is when the mode changed last.
	sequential bool
	changed    int64
	// last is when a step was last limited, apart from limits that still last.
	last  int64
	baton baton
	// next is the place at which the baton continues; owed are the steps that were passed over, which come first.
	next int
	owed stepSet
	// due is when to review it again; 0: nothing is pending.
	due int64
}

// step is the state of one step of a workflow. Times are cluster time.
type step struct {
	// limited is when it was limited last, 0: never. until is the known end of its limit, 0: none. quota is the
	// limiting quota.
	limited, until int64
	quota          string
	// short is its last shortage by a limit; zero: it was granted something since.
	short Shortage
	// asked is when it was last denied, in a sequential workflow, something that no limit prevents; 0: it was granted
	// something since.
	asked int64
	// paused is since when it is paused without a grant; 0: it is not.
	paused int64
}

// stepOf is a holder's place in a workflow.
type stepOf struct {
	workflow string
	at       int
}

// New returns a table without workflows.
func New() *Table {
	return &Table{
		workflows: new(cow.Map[string, *workflow]), stepsOf: new(cow.Map[string, []stepOf]), reviews: cow.NewDues[string](),
		reported: map[string]*[MaxSteps]int{},
	}
}

// Copy returns a table that shares everything until one of the two changes.
func (t *Table) Copy() *Table {
	t.generation++
	return &Table{
		workflows: t.workflows.Copy(), stepsOf: t.stepsOf.Copy(), reviews: t.reviews.Copy(), generation: t.generation,
		reported: map[string]*[MaxSteps]int{},
	}
}

// BeginEntry begins a log entry: no step is notified in it yet.
func (t *Table) BeginEntry() { clear(t.reported) }

// stepsIn returns a holder's places in workflows, by the workflows' names. Without workflows it costs one check.
func (t *Table) stepsIn(holder string) []stepOf {
	if t.stepsOf.Len() == 0 {
		return nil
	}
	steps, _ := t.stepsOf.Get(holder)
	return steps
}

// get returns the workflow of a step.
func (t *Table) get(of stepOf) *workflow {
	w, _ := t.workflows.Get(of.workflow)
	return w
}

// edit returns a workflow for update.
func (t *Table) edit(name string) *workflow {
	w, _ := t.workflows.Get(name)
	w, copied := cow.Edit(t.workflows, name, w, t.generation)
	if copied {
		w.steps = slices.Clone(w.steps)
	}
	return w
}

// Replace replaces all workflows. One with the same definition keeps its state.
func (t *Table) Replace(h Host, plans []*Plan) {
	same := map[string]bool{}
	for _, p := range plans {
		w, ok := t.workflows.Get(p.definition.Name)
		same[p.definition.Name] = ok && proto.Equal(w.definition, p.definition)
	}
	for _, w := range t.workflows.Values() {
		if !same[w.definition.Name] {
			t.drop(h, w)
		}
	}
	for _, p := range plans {
		if !same[p.definition.Name] {
			t.add(&workflow{Made: cow.In(t.generation), Plan: p, steps: make([]step, len(p.holders)), changed: h.Now()})
		}
	}
}

// Delete deletes a workflow at an operator's command.
func (t *Table) Delete(h Host, name string) *logpb.Result {
	w, ok := t.workflows.Get(name)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_WORKFLOW, fmt.Sprintf("there is no workflow %q", name), "list the workflows")
	}
	t.drop(h, w)
	return effect.Done()
}

// add enters a workflow into the tables.
func (t *Table) add(w *workflow) {
	delete(t.reported, w.definition.Name) // its steps may differ from those of its predecessor
	name := w.definition.Name
	t.workflows.Set(name, w)
	for at, holder := range w.holders {
		known, _ := t.stepsOf.Get(holder)
		i, _ := slices.BinarySearchFunc(known, name, func(s stepOf, name string) int { return strings.Compare(s.workflow, name) })
		t.stepsOf.Set(holder, slices.Insert(slices.Clone(known), i, stepOf{workflow: name, at: at}))
	}
}

// drop removes a workflow from the tables and wakes its waiters.
func (t *Table) drop(h Host, w *workflow) {
	name := w.definition.Name
	w.wake(h)
	t.reviews.Delete(review{At: w.due, ID: name})
	t.workflows.Delete(name)
	for _, holder := range w.holders {
		known, _ := t.stepsOf.Get(holder)
		left := slices.DeleteFunc(slices.Clone(known), func(s stepOf) bool { return s.workflow == name })
		if len(left) == 0 {
			t.stepsOf.Delete(holder)
			continue
		}
		t.stepsOf.Set(holder, left)
	}
	if w.sequential {
		h.Emit(effect.Event{Kind: effect.EventParallel, Workflow: name}, 0)
	}
}

// wake wakes the waiters of all steps of a workflow.
func (w *workflow) wake(h Host) {
	for _, name := range w.holders {
		h.Wake(name)
	}
}
