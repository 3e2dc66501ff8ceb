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

// tick proposes an entry when something in the state is due, and at least every Tick while anything is pending. With
// nothing pending nothing is written.
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
		stamped := n.machine.State().Clock().Now
		n.mu.RUnlock()
		if !pending {
			timer.Reset(time.Hour)
			continue
		}
		now := lead.clock.now()
		wait := min(due-now, stamped+int64(n.config.Tick)-now)
		if wait <= 0 {
			if since := n.config.Clock.Monotonic() - last; since < int64(time.Millisecond) {
				timer.Reset(time.Millisecond)
				continue
			}
			last = n.config.Clock.Monotonic()
			n.proposeTick(lead)
			wait = int64(2 * time.Millisecond)
		}
		timer.Reset(time.Duration(max(wait, int64(time.Millisecond))))
	}
}

// proposeTick writes an entry without commands.
func (n *Node) proposeTick(lead *leadership) {
	if n.paused.Load() {
		return
	}
	select {
	case n.proposer.slots <- struct{}{}:
		n.proposer.send(lead, nil, nil)
	default: // entries are on their way: they carry the time
	}
}
