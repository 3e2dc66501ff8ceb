package raftnode

import (
	"sync"
	"time"

	"github.com/quotad/quotad/fsm"
)

// Clock is the one seam through which a node reads time.
type Clock interface {
	// Wall is Unix time in nanoseconds. It may jump.
	Wall() int64
	// Monotonic is nanoseconds since some fixed moment of this process. It never jumps.
	Monotonic() int64
}

// SystemClock is the machine's clock.
type SystemClock struct{ start time.Time }

// NewSystemClock returns the machine's clock.
func NewSystemClock() *SystemClock { return &SystemClock{start: time.Now()} }

// Wall implements Clock.
func (c *SystemClock) Wall() int64 { return time.Now().UnixNano() }

// Monotonic implements Clock.
func (c *SystemClock) Monotonic() int64 { return int64(time.Since(c.start)) }

// FaultyClock is a clock whose wall can be offset and whose monotonic rate can be changed while it runs. Only a process
// that was started for testing has one.
type FaultyClock struct {
	inner Clock

	mu     sync.Mutex
	offset int64
	ppm    int64
	// base and at are where the present rate began, on the faulty and the true clock.
	base, at int64
}

// NewFaultyClock returns a clock without faults yet.
func NewFaultyClock(inner Clock) *FaultyClock {
	now := inner.Monotonic()
	return &FaultyClock{inner: inner, ppm: 1_000_000, base: now, at: now}
}

// Wall implements Clock.
func (c *FaultyClock) Wall() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inner.Wall() + c.offset
}

// Monotonic implements Clock.
func (c *FaultyClock) Monotonic() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.monotonicLocked()
}

func (c *FaultyClock) monotonicLocked() int64 {
	elapsed := c.inner.Monotonic() - c.at
	return c.base + elapsed/1_000_000*c.ppm + elapsed%1_000_000*c.ppm/1_000_000
}

// SetOffset sets what is added to the wall clock.
func (c *FaultyClock) SetOffset(offset time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset = int64(offset)
}

// SetRate sets the rate of the monotonic clock, in millionths of the true one.
func (c *FaultyClock) SetRate(ppm int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.at = c.monotonicLocked(), c.inner.Monotonic()
	c.ppm = ppm
}

// leaderClock makes stamps while a node leads: the state's time when its barrier was applied, plus what its monotonic
// clock has run since.
type leaderClock struct {
	clock Clock
	base  int64
	since int64
}

func (l *leaderClock) now() int64 { return l.base + l.clock.Monotonic() - l.since }

// presentClock returns the present moment as a leader sees it.
func (n *Node) presentClock(lc *leaderClock) fsm.Clock {
	present := fsm.Clock{Now: lc.now()}
	if early, late, ok := n.samples.views(n); ok {
		present.Shift = n.shift.Load()
		present.WallEarly, present.WallLate = present.Shifted(early), present.Shifted(late)
	}
	return present
}
