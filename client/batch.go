package client

import (
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/pacing"
)

// batch is an amount, counted in units of a limiter, that was consumed ahead and is spent here.
type batch struct {
	// generation tells takes from this batch from those of others.
	generation uint64
	op         *Operation
	size       int64
	// accounted is how much of what was spent is counted as demand already.
	accounted int64
	// until is the last take, in nanoseconds since the store's base.
	until int64
	// anticipated: the next batch was thought of.
	anticipated bool
	timer       *time.Timer
	// keeps is how many takes need its lease, over says that nothing is taken of it any more, settling that what is left is on its way back.
	keeps          int
	over, settling bool
}

// keepLocked keeps the lease of the batch for one more take.
func (b *batch) keepLocked(l *Limiter) {
	if b.keeps++; b.keeps == 1 {
		l.client.keeper.keep(b.op.lease, nil)
	}
}

// store holds the batch that is being spent. A take is one atomic addition and reads the clock once; everything else
// happens under the limiter's lock.
//
// The word is generation<<48 | (zero + units left). A take subtracts what it wants without looking first, which two
// goroutines can do without waiting for each other. One that drives the word below zero has failed and undoes it, but
// only under the lock and if the generation is still its own: so nothing is ever added behind the back of whoever swaps
// the word against an empty one, and what that yields was taken by nobody.
type store struct {
	base time.Time
	// deadline, low and looked are read by every take and seldom written: nanoseconds since base until which units may
	// be taken, the number of units left at which to think of the next batch, and when the wall clock was last looked
	// at.
	deadline, low, looked atomic.Int64

	_    [64]byte
	word atomic.Uint64
	_    [64]byte
}

const (
	generationShift = 48
	unitsMask       = 1<<generationShift - 1
	zeroUnits       = 1 << (generationShift - 1)
	// mostUnits bounds one take and one batch, so that no number of takes that fail at once can reach into the
	// generation.
	mostUnits = pacing.MostUnits
	// lookEvery is how often a take looks at the wall clock: the monotonic one stands still while a machine sleeps. To look
	// each time would double what a take costs.
	lookEvery = int64(10 * time.Millisecond)
)

func packed(generation uint64, units int64) uint64 {
	return generation<<generationShift | uint64(zeroUnits+units)
}

func unitsOf(word uint64) int64 { return int64(word&unitsMask) - zeroUnits }

func (s *store) now() int64 { return int64(s.elapsed()) }

// elapsed is the time since base, by the monotonic clock.
func (s *store) elapsed() time.Duration { return time.Since(s.base) }

// fill makes units of a generation available until a moment.
func (s *store) fill(generation uint64, units, until int64) {
	s.low.Store(pacing.RefillAt(units))
	s.word.Store(packed(generation, units))
	s.deadline.Store(until)
}

// empty takes everything away and returns what was left. What it leaves has a generation that is no batch's. The order
// matters: once a later deadline can be read, nothing of this batch may be there.
func (s *store) empty(generation uint64) int64 {
	left := unitsOf(s.word.Swap(packed(generation+1, 0)))
	s.deadline.Store(0)
	return max(0, left)
}

// takeExactly takes n units if they are there. It is called under the lock.
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

// left returns how many units are there.
func (s *store) left() int64 { return max(0, unitsOf(s.word.Load())) }
