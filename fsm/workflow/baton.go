package workflow

import (
	"math"
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// While a workflow is sequential, only the step with the baton may be granted something. The baton is offered to the
// next step in workflow order that wants it, and taken by that step's first lease. It ends with the last of the step's
// leases, or at its deadline, which bounds theirs. Then it continues at the following step, so that each step gets one
// per round.

// offer is how long an offered baton waits to be taken. A step that was denied something within that time wants one.
const offer = 10 * fixed.Second

// baton is the right of one step to be granted something. The zero value: no step has it.
type baton struct {
	// at is the step's place in workflow order.
	at int
	// after is the newest fence when it began: leases under it have higher ones. fence is that of its first lease, 0
	// until then.
	after, fence    uint64
	began, deadline int64
}

// takeBaton binds a lease that is being granted to the baton of its holder, and returns the latest deadline of the
// lease. Quotas that only observe need no baton.
func (w *workflow) takeBaton(h Host, at int, fence uint64, enforced bool) (end int64) {
	now := h.Now()
	free := w.baton.deadline <= now
	if !enforced && (free || w.baton.at != at) {
		return math.MaxInt64
	}
	if free {
		w.offerBaton(at, fence-1, now)
		w.next = (at + 1) % len(w.steps)
	}
	if w.baton.fence == 0 {
		w.baton.fence, w.baton.deadline = fence, fixed.AddSaturated(now, w.batonTime)
		w.emitBaton(h)
	}
	return w.baton.deadline
}

func (w *workflow) emitBaton(h Host) {
	h.Emit(effect.Event{
		Kind: effect.EventBaton, Holder: w.holders[w.baton.at], Workflow: w.definition.Name, Fence: w.baton.fence,
		Duration: w.baton.deadline - h.Now(),
	}, 0)
}

// passBaton offers the baton to the next step that wants it. If none does, the first step that asks takes it.
func (t *Table) passBaton(h Host, w *workflow) {
	w.baton = baton{}
	if at, ok := t.nextForBaton(h, w); ok {
		w.offerBaton(at, h.Fence(), h.Now())
		w.emitBaton(h)
	}
	w.wake(h)
	t.schedule(w, h.Now())
}

// offerBaton offers the baton to a step.
func (w *workflow) offerBaton(at int, after uint64, now int64) {
	w.baton = baton{at: at, after: after, began: now, deadline: fixed.AddSaturated(now, offer)}
	w.owed = w.owed.without(at)
}

// nextForBaton returns the next step to offer the baton to, in workflow order from the present one. It considers steps
// that want it. A step that waits for the baton of an earlier workflow could not use it: it is passed over, and comes
// first as soon as it can. So a step of several workflows takes their batons in the order of their names, and no two
// steps wait for each other.
func (t *Table) nextForBaton(h Host, w *workflow) (next int, ok bool) {
	for at := range w.steps {
		if w.owed.has(at) && t.wantsBaton(h, w, at) && !t.waitsForEarlierBaton(w, at, h.Now()) {
			return at, true
		}
	}
	for k := range w.steps {
		at := (w.next + k) % len(w.steps)
		switch {
		case !t.wantsBaton(h, w, at):
		case t.waitsForEarlierBaton(w, at, h.Now()):
			w.owed = w.owed.with(at)
		default:
			w.next = (at + 1) % len(w.steps)
			return at, true
		}
	}
	return 0, false
}

// wantsBaton reports whether a step has waiters or was denied something recently, and no limit stops it now.
func (t *Table) wantsBaton(h Host, w *workflow, at int) bool {
	s := &w.steps[at]
	lately := func(when int64) bool { return when != 0 && h.Now()-when < offer }
	if lately(s.asked) || lately(s.limited) && s.short != (Shortage{}) && !h.Lacks(s.short) {
		return true
	}
	return h.Waiting(w.holders[at]) > 0 && (s.until <= h.Now() || h.WaitsForElse(w.holders[at], s.quota))
}

// waitsForEarlierBaton reports whether a step waits for the baton of a workflow whose name sorts before this one.
func (t *Table) waitsForEarlierBaton(w *workflow, at int, now int64) bool {
	return slices.ContainsFunc(t.stepsIn(w.holders[at]), func(of stepOf) bool {
		return of.workflow < w.definition.Name && t.get(of).waits(of.at, now)
	})
}

// waits reports whether another step than at has the baton.
func (w *workflow) waits(at int, now int64) bool {
	return w.sequential && w.baton.deadline > now && w.baton.at != at
}

// expireBaton passes on a baton whose deadline has passed, unless it is an offer that is still kept.
func (t *Table) expireBaton(h Host, w *workflow) {
	if w.baton.deadline != 0 && w.baton.fence == 0 && t.wantsBaton(h, w, w.baton.at) {
		if until := t.offerHeldUntil(h, w); until > h.Now() {
			w.baton.deadline = until
			return
		}
	}
	t.passBaton(h, w)
}

// offerHeldUntil returns until when an offer is kept for a step of several workflows. It is kept while the step waits
// and asks in a later workflow, because it gets that baton within a round. From then on it is kept as long as any
// offer.
func (t *Table) offerHeldUntil(h Host, w *workflow) (until int64) {
	for _, of := range t.stepsIn(w.holders[w.baton.at]) {
		other := t.get(of)
		switch {
		case of.workflow <= w.definition.Name:
		case !other.sequential:
			until = max(until, fixed.AddSaturated(other.changed, offer))
		case other.baton.at == of.at:
			until = max(until, fixed.AddSaturated(other.baton.began, offer))
		case other.baton.deadline >= w.baton.deadline && t.wantsBaton(h, other, of.at): // an offer in both is passed on after this one
			until = max(until, fixed.AddSaturated(h.Now(), offer))
		}
	}
	return until
}

// ExtendOffers keeps the batons offered to the first waiter of a short quota: it has amounts set aside. The limit is
// the time of one baton, since the holder has all of them together.
func (t *Table) ExtendOffers(holder string, now int64) {
	offered, began := t.offersTo(holder, now)
	for _, of := range offered {
		w := t.get(of)
		if until := min(fixed.AddSaturated(began, w.batonTime), fixed.AddSaturated(now, offer)); until > w.baton.deadline {
			w = t.edit(of.workflow)
			w.baton.deadline = until
			t.schedule(w, now)
		}
	}
}

// offersTo returns the workflows that offer a holder the baton, and when the last of these offers began.
func (t *Table) offersTo(holder string, now int64) (offered []stepOf, began int64) {
	for _, of := range t.stepsIn(holder) {
		if w := t.get(of); w.sequential && w.baton.at == of.at && w.baton.fence == 0 && w.baton.deadline > now {
			offered, began = append(offered, of), max(began, w.baton.began)
		}
	}
	return offered, began
}

// RecordRequest records a denial that no limit caused: in a sequential workflow the holder wants a baton.
func (t *Table) RecordRequest(holder string, reason logpb.Reason, now int64) {
	if reason <= logpb.Reason_REASON_EXHAUSTED {
		return
	}
	for _, of := range t.stepsIn(holder) {
		if w := t.get(of); w.sequential {
			t.edit(of.workflow).steps[of.at].asked = max(now, 1)
		}
	}
}

// underBaton reports whether a step's lease was granted under a workflow's present baton.
func (w *workflow) underBaton(at int, fence uint64) bool {
	return w.sequential && w.baton.fence != 0 && w.baton.at == at && fence > w.baton.after
}

// BatonEnd returns the latest deadline of a holder's lease: that of the baton under which it was granted.
func (t *Table) BatonEnd(holder string, fence uint64) int64 {
	end := int64(math.MaxInt64)
	for _, of := range t.stepsIn(holder) {
		if w := t.get(of); w.underBaton(of.at, fence) {
			end = min(end, w.baton.deadline)
		}
	}
	return end
}

// RecordEnd passes the baton on when the last lease of its holder has ended. A holder's newest lease has its highest
// fence.
func (t *Table) RecordEnd(h Host, holder string, fence uint64) {
	for _, of := range t.stepsIn(holder) {
		if w := t.get(of); w.underBaton(of.at, fence) && h.NewestFence(holder) <= w.baton.after {
			t.passBaton(h, t.edit(of.workflow))
		}
	}
}
