package raftnode_test

import (
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/raftnode"
)

// TestTicker_ExpiriesShareEntries: leases that expire one after the other, and for which no request waits, do not get an entry each. At
// most one entry in a twentieth of a tick is written for them, by the leader's own time.
func TestTicker_ExpiriesShareEntries(t *testing.T) {
	const leases, apart = 150, 7 * time.Millisecond
	var empty, ended int
	var firstEmpty, last int64
	c := newCluster(t, 1, func(conf *raftnode.Config) {
		conf.Applied = func(applied *fsm.Applied, _ []byte, _ func() [32]byte) { // called for one entry after the other
			for i := range applied.Events {
				if applied.Events[i].Kind == effect.EventExpired {
					ended++
				}
			}
			if len(applied.Results) == 0 {
				if empty++; firstEmpty == 0 {
					firstEmpty = applied.Clock.Now
				}
				last = applied.Clock.Now
			}
		}
	})
	n := c.nodes[0]
	c.propose(rate("q", 1_000_000))
	for i := range int64(leases) { // granted together, they expire one after the other
		ask := reserve("q", 1)
		ask.GetReserve().TtlNs = int64(time.Second) + i*int64(apart)
		if _, _, err := n.Propose(t.Context(), ask); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all leases are over", func() bool {
		state, _, _, err := n.Frozen(t.Context(), raftnode.Stale)
		return err == nil && state.Counts().Leases == 0
	})
	c.stop(0)
	most := int((last-firstEmpty)/int64(50*time.Millisecond)) + 2
	if empty > most || ended != leases {
		t.Errorf("%d leases ended within %v by %d entries without commands, want at most %d", ended, time.Duration(last-firstEmpty), empty, most)
	}
}

// TestTicker_ServesWaiterWhenDue: an expiry for which a request waits is not delayed.
func TestTicker_ServesWaiterWhenDue(t *testing.T) {
	c := newCluster(t, 1, func(conf *raftnode.Config) { conf.Tick = time.Hour }) // a twentieth of which is long
	n := c.nodes[0]
	c.propose(rate("q", 1))
	held, waits := reserve("q", 1), reserve("q", 1)
	held.GetReserve().TtlNs, waits.GetReserve().WaitNs = int64(time.Second), int64(time.Minute)
	c.propose(held)
	ticket := c.propose(waits).GetWaiting().GetTicket()
	result, _, err := n.Await(t.Context(), ticket)
	if err != nil || result.GetGranted() == nil {
		t.Errorf("%v, %v", result, err)
	}
}
