package fsm

import "fmt"

// maxFree is how many objects of a kind are kept for reuse: as many as usual entries end and grant.
const maxFree = 4096

// maxFreeRoom is the largest capacity of a reused list of records; one record is used. Most leases have no more.
const maxFreeRoom = 4

// freeList holds the objects of ended leases for the next leases. The grants of an entry need as many as it ends, and
// those objects are still in the processor's caches. They are of the present generation, so no frozen State shares
// them. Nothing else may keep a lease, or a record of its operations, beyond its end.
type freeList struct {
	// most is how many of a kind are kept.
	most       int
	leases     []*lease
	operations []*operations
}

// lease returns an empty lease.
func (s *freeList) lease() *lease {
	last := len(s.leases) - 1
	if last < 0 {
		return new(lease)
	}
	l := s.leases[last]
	s.leases = s.leases[:last]
	return l
}

// firstOperation returns an empty list of a lease's records, and an empty object for the first one.
func (s *freeList) firstOperation() (*operations, *operation) {
	last := len(s.operations) - 1
	if last < 0 {
		first := &firstOperation{}
		first.list = first.single[:0]
		return &first.operations, &first.operation
	}
	kept := s.operations[last]
	s.operations = s.operations[:last]
	o := kept.list[0]
	kept.list = kept.list[:0]
	return kept, o
}

// keep takes back the objects of an ended lease of the present generation.
func (s *freeList) keep(l *lease, generation uint64) {
	if !l.MadeIn(generation) {
		panic(fmt.Sprintf("fsm: lease %d ended, and a frozen state may have it", l.id))
	}
	if kept := l.operations; kept != nil && len(s.operations) < s.most && kept.MadeIn(generation) &&
		len(kept.list) == 1 && cap(kept.list) <= maxFreeRoom && kept.list[0].MadeIn(generation) {
		*kept.list[0] = operation{}
		*kept = operations{list: kept.list[:1:1]}
		s.operations = append(s.operations, kept)
	}
	if *l = (lease{}); len(s.leases) < s.most {
		s.leases = append(s.leases, l)
	}
}
