package workflow

import (
	"github.com/quotad/quotad/fsm/logpb"
)

// BatonView is a baton as a reader sees it.
type BatonView struct {
	Holder string
	// Fence is that of its first lease; 0: it was offered, and not taken yet.
	Fence uint64
	// Left is nanoseconds.
	Left int64
}

// StepView is a step of a workflow as a reader sees it. Times are nanoseconds.
type StepView struct {
	Holder string
	// LimitedAgo is how long ago it was limited last, -1 for never; LimitedFor is for how long it is still, 0 for not.
	LimitedAgo, LimitedFor int64
	Quota                  string
	// PausedFor is for how long it is kept back still at most, 0 for not.
	PausedFor int64
	Waiting   int64
}

// View is a workflow as a reader sees it at some moment.
type View struct {
	Definition *logpb.Workflow
	Sequential bool
	// StateFor is how long it has been so (nanoseconds).
	StateFor int64
	// CalmIn is nanoseconds until all go again, if nobody is limited until then; 0 where all do.
	CalmIn int64
	// Baton is nil where nobody has it.
	Baton *BatonView
	// Steps are in workflow order.
	Steps []StepView
}

// View returns one workflow as it stands at a moment; waiting tells how many Reserves of a holder wait.
func (t *Table) View(name string, now int64, waiting func(holder string) int64) (View, bool) {
	w, ok := t.workflows.Get(name)
	if !ok {
		return View{}, false
	}
	return w.view(now, waiting), true
}

// Views returns up to limit workflows in name order that come after the name after, those with a holder as a step
// (empty: all).
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
