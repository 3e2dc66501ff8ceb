package raftnode

import (
	"context"
	"math"
	"time"

	"github.com/quotad/quotad/fsm"
)

// kickTicker makes the ticker check the state again.
func (n *Node) kickTicker() {
	select {
	case n.tickKick <- struct{}{}:
	default:
	}
}

// leewayPart: an expiry for which no request waits may be late by Tick/leewayPart.
const leewayPart = 20

// nextDue returns the cluster time at which the ticker must next act on the present state; the largest int64: never. An expiry for which no
// request waits is left to the next call's entry for a moment. Otherwise, if leases expire one after the other, each would have an entry of
// its own, and each entry syncs all disks before the next call's. The caller holds Node.mu.
func (n *Node) nextDue(lead *leadership) int64 {
	state := n.machine.State()
	due, pending := state.NextDueBy(func() (fsm.Clock, bool) {
		present := n.presentClock(&lead.clock)
		return present, present.WallEarly != 0
	})
	if !pending {
		return math.MaxInt64
	}
	if !state.Awaited() && due != math.MaxInt64 {
		due += int64(n.config.Tick / leewayPart)
	}
	return min(due, state.Clock().Now+int64(n.config.Tick))
}

// tick requests an entry when something in the state is due, and at least every Tick while anything is pending. Otherwise it writes
// nothing.
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
		now := lead.clock.now()
		n.mu.Lock()
		at := n.nextDue(lead)
		n.nextTick = at
		if at <= now { // and after each entry until that is done
			n.nextTick = math.MaxInt64
		}
		n.mu.Unlock()
		if at == math.MaxInt64 {
			timer.Reset(time.Hour)
			continue
		}
		wait := at - now
		if wait <= 0 {
			if since := n.config.Clock.Monotonic() - last; since < int64(time.Millisecond) {
				timer.Reset(time.Millisecond)
				continue
			}
			last = n.config.Clock.Monotonic()
			n.proposer.requestTime()
			wait = int64(2 * time.Millisecond)
		}
		timer.Reset(time.Duration(max(wait, int64(time.Millisecond))))
	}
}

// PassTime writes an entry with the present time and waits until it is applied here. now is its cluster time, due the time at which
// something is due next (the largest int64: never). It is for programs that set this node's Clock: the ticker's timers do not notice that a
// clock was moved. The error is a *NotAcceptedError if this node does not lead.
func (n *Node) PassTime(ctx context.Context) (now, due int64, err error) {
	lead := n.leading.Load()
	if lead == nil {
		return 0, 0, n.notAccepted(n.whyNotLeading())
	}
	want := lead.clock.now()
	inspect := time.NewTicker(time.Millisecond)
	defer inspect.Stop()
	for {
		n.proposer.requestTime()
		select {
		case <-inspect.C:
		case <-lead.lost:
			return 0, 0, n.notAccepted(NotLeader)
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
		n.mu.RLock()
		state := n.machine.State()
		if now = state.Clock().Now; now >= want {
			due, _ = state.NextDueBy(func() (fsm.Clock, bool) {
				present := n.presentClock(&lead.clock)
				return present, present.WallEarly != 0
			})
			n.mu.RUnlock()
			return now, due, nil
		}
		n.mu.RUnlock()
	}
}
