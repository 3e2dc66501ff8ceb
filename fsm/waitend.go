package fsm

import (
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxWaitsPerEntry bounds the items of waiters that leave the queue, or are promoted, in one entry because their time has come.
const maxWaitsPerEntry = 4 * maxDuePerEntry

// cost is what a waiter takes of an entry's work when it leaves or changes its place.
func (w *waiter) cost() int { return max(w.shares, 1) }

// dueWaiter takes the first waiter that is due out of a list; false: none is due.
func (m *Machine) dueWaiter(list *cow.Set[due]) (*waiter, bool) {
	for {
		first, ok := list.Min()
		if !ok || first.At > m.clock.Now {
			return nil, false
		}
		list.PopMin()
		if w, ok := m.waiters.Get(first.ID); ok {
			m.bounds.waits.spend(w.cost())
			return w, true
		}
	}
}

// endWaits ends waits that are over.
func (m *Machine) endWaits() {
	for m.bounds.waits.left > 0 {
		w, ok := m.dueWaiter(m.waitEnds)
		if !ok {
			return
		}
		if !m.endGone(w) {
			m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WAIT_EXPIRED))
		}
	}
}
