package fsm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/cow"
)

// Each table that indexes another one is checked from both sides: every object is found at its place, and the sizes are
// equal, so there is nothing else.

// maxReported bounds how many differences of a kind are reported.
const maxReported = 10

// verifyQuotas checks the names of quotas, their parents, and their cooldowns.
func (s *State) verifyQuotas() error {
	var errs []error
	cooling, falling, children := 0, 0, map[uint32]uint32{}
	s.quotas.byNumber.Scan(func(_ uint32, q *quota) bool {
		if q.parent != 0 {
			children[q.parent]++
		}
		return true
	})
	s.quotas.byNumber.Scan(func(number uint32, q *quota) bool {
		named, _ := s.quotas.names.Get(q.name)
		parent, _ := s.quotas.names.Get(q.definition.Parent)
		if q.number != number || named != number || q.name != q.definition.Name || number == 0 || number > s.quotas.last ||
			q.parent != parent || q.children != children[number] {
			errs = append(errs, fmt.Errorf("quota %d (%q) is not what its name, its number or its parent says: %d children, counted %d", number,
				q.name, children[number], q.children))
		}
		if fallback := q.definition.Fallback; fallback != "" {
			if falling++; !cow.Has(s.quotas.fallbacks, standIn{fallback: fallback, quota: number}) {
				errs = append(errs, fmt.Errorf("quota %q is not listed by its fallback, %q", q.name, fallback))
			}
		}
		if q.cooldown != 0 {
			cooling++
			if !cow.Has(s.quotas.cooldowns, due{At: q.cooldown, ID: uint64(number)}) {
				errs = append(errs, fmt.Errorf("the cooldown of quota %q never ends", q.name))
			}
		}
		for class := range q.ledger.Used {
			if err := q.ledger.Used[class].Check(); err != nil {
				errs = append(errs, fmt.Errorf("quota %q, class %d: %w", q.name, class, err))
			}
		}
		return len(errs) < maxReported
	})
	return errors.Join(append(errs, cow.Mirrored("quotas by name", s.quotas.byNumber.Len(), s.quotas.names.Len()),
		cow.Mirrored("cooldowns", cooling, s.quotas.cooldowns.Len()), cow.Mirrored("fallbacks", falling, s.quotas.fallbacks.Len()))...)
}

// verifyWaitSets checks wait sets, and that each waiter is in the wait set of what it needs.
func (s *State) verifyWaitSets() error {
	var errs []error
	places, lengths, ahead := 0, map[uint32]int64{}, map[uint32]ahead{}
	s.queue.waiters.Scan(func(ticket uint64, w *waiter) bool {
		lengths[w.waitSet]++
		counts := ahead[w.waitSet]
		counts.add(w.place().rank, 1)
		ahead[w.waitSet] = counts
		asked, err := s.quotas.askedBy(w.req)
		ws, ok := s.queue.waitSets.Get(w.waitSet)
		if _, lost := s.queue.lostQuota(w); ok && lost {
			asked, err = ws.asked, nil // its wait set has the quotas that existed when it was queued
		} else if w.shares != s.quotas.sharesOf(w.req) {
			errs = append(errs, fmt.Errorf("ticket %d counts as %d items, it asks for %d", ticket, w.shares, s.quotas.sharesOf(w.req)))
		}
		h, known := s.holders.byName.Get(w.req.Holder)
		if err != nil || !ok || !slices.Equal(asked, ws.asked) || !known || h.virtualTime != w.virtualTime && !s.queue.lagsBehind(w) ||
			w.ticket != ticket || ticket > s.queue.lastTicket {
			errs = append(errs, fmt.Errorf(
				"ticket %d of holder %q stands in a wait set for other quotas, or its virtual time differs from its holder's",
				ticket, w.req.Holder))
		}
		return len(errs) < maxReported
	})
	s.queue.waitSets.Scan(func(number uint32, ws *waitSet) bool {
		listed, _ := s.queue.waitSetOf.Get(waitSetKey(ws.asked))
		if listed != number || ws.number != number || number > s.queue.lastWaitSet || ws.length != lengths[number] || ws.length == 0 {
			errs = append(errs, fmt.Errorf("wait set %d has %d waiters, counted %d, and is found as %d", number, lengths[number], ws.length, listed))
		}
		if drawn := s.quotas.drawnOn(ws.asked); !slices.ContainsFunc(ws.quotas, s.quotas.wasDeleted) && !slices.Equal(drawn, ws.quotas) ||
			ws.ahead != ahead[number] || !ws.pooled && slices.ContainsFunc(ws.asked, s.quotas.isPool) {
			errs = append(errs, fmt.Errorf("wait set %d is for quotas %v, of which %v are drawn on; %+v wait ahead of others, counted %+v", number,
				ws.quotas, drawn, ahead[number], ws.ahead))
		}
		for _, of := range ws.quotas {
			if places++; !cow.Has(s.queue.waitSetsOf, quotaWaitSet{quota: of, waitSet: number}) {
				errs = append(errs, fmt.Errorf("wait set %d is not listed under quota %d", number, of))
			}
		}
		return len(errs) < maxReported
	})
	return errors.Join(append(errs, cow.Mirrored("wait sets by what they need", s.queue.waitSets.Len(), s.queue.waitSetOf.Len()),
		cow.Mirrored("wait sets by quota", places, s.queue.waitSetsOf.Len()),
		cow.Mirrored("waiters by holder", s.queue.waiters.Len(), s.queue.waitersOf.Len()))...)
}
