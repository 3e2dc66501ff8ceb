package fsm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tidwall/btree"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// When a lease ends, or its holder finishes operations, their records leave it at once: no command finds them there.
// Their charges are processed in steps, as many as the entry may, and the rest with the following entries. Until then a
// record stays unchanged: it counts, its exposure lasts, and its account is charged with it.

// maxEndedPerEntry bounds the items, records and charges that one entry processes because leases end. leastEnded is how
// much of that a command does itself when earlier commands have used up that bound.
const (
	maxEndedPerEntry = 8 * maxDuePerEntry
	leastEnded       = 32
)

// retiring is the records that are still to leave a lease, live or ended.
type retiring struct {
	cow.Made
	lease uint64
	// deadline is the lease's when the records began to leave.
	deadline int64
	// doneBelow: operations below it are finished. The others were not when their lease ended, and may get one upward
	// Settle.
	doneBelow uint64
	account   uint64
	// list is in the order of numbers.
	list []*operation
}

// find returns where an operation's record is, or would be inserted.
func (r *retiring) find(op uint64) (int, bool) {
	return slices.BinarySearchFunc(r.list, op, func(o *operation, op uint64) int { return cmp.Compare(o.op, op) })
}

// detachRecords retires the records of a lease that has ended.
func (m *Machine) detachRecords(l *lease) {
	list := l.records()
	if len(list) == 0 {
		return
	}
	if left := m.records.retire(l, list, l.doneBelow(), 0); left {
		l.operations = nil // its records must not be reused
	}
}

// finishBelow sets a client's low-water mark: operations below it are finished. It frees at least freeing bytes of
// records at once, if there are as many.
func (m *Machine) finishBelow(l *lease, mark uint64, freeing int64) {
	if mark <= l.doneBelow() {
		return
	}
	kept := m.editOperations(l)
	kept.doneBelow = mark
	finished, _ := l.find(mark)
	m.records.retire(l, kept.list[:finished], mark, freeing)
	if kept.list = slices.Delete(kept.list, 0, finished); len(kept.list) == 0 {
		l.operations = &operations{Made: cow.In(m.generation), doneBelow: mark} // without the capacity of the first
	}
}

// retire processes records of a lease, within the command's bound, and frees at least freeing bytes. Records below mark
// are finished. It reports whether some are left.
func (rs *records) retire(l *lease, list []*operation, mark uint64, freeing int64) (left bool) {
	own := rs.bounds.ends.own(leastEnded)
	if r, ok := rs.retiring.Get(l.id); ok {
		r = rs.editRetiring(r)
		r.deadline, r.doneBelow, r.list = l.deadline, mark, append(r.list, list...)
		rs.retireSome(r, own, freeing)
		return true
	}
	done := rs.retireUpTo(list, l.deadline, mark, own, freeing)
	if done == len(list) {
		return false
	}
	rs.retiring.Set(l.id, &retiring{
		Made: cow.In(rs.generation), lease: l.id, deadline: l.deadline, doneBelow: mark, account: l.account, list: slices.Clone(list[done:]),
	})
	return true
}

// retireUpTo processes records in order, up to the work own, or until freeing bytes are freed, and returns how many.
func (rs *records) retireUpTo(list []*operation, deadline int64, mark uint64, own int, freeing int64) (count int) {
	done := 0
	for _, o := range list {
		cost := 1 + len(o.charges)
		if freeing <= 0 && !rs.bounds.ends.allows(done+cost, own, done == 0) {
			break
		}
		done += cost
		freeing -= o.size()
		rs.retireOne(o, deadline, mark)
		count++
	}
	rs.bounds.ends.spend(done)
	return count
}

// retireOne processes a record that leaves its lease. A final record is dropped. One that counts is detached until it
// stops counting, so that it can get one upward Settle. An open exposure ends one longest call after the deadline.
func (rs *records) retireOne(o *operation, deadline int64, mark uint64) {
	rs.countRecord(o, -1)
	if !o.MadeIn(rs.generation) {
		c := *o
		c.charges = append(c.single[:0], o.charges...)
		c.Made = cow.In(rs.generation)
		o = &c
	}
	rs.amounts.endExposure(o, max(deadline-rs.clock.Now, 0))
	if o.op < mark || o.actual != 0 || !rs.amounts.stillCounts(o) {
		rs.amounts.closeRecord(o)
		return
	}
	o.check = rs.amounts.nextCheck(o)
	rs.keepDetached(o)
}

// retireMore continues with records that are still to leave, one round over the leases from the one after the last,
// within the entry's bound. So a lease that adds records with every entry does not delay the leases after it.
func (rs *records) retireMore() {
	last := rs.retiredLast
	rs.retireAfter(last, 0)
	if last != 0 {
		rs.retireAfter(0, last)
	}
}

// retireAfter processes the leases between after and upTo (0: no end).
func (rs *records) retireAfter(after, upTo uint64) {
	for rs.bounds.ends.left > 0 {
		r := rs.retiringAfter(after)
		if r == nil || upTo != 0 && r.lease > upTo {
			return
		}
		after, rs.retiredLast = r.lease, r.lease
		rs.retireSome(rs.editRetiring(r), rs.bounds.ends.left, 0)
	}
}

// retiringAfter returns the records that are still to leave the next lease after one; nil: none.
func (rs *records) retiringAfter(after uint64) (found *retiring) {
	rs.retiring.Ascend(after+1, func(_ uint64, r *retiring) bool {
		found = r
		return false
	})
	return found
}

// retireSome processes some of the records that are still to leave a lease.
func (rs *records) retireSome(r *retiring, own int, freeing int64) {
	count := rs.retireUpTo(r.list, r.deadline, r.doneBelow, own, freeing)
	clear(r.list[:count])
	r.list = r.list[count:]
	rs.dropRetired(r)
}

// dropRetired removes a lease from retiring once all records have left it.
func (rs *records) dropRetired(r *retiring) {
	if len(r.list) > 0 {
		return
	}
	if rs.retiring.Delete(r.lease); rs.retiring.Len() == 0 {
		rs.retiredLast = 0
	}
}

// editRetiring returns the records that are still to leave a lease, for update.
func (rs *records) editRetiring(r *retiring) *retiring {
	r, copied := cow.Edit(rs.retiring, r.lease, r, rs.generation)
	if copied {
		r.list = slices.Clone(r.list)
	}
	return r
}

// retiringRecord returns the record of an ended lease's operation that is still to be detached; nil: none.
func (rs *records) retiringRecord(lease, op uint64) *operation {
	r, ok := rs.retiring.Get(lease)
	if !ok || op < r.doneBelow {
		return nil
	}
	if at, found := r.find(op); found {
		return r.list[at]
	}
	return nil
}

// detachNow detaches one record of an ended lease at once, if it is still to be detached.
func (rs *records) detachNow(lease, op uint64) {
	o := rs.retiringRecord(lease, op)
	if o == nil {
		return
	}
	r, _ := rs.retiring.Get(lease)
	r = rs.editRetiring(r)
	at, _ := r.find(op)
	r.list = slices.Delete(r.list, at, at+1)
	rs.retireOne(o, r.deadline, r.doneBelow)
	rs.dropRetired(r)
}

// attached iterates over the records that are not detached, by lease and number: those within live leases, and those
// that are still to leave one.
type attached struct {
	leases              btree.MapIter[uint64, *lease]
	retiring            btree.MapIter[uint64, *retiring]
	moreLeases, moreOut bool
	list                []*operation
}

func (s *State) attached() *attached {
	a := &attached{leases: s.leases.Iter(), retiring: s.records.retiring.Iter()}
	a.moreLeases, a.moreOut = a.leases.First(), a.retiring.First()
	a.fill()
	return a
}

// fill finds the next lease with records. Records that leave a live lease come before those that it keeps.
func (a *attached) fill() {
	for len(a.list) == 0 && (a.moreLeases || a.moreOut) {
		if a.moreOut && (!a.moreLeases || a.retiring.Key() <= a.leases.Key()) {
			a.list, a.moreOut = a.retiring.Value().list, a.retiring.Next()
		} else {
			a.list, a.moreLeases = a.leases.Value().records(), a.leases.Next()
		}
	}
}

// eachBelow calls fn for the remaining records before a key, until fn returns false.
func (a *attached) eachBelow(key operationKey, fn func(*operation) bool) bool {
	for len(a.list) > 0 && (operationKey{a.list[0].lease, a.list[0].op}).less(key) {
		o := a.list[0]
		if a.list = a.list[1:]; len(a.list) == 0 {
			a.fill()
		}
		if !fn(o) {
			return false
		}
	}
	return true
}

// encodeRetiring encodes the leases that records are still to leave.
func (rs *records) encodeRetiring(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	rs.retiring.Scan(func(_ uint64, r *retiring) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Retiring{Retiring: &logpb.SnapshotRetiring{
			Lease: r.lease, DeadlineNs: r.deadline, DoneBelow: r.doneBelow, Account: r.account,
		}}})
		return going
	})
	return going
}

// takeRetiring enters a lease that records are still to leave; the records follow.
func (r *restoring) takeRetiring(encoded *logpb.SnapshotRetiring) error {
	if encoded.Lease == 0 || encoded.Lease > r.m.lastLease || encoded.DeadlineNs < 0 {
		return fmt.Errorf("records of lease %d, until %d, which there cannot be", encoded.Lease, encoded.DeadlineNs)
	}
	r.m.records.retiring.Set(encoded.Lease, &retiring{
		Made: cow.In(r.m.generation), lease: encoded.Lease, deadline: encoded.DeadlineNs, doneBelow: encoded.DoneBelow, account: encoded.Account,
	})
	return nil
}

// retires reports whether a record is still to leave its lease; lives says that the lease is live.
func (r *retiring) retires(op uint64, lives bool) bool {
	return r != nil && (op < r.doneBelow || !lives)
}

// verifyRetiring checks the leases that records are still to leave: each has some, and a live lease only finished ones.
func (s *State) verifyRetiring() (err error) {
	if s.records.retiring.Len() == 0 && s.records.retiredLast != 0 || s.records.retiredLast > s.lastLease {
		return fmt.Errorf("records of lease %d left last, and %d leases have some that are to leave", s.records.retiredLast,
			s.records.retiring.Len())
	}
	s.records.retiring.Scan(func(id uint64, r *retiring) bool {
		l, lives := s.leases.Get(id)
		switch {
		case r.lease != id || len(r.list) == 0 || id > s.lastLease:
			err = fmt.Errorf("lease %d (%d) has %d records that are to leave", id, r.lease, len(r.list))
		case lives && (l.doneBelow() != r.doneBelow || r.list[len(r.list)-1].op >= r.doneBelow || l.account != r.account):
			err = fmt.Errorf("lease %d lives, and unfinished records are to leave it", id)
		}
		return err == nil
	})
	return err
}
