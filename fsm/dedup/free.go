package dedup

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
)

// An ended session drops its results, and a live one those below its acknowledged mark: from then on they answer no
// request. They leave the table, and their charges are released, in steps: as many as an entry may free, and the rest
// with the following entries.

// leastFreed is how many results a command frees itself when others have used up the entry's bound. It is more than the
// one that the command may store.
const leastFreed = 4

// Free continues to free results, first of ended sessions, in the order of their numbers.
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

// free drops up to most of the results that are to leave a session, which must be for update, from the first on.
// Waiters of an ended session leave the queue: nobody could learn of a grant.
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

// freeCost returns the work of freeing a result, including its waiter.
func (s *session) freeCost(host Host, r sessionResult) int {
	if ticket := r.result.GetWaiting().GetTicket(); s.ended && ticket != 0 {
		return max(host.WaitCost(ticket), 1)
	}
	return 1
}

// leaves reports whether a result is to leave, because its session has ended or has acknowledged it.
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

// Abandoned reports whether a request's session has ended, so that nobody could learn of a later grant.
func (t *Table) Abandoned(from RequestID) bool {
	if from.Session == 0 || t.ended.Len() == 0 {
		return false
	}
	s, ok := t.ended.Get(from.Session)
	return ok && from.Seq >= s.ackedBelow && cow.Has(t.results, sessionResult{session: from.Session, seq: from.Seq})
}
