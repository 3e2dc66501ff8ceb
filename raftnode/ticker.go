package raftnode

import (
	"time"
)

// kickTicker makes the ticker look at the state again.
func (n *Node) kickTicker() {
	select {
	case n.tickKick <- struct{}{}:
	default:
	}
}

// leewayPart: what is due and nobody waits for may be that part of a Tick late.
const leewayPart = 20

// tick has an entry written when something in the state is due, and at least every Tick while anything is pending. With
// nothing pending nothing is written. An expiry that nobody waits for is left to the next call's entry for a moment: with one
// lease after the other each would have an entry of its own, and each of them syncs of all disks before the next call's.
func (n *Node) tick() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	last := n.config.Clock.Monotonic()
	for {
		select {
		case <-n.tickKick:
		case <-timer.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		lead := n.leading.Load()
		if lead == nil {
			timer.Reset(time.Hour)
			continue
		}
		n.mu.RLock()
		due, pending := n.machine.State().NextDue()
		stamped, awaited := n.machine.State().Clock().Now, n.machine.State().Awaited()
		n.mu.RUnlock()
		if !pending {
			timer.Reset(time.Hour)
			continue
		}
		now := lead.clock.now()
		wait := due - now
		if wait <= 0 && !awaited {
			wait += int64(n.config.Tick / leewayPart)
		}
		wait = min(wait, stamped+int64(n.config.Tick)-now)
		if wait <= 0 {
			if since := n.config.Clock.Monotonic() - last; since < int64(time.Millisecond) {
				timer.Reset(time.Millisecond)
				continue
			}
			last = n.config.Clock.Monotonic()
			n.proposer.askForTime()
			wait = int64(2 * time.Millisecond)
		}
		timer.Reset(time.Duration(max(wait, int64(time.Millisecond))))
	}
}
