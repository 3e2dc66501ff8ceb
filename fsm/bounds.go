package fsm

// Each log entry does a bounded amount of work, however much its commands request and however much is due. The rest
// follows with the next entries, in an order that only the state decides. Whatever a command ends has ended for every
// caller at once; its amounts and places return in steps. Unfinished work is part of the state, and makes an entry due
// at once (firstDue). docs/decisions/0029-bounded-entries.md lists the bounds of each command and each duty.

// bound is how much of one kind of work an entry carries out for all of its commands together.
type bound struct {
	most int
	// left is the work that the present entry may still do.
	left int
}

// begin resets the bound for a new entry.
func (b *bound) begin() { b.left = b.most }

// own returns how much a command may carry out itself: all that is left, and at least a minimum if others used it up.
func (b *bound) own(least int) int { return max(b.left, min(least, b.most)) }

// allows reports whether a command with the budget own may carry out a step that raises its work to done. The first
// step is always allowed while the entry has something left, so no step is too large to run.
func (b *bound) allows(done, own int, first bool) bool { return done <= own || first && b.left > 0 }

// part returns how much work one step of a command may take, so that other steps get some too: a sixteenth of the
// entry's bound, or least if that is more.
func (b *bound) part(least int) int { return min(b.own(least), max(b.most/16, min(least, b.most))) }

// leaveHalf keeps at least half of the bound for commands, however much was due.
func (b *bound) leaveHalf() { b.left = max(b.left, b.most/2) }

// half runs work with half of the remaining bound, and keeps the rest for later work.
func (b *bound) half(work func()) {
	kept := b.left / 2
	b.left -= kept
	work()
	b.left += kept
}

// spend records that done units of work were carried out.
func (b *bound) spend(done int) { b.left = max(b.left-done, 0) }

// bounds are the bounds of an entry. A test that lowers them leaves most work to the following entries.
type bounds struct {
	// ends are items, records and charges of leases that end, and of operations that a holder has finished.
	ends bound
	// resumes are leases that are ended for holders that resume.
	resumes bound
	// serves are items of waiters that leave the queue because amounts became free.
	serves bound
	// tries are waiters and wait sets, by their quotas, that a pass over the queue examines. A pass that has begun is
	// finished.
	tries bound
	// walks are waiters of workflow steps, by their items, visited to find waiters to check again.
	walks bound
	// frees are results that leave because their session ended, or acknowledged them.
	frees bound
	// waits are waiters, by their items, that leave the queue or are promoted because their time has come.
	waits bound
	// reopens are workflow steps and breakers examined because an operator reopened a quota.
	reopens bound
	// refusals are waiters, by their items, that leave because one of their quotas was deleted.
	refusals bound
	// scans are waiters, by their quotas, examined to find the first in line.
	scans bound
	// moves are waiters, by their items, that are reordered because their holder's virtual time changed.
	moves bound
	// sweeps are holder stats and meters examined because a quota no longer counts some of them.
	sweeps bound
}

func newBounds() bounds {
	return bounds{
		ends: bound{most: maxEndedPerEntry}, resumes: bound{most: maxResumedPerEntry}, serves: bound{most: maxServedPerEntry},
		tries: bound{most: maxTriedPerEntry}, scans: bound{most: maxScannedPerEntry},
		waits: bound{most: maxWaitsPerEntry}, reopens: bound{most: maxReopenedPerEntry}, walks: bound{most: maxWalkedPerEntry},
		frees:    bound{most: maxFreedPerEntry},
		refusals: bound{most: maxRefusedPerEntry}, moves: bound{most: maxMovedPerEntry}, sweeps: bound{most: maxSweptPerEntry},
	}
}

// begin resets all bounds for a new entry.
func (b *bounds) begin() {
	for _, one := range []*bound{
		&b.ends, &b.waits, &b.reopens, &b.resumes, &b.serves, &b.tries, &b.scans, &b.walks, &b.frees, &b.refusals, &b.moves, &b.sweeps,
	} {
		one.begin()
	}
}

// unfinished reports whether earlier entries left work for the next one.
func (s *State) unfinished() bool {
	return s.records.retiring.Len() > 0 || s.reopening.Len() > 0 || s.resumed.Len() > 0 ||
		s.requests.Unfinished() || s.quotas.deleted.Len() > 0 || s.queue.moving.Len() > 0 || s.holders.sweep.table != sweepNothing
}
