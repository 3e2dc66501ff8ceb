package model

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// Workflows are followed by their events (docs/workflows.md). The model judges that a workflow runs one step at a time if and only if
// enough steps were limited, and in parallel again only when it was calm. Only one step has the baton, and no lease outlives it. Steps that
// are held back are granted nothing. The model does not judge which step gets the baton next.

const (
	// headStart is how long steps upstream are held back after a limit, longestLimit for how long one refusal counts.
	headStart    = 5 * second
	longestLimit = 60 * minute
)

// workflow is the state of a workflow.
type workflow struct {
	definition *logpb.Workflow
	// above holds, by step, all steps that come before it.
	above                          map[string]map[string]bool
	threshold                      int
	within, calm, batonTime, pause int64

	steps      map[string]*member
	sequential bool
	changed    int64
	// baton is the present baton; the zero value: no step has it.
	baton baton
}

// member is the state of a step.
type member struct {
	// surely and perhaps are when it was last limited: refusals name the reason, but not always.
	surely, perhaps int64
	// until is until when it is limited at least; quotas are possible causes.
	until  int64
	quotas []string
	// kept is since when it may be held back without a grant; 0: it is not.
	kept int64
}

// baton is the right of one step to be granted something.
type baton struct {
	holder string
	// after is the newest fence at its beginning, taken says that it was accepted; until is its end, for an offer the earliest one.
	after uint64
	taken bool
	until int64
}

func orElse(given, otherwise int64) int64 {
	if given == 0 {
		return otherwise
	}
	return given
}

func newWorkflow(definition *logpb.Workflow, now int64) *workflow {
	w := &workflow{
		definition: definition, above: map[string]map[string]bool{}, threshold: int(definition.Threshold), steps: map[string]*member{},
		changed: now,
		within:  orElse(definition.WithinNs, 30*second), calm: orElse(definition.CalmNs, minute),
		batonTime: orElse(definition.BatonTimeNs, 5*minute), pause: orElse(definition.PauseNs, 5*minute),
	}
	if w.threshold == 0 {
		w.threshold = min(3, len(definition.Steps))
	}
	for _, s := range definition.Steps {
		w.steps[s.Holder], w.above[s.Holder] = &member{}, map[string]bool{}
	}
	for range definition.Steps { // as often as a chain may be long
		for _, s := range definition.Steps {
			for _, before := range s.After {
				w.above[s.Holder][before] = true
				for further := range w.above[before] {
					w.above[s.Holder][further] = true
				}
			}
		}
	}
	return w
}

// replaceWorkflows replaces all workflows. A workflow with an unchanged definition keeps its state.
func (j *Judge) replaceWorkflows(definitions []*logpb.Workflow) {
	before := j.workflows
	j.workflows = map[string]*workflow{}
	for _, definition := range definitions {
		w := before[definition.Name]
		if w == nil || !proto.Equal(w.definition, definition) {
			w = newWorkflow(definition, j.clock.Now)
		}
		j.workflows[definition.Name] = w
	}
	for name := range before {
		if j.workflows[name] != before[name] {
			j.entry.dropped[name] = true
		}
	}
	j.regroup()
}

func (j *Judge) deleteWorkflow(name string) {
	if j.workflows[name] == nil {
		j.violate("unexplained", "workflow %q is deleted, and does not exist", name)
	}
	delete(j.workflows, name)
	j.entry.dropped[name] = true
	j.regroup()
}

// isStep says whether a holder is a step of a workflow.
func (j *Judge) isStep(holder string) bool {
	for _, w := range j.workflows {
		if w.steps[holder] != nil {
			return true
		}
	}
	return false
}

// limited records that a holder is limited by a quota, at least until a time; 0: the time is unknown.
func (j *Judge) limited(holder, quota string, until int64) {
	now := j.clock.Now
	for _, w := range j.workflows {
		s := w.steps[holder]
		if s == nil {
			continue
		}
		s.surely, s.perhaps = max(now, 1), max(now, 1)
		s.until = min(max(until, now+1), plus(now, longestLimit))
		if !slices.Contains(s.quotas, quota) {
			s.quotas = append(s.quotas, quota)
		}
		w.keepBack(holder, now)
	}
}

// keepBack records that the steps above one may be held back for it.
func (w *workflow) keepBack(holder string, now int64) {
	for above := range w.above[holder] {
		if w.steps[above].kept == 0 && !w.sequential {
			w.steps[above].kept = max(now, 1)
		}
	}
}

// denied records why a holder is refused.
func (j *Judge) denied(holder string, reason logpb.Reason, quota string, retryAt int64) {
	switch reason {
	case logpb.Reason_REASON_EXHAUSTED, logpb.Reason_REASON_COOLDOWN:
		j.limited(holder, quota, retryAt)
	case logpb.Reason_REASON_QUEUE_FULL, logpb.Reason_REASON_CANNOT_SERVE_IN_TIME, logpb.Reason_REASON_CALLER_BUDGET,
		logpb.Reason_REASON_BUDGET_FULL:
		for _, w := range j.workflows {
			if s := w.steps[holder]; s != nil {
				s.perhaps, s.until = max(j.clock.Now, 1), min(s.until, j.clock.Now)
				w.keepBack(holder, j.clock.Now)
			}
		}
	default: // an earlier limit does not hold it back any more
		for _, w := range j.workflows {
			if s := w.steps[holder]; s != nil {
				s.until = min(s.until, j.clock.Now)
			}
		}
	}
}

// keptBack says why a workflow should have withheld a grant. Quotas that only observe withhold nothing.
func (j *Judge) keptBack(holder string, needs []need) (name, detail string) {
	if !slices.ContainsFunc(needs, func(n need) bool { return !n.quota.rule.observe }) {
		return "", ""
	}
	now := j.clock.Now
	for of, w := range j.workflows {
		s := w.steps[holder]
		switch {
		case s == nil:
		case w.sequential && (w.baton.holder != holder || w.baton.until <= now || !w.baton.taken):
			return "turn", sprint("%s is granted something at %d in workflow %s, the turn is %+v", holder, now, of, w.baton)
		case !w.sequential && s.kept != 0 && s.kept+w.pause > now && w.pressing(holder, now) != "":
			return "back-pressure", sprint("%s is granted something at %d in workflow %s, and is kept back since %d for %s", holder, now, of, s.kept,
				w.pressing(holder, now))
		}
	}
	return "", ""
}

// noteStep enters a grant into its holder's workflows and returns the latest deadline that its lease may have.
func (j *Judge) noteStep(holder string, needs []need) (latest int64) {
	latest = never
	for _, w := range j.workflows {
		s := w.steps[holder]
		if s == nil {
			continue
		}
		if w.sequential && w.baton.holder == holder && w.baton.taken {
			latest = min(latest, w.baton.until)
		}
		if s.kept != 0 {
			s.kept = max(j.clock.Now, 1)
		}
		if slices.ContainsFunc(needs, func(n need) bool { return slices.Contains(s.quotas, n.quota.name) }) {
			s.until = 0 // another of its quotas may have been the cause, and may be again with the next limit
		}
	}
	return latest
}

// pressing returns a limited step below one that surely holds it back; empty: none.
func (w *workflow) pressing(holder string, now int64) string {
	for below, s := range w.steps {
		if w.above[below][holder] && s.until != 0 && s.until+headStart > now {
			return below
		}
	}
	return ""
}

// batonEnd returns the latest possible deadline of a lease: the end of the baton under which it was granted.
func (j *Judge) batonEnd(l *lease) (latest int64) {
	latest = never
	for _, w := range j.workflows {
		if w.sequential && w.baton.taken && w.baton.holder == l.holder && l.fence > w.baton.after {
			latest = min(latest, w.baton.until)
		}
	}
	return latest
}

// perhapsUntil returns the deadline of a lease instead of the given one, if a baton ended only after this entry's commands.
func (j *Judge) perhapsUntil(l *lease, deadline int64) int64 {
	for _, t := range j.entry.perhaps {
		if t.taken && t.holder == l.holder && l.fence > t.after {
			deadline = min(deadline, t.until)
		}
	}
	return deadline
}

// busy says whether a step has the baton: it is still offered, or a lease that was granted under it lives.
func (j *Judge) busy(w *workflow) bool {
	switch {
	case w.baton.holder == "" || w.baton.until <= j.clock.Now:
		return false
	case !w.baton.taken:
		return true
	}
	for _, l := range j.leases {
		if l.holder == w.baton.holder && l.fence > w.baton.after && l.deadline > j.clock.Now {
			return true
		}
	}
	return false
}

// happenWorkflow handles an event of a workflow.
func (j *Judge) happenWorkflow(event *effect.Event) {
	for j.workflows[event.Workflow] == nil && j.silent() {
		continue // a command of this entry may define it
	}
	w := j.workflows[event.Workflow]
	switch {
	case event.Kind == effect.EventParallel && j.droppedNow(event.Workflow):
		return
	case w == nil || event.Holder != "" && w.steps[event.Holder] == nil:
		j.violate("unexplained", "%+v, and there is no such workflow or step", *event)
		return
	}
	switch event.Kind {
	case effect.EventBaton:
		j.happenBaton(w, event)
	case effect.EventSequential:
		j.stats.Sequentials++
		if w.sequential {
			j.violate("sequential", "workflow %s goes one at a time twice", event.Workflow)
		}
		j.entry.began[w] = w.changed
		w.sequential, w.baton = true, baton{}
		for _, s := range w.steps {
			s.kept = 0
		}
	case effect.EventParallel:
		j.stats.Parallels++
		for holder, s := range w.steps {
			if s.surely != 0 && s.surely+w.calm > j.clock.Now {
				j.violate("sequential", "all of workflow %s go again at %d, and %s was limited at %d", event.Workflow, j.clock.Now, holder, s.surely)
			}
			s.until, s.quotas, s.kept = 0, nil, 0
		}
		w.sequential, w.baton, w.changed = false, baton{}, j.clock.Now
	default:
		if w.steps[event.Step] == nil {
			j.violate("unexplained", "%+v, and there is no such step", *event)
		}
	}
}

// droppedNow says whether a workflow ends with this entry: a command deletes or redefines it.
func (j *Judge) droppedNow(name string) bool {
	if j.entry.dropped[name] {
		return true
	}
	w := j.workflows[name]
	if w == nil || !w.sequential {
		return false
	}
	k := j.find(j.entry.next, func(command *logpb.Command, result *logpb.Result) bool {
		apply := command.GetApplyQuotas()
		return command.GetDeleteWorkflow().GetWorkflow() == name && result.GetDone() != nil ||
			apply != nil && apply.ReplaceWorkflows && !apply.DryRun && result.GetQuotasApplied() != nil &&
				!slices.ContainsFunc(apply.Workflows, func(stated *logpb.Workflow) bool { return proto.Equal(stated, w.definition) })
	})
	if k < 0 {
		return false
	}
	if w.isCalm(j.clock.Now) {
		j.entry.perhaps = append(j.entry.perhaps, w.baton) // it may go parallel by itself, before all commands, or be dropped by this one
		return false
	}
	j.carryOut(k + 1)
	return j.entry.dropped[name]
}

// isCalm says whether no step was surely limited for so long that all may run again.
func (w *workflow) isCalm(now int64) bool {
	for _, s := range w.steps {
		if s.surely != 0 && s.surely+w.calm > now {
			return false
		}
	}
	return true
}

// happenBaton handles the offer of a baton, or its beginning.
func (j *Judge) happenBaton(w *workflow, event *effect.Event) {
	j.stats.Batons++
	taken := event.Fence != 0
	next := baton{holder: event.Holder, after: j.lastFence, taken: taken, until: plus(j.clock.Now, event.Duration)}
	switch {
	case !w.sequential:
		j.violate("turn", "%s has a turn in workflow %s, and all go", event.Holder, w.definition.Name)
	case event.Duration > w.batonTime && taken || event.Duration <= 0:
		j.violate("turn", "the turn of %s in workflow %s is %d long, the longest is %d",
			event.Holder, w.definition.Name, event.Duration, w.batonTime)
	case taken && !w.baton.taken && w.baton.holder == event.Holder: // the step takes the offered baton
		next.after = w.baton.after
	case j.busy(w):
		j.violate("turn", "%s has a turn in workflow %s, and %s has it: %+v", event.Holder, w.definition.Name, w.baton.holder, w.baton)
	}
	w.baton = next
}

// oneAtATime judges, at the end of the entry, whether workflows run one step at a time for a reason, and whether all that must do.
func (j *Judge) oneAtATime() {
	for w, changed := range j.entry.began {
		if count := w.limitedLately(j.clock.Now, changed, false); count < w.threshold {
			j.violate("sequential", "workflow %s goes one at a time, and %d steps were limited, not %d", w.definition.Name, count, w.threshold)
		}
		w.changed = j.clock.Now
	}
	for name, w := range j.workflows {
		if count := w.limitedLately(j.clock.Now, w.changed+1, true); !w.sequential && count >= w.threshold {
			j.violate("sequential", "all of workflow %s go, and %d steps were limited within its time", name, count)
		}
	}
}

// limitedLately counts the steps that were limited within the workflow's time, from some time on.
func (w *workflow) limitedLately(now, from int64, surely bool) (count int) {
	for _, s := range w.steps {
		at := s.perhaps
		if surely {
			at = s.surely
		}
		if at != 0 && at >= from && now-at <= w.within {
			count++
		}
	}
	return count
}

// standsBack says whether a workflow may hold a step back: for another step's baton, or for a limited step.
func (j *Judge) standsBack(holder string, reason logpb.Reason) bool {
	for _, w := range j.workflows {
		if w.steps[holder] == nil {
			continue
		}
		if reason == logpb.Reason_REASON_SEQUENTIAL && w.sequential && w.baton.holder != "" && w.baton.holder != holder {
			return true
		}
		for below, s := range w.steps {
			if reason == logpb.Reason_REASON_BACK_PRESSURE && !w.sequential && w.above[below][holder] && s.perhaps != 0 {
				return true
			}
		}
	}
	return false
}

// unlimit ends the limits of steps that may be due to a quota that an operator reopened, or to one below it.
func (j *Judge) unlimit(reopened *quota) {
	for _, w := range j.workflows {
		for _, s := range w.steps {
			if slices.ContainsFunc(s.quotas, func(name string) bool { return slices.Contains(j.quotas[name].path(), reopened) }) {
				s.until, s.surely = 0, 0
			}
		}
	}
}
