package fsm

import (
	"errors"
	"fmt"
)

// totals are a quota's sums, recomputed.
type totals struct {
	held, open, leases, waiting int64
	// byEnd are the amounts in the log, by end.
	byEnd map[int64]int64
	// used is by class: what is held and consumed of the present window, as far as its records exist.
	used [classes]int64
}

// Verify recomputes all totals from single leases, operations and waiters and returns the differences, nil for none.
func (s *State) Verify() error {
	sums := map[uint32]*totals{}
	s.quotas.Scan(func(number uint32, q *quota) bool {
		sums[number] = &totals{byEnd: map[int64]int64{}}
		for _, e := range q.ledger.log {
			sums[number].byEnd[e.end] = e.closed
		}
		return true
	})
	s.sumLeases(sums)
	var errs []error
	errs = append(errs, s.sumOperations(sums)...)
	s.lanesOf.Scan(func(ql quotaLane) bool {
		l, _ := s.lanes.Get(ql.lane)
		sums[ql.quota].waiting += l.length
		return true
	})
	s.quotas.Scan(func(number uint32, q *quota) bool {
		if err := q.verify(sums[number]); err != nil {
			errs = append(errs, fmt.Errorf("quota %q: %w", q.name(), err))
		}
		return true
	})
	return errors.Join(append(errs, s.verifyTables(), s.verifyTasks())...)
}

func (s *State) sumLeases(sums map[uint32]*totals) {
	s.leases.Scan(func(_ uint64, l *lease) bool {
		for i := range l.items {
			if q, ok := s.quotas.Get(l.items[i].quota); ok {
				held := l.items[i].heldOf(q)
				sums[q.number].held += held
				sums[q.number].used[l.class] += held
				sums[q.number].leases++
			}
		}
		return true
	})
}

func (s *State) sumOperations(sums map[uint32]*totals) (errs []error) {
	s.ops.Scan(func(o *operation) bool {
		for i := range o.charges {
			c := &o.charges[i]
			q, ok := s.quotas.Get(c.quota)
			if ok && c.window == q.ledger.window {
				sums[c.quota].used[c.class] += c.amount
			}
			switch {
			case c.amount < 0:
				errs = append(errs, fmt.Errorf("operation %d of lease %d has a negative charge", o.op, o.lease))
			case !ok || !q.ledger.counts(c.end):
			case c.end == openEnd:
				sums[c.quota].open += c.amount
			default:
				sums[c.quota].byEnd[c.end] += c.amount
			}
		}
		return true
	})
	return errs
}

// verify compares a quota's running totals with recomputed ones.
func (q *quota) verify(sums *totals) error {
	g := &q.ledger
	var counted int64
	last := g.cutoff - 1
	for _, e := range g.log {
		counted += e.amount
		switch {
		case e.end <= last:
			return fmt.Errorf("the log is out of order at %d", e.end)
		case e.amount != sums.byEnd[e.end]:
			return fmt.Errorf("%d counts until %d, the parts add up to %d", e.amount, e.end, sums.byEnd[e.end])
		case e.amount < 0 || e.closed < 0 || e.closed > e.amount || e.overrun < 0 || e.overrun > e.amount:
			return fmt.Errorf("the entry that ends at %d is impossible: %+v", e.end, e)
		}
		last = e.end
		delete(sums.byEnd, e.end)
	}
	for end, amount := range sums.byEnd { // any one will do
		if amount != 0 {
			return fmt.Errorf("%d should count until %d, and does not", amount, end)
		}
	}
	for class, used := range sums.used {
		if q.rule.kind == kindWindow && g.used[class] < used {
			return fmt.Errorf("class %d has used %d, its leases and operations %d", class, g.used[class], used)
		}
	}
	switch {
	case counted != g.counted:
		return fmt.Errorf("counted is %d, its entries add up to %d", g.counted, counted)
	case g.held != sums.held:
		return fmt.Errorf("held is %d, the leases hold %d", g.held, sums.held)
	case g.open != sums.open:
		return fmt.Errorf("open is %d, the operations add up to %d", g.open, sums.open)
	case q.leases != sums.leases:
		return fmt.Errorf("%d leases, counted %d", q.leases, sums.leases)
	case q.waiting != sums.waiting:
		return fmt.Errorf("%d waiting, counted %d", q.waiting, sums.waiting)
	}
	return nil
}

// verifyTables compares the sizes of tables that mirror each other.
func (s *State) verifyTables() error {
	var length, bytes int64
	s.lanes.Scan(func(_ uint32, l *lane) bool {
		length += l.length
		return true
	})
	s.results.Scan(func(r stored) bool {
		bytes += sizeOf(r.result)
		return true
	})
	s.keys.Scan(func(_ string, k keyed) bool {
		bytes += sizeOf(k.result)
		return true
	})
	var steps, reviewed, due, placed int
	s.workflows.Scan(func(name string, w *workflow) bool {
		steps += len(w.steps)
		if _, ok := s.reviews.Get(keyDue{at: w.due, key: name}); ok {
			reviewed++
		}
		if w.due != 0 {
			due++
		}
		return true
	})
	s.stepsOf.Scan(func(_ string, of []stepOf) bool {
		placed += len(of)
		return true
	})
	switch {
	case steps != placed, due != reviewed, due != s.reviews.Len():
		return fmt.Errorf("%d steps of workflows, %d by holder; %d due, %d of %d looked at", steps, placed, due, reviewed, s.reviews.Len())
	case s.leases.Len() != s.deadlines.Len(), s.leases.Len() != s.ofHolder.Len():
		return fmt.Errorf("%d leases, %d deadlines, %d by holder", s.leases.Len(), s.deadlines.Len(), s.ofHolder.Len())
	case s.waiters.Len() != s.order.Len(), s.waiters.Len() != s.waitEnds.Len(), int64(s.waiters.Len()) != length:
		return fmt.Errorf("%d waiters, %d places, %d ends, %d in lanes", s.waiters.Len(), s.order.Len(), s.waitEnds.Len(), length)
	case s.resultBytes != bytes:
		return fmt.Errorf("%d bytes of results, counted %d", s.resultBytes, bytes)
	}
	return nil
}
