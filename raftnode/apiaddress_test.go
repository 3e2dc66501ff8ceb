package raftnode_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/quotad/quotad/raftnode"
)

// knownAt returns the address that a node has for a member's API.
func knownAt(n *raftnode.Node, id string) string {
	members := n.Status().Members
	if i := slices.IndexFunc(members, func(m raftnode.MemberStatus) bool { return m.ID == id }); i >= 0 {
		return members[i].APIAddress
	}
	return ""
}

// TestAPIAddress_FollowsTheNode: after a follower restarts with another API address, every node knows that address, though the follower
// never led. An address of another member is not recorded: the node fails a check until it has one of its own.
func TestAPIAddress_FollowsTheNode(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3, (*raftnode.Config).SampleOften)
	moved := (c.leader() + 1) % 3
	taken := c.configs[(moved+1)%3].APIAddress
	id := c.configs[moved].ID
	restart := func(api string) {
		t.Helper()
		c.stop(moved)
		c.configs[moved].APIAddress = api
		c.configs[moved].Peers = slices.Clone(c.configs[moved].Peers)
		c.configs[moved].Peers[moved].APIAddress = api
		c.start(moved)
	}
	before := c.configs[moved].APIAddress
	c.propose(rate("q", 10))
	for _, address := range []string{"127.0.0.1:2001", before} {
		restart(address)
		for i := range c.nodes {
			eventually(t, "the new address is known", func() bool {
				return knownAt(c.nodes[i], id) == address &&
					failing(c.nodes[i], "address") == ""
			})
		}
	}
	restart(taken)
	// Until it has caught up, the check names the address before its own, since its log may end there.
	eventually(t, "the node tells", func() bool {
		message := failing(c.nodes[moved], "address")
		return strings.Contains(message, before) && strings.Contains(message, taken) && strings.Contains(message, "api.advertise")
	})
	eventually(t, "the leader has heard of it", func() bool { return c.nodes[c.leader()].HasHeardOf(id) == taken })
	for range 20 { // the leader considers many times whether to record it
		c.propose(reserve("q", 1))
	}
	for i := range c.nodes {
		if at := knownAt(c.nodes[i], id); i != moved && at != before {
			t.Errorf("node %d takes it to be at %s", i, at)
		}
	}
	restart(before)
	eventually(t, "it has its own again", func() bool { return failing(c.nodes[moved], "address") == "" })
}
