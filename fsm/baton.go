package fsm

import (
	"math"
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// While a workflow goes one at a time, only the step that has the baton may be granted something. A baton is offered to the
// next step in workflow order that wants it, and taken by its first lease; it ends with the last of its leases, or at its
// deadline, which none of them outlives. Then the baton goes on from the step after it, so that each has one per round.

// offer is how long an offered baton waits to be taken. A step that was denied something within that time wants one.
const offer = 10 * fixed.Second

// baton is the right of one step to be granted something. The zero value: nobody has it.
type baton struct {
	// at is the step's place in workflow order.
	at int
	// after is the newest fence when it began: its leases have higher ones. fence is that of its first lease, 0 until then.
	after, fence    uint64
	began, deadline int64
}

// takeBaton binds a lease that is being granted to the baton of its holder. Quotas that only observe need none.
func (m *Machine) takeBaton(w *workflow, at int, l *lease, needs []need) {
	now := m.clock.Now
	free := w.baton.deadline <= now
	if enforced(needs) == nil && (free || w.baton.at != at) {
		return
	}
	if free {
		w.offerBaton(at, l.fence-1, now)
		w.next = (at + 1) % len(w.steps)
	}
	if w.baton.fence == 0 {
		w.baton.fence, w.baton.deadline = l.fence, fixed.AddSaturated(now, w.batonTime)
		m.emitBaton(w)
	}
	l.deadline = min(l.deadline, w.baton.deadline)
}

func (m *Machine) emitBaton(w *workflow) {
	m.emit(effect.Event{
		Kind: effect.EventBaton, Holder: w.holders[w.baton.at], Workflow: w.definition.Name, Fence: w.baton.fence,
		Duration: w.baton.deadline - m.clock.Now,
	})
}

// passBaton offers the baton to the next step that wants it. If none does, the first to ask takes it.
func (m *Machine) passBaton(w *workflow) {
	w.baton = baton{}
	if at, ok := m.nextForBaton(w); ok {
		w.offerBaton(at, m.fence(), m.clock.Now)
		m.emitBaton(w)
	}
	m.wakeSteps(w)
	m.scheduleReview(w)
}

// offerBaton offers the baton to a step.
func (w *workflow) offerBaton(at int, after uint64, now int64) {
	w.baton = baton{at: at, after: after, began: now, deadline: fixed.AddSaturated(now, offer)}
	w.owed = w.owed.without(at)
}

// nextForBaton returns the next step to offer the baton to: in workflow order from the present one, among steps that want it.
// One that stands back in a workflow before this one could not make use of it: it is passed over, and comes first as soon as
// it can. A step of several workflows so takes their batons in the order of their names, and no two wait for each other.
func (m *Machine) nextForBaton(w *workflow) (next int, ok bool) {
	for at := range w.steps {
		if w.owed.has(at) && m.wantsBaton(w, at) && !m.waitsForEarlierBaton(w, at) {
			return at, true
		}
	}
	for k := range w.steps {
		at := (w.next + k) % len(w.steps)
		switch {
		case !m.wantsBaton(w, at):
		case m.waitsForEarlierBaton(w, at):
			w.owed = w.owed.with(at)
		default:
			w.next = (at + 1) % len(w.steps)
			return at, true
		}
	}
	return 0, false
}

// wantsBaton tells whether a step has waiters, or was denied something lately, and no limit stops it now.
func (m *Machine) wantsBaton(w *workflow, at int) bool {
	s := &w.steps[at]
	lately := func(when int64) bool { return when != 0 && m.clock.Now-when < offer }
	if lately(s.asked) || lately(s.limited) && s.short != (shortage{}) && !m.lacking(s.short) {
		return true
	}
	h, ok := m.holders.Get(w.holders[at])
	return ok && h.waiting > 0 && (s.until <= m.clock.Now || m.waitsForElse(h.name, s.quota))
}

// lacking tells whether what was not to be had still is not.
func (m *Machine) lacking(short shortage) bool {
	q := m.quotaNamed(short.quota)
	return q != nil && slices.ContainsFunc(m.ancestors(q), func(q *quota) bool {
		q = m.editQuotaNow(q.number)
		return !q.rule.Policy.Observe && (q.cooling(m.clock.Now) || q.ledger.Available(&q.rule) < short.amount)
	})
}

// waitsForElse tells whether a holder waits for something that a limit by this quota does not keep from it: it needs others,
// or all it needs is there. Of a long line it looks at the first.
func (m *Machine) waitsForElse(name, quota string) (found bool) {
	out, looked := m.lacking(shortage{quota, 1}), 0
	number, _ := m.names.Get(quota)
	m.eachWaiterOf(name, func(w *waiter) bool {
		if looked++; looked > maxPassedOver {
			return false
		}
		if m.goneWaiter(w) {
			return true
		}
		if l, _ := m.waitSets.Get(w.waitSet); out && !l.pooled && slices.Contains(l.quotas, number) {
			return true // a line for the quota itself
		}
		needs, failure := m.needs(w.req)
		found = failure == nil && (!needed(needs, quota) || !m.limited(w, needs))
		return !found
	})
	return found
}

// limited tells whether a limit keeps something of some needs back now.
func (m *Machine) limited(w *waiter, needs []need) bool {
	if onPool(needs) {
		return !slices.ContainsFunc(choicesOf(needs), func(c choice) bool { return !m.limited(w, c.needs) })
	}
	return slices.ContainsFunc(needs, func(n need) bool {
		return !n.quota.rule.Policy.Observe && (n.quota.cooling(m.clock.Now) || m.lacks(w.req, w.priority, n))
	})
}

// waitsForEarlierBaton tells whether a step waits for the baton of a workflow whose name sorts before this one.
func (m *Machine) waitsForEarlierBaton(w *workflow, at int) bool {
	return slices.ContainsFunc(m.stepsIn(w.holders[at]), func(of stepOf) bool {
		return of.workflow < w.definition.Name && m.waitsForBaton(of)
	})
}

// waitsForBaton tells whether another step has the baton.
func (m *Machine) waitsForBaton(of stepOf) bool {
	w, _ := m.workflows.Get(of.workflow)
	return w.sequential && w.baton.deadline > m.clock.Now && w.baton.at != of.at
}

// expireBaton passes on a baton whose deadline has passed, unless it is an offer that still holds.
func (m *Machine) expireBaton(w *workflow) {
	if w.baton.deadline != 0 && w.baton.fence == 0 && m.wantsBaton(w, w.baton.at) {
		if until := m.offerHeldUntil(w); until > m.clock.Now {
			w.baton.deadline = until
			return
		}
	}
	m.passBaton(w)
}

// offerHeldUntil returns until when an offer is kept for a step of several workflows: while it stands back in one after this one
// and asks there, since it gets the baton there within a round, and from then on as long as any offer.
func (m *Machine) offerHeldUntil(w *workflow) (until int64) {
	for _, of := range m.stepsIn(w.holders[w.baton.at]) {
		other, _ := m.workflows.Get(of.workflow)
		switch {
		case of.workflow <= w.definition.Name:
		case !other.sequential:
			until = max(until, fixed.AddSaturated(other.changed, offer))
		case other.baton.at == of.at:
			until = max(until, fixed.AddSaturated(other.baton.began, offer))
		case other.baton.deadline >= w.baton.deadline && m.wantsBaton(other, of.at): // one that has come as well is passed on after this
			until = max(until, fixed.AddSaturated(m.clock.Now, offer))
		}
	}
	return until
}

// extendOffers keeps the batons offered to a waiter that is first where something is short: it saves up, for one baton at most
// since it has them all.
func (m *Machine) extendOffers(name string) {
	offered, began := m.offersTo(name)
	for _, of := range offered {
		w, _ := m.workflows.Get(of.workflow)
		if until := min(fixed.AddSaturated(began, w.batonTime), fixed.AddSaturated(m.clock.Now, offer)); until > w.baton.deadline {
			w = m.editWorkflow(of.workflow)
			w.baton.deadline = until
			m.scheduleReview(w)
		}
	}
}

// offersTo returns the workflows that offer a holder the baton, and when the last of these offers began.
func (m *Machine) offersTo(name string) (offered []stepOf, began int64) {
	for _, of := range m.stepsIn(name) {
		if w, _ := m.workflows.Get(of.workflow); w.sequential && w.baton.at == of.at && w.baton.fence == 0 && w.baton.deadline > m.clock.Now {
			offered, began = append(offered, of), max(began, w.baton.began)
		}
	}
	return offered, began
}

// recordRequest records that a holder is denied something that no limit keeps from it: where one at a time goes, it wants a baton.
func (m *Machine) recordRequest(name string, reason logpb.Reason) {
	if reason <= logpb.Reason_REASON_EXHAUSTED {
		return
	}
	for _, of := range m.stepsIn(name) {
		if w, _ := m.workflows.Get(of.workflow); w.sequential {
			m.editWorkflow(of.workflow).steps[of.at].asked = max(m.clock.Now, 1)
		}
	}
}

// underBaton tells whether a lease was granted under a workflow's present baton.
func (w *workflow) underBaton(of stepOf, l *lease) bool {
	return w.sequential && w.baton.fence != 0 && w.baton.at == of.at && l.fence > w.baton.after
}

// batonEnd returns the latest deadline of a lease: that of the baton under which it was granted.
func (m *Machine) batonEnd(l *lease) int64 {
	end := int64(math.MaxInt64)
	for _, of := range m.stepsIn(l.holder) {
		if w, _ := m.workflows.Get(of.workflow); w.underBaton(of, l) {
			end = min(end, w.baton.deadline)
		}
	}
	return end
}

// leaseEnded passes the baton on when its last lease has ended. A holder's newest lease has its highest fence.
func (m *Machine) leaseEnded(l *lease) {
	for _, of := range m.stepsIn(l.holder) {
		w, _ := m.workflows.Get(of.workflow)
		if !w.underBaton(of, l) {
			continue
		}
		if newest := m.newestLease(l.holder); newest == nil || newest.fence <= w.baton.after {
			m.passBaton(m.editWorkflow(of.workflow))
		}
	}
}

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

// WorkflowView is a workflow as a reader sees it at some Clock.
type WorkflowView struct {
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

// Workflow returns one workflow as it stands at a clock.
func (s *State) Workflow(name string, at Clock) (WorkflowView, bool) {
	w, ok := s.workflows.Get(name)
	if !ok {
		return WorkflowView{}, false
	}
	return s.viewWorkflow(w, at.Now), true
}

// Workflows returns up to limit workflows in name order that come after the name after, those with a holder as a step
// (empty: all).
func (s *State) Workflows(holder, after string, limit int, at Clock) []WorkflowView {
	var views []WorkflowView
	if holder != "" {
		for _, of := range s.stepsIn(holder) {
			if w, _ := s.workflows.Get(of.workflow); of.workflow > after && len(views) < limit {
				views = append(views, s.viewWorkflow(w, at.Now))
			}
		}
		return views
	}
	s.workflows.Ascend(after, func(name string, w *workflow) bool {
		if len(views) < limit && name > after {
			views = append(views, s.viewWorkflow(w, at.Now))
		}
		return len(views) < limit
	})
	return views
}

func (s *State) viewWorkflow(w *workflow, now int64) WorkflowView {
	v := WorkflowView{Definition: w.definition, Sequential: w.sequential, StateFor: max(now-w.changed, 0)}
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
		}
		if of.limited != 0 {
			step.LimitedAgo = max(now-of.limited, 0)
		}
		if h, ok := s.holders.Get(name); ok {
			step.Waiting = h.waiting
		}
		v.Steps = append(v.Steps, step)
	}
	return v
}
