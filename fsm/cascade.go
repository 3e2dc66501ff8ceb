package fsm

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// The cascade keeps a chain of holders from running into a limit one after the other (docs/workflows.md). A step is
// limited when the provider refuses its call, or the store denies it something for COOLDOWN or EXHAUSTED. While a
// workflow goes in parallel, the steps upstream of a limited one are kept back; when too many are limited, one at a time
// goes, by batons (baton.go).

const (
	// longestLimit bounds for how long one denial makes a step count as limited.
	longestLimit = fixed.Hour
	// headStart is how long those upstream are kept back after a limit, so that the limited one goes first.
	headStart = 5 * fixed.Second
)

// workflow is a workflow and how it stands.
type workflow struct {
	cow.Made
	*plan
	// steps are in workflow order.
	steps []step
	// sequential: one at a time goes. changed is since when it is so, or not.
	sequential bool
	changed    int64
	// last is a moment at which a step was limited, the last one but for those that are limited still.
	last  int64
	baton baton
	// next is the place from which the baton goes on; owed are the steps that were passed over, and have one before others.
	next int
	owed stepSet
	// due is when to look at it again; 0: nothing is pending.
	due int64
}

// step is how one step of a workflow stands. Times are cluster time.
type step struct {
	// limited is when it was limited last, 0 never; until is until when it is, as far as known, 0 for not; quota is by which.
	limited, until int64
	quota          string
	// short is what a limit kept from it last; zero: it was granted something since.
	short shortage
	// asked is when it was last denied, while one at a time goes, what no limit keeps from it; 0: it was granted something
	// since.
	asked int64
	// paused is since when it is kept back without a grant; 0: it is not.
	paused int64
}

// shortage is an amount of a quota that was not to be had.
type shortage struct {
	quota  string
	amount int64
}

// stepsIn returns a holder's places in workflows, by the workflows' names. Without workflows it costs one look.
func (s *State) stepsIn(name string) []stepOf {
	if s.stepsOf.Len() == 0 {
		return nil
	}
	steps, _ := s.stepsOf.Get(name)
	return steps
}

// editWorkflow returns a workflow that may be changed.
func (m *Machine) editWorkflow(name string) *workflow {
	w, _ := m.workflows.Get(name)
	w, copied := cow.Edit(m.workflows, name, w, m.generation)
	if copied {
		w.steps = slices.Clone(w.steps)
	}
	return w
}

// recordDenial records for its workflows why a holder is denied what it needs: by a limit, or by something that would not stand
// first if there were one.
func (m *Machine) recordDenial(name string, needs []need, refusal *logpb.Refusal) {
	switch {
	case refusal.Reason == logpb.Reason_REASON_COOLDOWN, refusal.Reason == logpb.Reason_REASON_EXHAUSTED:
		until := cmp.Or(refusal.ReopensAtNs, refusal.RetryAtNs)
		m.recordLimit(name, shortage{refusal.Quota, amountOf(needs, refusal.Quota)}, until, refusal.Reason)
	case refusal.Reason > logpb.Reason_REASON_EXHAUSTED:
		for _, of := range m.stepsIn(name) {
			if w, _ := m.workflows.Get(of.workflow); w.steps[of.at].until > m.clock.Now && needed(needs, w.steps[of.at].quota) {
				w = m.editWorkflow(of.workflow)
				w.last, w.steps[of.at].until = m.clock.Now, m.clock.Now
				m.scheduleReview(w)
			}
		}
	}
}

// recordLimit records that a holder is limited by a quota until a time.
func (m *Machine) recordLimit(name string, by shortage, until int64, reason logpb.Reason) {
	now := m.clock.Now
	until = min(max(until, now+1), fixed.AddSaturated(now, longestLimit))
	for _, of := range m.stepsIn(name) {
		w := m.editWorkflow(of.workflow)
		s := &w.steps[of.at]
		told, pressing := s.until-now, w.pressing(now)
		s.limited, s.short, w.last = max(now, 1), by, now
		if by.quota == s.quota || until > s.until {
			s.until, s.quota = until, by.quota
		}
		for i := range w.steps {
			if !w.sequential && w.upstream[of.at].has(i) && pressing&w.downstream[i] == 0 {
				w.steps[i].paused = max(now, 1)
				m.wakeWaitersOf(w.holders[i]) // who waits keeps nothing from others any more
			}
		}
		if told <= 0 || s.until-now > 2*told {
			m.tellPressure(w, of.at, reason)
		}
		if !w.sequential && w.limitedLately(now) >= w.threshold {
			m.goSequential(w)
		}
		m.scheduleReview(w)
	}
}

// tellPressure tells the steps up- and downstream of a limited one, and itself. A step is told once in an entry, by what came last: however often
// limits begin and end in it, its events are no more than steps.
func (m *Machine) tellPressure(w *workflow, at int, reason logpb.Reason) {
	told := m.told[w.definition.Name]
	if told == nil {
		told = &[maxSteps]int{}
		m.told[w.definition.Name] = told
	}
	concerned := (w.upstream[at] | w.downstream[at]).with(at)
	for i, name := range w.holders {
		if !concerned.has(i) {
			continue
		}
		event := effect.Event{
			Kind: effect.EventBackPressure, Quota: w.steps[at].quota, Holder: name, Reason: reason, Duration: w.steps[at].until - m.clock.Now,
			Workflow: w.definition.Name, Step: w.holders[at],
		}
		if place := told[i]; place != 0 {
			m.events[place-1] = event
			continue
		}
		m.emit(event)
		told[i] = len(m.events)
	}
}

// limitedLately counts the steps that were limited within the workflow's time, and since it last changed.
func (w *workflow) limitedLately(now int64) (count int) {
	for i := range w.steps {
		if at := w.steps[i].limited; at != 0 && at >= w.changed && now-at <= w.within {
			count++
		}
	}
	return count
}

// pressing returns the steps that keep those upstream of them back.
func (w *workflow) pressing(now int64) (set stepSet) {
	for i := range w.steps {
		if until := w.steps[i].until; until != 0 && fixed.AddSaturated(until, headStart) > now {
			set = set.with(i)
		}
	}
	return set
}

// keptBackUntil returns until when a step is kept back because one downstream of it is limited; 0 or past: it is not.
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

// withholdByWorkflow keeps a step back: when another has the baton, or one downstream of it is limited. What only observes
// is not withheld.
func (m *Machine) withholdByWorkflow(name string, needs []need) *logpb.Refusal {
	now := m.clock.Now
	for _, of := range m.stepsIn(name) {
		w, _ := m.workflows.Get(of.workflow)
		binding := enforced(needs)
		switch until := w.keptBackUntil(of.at); {
		case binding == nil:
		case w.sequential && w.baton.deadline > now && w.baton.at != of.at:
			return m.refusal(logpb.Reason_REASON_SEQUENTIAL, binding, min(w.baton.deadline, fixed.AddSaturated(now, fixed.Second)),
				fmt.Sprintf("workflow %q goes one at a time, and it is the turn of %q: wait in the queue", of.workflow, w.holders[w.baton.at]))
		case until > now:
			return m.refusal(logpb.Reason_REASON_BACK_PRESSURE, binding, until,
				fmt.Sprintf("a holder downstream in workflow %q is limited: begin nothing new", of.workflow))
		}
	}
	return nil
}

// enforced returns the first needed quota that does more than observe; nil: none.
func enforced(needs []need) *quota {
	for _, n := range needs {
		if !n.quota.rule.Policy.Observe {
			return n.quota
		}
	}
	return nil
}

// amountOf returns how much of a quota is needed; 0: it is not among the needs.
func amountOf(needs []need, name string) int64 {
	for _, n := range needs {
		if n.quota.name == name {
			return n.amount
		}
	}
	return 0
}

// needed tells whether a quota is among needs.
func needed(needs []need, name string) bool { return amountOf(needs, name) > 0 }

// recordMember records that a holder is granted a lease: it is not limited any more by what it needs, and where one at a time
// goes, it has the baton and the lease's deadline is no later than that of the baton.
func (m *Machine) recordMember(l *lease, needs []need) {
	now := m.clock.Now
	for _, of := range m.stepsIn(l.holder) {
		w, _ := m.workflows.Get(of.workflow)
		if s := &w.steps[of.at]; !w.sequential && s.until == 0 && s.paused == 0 {
			continue
		}
		w = m.editWorkflow(of.workflow)
		s := &w.steps[of.at]
		s.asked, s.short = 0, shortage{}
		if s.paused != 0 {
			s.paused = max(now, 1)
		}
		if w.sequential {
			m.takeBaton(w, of.at, l, needs)
		}
		if s.until != 0 && needed(needs, s.quota) {
			w.last, s.until = max(w.last, min(s.until, now)), 0
			m.wakeSteps(w)
		}
		m.scheduleReview(w)
	}
}

// restsOn tells whether a step is limited by nothing but that a quota was closed, which is open now.
func (m *Machine) restsOn(s *step, reopened uint32) bool {
	q := m.quotaNamed(s.quota)
	if q == nil {
		return false
	}
	below := false
	for _, above := range m.ancestors(m.editQuotaNow(q.number)) {
		below = below || above.number == reopened
		if above.cooling(m.clock.Now) || s.short.quota != "" && above.ledger.Available(&above.rule) < s.short.amount {
			return false
		}
	}
	return below
}

// calmDown deals with a workflow of which limits have ended before their time.
func (m *Machine) calmDown(w *workflow) {
	if w.sequential && w.calmAt() <= m.clock.Now {
		m.goParallel(w)
	}
	m.wakeSteps(w)
	m.scheduleReview(w)
}

// goSequential lets one at a time go from now on.
func (m *Machine) goSequential(w *workflow) {
	w.sequential, w.changed, w.next = true, m.clock.Now, 0
	for i := range w.steps {
		w.steps[i].paused = 0
	}
	m.emit(effect.Event{Kind: effect.EventSequential, Workflow: w.definition.Name, Duration: w.calmTime})
	m.passBaton(w)
}

// goParallel lets all go again.
func (m *Machine) goParallel(w *workflow) {
	w.sequential, w.changed, w.baton = false, m.clock.Now, baton{}
	for i := range w.steps {
		w.steps[i].until, w.steps[i].asked = 0, 0
	}
	m.emit(effect.Event{Kind: effect.EventParallel, Workflow: w.definition.Name})
	m.wakeSteps(w)
}

// calmAt returns when a workflow is calm: nobody is limited, and nobody was for a while.
func (w *workflow) calmAt() int64 {
	last := w.last
	for i := range w.steps {
		last = max(last, w.steps[i].until)
	}
	return fixed.AddSaturated(last, w.calmTime)
}

// reviewWorkflows carries out what is due in workflows: the end of a limit, a pause or a baton, and calm.
func (m *Machine) reviewWorkflows() {
	for _, review := range cow.TakeDue(m.reviews, maxDuePerEntry, func(d dueByName) bool { return d.At <= m.clock.Now }) {
		w := m.editWorkflow(review.ID)
		w.due = 0
		switch {
		case w.sequential && w.calmAt() <= m.clock.Now:
			m.goParallel(w)
		case w.sequential && w.baton.deadline <= m.clock.Now:
			m.expireBaton(w)
		}
		m.wakeSteps(w)
		m.scheduleReview(w)
	}
}

// scheduleReview records when to look at a workflow again, and forgets what is over.
func (m *Machine) scheduleReview(w *workflow) {
	now, next := m.clock.Now, int64(math.MaxInt64)
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
	m.listReview(w, next)
}

// listReview lists a workflow by when to look at it again; 0: never.
func (m *Machine) listReview(w *workflow, next int64) {
	if next == w.due {
		return
	}
	name := w.definition.Name
	m.reviews.Delete(dueByName{At: w.due, ID: name})
	if w.due = next; next != 0 {
		m.reviews.Set(dueByName{At: next, ID: name})
	}
}

// wakeSteps has the waiters of all steps of a workflow tried.
func (m *Machine) wakeSteps(w *workflow) {
	for _, name := range w.holders {
		m.wakeWaitersOf(name)
	}
}

// maxWalkedPerEntry bounds how many waiters of steps commands go through to have them tried. Where that is used up, the steps are gone through
// once, when all commands are carried out, and their waiters are tried with the next entry.
const maxWalkedPerEntry = 2 * maxWaitersOfHolder

// wakeWaitersOf has a holder's waiters tried, also when that comes up while waiters are tried.
func (m *Machine) wakeWaitersOf(name string) {
	h, ok := m.holders.Get(name)
	switch {
	case !ok || h.waiting == 0:
	case m.bounds.walks.left == 0:
		m.toWake.Insert(name)
	default:
		m.bounds.walks.spend(m.markWaitersOf(name))
	}
}

// finishWalks goes through the waiters of holders to whom the commands did not come, once for each holder. They are tried with the next entry.
func (m *Machine) finishWalks() {
	m.toDemote.Scan(func(name string) bool {
		m.demoteNow(name)
		return true
	})
	m.toWake.Scan(func(name string) bool {
		m.markWaitersOf(name)
		return true
	})
	m.deferDirty()
	clear(m.reordered)
	m.toWake.Clear()
	m.toDemote.Clear()
}

// markWaitersOf marks what a holder waits for, and returns how many items that are.
func (m *Machine) markWaitersOf(name string) (visited int) {
	m.eachWaiterOf(name, func(w *waiter) bool {
		visited += w.cost()
		l, _ := m.waitSets.Get(w.waitSet)
		for _, number := range l.quotas {
			m.dirty[number], m.reordered[number] = true, true
		}
		return true
	})
	return visited
}

// backPressure tells a holder how its workflow stands; of several, one that goes one at a time. nil: nothing in it is
// limited.
func (s *State) backPressure(name string) (found *logpb.BackPressure) {
	for _, of := range s.stepsIn(name) {
		w, _ := s.workflows.Get(of.workflow)
		if p := w.pressureOn(of.at, s.clock.Now); p != nil && (found == nil || p.Sequential && !found.Sequential) {
			found = p
		}
	}
	return found
}

// pressureOn tells one step how its workflow stands: of the limited steps, with the one that concerns it most.
func (w *workflow) pressureOn(at int, now int64) *logpb.BackPressure {
	pressing := w.pressing(now)
	if pressing == 0 && !w.sequential {
		return nil
	}
	p := &logpb.BackPressure{Workflow: w.definition.Name, Sequential: w.sequential}
	if w.baton.deadline > now {
		p.Turn = w.holders[w.baton.at]
	}
	for i := range w.steps {
		s, side := &w.steps[i], w.side(at, i)
		if pressing.has(i) && (p.Step == "" || side < p.Side || side == p.Side && s.until > p.UntilNs) {
			p.Step, p.Quota, p.UntilNs, p.Side = w.holders[i], s.quota, s.until, side
		}
	}
	return p
}

// side says where a step stands as seen from a limited one.
func (w *workflow) side(at, limited int) logpb.Side {
	switch {
	case w.upstream[limited].has(at):
		return logpb.Side_SIDE_UPSTREAM
	case w.downstream[limited].has(at):
		return logpb.Side_SIDE_DOWNSTREAM
	case at == limited:
		return logpb.Side_SIDE_SELF
	}
	return logpb.Side_SIDE_BESIDE
}
