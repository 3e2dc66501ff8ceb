package raftnode_test

import (
	"testing"

	"github.com/quotad/quotad/raftnode"
)

// standing is a clock that stands still.
type standing struct{}

func (standing) Wall() int64      { return 1_795_168_800_000_000_000 }
func (standing) Monotonic() int64 { return 1 }

// TestLeaderClock_StartsAtTheState: with standing clocks, a change of leader does not advance cluster time. Each new leader begins exactly
// at the state's time: it adds neither an election timeout nor any other time that only it knows of.
func TestLeaderClock_StartsAtTheState(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3, func(conf *raftnode.Config) { conf.Clock = standing{} })
	c.propose(rate("q", 1000))
	if c.propose(reserve("q", 1)).GetGranted() == nil {
		t.Fatal("not granted")
	}
	was := c.clusterTime()
	for range 3 {
		leader := c.leader()
		c.nodes[leader].Kill()
		c.nodes[leader] = nil
		if next := c.leader(); next == leader {
			t.Fatal("no other one leads")
		}
		if c.propose(reserve("q", 1)).GetGranted() == nil {
			t.Fatal("not granted")
		}
		if now := c.clusterTime(); now != was {
			t.Fatalf("cluster time went from %d to %d while all clocks stood still", was, now)
		}
		c.start(leader)
		c.hashesAgree()
	}
}
