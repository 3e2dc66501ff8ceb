package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// A resume ends all older leases of a holder at once: from then on every command finds them ended. Their amounts return
// in steps, since an entry must not take longer than others. As much as an entry may end returns with the resume
// itself, and the rest with the following entries.

// maxResumedPerEntry bounds how many leases one entry ends for holders that resume. leastResumed is how many a resume
// ends itself when earlier commands have used up that bound.
const (
	maxResumedPerEntry = maxDuePerEntry
	leastResumed       = 16
)

// resume ends all leases of a holder. The holder has restarted, so its slots become free at once, without grace.
func (m *Machine) resume(name string) {
	m.resumed.Set(name, m.lastLease)
	m.endResumedOf(name, m.bounds.resumes.own(leastResumed))
}

// endResumed continues unfinished resumes, in the order of holders.
func (m *Machine) endResumed() {
	for m.bounds.resumes.left > 0 && m.bounds.ends.left > 0 {
		name, _, ok := m.resumed.Min()
		if !ok {
			return
		}
		m.endResumedOf(name, m.bounds.resumes.left)
	}
}

// endResumedOf ends up to most leases that a holder's resume ended.
func (m *Machine) endResumedOf(name string, most int) {
	upTo, _ := m.resumed.Get(name)
	ids := m.ending[:0]
	more, cost, own := false, 0, m.bounds.ends.own(leastEnded)
	m.eachLeaseOf(name, 0, func(l *lease) bool {
		cost += endCost(l)
		if more = l.id <= upTo && (len(ids) == most || !m.bounds.ends.allows(cost, own, len(ids) == 0)); more || l.id > upTo {
			return false
		}
		ids = append(ids, l.id)
		return true
	})
	m.ending = ids
	if !more {
		m.resumed.Delete(name)
	}
	for _, id := range ids {
		l, _ := m.leases.Get(id)
		m.endLease(m.editLease(l), effect.EventRevoked, false)
	}
	m.bounds.resumes.spend(len(ids))
}

// gone reports whether a lease was ended by its holder's resume, although its amounts have not returned yet.
func (s *State) gone(l *lease) bool {
	if s.resumed.Len() == 0 {
		return false
	}
	upTo, _ := s.resumed.Get(l.holder)
	return l.id <= upTo
}

// resumeRecords are the unfinished resumes.
func (s *State) resumeRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.resumed.Scan(func(name string, upTo uint64) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Resume{Resume: &logpb.SnapshotResume{Holder: name, UpTo: upTo}}})
		return going
	})
	return going
}

// verifyResumed checks the unfinished resumes.
func (s *State) verifyResumed() (err error) {
	s.resumed.Scan(func(name string, upTo uint64) bool {
		if name == "" || upTo == 0 || upTo > s.lastLease {
			err = fmt.Errorf("holder %q resumed after lease %d, which was not given out", name, upTo)
		}
		return err == nil
	})
	return err
}
