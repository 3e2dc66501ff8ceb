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

// much and little are bytes of free disk space: enough, and too little.
const much, little = 1 << 40, 100 << 20

// roomyCluster starts three nodes with much free disk space, which free sets by node, and a quota q.
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

// transfers returns a node's log lines, from an offset on, about transfers of leadership for lack of space. Such a line appears soon after
// another node leads.
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

// TestDisk_ALeaderWithoutRoomLeaves: a leader with a nearly full disk transfers leadership to the node with free space, and refuses no
// grant for it. Grants are refused only if no node has free space. That the node with space leads proves little, since an ordinary election
// could have chosen it: a round in which the leader transferred nothing is repeated.
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

// TestDisk_AFollowerWithoutRoomLeavesWhenElected: a node whose disk was low before its election also transfers leadership before it refuses
// grants, and reports the low disk all the time.
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
