package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// A deleted quota is gone at once: no command finds it, and its waiters are granted nothing. They leave the queue in
// steps: some with the deletion itself, the rest with the following entries. Until then their wait set keeps the
// quota's number. No other quota ever gets that number, not even one created under the same name.

// maxRefusedPerEntry bounds how many waiters leave in one entry because of deleted quotas. leastRefused is how many a
// deletion refuses itself when earlier commands of the entry have used up that bound.
const (
	maxRefusedPerEntry = maxDuePerEntry
	leastRefused       = 16
)

// refuseWaiters refuses all waiters of a quota that is being deleted.
func (m *Machine) refuseWaiters(q *quota) {
	waiting := q.waiting
	q.waiting = 0 // so that no pass examines it again
	m.quotas.schedule(q)
	if waiting > 0 {
		m.quotas.deleted.Set(q.number, q.name)
		m.refuseSome(q.number, q.name, m.bounds.refusals.own(leastRefused))
	}
}

// refuseDeleted continues to refuse the waiters of deleted quotas, in the order of the quotas' numbers.
func (m *Machine) refuseDeleted() {
	for m.bounds.refusals.left > 0 {
		number, name, ok := m.quotas.deleted.Min()
		if !ok {
			return
		}
		m.refuseSome(number, name, m.bounds.refusals.left)
	}
}

// refuseSome refuses up to most waiters of a deleted quota.
func (m *Machine) refuseSome(number uint32, name string, most int) {
	waiting, more := m.queue.waitersFor(number, most)
	if !more {
		m.quotas.deleted.Delete(number)
	}
	for _, w := range waiting {
		m.refuseFor(w, name)
	}
	for _, w := range waiting {
		m.bounds.refusals.spend(w.cost())
	}
}

// refuseFor refuses a waiter because a quota was deleted. The quota's meters are dropped, and no quota of the same name
// counts the refusal.
func (m *Machine) refuseFor(w *waiter, name string) {
	m.finishWait(w, &logpb.Refusal{Reason: logpb.Reason_REASON_SUSPENDED, Quota: name, Advice: "the quota was deleted"})
}

// lostQuota returns the name of a deleted quota for which a waiter is still queued, if there is one.
func (qu *queue) lostQuota(w *waiter) (name string, lost bool) {
	if qu.quotas.deleted.Len() == 0 {
		return "", false
	}
	ws, _ := qu.waitSets.Get(w.waitSet)
	for _, number := range ws.quotas {
		if name, lost = qu.quotas.deleted.Get(number); lost {
			return name, true
		}
	}
	return "", false
}

// wasDeleted reports whether a number belongs to a deleted quota that still has waiters.
func (qs *quotaTable) wasDeleted(number uint32) bool {
	_, deleted := qs.deleted.Get(number)
	return deleted
}

// waitersFor returns waiters for a quota or its descendants, by wait set and place, and whether there are more. They
// have up to most items; only the last waiter may exceed that.
func (qu *queue) waitersFor(number uint32, most int) (waiting []*waiter, more bool) {
	cost := 0
	qu.waitSetsOf.Ascend(quotaWaitSet{quota: number}, func(pair quotaWaitSet) bool {
		if pair.quota != number {
			return false
		}
		qu.order.Ascend(place{waitSet: pair.waitSet, rank: rankStarved}, func(p place) bool {
			if p.waitSet != pair.waitSet {
				return false
			}
			if more = cost >= most; !more {
				w, _ := qu.waiters.Get(p.ticket)
				cost += w.cost()
				waiting = append(waiting, w)
			}
			return !more
		})
		return !more
	})
	return waiting, more
}

// deletedRecords are the deleted quotas that still have waiters, and the position of the sweep of holder stats and
// meters.
func (s *State) deletedRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.quotas.deleted.Scan(func(number uint32, name string) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_DeletedQuota{DeletedQuota: &logpb.SnapshotDeletedQuota{
			Number: number, Name: name,
		}}})
		return going
	})
	if going && s.holders.sweep.table != sweepNothing {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Sweep{Sweep: s.holders.sweep.encode()}})
	}
	return going
}

// verifyDeleted checks the numbers of deleted quotas, and that every wait set is for quotas that exist or were deleted.
func (s *State) verifyDeleted() (err error) {
	s.quotas.deleted.Scan(func(number uint32, name string) bool {
		if _, exists := s.quotas.byNumber.Get(number); exists || number == 0 || number > s.quotas.last || name == "" {
			err = fmt.Errorf("quota %d (%q) was deleted, and exists or never did", number, name)
		}
		return err == nil
	})
	s.queue.waitSetsOf.Scan(func(of quotaWaitSet) bool {
		_, exists := s.quotas.byNumber.Get(of.quota)
		if _, deleted := s.quotas.deleted.Get(of.quota); !exists && !deleted {
			err = fmt.Errorf("wait set %d is for quota %d, which does not exist", of.waitSet, of.quota)
		}
		return err == nil
	})
	return err
}
