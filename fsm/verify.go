package fsm

import (
	"errors"
	"fmt"
	"math"

	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/rangeset"
)

// totals are a quota's recomputed sums.
type totals struct {
	held, open, leases, waiting int64
	ahead                       ahead
	// byEnd are the amounts in the log, by end.
	byEnd map[int64]int64
	// used, by class, is the held and consumed amount of the present window, as far as its records exist.
	used [ledger.Classes]int64
	// overruns are those in the log, by end. listed is the consumed amounts that classes list by end. inHand is the
	// amount that classes hold or have open. All cover only existing records.
	overruns map[int64]int64
	listed   map[classEnd]int64
	inHand   [ledger.Classes]int64
}

// classEnd is an end of a class's used amount.
type classEnd struct {
	class int32
	end   int64
}

// Verify recomputes all totals from single leases, operations and waiters, and returns the differences, nil for none.
func (s *State) Verify() error {
	sums := map[uint32]*totals{}
	s.quotas.byNumber.Scan(func(number uint32, q *quota) bool {
		sums[number] = &totals{byEnd: map[int64]int64{}, overruns: map[int64]int64{}, listed: map[classEnd]int64{}}
		for _, e := range q.ledger.Log {
			sums[number].byEnd[e.End] = e.Closed
		}
		return true
	})
	errs := append(s.sumLeases(sums), s.sumOperations(sums)...)
	s.queue.waitSetsOf.Scan(func(pair quotaWaitSet) bool {
		ws, _ := s.queue.waitSets.Get(pair.waitSet)
		if of := sums[pair.quota]; of != nil { // deleted quotas have no sums
			of.waiting += ws.length
		}
		return true
	})
	s.sumAhead(sums)
	s.quotas.byNumber.Scan(func(number uint32, q *quota) bool {
		if err := q.verify(sums[number]); err != nil {
			errs = append(errs, fmt.Errorf("quota %q: %w", q.name, err))
		}
		return true
	})
	return errors.Join(append(errs, s.verifyTables(), s.verifyQueue(), s.verifyTimers(), s.verifyUsage(), s.tasks.Verify(s.fence()),
		s.requests.Verify(), s.holders.verify(), s.verifyQuotas(), s.verifyWaitSets(), s.workflows.Verify(s.fence()), s.verifyResumed(),
		s.accounts.Verify(s.eachCharge, s.clock.Now),
		s.verifyReopening(), s.verifyRetiring(), s.requests.VerifyFreeing(), s.verifyMoving(), s.verifyDeleted())...)
}

// sumAhead counts the waiters for each quota that go before others.
func (s *State) sumAhead(sums map[uint32]*totals) {
	s.queue.waiters.Scan(func(_ uint64, w *waiter) bool {
		rank := w.place().rank
		if rank > ledger.ClassStandard {
			return true
		}
		if ws, ok := s.queue.waitSets.Get(w.waitSet); ok {
			for _, number := range ws.quotas {
				if of := sums[number]; of != nil {
					of.ahead.add(rank, 1)
				}
			}
		}
		return true
	})
}

func (s *State) sumLeases(sums map[uint32]*totals) (errs []error) {
	digests := map[string]uint64{}
	var byDeadline, byHolder uint64
	s.leases.Scan(func(id uint64, l *lease) bool {
		digest, known := digests[l.holder]
		if !known {
			digest = entry.DigestHolder(l.holder)
			digests[l.holder] = digest
		}
		byDeadline += scatter(uint64(l.deadline), id)
		byHolder += scatter(l.digest, id)
		if l.id != id || id > s.lastLease || l.fence > s.fence() || l.digest != digest {
			errs = append(errs, fmt.Errorf("lease %d (%d) has a number or fence %d that was not given out, or another holder's digest", id, l.id,
				l.fence))
		}
		for i := range l.items {
			if q, ok := s.quotas.byNumber.Get(l.items[i].quota); ok {
				held := l.items[i].heldOf(q)
				sums[q.number].held += held
				sums[q.number].used[l.class] += held
				sums[q.number].inHand[l.class] += held
				sums[q.number].leases++
			}
		}
		return true
	})
	return append(errs, s.verifyRangeSets("deadlines", s.deadlines, byDeadline, func(l *lease) uint64 { return uint64(l.deadline) }),
		s.verifyRangeSets("holders", s.leasesOf, byHolder, func(l *lease) uint64 { return l.digest }))
}

// scatter spreads a pair of a key and an id over 64 bits (the finalizer of SplitMix64). The sums of two different sets
// of pairs are equal in one case in 2^64.
func scatter(key, id uint64) uint64 {
	x := key*0x9e3779b97f4a7c15 + id
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// verifyRangeSets checks that exactly the leases are listed under their keys. It compares sums: looking up a million
// leases in the order of the list takes five times as long.
func (s *State) verifyRangeSets(what string, listed *rangeset.Set, want uint64, keyOf func(*lease) uint64) error {
	var sum uint64
	count := 0
	listed.Tree.Scan(func(at rangeset.Run) bool {
		for id := at.From; id <= at.To && count <= s.leases.Len(); id++ {
			sum += scatter(at.Key, id)
			count++
		}
		return count <= s.leases.Len()
	})
	if sum == want && count == s.leases.Len() {
		return nil
	}
	return s.findMislisted(what, listed, keyOf)
}

// findMislisted names a lease that is not listed under its key, or a listed entry that does not belong there.
func (s *State) findMislisted(what string, listed *rangeset.Set, keyOf func(*lease) uint64) (err error) {
	count, leases, here := 0, s.leases.Iter(), false
	listed.Tree.Scan(func(at rangeset.Run) bool {
		for id := at.From; id <= at.To && err == nil; id++ {
			if !here || leases.Key() != id {
				here = leases.Seek(id)
			}
			if !here || leases.Key() != id || keyOf(leases.Value()) != at.Key {
				err = fmt.Errorf("lease %d is listed by %s under %d, and is not there or belongs elsewhere", id, what, at.Key)
				return false
			}
			count++
			here = leases.Next()
		}
		return err == nil
	})
	if err == nil && count != s.leases.Len() {
		err = fmt.Errorf("%d leases, %d listed by %s", s.leases.Len(), count, what)
	} else if err == nil {
		err = fmt.Errorf("leases are listed by %s twice", what)
	}
	return err
}

func (s *State) sumOperations(sums map[uint32]*totals) (errs []error) {
	var count int64
	var last operation
	s.eachOperation(func(o *operation) bool {
		count++
		if o.lease < last.lease || o.lease == last.lease && o.op <= last.op {
			errs = append(errs, fmt.Errorf("operation %d of lease %d is out of order", o.op, o.lease))
		}
		last.lease, last.op = o.lease, o.op
		l, lives := s.leases.Get(o.lease)
		if r, _ := s.records.retiring.Get(o.lease); r.retires(o.op, lives) && !o.detached {
			if at, found := r.find(o.op); !found || r.list[at] != o {
				errs = append(errs, fmt.Errorf("operation %d, which is to leave lease %d, is not found", o.op, o.lease))
			}
		} else if lives == o.detached || lives && l.operation(o.op) != o {
			errs = append(errs, fmt.Errorf("operation %d: its lease %d lives: %t; it is detached: %t", o.op, o.lease, lives, o.detached))
		}
		for i := range o.charges {
			c := &o.charges[i]
			q, ok := s.quotas.byNumber.Get(c.quota)
			if ok && c.window == q.ledger.Window && q.ledger.Counts(c.end) {
				sums[c.quota].used[c.class] += c.amount
			}
			switch {
			case c.amount < 0:
				errs = append(errs, fmt.Errorf("operation %d of lease %d has a negative charge", o.op, o.lease))
			case !ok || !q.ledger.Counts(c.end):
			case c.end == ledger.OpenEnd:
				sums[c.quota].open += c.amount
				sums[c.quota].inHand[c.class] += c.amount
			default:
				sums[c.quota].add(q, c)
			}
		}
		return true
	})
	if count != s.records.count {
		errs = append(errs, fmt.Errorf("%d operations have records, counted %d", count, s.records.count))
	}
	return append(errs, s.records.verifyDetached()...)
}

// add adds a charge whose exposure ends.
func (t *totals) add(q *quota, c *charge) {
	t.byEnd[c.end] += c.amount
	if c.overrun {
		t.overruns[c.end] += c.amount
	}
	if len(q.ledger.Used[c.class].Ends) > 0 && c.window == q.ledger.Window {
		t.listed[classEnd{int32(c.class), c.end}] += c.amount
	}
}

// verifyDetached checks that pages are found by their records, that each is checked when its first detached record is
// due, and that no other checks exist. Another check covers the order of all records.
func (rs *records) verifyDetached() (errs []error) {
	rs.detached.Scan(func(p keptPage) bool {
		check, first, last := int64(math.MaxInt64), keyOf(p.packed), operationKey{}
		for rest := p.packed; len(rest) > 0; {
			var packed []byte
			packed, rest = cut(rest)
			u := open(packed)
			last = operationKey{u.unsigned(), u.unsigned()}
			u.unsigned() // the account
			u.unsigned() // the actual part
			check = min(check, u.signed())
		}
		if rs.pageOf(first) != p.page || rs.pageOf(last) != p.page || p.last.less(last) || p.from != p.page.from {
			errs = append(errs, fmt.Errorf("page %v of detached operations, of %v to %v (its mark is %v), is at the wrong place",
				p.from, first, last, p.last))
		}
		if _, listed := rs.checks.Get(pageDue{p.check, p.from}); p.check != check || !listed {
			errs = append(errs, fmt.Errorf("page %v of detached operations is due at %d, checked by %d, listed: %t",
				p.from, check, p.check, listed))
		}
		return true
	})
	if rs.checks.Len() != rs.detached.Len() {
		errs = append(errs, fmt.Errorf("%d pages of detached operations, %d to check", rs.detached.Len(), rs.checks.Len()))
	}
	return errs
}

// verify compares a quota's running totals with recomputed ones.
func (q *quota) verify(sums *totals) error {
	g := &q.ledger
	var counted int64
	last := g.Cutoff - 1
	for _, e := range g.Log {
		counted += e.Amount
		switch {
		case e.End <= last:
			return fmt.Errorf("the log is out of order at %d", e.End)
		case e.Amount != sums.byEnd[e.End]:
			return fmt.Errorf("%d counts until %d, the parts add up to %d", e.Amount, e.End, sums.byEnd[e.End])
		case e.Amount < 0 || e.Closed < 0 || e.Closed > e.Amount || e.Overrun < 0 || e.Overrun > e.Amount:
			return fmt.Errorf("the entry that ends at %d is impossible: %+v", e.End, e)
		case e.Overrun < sums.overruns[e.End] || e.Overrun > sums.overruns[e.End]+e.Closed:
			return fmt.Errorf("of the entry that ends at %d %d is overrun, its parts add up to %d", e.End, e.Overrun, sums.overruns[e.End])
		}
		last = e.End
		delete(sums.byEnd, e.End)
	}
	for end, amount := range sums.byEnd { // in any order: one error is enough
		if amount != 0 {
			return fmt.Errorf("%d should count until %d, and does not", amount, end)
		}
	}
	for class, used := range sums.used {
		if q.rule.Kind == ledger.KindWindow && g.Used[class].Amount < used {
			return fmt.Errorf("class %d has used %d, its leases and operations %d", class, g.Used[class].Amount, used)
		}
	}
	if err := verifyUsed(g, &q.rule, sums); err != nil {
		return err
	}
	switch {
	case q.rule.Kind == ledger.KindWindow && g.UsedByAll() > g.Held+g.Consumed():
		return fmt.Errorf("classes have used %d, of which %d counts", g.UsedByAll(), g.Held+g.Consumed())
	case q.rule.Paced() && g.UsedByAll() > g.Held+g.Consumed():
		return fmt.Errorf("critical calls have used %d, and %d counts", g.UsedByAll(), g.Held+g.Consumed())
	case !q.rule.Paced() && q.pacer != pacer{}:
		return fmt.Errorf("it has no shares that slide, and a pacer: %+v", q.pacer)
	case counted != g.Counted:
		return fmt.Errorf("counted is %d, its entries add up to %d", g.Counted, counted)
	case g.Held != sums.held:
		return fmt.Errorf("held is %d, the leases hold %d", g.Held, sums.held)
	case g.Open != sums.open:
		return fmt.Errorf("open is %d, the operations add up to %d", g.Open, sums.open)
	case q.leases != sums.leases:
		return fmt.Errorf("%d leases, counted %d", q.leases, sums.leases)
	case q.waiting != sums.waiting:
		return fmt.Errorf("%d waiting, counted %d", q.waiting, sums.waiting)
	case q.ahead != sums.ahead:
		return fmt.Errorf("%+v wait ahead of others, counted %+v", q.ahead, sums.ahead)
	}
	return nil
}

// verifyUsed checks the ends of what classes have used: an amount leaves together with its entry in the log.
func verifyUsed(g *ledger.Ledger, r *ledger.Rule, sums *totals) error {
	for class := range g.Used {
		u := &g.Used[class]
		rest := u.Amount
		for _, e := range u.Ends {
			rest -= e.Amount
			i, found := g.Find(e.End)
			if !found || e.Amount > sums.listed[classEnd{int32(class), e.End}]+g.Log[i].Closed {
				return fmt.Errorf("class %d has used %d that ends at %d, its operations %d", class, e.Amount, e.End,
					sums.listed[classEnd{int32(class), e.End}])
			}
		}
		// Before levels.Counted, amounts from before a rate had shares were listed without being counted.
		if rest < 0 && !r.Paced() || r.Paced() && rest > sums.inHand[class] {
			return fmt.Errorf("class %d has used %d, of which no end says when %d ends; it holds %d", class, u.Amount, rest,
				sums.inHand[class])
		}
	}
	return nil
}

// verifyTables compares the sizes of tables that mirror each other.
func (s *State) verifyTables() error {
	var length int64
	s.queue.waitSets.Scan(func(_ uint32, ws *waitSet) bool {
		length += ws.length
		return true
	})
	waiters := s.queue.waiters.Len()
	if waiters != s.queue.order.Len() || waiters != s.queue.waitEnds.Len() || int64(waiters) != length {
		return fmt.Errorf("%d waiters, %d places, %d ends, %d in wait sets", waiters, s.queue.order.Len(), s.queue.waitEnds.Len(), length)
	}
	return nil
}

// verifyQueue checks each waiter's entries in the tables of waiters.
func (s *State) verifyQueue() (err error) {
	ageing, waiting := 0, map[string]int64{}
	s.queue.waiters.Scan(func(ticket uint64, w *waiter) bool {
		waiting[w.req.Holder]++
		_, ordered := s.queue.order.Get(w.place())
		_, ends := s.queue.waitEnds.Get(due{At: w.until, ID: ticket})
		_, listed := s.queue.waitersOf.Get(ownedBy(w.req.Holder, ticket))
		_, ages := s.queue.promotions.Get(due{At: w.promoteAt, ID: ticket})
		if w.promoteAt != 0 {
			ageing++
		}
		if !ordered || !ends || !listed || ages != (w.promoteAt != 0) {
			err = fmt.Errorf("ticket %d: in order %t, ends %t, by holder %t, ages %t at %d", ticket, ordered, ends, listed, ages, w.promoteAt)
		}
		return err == nil
	})
	if err == nil && ageing != s.queue.promotions.Len() {
		return fmt.Errorf("%d waiters age, %d are looked at", ageing, s.queue.promotions.Len())
	}
	s.holders.byName.Scan(func(name string, h *holder) bool {
		if h.waiting != waiting[name] {
			err = fmt.Errorf("%d Reserves of holder %q wait, counted %d", waiting[name], name, h.waiting)
		}
		return err == nil
	})
	return err
}

// verifyTimers checks the timers of quotas with waiters.
func (s *State) verifyTimers() (err error) {
	visits, agers := 0, 0
	s.quotas.byNumber.Scan(func(number uint32, q *quota) bool {
		if at := q.timers(); q.scheduled != (q.waiting > 0) || q.scheduled && q.scheduledAt != at {
			err = fmt.Errorf("quota %q, for which %d wait, is listed (%t) under %v, not %v", q.name, q.waiting, q.scheduled, q.scheduledAt, at)
		}
		for why, at := range q.timers() {
			if at == ledger.NoTimer {
				continue
			}
			visits++
			if _, ok := s.quotas.timers.Get(timer{kind: timerKind(why), at: at, quota: number}); !ok && err == nil {
				err = fmt.Errorf("nobody looks at quota %q at %d for reason %d", q.name, at, why)
			}
		}
		if _, ages := s.quotas.ageingQuotas.Get(number); ages != (q.waiting > 0 && q.rule.Policy.Ageing > 0) && err == nil {
			err = fmt.Errorf("quota %q ages: %t", q.name, ages)
		} else if ages {
			agers++
		}
		return err == nil
	})
	if err == nil && (visits != s.quotas.timers.Len() || agers != s.quotas.ageingQuotas.Len()) {
		return fmt.Errorf("%d visits, %d listed; %d quotas age, %d listed", visits, s.quotas.timers.Len(), agers, s.quotas.ageingQuotas.Len())
	}
	return err
}

// verifyUsage checks holder stats, meters and overrides.
func (s *State) verifyUsage() (err error) {
	overridden, used := 0, map[uint32]int64{}
	s.holders.meters.Scan(func(t *meter) bool {
		q, ok := s.quotas.byNumber.Get(t.quota)
		_, known := s.holders.byName.Get(t.holder)
		if !known || s.holders.isToForget(sweepMeters, t.place()) && !s.holders.sweep.comesBy(sweepMeters, t.place()) || t.used.Amount < 0 {
			err = fmt.Errorf("holder %q has a meter of quota %d that it should not have: %+v", t.holder, t.quota, *t)
			return false
		}
		if ok && q.rule.Policy.Meters(t.holder) && q.rule.Kind == ledger.KindWindow && t.window == q.ledger.Window {
			used[t.quota] += t.used.Since(q.ledger.Cutoff)
		}
		return true
	})
	closed := 0
	s.holders.stats.Scan(func(t *holderStats) bool {
		if _, listed := s.holders.closed.Get(t.place()); listed != (t.closedUntil != 0) && err == nil {
			err = fmt.Errorf("quota %d is closed for holder %q until %d, listed as closed: %t", t.quota, t.holder, t.closedUntil, listed)
		}
		if t.closedUntil != 0 {
			closed++
		}
		if s.holders.isToForget(sweepStats, t.place()) && !s.holders.sweep.comesBy(sweepStats, t.place()) && err == nil {
			err = fmt.Errorf("holder %q has stats of quota %d, which does not exist", t.holder, t.quota)
		}
		return err == nil
	})
	s.quotas.byNumber.Scan(func(number uint32, q *quota) bool {
		all := q.ledger.UsedByAll()
		if used[number] > all && err == nil {
			err = fmt.Errorf("holders have used %d of quota %q, its classes %d", used[number], q.name, all)
		}
		if over := q.override; over != nil {
			overridden++
			if _, ends := s.quotas.overrides.Get(due{At: over.until, ID: uint64(number)}); !ends && err == nil {
				err = fmt.Errorf("the override of quota %q never ends", q.name)
			}
		}
		return err == nil
	})
	if err == nil && closed != s.holders.closed.Len() {
		return fmt.Errorf("%d closing breakers, %d listed", closed, s.holders.closed.Len())
	}
	if err == nil && overridden != s.quotas.overrides.Len() {
		return fmt.Errorf("%d overrides, %d that end", overridden, s.quotas.overrides.Len())
	}
	return err
}
