package dedup

import (
	"errors"
	"fmt"

	"github.com/quotad/quotad/fsm/cow"
)

// maxReported bounds how many differences are reported.
const maxReported = 10

// Verify checks sessions, their results, and idempotency keys, and returns the inconsistencies.
func (t *Table) Verify() error {
	var errs []error
	kept, bytes := map[uint64]int64{}, map[uint64]int64{}
	var all int64
	t.results.Scan(func(r sessionResult) bool {
		size := sizeOf(r.result)
		all += size
		kept[r.session]++
		bytes[r.session] += size
		s := t.ownerOf(r.session)
		_, acked := t.acked.Get(r.session)
		if s == nil || !s.ended && !acked && r.seq < s.ackedBelow || r.seq == 0 || r.size != size {
			errs = append(errs, fmt.Errorf("the result of request %d of session %d, of %d bytes, should not be there: the session exists: %t",
				r.seq, r.session, r.size, s != nil))
		}
		return len(errs) < maxReported
	})
	verify := func(id uint64, s *session) bool {
		if s.kept != kept[id] || s.bytes != bytes[id] || id != s.id || id > t.Last || cow.Has(t.use, due{At: s.listed, ID: id}) == s.ended {
			errs = append(errs, fmt.Errorf("session %d has %d results of %d bytes, counted %d of %d; or it is not listed by its use",
				id, kept[id], bytes[id], s.kept, s.bytes))
		}
		return len(errs) < maxReported
	}
	t.sessions.Scan(verify)
	t.ended.Scan(verify)
	t.keys.Scan(func(key string, k keyResult) bool {
		size := sizeOf(k.result)
		all += size
		if k.size != size || !cow.Has(t.keyEnds, dueByKey{At: k.made, ID: key}) {
			errs = append(errs, fmt.Errorf("idempotency key %q, of %d bytes (counted %d), is not listed by its end", key, size, k.size))
		}
		return len(errs) < maxReported
	})
	if all != t.bytes {
		errs = append(errs, fmt.Errorf("%d bytes of results, counted %d", all, t.bytes))
	}
	return errors.Join(append(errs, cow.Mirrored("sessions by use", t.sessions.Len(), t.use.Len()),
		cow.Mirrored("keys by end", t.keys.Len(), t.keyEnds.Len()))...)
}

// VerifyFreeing checks the sessions with results that are to leave: each has some, or it would not be listed.
func (t *Table) VerifyFreeing() (err error) {
	first := func(id uint64) (found sessionResult) {
		t.results.Ascend(sessionResult{session: id}, func(r sessionResult) bool {
			found = r
			return false
		})
		return found
	}
	t.ended.Scan(func(id uint64, s *session) bool {
		if _, lives := t.sessions.Get(id); lives || s.id != id || !s.ended || !s.leaves(first(id)) || id > t.Last {
			err = fmt.Errorf("session %d has ended (%t), lives (%t), or has no results", id, s.ended, lives)
		}
		return err == nil
	})
	t.acked.Scan(func(id uint64, _ struct{}) bool {
		if s, lives := t.sessions.Get(id); !lives || !s.leaves(first(id)) {
			err = fmt.Errorf("session %d, which lives (%t), is listed with results that it acknowledged", id, lives)
		}
		return err == nil
	})
	return err
}
