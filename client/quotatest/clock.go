package quotatest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quotad/quotad/raftnode"
)

// start is the initial time of day of a cluster: half past, so that no calendar window is about to end.
var start = time.Date(2030, time.January, 7, 10, 30, 0, 0, time.UTC)

// Clock is a cluster's clock.
type Clock struct {
	// node is the node that uses the clock.
	node *raftnode.Node
	fail func(error)

	mu sync.Mutex
	// passed is the time since the start, except the time since running.
	passed time.Duration
	// running is since when the clock runs in real time; zero: it is stopped.
	running time.Time
	// moving is held during Advance.
	moving sync.Mutex
}

// Now returns the cluster's time of day. It starts at 10:30 UTC on a Monday.
func (c *Clock) Now() time.Time { return start.Add(c.elapsed()) }

// Advance advances the cluster's time and returns once all timers due meanwhile have fired, each at its time.
func (c *Clock) Advance(d time.Duration) {
	c.moving.Lock()
	defer c.moving.Unlock()
	if err := c.advance(max(d, 0)); err != nil {
		c.fail(fmt.Errorf("quotatest: advance the clock by %v: %w", d, err))
	}
}

// Run lets the clock run with real time from now on, or in a test with testing/synctest with the bubble's time.
func (c *Clock) Run() {
	c.mu.Lock()
	if c.running.IsZero() {
		c.running = time.Now()
	}
	c.mu.Unlock()
	c.Advance(0) // so that the node's timers notice it
}

// Stop stops the clock again.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed, c.running = c.elapsedLocked(), time.Time{}
}

// Wall implements raftnode.Clock.
func (c *Clock) Wall() int64 { return c.Now().UnixNano() }

// Monotonic implements raftnode.Clock.
func (c *Clock) Monotonic() int64 { return int64(c.elapsed()) }

func (c *Clock) elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elapsedLocked()
}

func (c *Clock) elapsedLocked() time.Duration {
	if c.running.IsZero() {
		return c.passed
	}
	return c.passed + time.Since(c.running)
}

func (c *Clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed += d
}

// mostAtOnce bounds the entries at one moment: work due at one moment is done in parts, and work left over after that is done by the
// node's own ticker.
const mostAtOnce = 1_000

// advance steps from the due time of one timer to that of the next, like a node with a running clock.
func (c *Clock) advance(left time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for again := 0; ; {
		now, due, err := c.node.PassTime(ctx)
		switch {
		case err != nil:
			return err
		case due <= now && again < mostAtOnce:
			again++
			continue
		case left == 0:
			return nil
		}
		again = 0
		step := left
		if due > now {
			step = min(left, time.Duration(due-now))
		}
		c.add(step)
		left -= step
	}
}
