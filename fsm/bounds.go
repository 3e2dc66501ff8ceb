package fsm

// No entry of the log does more than a bounded amount of work, however much its commands, or what is due, would have it do: what it cannot
// carry out follows with the next entries, in an order that the state alone decides. What a command ends is over for every caller at once; only
// what it held or occupied comes back in steps. What is left to do is part of the state, and as long as there is some an entry is due at
// once (firstDue). docs/decisions/0029-bounded-entries.md has what bounds each command and each duty.

// bound is how much of one kind of work an entry carries out for all of its commands together.
type bound struct {
	most int
	// left is how much more the present entry does.
	left int
}

// begin begins an entry.
func (b *bound) begin() { b.left = b.most }

// own returns how much a command may carry out itself: all that is left, and a little where others have used that up.
func (b *bound) own(least int) int { return max(b.left, min(least, b.most)) }

// allows tells whether a command whose own part is so much may carry out a step that takes its work to done. The first step is
// always allowed while the entry has something left, so that no step is too large to be ever carried out.
func (b *bound) allows(done, own int, first bool) bool { return done <= own || first && b.left > 0 }

// part returns how much of an entry's work one step of a command may have, so that the others have some too: a sixteenth, and a little more where
// that is less.
func (b *bound) part(least int) int { return min(b.own(least), max(b.most/16, min(least, b.most))) }

// leaveHalf has at least half of it left: for commands, whatever was due.
func (b *bound) leaveHalf() { b.left = max(b.left, b.most/2) }

// half does some of the work with half of what is left: what follows needs some too.
func (b *bound) half(work func()) {
	kept := b.left / 2
	b.left -= kept
	work()
	b.left += kept
}

// spend records that so much was carried out.
func (b *bound) spend(done int) { b.left = max(b.left-done, 0) }

// bounds are those of an entry. A test that makes them small has most work left to the entries that follow.
type bounds struct {
	// ends are the items and records, with the charges of these, of leases that end, and of operations with which a holder is finished.
	ends bound
	// resumes are leases that are ended for holders that resume.
	resumes bound
	// serves are items of waiters that leave the queue because something came free.
	serves bound
	// tries are waiters and wait sets that a pass over the queue examines, by their quotas. A pass that has begun is finished.
	tries bound
	// walks are waiters of steps of workflows, by their items, that are gone through, to find what to look at again.
	walks bound
	// frees are results that leave because their session ended, or acknowledged them.
	frees bound
	// waits are waiters, by their items, that leave the queue or are promoted because their time has come.
	waits bound
	// reopens are steps of workflows, and breakers, that are examined because an operator reopened a quota.
	reopens bound
	// refusals are waiters, by their items, that leave because a quota of theirs was deleted.
	refusals bound
	// looks are waiters, by their quotas, that are looked at for who is first in line.
	looks bound
	// moves are waiters, by their items, that are reordered because their holder's virtual time changed.
	moves bound
	// sweeps are holder stats and meters that are examined because a quota no longer counts some of them.
	sweeps bound
}

func newBounds() bounds {
	return bounds{
		ends: bound{most: maxEndedPerEntry}, resumes: bound{most: maxResumedPerEntry}, serves: bound{most: maxServedPerEntry},
		tries: bound{most: maxTriedPerEntry}, looks: bound{most: maxLookedPerEntry},
		waits: bound{most: maxWaitsPerEntry}, reopens: bound{most: maxReopenedPerEntry}, walks: bound{most: maxWalkedPerEntry},
		frees:    bound{most: maxFreedPerEntry},
		refusals: bound{most: maxRefusedPerEntry}, moves: bound{most: maxMovedPerEntry}, sweeps: bound{most: maxSweptPerEntry},
	}
}

// begin begins an entry.
func (b *bounds) begin() {
	for _, one := range []*bound{
		&b.ends, &b.waits, &b.reopens, &b.resumes, &b.serves, &b.tries, &b.looks, &b.walks, &b.frees, &b.refusals, &b.moves, &b.sweeps,
	} {
		one.begin()
	}
}

// unfinished tells whether entries before this one left something that the next one goes on with.
func (s *State) unfinished() bool {
	return s.records.retiring.Len() > 0 || s.reopening.Len() > 0 || s.resumed.Len() > 0 ||
		s.requests.Unfinished() || s.quotas.deleted.Len() > 0 || s.queue.moving.Len() > 0 || s.holders.sweep.table != sweepNothing
}
