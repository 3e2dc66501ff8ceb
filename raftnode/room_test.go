package raftnode_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/raftnode"
)

// much and little are how many bytes of a disk are free: enough, and too few.
const much, little = 1 << 40, 100 << 20

// roomyCluster starts three nodes with much free on their disks, by node, and a quota q.
func roomyCluster(t *testing.T, change ...func(*raftnode.Config)) (c *cluster, free map[string]*atomic.Int64) {
	t.Helper()
	free = map[string]*atomic.Int64{"n0": {}, "n1": {}, "n2": {}}
	for _, f := range free {
		f.Store(much)
	}
	c = newCluster(t, 3, append(change, func(conf *raftnode.Config) {
		mine := free[conf.ID]
		conf.Free = func(string) (int64, error) { return mine.Load(), nil }
	})...)
	c.propose(rate("q", 1_000_000))
	return c, free
}

// transfers returns what a node said since a place in its log of giving leadership away for want of room. It says so soon after another
// node leads, if it did.
func transfers(said *lines, since int) (all []string) {
	for patience := time.After(2 * time.Second); ; {
		for line := range strings.Lines(said.String()[since:]) {
			if strings.Contains(line, "transferred leadership to a node with free space") {
				all = append(all, line)
			}
		}
		select {
		case <-patience:
			return all
		case <-time.After(5 * time.Millisecond):
		}
		if len(all) > 0 {
			return all
		}
	}
}

// TestDisk_ALeaderWithoutRoomLeaves: a leader whose disk is nearly full gives leadership to the node that has room, and to no other, and
// nobody is refused for it. Only where no node has room, grants are refused. That the node with room leads says little, since another
// election could have made it the leader: a round in which the leader gave nothing away is played again.
func TestDisk_ALeaderWithoutRoomLeaves(t *testing.T) {
	said := map[string]*lines{"n0": {}, "n1": {}, "n2": {}}
	c, free := roomyCluster(t, func(conf *raftnode.Config) {
		conf.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: said[conf.ID]})
	})
	diskFull := func(err error) bool {
		notAccepted, ok := errors.AsType[*raftnode.NotAcceptedError](err)
		return ok && notAccepted.Cause == raftnode.DiskFull
	}
	var roomy int
	for round, left := 0, false; !left; round++ {
		if round == 5 {
			t.Fatal("no leader ever gave leadership away")
		}
		leader := c.leader()
		roomy = (leader + 1) % 3
		low := (leader + 2) % 3
		for i, conf := range c.configs {
			free[conf.ID].Store(much)
			if i == low {
				free[conf.ID].Store(little)
			}
		}
		for i := range c.nodes {
			eventually(t, "all know whether they have room", func() bool { return (failing(c.nodes[i], "space") != "") == (i == low) })
		}
		before := len(said[c.configs[leader].ID].String())
		free[c.configs[leader].ID].Store(little)
		eventually(t, "the node that has room leads", func() bool {
			for _, n := range c.nodes {
				if _, _, err := n.Propose(t.Context(), reserve("q", 1)); diskFull(err) {
					t.Fatal("the fleet was refused")
				}
			}
			return c.leader() == roomy
		})
		for _, line := range transfers(said[c.configs[leader].ID], before) {
			if left = true; !strings.Contains(line, " to="+c.configs[roomy].ID+" ") {
				t.Errorf("only %s has room: %s", c.configs[roomy].ID, line)
			}
		}
	}
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
