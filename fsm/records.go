package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
)

// records has the records of operations that left their leases: those that are still to be dealt with, as they were, and then, detached and
// in pages, those that count until they stop. It also counts those that leases have. What is charged by a record is for amounts to say.
type records struct {
	*moment
	amounts *amounts
	// book has the accounts that are charged with records.
	book *accounts.Book
	// detached are the records of ended leases, in pages; checks hold when to look at a page again.
	detached *cow.Set[keptPage]
	checks   *cow.Set[pageDue]
	// retiring are the leases with records that are still to leave them; retiredLast is the one of them that was the last to have some
	// retired, 0 where there is none.
	retiring    *cow.Map[uint64, *retiring]
	retiredLast uint64
	// count is how many records there are, of leases that live and of those that have ended.
	count int64
	// packing is room for detached records that are packed, looked for one that is looked at.
	packing []byte
	looked  operation
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
