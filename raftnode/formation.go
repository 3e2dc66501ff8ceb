package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// ErrForeignDataDir says that the data directory belongs to another node.
var ErrForeignDataDir = errors.New("the data directory belongs to another node")

// ErrForeignCluster says that a node of another cluster was met under a listed address.
var ErrForeignCluster = errors.New("a node of another cluster answers under a listed address")

// ErrWiped says that this node is a member whose disk was lost: its votes are forgotten, so it must not come back under
// its old id.
var ErrWiped = errors.New("this node is a member of the cluster, but its disk is empty: remove the member and add it under a new id")

// ErrRemoved says that this node was removed from the cluster.
var ErrRemoved = errors.New("this node was removed from the cluster")

// greet says who this node is.
func (n *Node) greet(protocol string) preface {
	p := preface{Magic: prefaceMagic, Protocol: protocol, Node: n.config.ID, List: n.config.list}
	if id := n.cluster.Load(); id != nil {
		p.Cluster = *id
	}
	return p
}

// admit lets in who is of the same cluster or, before that has an id, of the same list. A node that has neither waits
// to be added, and takes the first cluster that calls.
func (n *Node) admit(caller preface) error {
	own := n.greet("")
	switch {
	case own.Cluster != "" && caller.Cluster != "" && own.Cluster != caller.Cluster:
		return fmt.Errorf("it is of cluster %s, this is %s", caller.Cluster, own.Cluster)
	case own.Cluster != "" || caller.Cluster != "":
		return nil
	case own.List != caller.List && own.List != "" && caller.List != "" && caller.Protocol == protocolRaft:
		return errors.New("its list of peers is another one")
	}
	return nil
}

// answerPeer answers another node's question.
func (n *Node) answerPeer(request peerRequest) peerReply {
	reply := peerReply{
		Node: n.config.ID, Term: n.raft.CurrentTerm(), Wall: n.config.Clock.Wall(), List: n.config.list, Nonce: n.config.nonce,
		Last: n.raft.LastIndex(),
	}
	if id := n.cluster.Load(); id != nil {
		reply.Cluster = *id
	}
	if request.Kind == "hello" {
		reply.Empty = n.raft.LastIndex() == 0
		reply.Member = n.isMember(request.Node)
		_, leader := n.raft.LeaderWithID()
		reply.Led = leader != ""
		reply.Formed = request.Nonce != "" && n.formedWith(request.Nonce)
	}
	return reply
}

func (n *Node) formedWith(nonce string) bool {
	data, err := os.ReadFile(filepath.Join(n.config.DataDir, formedFile))
	if err != nil {
		return false
	}
	var nonces []string
	if json.Unmarshal(data, &nonces) != nil {
		return false
	}
	return slices.Contains(nonces, nonce)
}

// formCluster forms the cluster from the static list, if this node's disk is empty. That is safe only when every
// listed peer has answered, has an empty disk too, and has the same list; each then remembers with which disks it
// formed the cluster. Where a peer already has a cluster, this disk is either one of those (it was only slower), or was
// wiped since.
func (n *Node) formCluster() {
	if n.raft.LastIndex() > 0 || len(n.config.Peers) == 0 {
		return
	}
	warned := time.Time{}
	for {
		formed, err := n.tryToForm()
		switch {
		case formed:
			return
		case errors.Is(err, ErrWiped), errors.Is(err, ErrForeignCluster):
			n.fail(err)
			return
		case err != nil && time.Since(warned) > 5*time.Second:
			n.logger.Info("the cluster cannot be formed yet", "reason", err)
			warned = time.Now()
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		if n.raft.LastIndex() > 0 {
			return // a leader that formed the cluster was faster
		}
	}
}

func (n *Node) tryToForm() (bool, error) {
	nonces := []string{n.config.nonce}
	for _, p := range n.config.Peers {
		if p.ID == n.config.ID {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		reply, err := n.port.ask(ctx, p.RaftAddress, peerRequest{Kind: "hello", Nonce: n.config.nonce})
		cancel()
		switch {
		case err != nil:
			return false, fmt.Errorf("peer %s does not answer: %w", p.ID, err)
		case reply.Node != p.ID:
			return false, fmt.Errorf("under peer %s's address answers %q", p.ID, reply.Node)
		case reply.List != n.config.list:
			if reply.Empty {
				return false, fmt.Errorf("peer %s has another list of peers", p.ID)
			}
			return false, fmt.Errorf("%w: peer %s formed a cluster from another list", ErrForeignCluster, p.ID)
		case !reply.Empty && !reply.Formed:
			return false, ErrWiped
		}
		nonces = append(nonces, reply.Nonce)
	}
	data, err := json.Marshal(nonces)
	if err != nil {
		return false, err
	}
	if err := writeDurably(filepath.Join(n.config.DataDir, formedFile), string(data)); err != nil {
		return false, err
	}
	servers := make([]raft.Server, len(n.config.Peers))
	for i, p := range n.config.Peers {
		servers[i] = raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.RaftAddress)}
		if len(n.config.Peers) == 1 {
			servers[i].Address = raft.ServerAddress(n.config.advertised())
		}
	}
	err = n.raft.BootstrapCluster(raft.Configuration{Servers: servers}).Error()
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return false, err
	}
	n.logger.Info("the cluster was formed", "peers", len(servers))
	return true, nil
}

// watchMembership ends a node that was removed: its votes would only disturb.
func (n *Node) watchMembership() {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	membership := membership{member: n.isMember(n.config.ID)}
	for turn := 0; ; turn++ {
		select {
		case <-ticker.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		if membership.member && turn%10 == 9 && n.othersRemovedMe(membership.at) {
			n.fail(ErrRemoved)
			return
		}
		configuration := n.raft.GetConfiguration()
		if err := configuration.Error(); err != nil || len(configuration.Configuration().Servers) == 0 {
			continue
		}
		found := false
		for _, s := range configuration.Configuration().Servers {
			found = found || string(s.ID) == n.config.ID
		}
		if membership.removed(configuration.Index(), n.raft.AppliedIndex(), found) {
			n.fail(ErrRemoved)
			return
		}
	}
}

// membership is what a node knows of its being a member.
type membership struct {
	member bool
	// at is the index of the newest configuration in which it was one.
	at uint64
}

// removed takes a look at the latest configuration and says whether it removed the node. An older one than the node was
// seen in did not: a snapshot that a learner is given may have been taken before it was added.
func (m *membership) removed(index, applied uint64, found bool) bool {
	if found {
		m.member, m.at = true, max(m.at, index)
	}
	return m.member && !found && index > m.at && applied >= index
}

// isMember tells whether a node is in this node's latest configuration.
func (n *Node) isMember(id string) bool {
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return false
	}
	for _, s := range configuration.Configuration().Servers {
		if string(s.ID) == id {
			return true
		}
	}
	return false
}

// othersRemovedMe asks the others when no leader is heard of any more: raft does not tell a server that it was removed.
// A member with a leader and without this node in its configuration is believed, where it has heard of the configuration in
// which this node was seen last.
func (n *Node) othersRemovedMe(seen uint64) bool {
	if _, leader := n.raft.LeaderWithID(); leader != "" {
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
		reply, err := n.port.ask(ctx, string(v.Address), peerRequest{Kind: "hello", Node: n.config.ID})
		cancel()
		// One whose log ends before this node's configuration may not have heard that it was added.
		if err == nil && reply.Node == string(v.ID) && reply.Led && !reply.Member && reply.Last >= max(configuration.Index(), seen) {
			return true
		}
	}
	return false
}
