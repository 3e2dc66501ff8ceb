package raftnode

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// voters returns the voters of the latest configuration, and whether this node is one.
func (n *Node) voters() (voters []raft.Server, self bool) {
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return nil, false
	}
	for _, s := range configuration.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, s)
			self = self || string(s.ID) == n.config.ID
		}
	}
	return voters, self
}

// watchMembership ends a node that was removed: its votes would only disturb the others.
func (n *Node) watchMembership() {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	membership := n.knownMembership()
	for count := 0; ; count++ {
		select {
		case <-ticker.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		if count%10 == 9 {
			if !membership.member {
				membership = n.knownMembership()
			}
			if membership.member && n.othersRemovedMe(membership.at) {
				n.fail(ErrRemoved)
				return
			}
		}
		if index, found := n.committedOf(n.config.ID); membership.removed(index, found) {
			n.fail(ErrRemoved)
			return
		}
	}
}

// membership is what a node knows about its own membership.
type membership struct {
	member bool
	// at is the index of the newest committed configuration known to contain the node.
	at uint64
}

// knownMembership returns the membership recorded on disk. Configurations alone do not tell: a removed node's newest one lacks the node,
// but so may that of a node just added.
func (n *Node) knownMembership() membership {
	if n.formedWith() != nil {
		return membership{member: true}
	}
	if data, err := os.ReadFile(filepath.Join(n.config.DataDir, logstore.JoinedFile)); err == nil {
		if at, err := strconv.ParseUint(string(data), 10, 64); err == nil {
			return membership{member: true, at: at}
		}
	}
	return membership{}
}

// removed takes the newest committed configuration and says whether it removed the node. A configuration older than the last one that had
// the node did not: a learner may get a snapshot from before it was added.
func (m *membership) removed(index uint64, found bool) bool {
	if found {
		m.member, m.at = true, max(m.at, index)
	}
	return m.member && !found && index > m.at
}

// committedOf returns the index of the newest configuration that this node knows to be committed, and whether it contains a node.
func (n *Node) committedOf(id string) (index uint64, member bool) {
	index, servers := n.configured.newest()
	member, _ = suffrageOf(servers, id)
	return index, member
}

// knownMember tells whether a node is in this node's latest configuration. Without a configuration the list that forms the cluster counts;
// later it may still name removed nodes.
func (n *Node) knownMember(id string) bool {
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return false
	}
	if servers := configuration.Configuration().Servers; len(servers) > 0 {
		member, _ := suffrageOf(servers, id)
		return member
	}
	return slices.ContainsFunc(n.config.Peers, func(p Peer) bool { return p.ID == id })
}

// isMember tells whether a node is in this node's latest configuration.
func (n *Node) isMember(id string) bool {
	member, _ := n.membershipOf(id)
	return member
}

// membershipOf tells whether a node is in this node's latest configuration, and whether it votes.
func (n *Node) membershipOf(id string) (member, voter bool) {
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return false, false
	}
	return suffrageOf(configuration.Configuration().Servers, id)
}

// othersRemovedMe asks the other voters while no leader is known: raft does not tell a server that it was removed. An answer counts if it
// is based on a committed configuration that is newer than the last one with this node and lacks it.
func (n *Node) othersRemovedMe(seen uint64) bool {
	if n.knownLeader() != "" {
		return false
	}
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return false
	}
	for _, v := range configuration.Configuration().Servers {
		if string(v.ID) == n.config.ID {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		reply, err := n.port.Ask(ctx, string(v.ID), string(v.Address), peer.Request{Kind: "hello", Node: n.config.ID})
		cancel()
		if err == nil && reply.Node == string(v.ID) && !reply.Member && reply.Configuration > seen {
			return true
		}
	}
	return false
}
