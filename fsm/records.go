package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
)

// records has the records of operations that left their leases. Records to be retired are kept unchanged; then those
// that count are detached, in pages, until they stop counting. It also counts the records within leases. amounts
// decides the charges of a record.
type records struct {
	*moment
	amounts *amounts
	// book has the accounts that are charged with records.
	book *accounts.Book
	// detached are the records of ended leases, in pages; checks hold when to check a page again.
	detached *cow.Set[keptPage]
	checks   *cow.Set[pageDue]
	// retiring are the leases with records that are still to leave them. retiredLast is the lease among them that was
	// processed last, 0 for none.
	retiring    *cow.Map[uint64, *retiring]
	retiredLast uint64
	// count is the number of records, of live and of ended leases.
	count int64
	// packing is scratch space for packing records, looked for reading one.
	packing []byte
	scanned operation
}

func newRecords() *records {
	return &records{detached: cow.NewSet(lessPage), checks: cow.NewSet(lessPageDue), retiring: new(cow.Map[uint64, *retiring])}
}

// copy returns records that share everything until one of the two changes.
func (rs *records) copy() *records {
	return &records{
		detached: rs.detached.Copy(), checks: rs.checks.Copy(), retiring: rs.retiring.Copy(), retiredLast: rs.retiredLast, count: rs.count,
	}
}
