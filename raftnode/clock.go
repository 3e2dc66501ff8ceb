package raftnode

import (
	"sync"
	"time"

	"github.com/quotad/quotad/fsm"
)

// Clock is a node's only source of time. Tests replace it.
type Clock interface {
	// Wall returns Unix time in nanoseconds. It may jump.
	Wall() int64
	// Monotonic returns nanoseconds since a fixed moment of this process. It never jumps.
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

// FaultyClock is a clock whose wall time and monotonic rate can be changed while it runs. Only a process started for testing has one.
type FaultyClock struct {
	inner Clock

	mu     sync.Mutex
	offset int64
	ppm    int64
	// base and at are the readings of the faulty and the true clock at the last change of the rate.
	base, at int64
}

// NewFaultyClock returns a clock that has no faults yet.
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

// SetOffset sets the offset that is added to the wall clock.
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

// leaderClock is the clock of a leadership: base, the state's time when its barrier was applied, plus the time that its monotonic clock has
// advanced since.
type leaderClock struct {
	clock Clock
	base  int64
	since int64
}

func (l *leaderClock) now() int64 { return l.base + l.clock.Monotonic() - l.since }

// presentClock returns the present moment by a leader's clock.
func (n *Node) presentClock(lc *leaderClock) fsm.Clock {
	present := fsm.Clock{Now: lc.now()}
	if early, late, ok := n.samples.views(n); ok {
		present.Shift = n.shift.Load()
		present.WallEarly, present.WallLate = present.Shifted(early), present.Shifted(late)
	}
	return present
}
