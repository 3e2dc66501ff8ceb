package client

import (
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/pacing"
)

// batch is an amount, in units of a limiter, that was consumed ahead and is spent locally.
type batch struct {
	// generation distinguishes takes of this batch from those of other batches.
	generation uint64
	op         *Operation
	size       int64
	// accounted is the part of the spent units that is already recorded as demand.
	accounted int64
	// until is the time of the last take, in nanoseconds since the store's base.
	until int64
	// anticipated: fetching the next batch was already considered.
	anticipated bool
	timer       *time.Timer
	// keeps counts the takes that need its lease. over: nothing more is taken. settling: the rest is being returned.
	keeps          int
	over, settling bool
}

// keepLocked keeps the batch's lease alive for one more take.
func (b *batch) keepLocked(l *Limiter) {
	if b.keeps++; b.keeps == 1 {
		l.client.keeper.keep(b.op.lease, nil)
	}
}

// store holds the batch being spent. A take is one atomic addition and reads the clock once; everything else holds the
// limiter's lock.
//
// The word is generation<<48 | (zero + units left). A take subtracts its units without a check first, so that
// concurrent takes need not wait for each other. A take that drives the word below zero has failed and undoes the
// subtraction, but only under the lock and if the generation is unchanged. So nothing is added behind a goroutine that
// swaps in an empty word, and the units in the old word were taken by nobody.
type store struct {
	base time.Time
	// Every take reads these; writes are rare. deadline is until when units may be taken, looked when the wall clock
	// was last read, both in nanoseconds since base. low is the number of units left at which to consider the next
	// batch.
	deadline, low, checked atomic.Int64

	_    [64]byte
	word atomic.Uint64
	_    [64]byte
}

const (
	generationShift = 48
	unitsMask       = 1<<generationShift - 1
	zeroUnits       = 1 << (generationShift - 1)
	// mostUnits bounds one take and one batch, so that any number of concurrent failed takes cannot borrow from the
	// generation.
	mostUnits = pacing.MostUnits
	// checkEvery is how often a take reads the wall clock: the monotonic one stops while a machine sleeps. Reading it
	// each time would double the cost of a take.
	checkEvery = int64(10 * time.Millisecond)
)

func packed(generation uint64, units int64) uint64 {
	return generation<<generationShift | uint64(zeroUnits+units)
}

func unitsOf(word uint64) int64 { return int64(word&unitsMask) - zeroUnits }

func (s *store) now() int64 { return int64(s.elapsed()) }

// elapsed is the monotonic time since base.
func (s *store) elapsed() time.Duration { return time.Since(s.base) }

// fill makes units of a generation available until a deadline.
func (s *store) fill(generation uint64, units, until int64) {
	s.low.Store(pacing.RefillAt(units))
	s.word.Store(packed(generation, units))
	s.deadline.Store(until)
}

// empty removes all units and returns how many were left. The generation that it leaves belongs to no batch. Order
// matters: no unit of this batch may be left once a later deadline is readable.
func (s *store) empty(generation uint64) int64 {
	left := unitsOf(s.word.Swap(packed(generation+1, 0)))
	s.deadline.Store(0)
	return max(0, left)
}

// takeExactly takes n units if there are that many. The caller holds the lock.
func (s *store) takeExactly(n int64) bool {
	for {
		word := s.word.Load()
		if unitsOf(word) < n {
			return false
		}
		if s.word.CompareAndSwap(word, word-uint64(n)) {
			return true
		}
	}
}

// left returns the number of units left.
func (s *store) left() int64 { return max(0, unitsOf(s.word.Load())) }
