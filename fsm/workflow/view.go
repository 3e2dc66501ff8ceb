package workflow

import (
	"github.com/quotad/quotad/fsm/logpb"
)

// BatonView is a baton as a reader sees it.
type BatonView struct {
	Holder string
	// Fence is that of its first lease; 0: it is offered and not taken yet.
	Fence uint64
	// Left is nanoseconds.
	Left int64
}

// StepView is a step of a workflow as a reader sees it. Times are nanoseconds.
type StepView struct {
	Holder string
	// LimitedAgo is how long ago it was limited last, -1: never; LimitedFor is how long its limit still lasts, 0: none.
	LimitedAgo, LimitedFor int64
	Quota                  string
	// PausedFor is how long it stays paused at most, 0: it is not.
	PausedFor int64
	Waiting   int64
}

// View is a workflow as a reader sees it at some moment.
type View struct {
	Definition *logpb.Workflow
	Sequential bool
	// StateFor is how long the mode has lasted (nanoseconds).
	StateFor int64
	// CalmIn is nanoseconds until the workflow is parallel again, if no step is limited until then; 0: it is parallel.
	CalmIn int64
	// Baton is nil if no step has it.
	Baton *BatonView
	// Steps are in workflow order.
	Steps []StepView
}

// View returns one workflow as it stands at a moment; waiting returns how many Reserves of a holder wait.
func (t *Table) View(name string, now int64, waiting func(holder string) int64) (View, bool) {
	w, ok := t.workflows.Get(name)
	if !ok {
		return View{}, false
	}
	return w.view(now, waiting), true
}

// Views returns up to limit workflows in name order, after the name after, in which a holder is a step (empty: all).
func (t *Table) Views(holder, after string, limit int, now int64, waiting func(holder string) int64) []View {
	var views []View
	if holder != "" {
		for _, of := range t.stepsIn(holder) {
			if of.workflow > after && len(views) < limit {
				views = append(views, t.get(of).view(now, waiting))
			}
		}
		return views
	}
	t.workflows.Ascend(after, func(name string, w *workflow) bool {
		if len(views) < limit && name > after {
			views = append(views, w.view(now, waiting))
		}
		return len(views) < limit
	})
	return views
}

func (w *workflow) view(now int64, waiting func(holder string) int64) View {
	v := View{Definition: w.definition, Sequential: w.sequential, StateFor: max(now-w.changed, 0)}
	if w.sequential {
		v.CalmIn = max(w.calmAt()-now, 0)
	}
	if w.baton.deadline > now {
		v.Baton = &BatonView{Holder: w.holders[w.baton.at], Fence: w.baton.fence, Left: w.baton.deadline - now}
	}
	for i, name := range w.holders {
		of := &w.steps[i]
		step := StepView{
			Holder: name, LimitedAgo: -1, LimitedFor: max(of.until-now, 0), Quota: of.quota, PausedFor: max(w.keptBackUntil(i)-now, 0),
			Waiting: waiting(name),
		}
		if of.limited != 0 {
			step.LimitedAgo = max(now-of.limited, 0)
		}
		v.Steps = append(v.Steps, step)
	}
	return v
}
