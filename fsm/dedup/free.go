package dedup

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
)

// A session that ends takes its results with it, and one that acknowledges those below its mark: from then on none of them answers anybody.
// They leave the table, and what they cost comes back to their account, as many as an entry may free, and the rest with the entries that
// follow.

// leastFreed is how many results a command frees itself when others have taken all that the entry may free: more than the one that it may
// leave behind.
const leastFreed = 4

// Free goes on with what sessions have left, first those that have ended, in the order of their numbers.
func (t *Table) Free(host Host) {
	at := host.Moment()
	for most := host.Freeable(0); most > 0; most = host.Freeable(0) {
		_, s, ok := t.ended.Min()
		if !ok {
			break
		}
		t.free(&at, host, t.edit(s, at.Generation), most)
	}
	for most := host.Freeable(0); most > 0; most = host.Freeable(0) {
		id, _, ok := t.acked.Min()
		if !ok {
			break
		}
		s, _ := t.sessions.Get(id)
		t.free(&at, host, t.edit(s, at.Generation), most)
	}
}

// free drops up to most of the results that are to leave a session, which may be changed, from its first on. What waits under a session
// that has ended leaves the queue: nobody could learn of a grant any more.
func (t *Table) free(at *Moment, host Host, s *session, most int) {
	leaving, more, cost := t.leaving[:0], false, 0
	t.results.Ascend(sessionResult{session: s.id}, func(r sessionResult) bool {
		if !s.leaves(r) {
			return false
		}
		if more = cost >= most; more {
			return false
		}
		leaving = append(leaving, r)
		cost += s.freeCost(host, r)
		return true
	})
	t.recordRemaining(s, more)
	for _, r := range leaving {
		t.results.Delete(r)
		t.bytes -= r.size
		s.bytes -= r.size
		s.kept--
		at.Accounts.Add(s.account, accounts.Results, -r.size)
		if s.ended && r.seq >= s.ackedBelow {
			host.Withdraw(r.result.GetWaiting().GetTicket())
		}
	}
	host.Freed(cost)
	clear(leaving)
	t.leaving = leaving
}

// freeCost returns what a result that leaves takes of an entry's work: with it may leave a waiter.
func (s *session) freeCost(host Host, r sessionResult) int {
	if ticket := r.result.GetWaiting().GetTicket(); s.ended && ticket != 0 {
		return max(host.WaitCost(ticket), 1)
	}
	return 1
}

// leaves tells whether a result is to leave with a session, or because of its mark.
func (s *session) leaves(r sessionResult) bool {
	return r.session == s.id && (s.ended || r.seq < s.ackedBelow)
}

// recordRemaining records whether a session has more results that are to leave.
func (t *Table) recordRemaining(s *session, more bool) {
	switch {
	case s.ended && !more:
		t.ended.Delete(s.id)
	case !s.ended && more:
		t.acked.Set(s.id, struct{}{})
	case !s.ended:
		t.acked.Delete(s.id)
	}
}

// Abandoned tells whether a request's session has ended, so that nobody could learn of what is granted to it later.
func (t *Table) Abandoned(from RequestID) bool {
	if from.Session == 0 || t.ended.Len() == 0 {
		return false
	}
	s, ok := t.ended.Get(from.Session)
	return ok && from.Seq >= s.ackedBelow && cow.Has(t.results, sessionResult{session: from.Session, seq: from.Seq})
}
