package client

import (
	"errors"
	"slices"
	"time"
)

// take takes units from the current batch, without a lock if there are enough.
func (l *Limiter) take(n int64) bool {
	now := l.now()
	if now >= l.deadline.Load() || now-l.checked.Load() >= checkEvery || n > mostUnits {
		return l.takeSlow(n)
	}
	word := l.word.Add(-uint64(n))
	if unitsOf(word) > l.low.Load() {
		return true
	}
	return l.takeLow(n, word)
}

// takeLow completes a take that left few units or too few.
func (l *Limiter) takeLow(n int64, word uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if unitsOf(word) >= 0 {
		l.anticipateLocked()
		return true
	}
	if b := l.current; b != nil && b.generation == word>>generationShift {
		l.word.Add(uint64(n))
	} else if got := unitsOf(word) + n; got > 0 {
		// The batch ended meanwhile, and this take had its last units.
		l.forfeitLocked(got)
	}
	return l.takeLocked(n, l.now())
}

// takeSlow takes units under the lock.
func (l *Limiter) takeSlow(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.checkLocked(now)
	if !l.takeLocked(n, now) {
		return false
	}
	l.anticipateIfLowLocked()
	return true
}

// sleepTolerance is how far the wall clock may run ahead of the monotonic one between two checks. More means that the machine slept or
// its clock was set; in both cases the batch is no longer valid.
const sleepTolerance = 50 * time.Millisecond

// checkLocked compares the clocks.
func (l *Limiter) checkLocked(now int64) {
	if now-l.checked.Load() < checkEvery {
		return
	}
	wall := l.client.wall().Round(0)
	ahead := wall.Sub(l.lastWall) - time.Duration(now-l.lastMono)
	l.lastWall, l.lastMono = wall, now
	l.checked.Store(now)
	if ahead > sleepTolerance {
		l.releaseBatchesLocked()
	}
}

// takeLocked takes units of the current batch, or of the next one.
func (l *Limiter) takeLocked(n, now int64) bool {
	if n > mostUnits {
		return false
	}
	for {
		if b := l.current; b != nil && now < b.until && l.takeExactly(n) {
			return true
		}
		if !l.advanceLocked(now) {
			return false
		}
	}
}

// advanceLocked replaces the current batch by the next one and settles the rest of the current one; false: no usable one.
func (l *Limiter) advanceLocked(now int64) bool {
	b := l.next
	if b == nil {
		return false
	}
	l.next = nil
	l.settleLocked(l.closeLocked())
	if now >= b.until {
		l.settleLocked(b, b.size)
		return false
	}
	// Advance by two: the number between belongs to the empty word before this batch. With the same number, a take that failed at the
	// empty word would be undone in this batch, which would grow by units that nobody consumed.
	l.generation += 2
	b.generation = l.generation & (1<<(64-generationShift) - 1)
	l.current = b
	l.fill(b.generation, b.size, b.until)
	return true
}

// closeLocked removes the current batch and returns it with the number of units left; nil: there is none.
func (l *Limiter) closeLocked() (*batch, int64) {
	b := l.current
	if b == nil {
		return nil, 0
	}
	l.current = nil
	left := l.empty(b.generation)
	b.timer.Stop()
	return b, left
}

// putBack returns units to the batch that they came from. If that has ended they are forfeited: its settlement did not include them.
func (l *Limiter) putBack(generation uint64, units int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.current; b != nil && b.generation == generation {
		l.word.Add(uint64(units))
		return
	}
	l.forfeitLocked(units)
}

// settleSingle settles the unspent units of a take without a batch.
func (l *Limiter) settleSingle(op *Operation, units int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Spent -= uint64(units)
	l.settleLocked(&batch{op: op, size: units}, units)
}

// forfeitLocked corrects the counters for units that were counted as spent but were not.
func (l *Limiter) forfeitLocked(units int64) {
	l.stats.Forfeited += uint64(units)
	l.stats.Spent -= uint64(units)
}

// adoptLocked adopts a batch that was just consumed.
func (l *Limiter) adoptLocked(op *Operation, units int64) {
	b := &batch{op: op, size: units, until: int64(op.LastTake().Sub(l.base))}
	l.stats.Batches++
	l.stats.Consumed += uint64(units)
	l.hadBatch = true
	// A cooldown learnt while the answer was in flight applies to this batch, too.
	if l.closed || op.Left() == 0 || l.client.cooldowns.left(op.items) > 0 {
		l.settleLocked(b, units)
		return
	}
	b.timer = time.AfterFunc(op.Left(), func() { l.expire(b) })
	if l.next != nil {
		l.settleLocked(l.next, l.next.size)
	}
	l.next = b
	if now := l.now(); l.current == nil || now >= l.current.until {
		l.advanceLocked(now)
	}
	l.stateLocked()
}

// expire ends a batch at its last take.
func (l *Limiter) expire(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch b {
	case l.current:
		l.settleLocked(l.closeLocked())
		l.advanceLocked(l.now())
	case l.next:
		l.next = nil
		l.settleLocked(b, b.size)
	}
	l.stateLocked()
}

// releaseBatchesOf ends the batches of a closed quota and settles their rest. With a pool, a batch may be of another member.
func (l *Limiter) releaseBatchesOf(quota string) {
	of := func(b *batch) bool {
		return b != nil && slices.ContainsFunc(b.op.items, func(item Item) bool { return item.Quota == quota })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.next; of(b) {
		l.next = nil
		l.settleLocked(b, b.size)
	}
	if of(l.current) {
		l.settleLocked(l.closeLocked())
		l.advanceLocked(l.now())
	}
	l.stateLocked()
}

// releaseBatches ends both batches and settles their rest as unspent.
func (l *Limiter) releaseBatches() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseBatchesLocked()
}

func (l *Limiter) releaseBatchesLocked() {
	l.settleLocked(l.closeLocked())
	if b := l.next; b != nil {
		l.next = nil
		l.settleLocked(b, b.size)
	}
	l.stateLocked()
}

// settleLocked settles the rest of an ended batch as unspent and ends its lease, unless takes need it. The operation does not become
// final: calls of the last takes may still be on the way to the provider.
func (l *Limiter) settleLocked(b *batch, left int64) {
	if b == nil {
		return
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	l.stats.Spent += uint64(b.size - left)
	l.demand.Add(l.elapsed(), b.size-left-b.accounted, l.known.life)
	b.over = true
	release := b.keeps == 0 || l.closed // else the last of them ends it
	life := max(time.Until(b.op.SpendBy()), time.Second)
	if release {
		b.op.lease.die(ErrLeaseReleased)
	}
	if left == 0 {
		if release {
			l.client.send(life, b.op.lease.release())
		}
		return
	}
	unspent := make([]Item, len(b.op.items))
	for i, item := range b.op.items {
		unspent[i] = Item{Quota: item.Quota, Amount: item.Amount / b.size * left}
	}
	settle := b.op.settlement(Settlement{Unspent: unspent, Release: release})
	settle.then = func(settle *command) { l.settled(settle.err, left, b, release) }
	b.settling = true
	if l.client.post(life, settle) != nil {
		b.settling = false
		l.stats.Forfeited += uint64(left)
	}
}

// settled counts the outcome of a settlement. If it was too late to return units, the lease still has to end.
func (l *Limiter) settled(err error, left int64, b *batch, release bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.stats.Returned += uint64(left)
	} else {
		l.stats.Forfeited += uint64(left)
	}
	b.settling = false
	if release && errors.Is(err, ReasonPastSpendBy) {
		l.client.send(time.Second, b.op.lease.release())
	}
	l.endLeaseLocked(b)
}

// letGo drops one take's need for the batch's lease, and ends the lease after the last one.
func (l *Limiter) letGo(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.keeps--
	l.endLeaseLocked(b)
}

// endLeaseLocked ends the lease of an ended batch that no take needs, unless that was done. The units left are returned before:
// commands sent one after the other can arrive in another order.
func (l *Limiter) endLeaseLocked(b *batch) {
	if b.keeps > 0 || !b.over || b.settling || b.op.lease.Err() != nil {
		return
	}
	b.op.lease.die(ErrLeaseReleased)
	l.client.send(settleLife, b.op.lease.release())
}
