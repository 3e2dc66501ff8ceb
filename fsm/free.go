package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// A session that ends takes its results with it, and one that acknowledges those below its mark: from then on none of them answers anybody.
// They leave the table, and what they cost comes back to their account, as many as an entry may free, and the rest with the entries that follow.

// maxFreedPerEntry bounds how many results leave in one entry: about as many come with one, and what was acknowledged late follows. leastFreed is
// how many a command frees itself when others have taken all of that: more than the one that it may leave behind.
const (
	maxFreedPerEntry = 2 * maxDuePerEntry
	leastFreed       = 4
)

// freeResults goes on with what sessions have left, first those that have ended, in the order of their numbers.
func (m *Machine) freeResults() {
	for m.bounds.frees.left > 0 {
		_, s, ok := m.ended.Min()
		if !ok {
			break
		}
		m.free(m.editSession(s), m.bounds.frees.left)
	}
	for m.bounds.frees.left > 0 {
		id, _, ok := m.acked.Min()
		if !ok {
			break
		}
		s, _ := m.sessions.Get(id)
		m.free(m.editSession(s), m.bounds.frees.left)
	}
}

// free drops up to most of the results that are to leave a session, which may be changed, from its first on. What waits under a session that
// has ended leaves the queue: nobody could learn of a grant any more.
func (m *Machine) free(s *session, most int) {
	leaving, more, cost := m.leaving[:0], false, 0
	m.results.Ascend(dedupEntry{session: s.id}, func(r dedupEntry) bool {
		if !s.leaves(r) {
			return false
		}
		if more = cost >= most; more {
			return false
		}
		leaving = append(leaving, r)
		cost += m.freeCost(s, r)
		return true
	})
	m.recordRemaining(s, more)
	for _, r := range leaving {
		m.results.Delete(r)
		m.resultBytes -= r.size
		s.bytes -= r.size
		s.kept--
		m.accounts.Add(s.account, accounts.Results, -r.size)
		if w, ok := m.waiters.Get(r.result.GetWaiting().GetTicket()); ok && s.ended && r.seq >= s.ackedBelow {
			m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WITHDRAWN))
		}
	}
	m.bounds.frees.spend(cost)
	clear(leaving)
	m.leaving = leaving
}

// freeCost returns what a result that leaves takes of an entry's work: with it may leave a waiter.
func (m *Machine) freeCost(s *session, r dedupEntry) int {
	if ticket := r.result.GetWaiting().GetTicket(); s.ended && ticket != 0 {
		if w, ok := m.waiters.Get(ticket); ok {
			return w.cost()
		}
	}
	return 1
}

// leaves tells whether a result is to leave with a session, or because of its mark.
func (s *session) leaves(r dedupEntry) bool {
	return r.session == s.id && (s.ended || r.seq < s.ackedBelow)
}

// recordRemaining records whether a session has more results that are to leave.
func (m *Machine) recordRemaining(s *session, more bool) {
	switch {
	case s.ended && !more:
		m.ended.Delete(s.id)
	case !s.ended && more:
		m.acked.Set(s.id, struct{}{})
	case !s.ended:
		m.acked.Delete(s.id)
	}
}

// ownerOf returns the session to which results with its number belong, whether it lives or has ended; nil: there is none.
func (s *State) ownerOf(id uint64) *session {
	if c, ok := s.sessions.Get(id); ok {
		return c
	}
	c, _ := s.ended.Get(id)
	return c
}

// abandoned tells whether a waiter's session has ended, so that nobody could learn of a grant.
func (s *State) abandoned(w *waiter) bool {
	if w.from.session == 0 || s.ended.Len() == 0 {
		return false
	}
	c, ok := s.ended.Get(w.from.session)
	return ok && w.from.seq >= c.ackedBelow && cow.Has(s.results, dedupEntry{session: w.from.session, seq: w.from.seq})
}

// verifyFreeing looks at what sessions have left: each has some, or it would not be listed.
func (s *State) verifyFreeing() (err error) {
	first := func(id uint64) (found dedupEntry) {
		s.results.Ascend(dedupEntry{session: id}, func(r dedupEntry) bool {
			found = r
			return false
		})
		return found
	}
	s.ended.Scan(func(id uint64, c *session) bool {
		if _, lives := s.sessions.Get(id); lives || c.id != id || !c.ended || !c.leaves(first(id)) || id > s.lastSession {
			err = fmt.Errorf("session %d has ended (%t), lives (%t), or has no results", id, c.ended, lives)
		}
		return err == nil
	})
	s.acked.Scan(func(id uint64, _ struct{}) bool {
		if c, lives := s.sessions.Get(id); !lives || !c.leaves(first(id)) {
			err = fmt.Errorf("session %d, which lives (%t), is listed with results that it acknowledged", id, lives)
		}
		return err == nil
	})
	return err
}
