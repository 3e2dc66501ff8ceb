package workflow

import (
	"cmp"
	"fmt"
	"math"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// The cascade keeps the holders of a chain from hitting a limit one after the other (docs/workflows.md). A step is
// limited when the provider refuses its call, or the store denies it something for COOLDOWN or EXHAUSTED. While a
// workflow is parallel, the steps upstream of a limited one are paused. When too many steps are limited, it becomes
// sequential, with a baton (baton.go).

const (
	// longestLimit bounds how long one denial makes a step count as limited.
	longestLimit = fixed.Hour
	// headStart is how long upstream steps are paused after a limit, so that the limited one goes first.
	headStart = 5 * fixed.Second
)

// RecordDenial records for its workflows why a request of a holder is denied: by a limit, or by a reason that a limit
// would precede. amountOf returns how much of a quota it needs, 0 for nothing.
func (t *Table) RecordDenial(h Host, holder string, refusal *logpb.Refusal, amountOf func(quota string) int64) {
	switch {
	case refusal.Reason == logpb.Reason_REASON_COOLDOWN, refusal.Reason == logpb.Reason_REASON_EXHAUSTED:
		until := cmp.Or(refusal.ReopensAtNs, refusal.RetryAtNs)
		t.RecordLimit(h, holder, Shortage{refusal.Quota, amountOf(refusal.Quota)}, until, refusal.Reason)
	case refusal.Reason > logpb.Reason_REASON_EXHAUSTED:
		for _, of := range t.stepsIn(holder) {
			if w := t.get(of); w.steps[of.at].until > h.Now() && amountOf(w.steps[of.at].quota) > 0 {
				w = t.edit(of.workflow)
				w.last, w.steps[of.at].until = h.Now(), h.Now()
				t.schedule(w, h.Now())
			}
		}
	}
}

// RecordLimit records that a holder is limited by a quota until a time.
func (t *Table) RecordLimit(h Host, name string, by Shortage, until int64, reason logpb.Reason) {
	now := h.Now()
	until = min(max(until, now+1), fixed.AddSaturated(now, longestLimit))
	for _, of := range t.stepsIn(name) {
		w := t.edit(of.workflow)
		s := &w.steps[of.at]
		reported, pressing := s.until-now, w.pressing(now)
		s.limited, s.short, w.last = max(now, 1), by, now
		if by.Quota == s.quota || until > s.until {
			s.until, s.quota = until, by.Quota
		}
		for i := range w.steps {
			if !w.sequential && w.upstream[of.at].has(i) && pressing&w.downstream[i] == 0 {
				w.steps[i].paused = max(now, 1)
				h.Wake(w.holders[i]) // its waiters no longer keep amounts from others
			}
		}
		if reported <= 0 || s.until-now > 2*reported {
			t.tellPressure(h, w, of.at, reason)
		}
		if !w.sequential && w.limitedLately(now) >= w.threshold {
			t.goSequential(h, w)
		}
		t.schedule(w, h.Now())
	}
}

// tellPressure notifies a limited step and the steps up- and downstream of it. Each step gets one event in an entry,
// the last one: however often limits begin and end, there are at most as many events as steps.
func (t *Table) tellPressure(h Host, w *workflow, at int, reason logpb.Reason) {
	reported := t.reported[w.definition.Name]
	if reported == nil {
		reported = &[MaxSteps]int{}
		t.reported[w.definition.Name] = reported
	}
	concerned := (w.upstream[at] | w.downstream[at]).with(at)
	for i, name := range w.holders {
		if !concerned.has(i) {
			continue
		}
		event := effect.Event{
			Kind: effect.EventBackPressure, Quota: w.steps[at].quota, Holder: name, Reason: reason, Duration: w.steps[at].until - h.Now(),
			Workflow: w.definition.Name, Step: w.holders[at],
		}
		reported[i] = h.Emit(event, reported[i])
	}
}

// limitedLately counts the steps that were limited within the workflow's time, and since its mode last changed.
func (w *workflow) limitedLately(now int64) (count int) {
	for i := range w.steps {
		if at := w.steps[i].limited; at != 0 && at >= w.changed && now-at <= w.within {
			count++
		}
	}
	return count
}

// pressing returns the steps that pause the steps upstream of them.
func (w *workflow) pressing(now int64) (set stepSet) {
	for i := range w.steps {
		if until := w.steps[i].until; until != 0 && fixed.AddSaturated(until, headStart) > now {
			set = set.with(i)
		}
	}
	return set
}

// keptBackUntil returns until when a step is paused because one downstream of it is limited; 0 or past: it is not.
func (w *workflow) keptBackUntil(at int) (until int64) {
	if w.sequential || w.steps[at].paused == 0 {
		return 0
	}
	for i := range w.steps {
		if w.downstream[at].has(i) && w.steps[i].until != 0 {
			until = max(until, fixed.AddSaturated(w.steps[i].until, headStart))
		}
	}
	return min(until, fixed.AddSaturated(w.steps[at].paused, w.pauseTime))
}

// Withheld is why back-pressure withholds something from a step.
type Withheld struct {
	Reason logpb.Reason
	// Until is when to retry (cluster time).
	Until  int64
	Advice string
}

// Withhold withholds grants from a step if another step has the baton, or one downstream of it is limited; false: it
// does not. The caller handles quotas that only observe.
func (t *Table) Withhold(holder string, now int64) (Withheld, bool) {
	for _, of := range t.stepsIn(holder) {
		w := t.get(of)
		switch until := w.keptBackUntil(of.at); {
		case w.sequential && w.baton.deadline > now && w.baton.at != of.at:
			return Withheld{
				logpb.Reason_REASON_SEQUENTIAL, min(w.baton.deadline, fixed.AddSaturated(now, fixed.Second)),
				fmt.Sprintf("workflow %q goes one at a time, and it is the turn of %q: wait in the queue", of.workflow, w.holders[w.baton.at]),
			}, true
		case until > now:
			return Withheld{
				logpb.Reason_REASON_BACK_PRESSURE, until,
				fmt.Sprintf("a holder downstream in workflow %q is limited: begin nothing new", of.workflow),
			}, true
		}
	}
	return Withheld{}, false
}

// RecordGrant records that a holder is granted a lease. What it needs no longer limits it, and in a sequential workflow
// it has the baton. enforced says that some of the needed quotas do more than observe; amountOf returns how much it
// needs of one. The lease must end no later than the returned end, which is that of the baton.
func (t *Table) RecordGrant(h Host, holder string, fence uint64, enforced bool, amountOf func(quota string) int64) (end int64) {
	end = math.MaxInt64
	for _, of := range t.stepsIn(holder) {
		w, now := t.get(of), h.Now()
		if s := &w.steps[of.at]; !w.sequential && s.until == 0 && s.paused == 0 {
			continue
		}
		w = t.edit(of.workflow)
		s := &w.steps[of.at]
		s.asked, s.short = 0, Shortage{}
		if s.paused != 0 {
			s.paused = max(now, 1)
		}
		if w.sequential {
			end = min(end, w.takeBaton(h, of.at, fence, enforced))
		}
		if s.until != 0 && amountOf(s.quota) > 0 {
			w.last, s.until = max(w.last, min(s.until, now)), 0
			w.wake(h)
		}
		t.schedule(w, now)
	}
	return end
}

// EndLimits ends limits early: over reports whether to end a limit by a quota, given the step's last shortage. Calm is
// measured from the last report or refusal, not from the end that the limit would have had. It visits workflows from
// the name from on, with up to most steps together; with first, it visits one workflow in any case. It returns their
// steps, and the next workflow; empty: none is left.
func (t *Table) EndLimits(
	h Host, from string, most int, first bool, over func(quota string, short Shortage) bool,
) (steps int, next string) {
	var found []*workflow
	t.workflows.Ascend(from, func(name string, w *workflow) bool {
		if steps+len(w.steps) > most && (!first || len(found) > 0) {
			next = name
			return false
		}
		steps += len(w.steps)
		found = append(found, w)
		return true
	})
	for _, w := range found {
		changed := false
		for i := range w.steps {
			if w.steps[i].until != 0 && over(w.steps[i].quota, w.steps[i].short) {
				w = t.edit(w.definition.Name)
				w.steps[i].limited, w.steps[i].until = 0, 0
				changed = true
			}
		}
		if changed {
			t.calmDown(h, w)
		}
	}
	return steps, next
}

// calmDown updates a workflow after limits ended early.
func (t *Table) calmDown(h Host, w *workflow) {
	if w.sequential && w.calmAt() <= h.Now() {
		t.goParallel(h, w)
	}
	w.wake(h)
	t.schedule(w, h.Now())
}

// goSequential makes a workflow sequential.
func (t *Table) goSequential(h Host, w *workflow) {
	w.sequential, w.changed, w.next = true, h.Now(), 0
	for i := range w.steps {
		w.steps[i].paused = 0
	}
	h.Emit(effect.Event{Kind: effect.EventSequential, Workflow: w.definition.Name, Duration: w.calmTime}, 0)
	t.passBaton(h, w)
}

// goParallel makes a workflow parallel again.
func (t *Table) goParallel(h Host, w *workflow) {
	w.sequential, w.changed, w.baton = false, h.Now(), baton{}
	for i := range w.steps {
		w.steps[i].until, w.steps[i].asked = 0, 0
	}
	h.Emit(effect.Event{Kind: effect.EventParallel, Workflow: w.definition.Name}, 0)
	w.wake(h)
}

// calmAt returns when a workflow is calm: no step is limited, and none was for a while.
func (w *workflow) calmAt() int64 {
	last := w.last
	for i := range w.steps {
		last = max(last, w.steps[i].until)
	}
	return fixed.AddSaturated(last, w.calmTime)
}

// FirstReview returns when to review a workflow next; false: nothing is pending in any.
func (t *Table) FirstReview() (at int64, pending bool) {
	first, ok := t.reviews.Min()
	return first.At, ok
}

// Review carries out due work in up to most workflows: the end of a limit, a pause or a baton, and calm.
func (t *Table) Review(h Host, most int) {
	for _, d := range cow.TakeDue(t.reviews, most, func(d review) bool { return d.At <= h.Now() }) {
		w := t.edit(d.ID)
		w.due = 0
		switch {
		case w.sequential && w.calmAt() <= h.Now():
			t.goParallel(h, w)
		case w.sequential && w.baton.deadline <= h.Now():
			t.expireBaton(h, w)
		}
		w.wake(h)
		t.schedule(w, h.Now())
	}
}

// schedule sets when to review a workflow again, and clears expired limits and pauses.
func (t *Table) schedule(w *workflow, now int64) {
	next := int64(math.MaxInt64)
	later := func(at int64) {
		if at > now {
			next = min(next, at)
		}
	}
	if w.sequential {
		later(w.calmAt())
		later(w.baton.deadline)
		for i := range w.steps {
			if w.baton.deadline <= now {
				later(w.steps[i].until)
			}
		}
	} else {
		pressing := w.pressing(now)
		for i := range w.steps {
			s := &w.steps[i]
			if !pressing.has(i) {
				s.until = 0
			}
			if pressing&w.downstream[i] == 0 {
				s.paused = 0
			}
			if s.until != 0 {
				later(fixed.AddSaturated(s.until, headStart))
			}
			if s.paused != 0 {
				later(fixed.AddSaturated(s.paused, w.pauseTime))
			}
		}
	}
	if next == math.MaxInt64 {
		next = 0
	}
	t.list(w, next)
}

// list lists a workflow by its next review; 0: never.
func (t *Table) list(w *workflow, next int64) {
	if next == w.due {
		return
	}
	name := w.definition.Name
	t.reviews.Delete(review{At: w.due, ID: name})
	if w.due = next; next != 0 {
		t.reviews.Set(review{At: next, ID: name})
	}
}

// Pressure returns the state of a holder's workflow for its answers; of several, a sequential one. nil: no step is
// limited.
func (t *Table) Pressure(holder string, now int64) (found *logpb.BackPressure) {
	for _, of := range t.stepsIn(holder) {
		if p := t.get(of).pressureOn(of.at, now); p != nil && (found == nil || p.Sequential && !found.Sequential) {
			found = p
		}
	}
	return found
}

// pressureOn returns the state of a workflow for one of its steps, with the limited step that concerns it most.
func (w *workflow) pressureOn(at int, now int64) *logpb.BackPressure {
	pressing := w.pressing(now)
	if pressing == 0 && !w.sequential {
		return nil
	}
	p := &logpb.BackPressure{Workflow: w.definition.Name, Sequential: w.sequential}
	if w.baton.deadline > now {
		p.Baton = w.holders[w.baton.at]
	}
	for i := range w.steps {
		s, side := &w.steps[i], w.side(at, i)
		if pressing.has(i) && (p.Step == "" || side < p.Side || side == p.Side && s.until > p.UntilNs) {
			p.Step, p.Quota, p.UntilNs, p.Side = w.holders[i], s.quota, s.until, side
		}
	}
	return p
}

// side returns the position of a step relative to a limited one.
func (w *workflow) side(at, limited int) logpb.Side {
	switch {
	case w.upstream[limited].has(at):
		return logpb.Side_SIDE_UPSTREAM
	case w.downstream[limited].has(at):
		return logpb.Side_SIDE_DOWNSTREAM
	case at == limited:
		return logpb.Side_SIDE_SELF
	}
	return logpb.Side_SIDE_OTHER_BRANCH
}
