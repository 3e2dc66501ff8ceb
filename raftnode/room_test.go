package raftnode_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/quotad/quotad/raftnode"
)

// much and little are how many bytes of a disk are free: enough, and too few.
const much, little = 1 << 40, 100 << 20

// roomyCluster starts three nodes with much free on their disks, by node, and a quota q.
func roomyCluster(t *testing.T) (c *cluster, free map[string]*atomic.Int64) {
	t.Helper()
	free = map[string]*atomic.Int64{"n0": {}, "n1": {}, "n2": {}}
	for _, f := range free {
		f.Store(much)
	}
	c = newCluster(t, 3, func(conf *raftnode.Config) {
		mine := free[conf.ID]
		conf.Free = func(string) (int64, error) { return mine.Load(), nil }
	})
	c.propose(rate("q", 1_000_000))
	return c, free
}

// TestDisk_ALeaderWithoutRoomLeaves: a leader whose disk is nearly full gives leadership to the node that has room, and nobody is refused
// for it. Only where no node has room, grants are refused.
func TestDisk_ALeaderWithoutRoomLeaves(t *testing.T) {
	c, free := roomyCluster(t)
	roomy := (c.leader() + 1) % 3
	for i, conf := range c.configs {
		if i != roomy {
			free[conf.ID].Store(little)
		}
	}
	diskFull := func(err error) bool {
		notAccepted, ok := errors.AsType[*raftnode.NotAcceptedError](err)
		return ok && notAccepted.Cause == raftnode.DiskFull
	}
	eventually(t, "the node that has room leads", func() bool {
		for _, n := range c.nodes {
			if _, _, err := n.Propose(t.Context(), reserve("q", 1)); diskFull(err) {
				t.Fatal("the fleet was refused")
			}
		}
		return c.leader() == roomy
	})
	for i := range c.configs {
		eventually(t, "the others know that their disks are low", func() bool { return (failing(c.nodes[i], "space") != "") == (i != roomy) })
	}
	eventually(t, "it grants", func() bool { // it may lose leadership for a moment
		_, _, err := c.nodes[roomy].Propose(t.Context(), reserve("q", 1))
		if err != nil && !leadershipMoved(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	free[c.configs[roomy].ID].Store(little)
	eventually(t, "grants are refused where no node has room", func() bool {
		_, _, err := c.nodes[c.leader()].Propose(t.Context(), reserve("q", 1))
		return diskFull(err)
	})
}

// TestDisk_AFollowerWithoutRoomLeavesWhenElected: a node whose disk was low before it was elected gives leadership away as well before it
// refuses anybody, and says all the time that its disk is low.
func TestDisk_AFollowerWithoutRoomLeavesWhenElected(t *testing.T) {
	c, free := roomyCluster(t)
	low := (c.leader() + 1) % 3
	free[c.configs[low].ID].Store(little)
	eventually(t, "the follower says that its disk is low", func() bool { return failing(c.nodes[low], "space") != "" })
	elected := func() bool { return c.nodes[low].Status().Role == "leader" }
	eventually(t, "the follower is elected", func() bool {
		for i, n := range c.nodes {
			if _, _, self := n.Leader(); self && i != low {
				_, _ = n.TransferLeadership(t.Context(), c.configs[low].ID)
			}
		}
		return elected()
	})
	eventually(t, "another node leads", func() bool {
		for _, n := range c.nodes {
			_, _, err := n.Propose(t.Context(), reserve("q", 1))
			if notAccepted, ok := errors.AsType[*raftnode.NotAcceptedError](err); ok && notAccepted.Cause == raftnode.DiskFull {
				t.Fatal("the fleet was refused")
			}
		}
		return !elected() && c.leader() != low
	})
	if failing(c.nodes[low], "space") == "" {
		t.Error("a follower again, it no longer says that its disk is low")
	}
}
