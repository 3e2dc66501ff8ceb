package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// ErrForeignDataDir says that the data directory belongs to another node.
var ErrForeignDataDir = errors.New("the data directory belongs to another node")

// ErrForeignCluster says that a node of another cluster answers at a listed address.
var ErrForeignCluster = errors.New("a node of another cluster answers at an address of the list of peers")

// ErrRemoved says that this node was removed from the cluster.
var ErrRemoved = errors.New("this node was removed from the cluster")

// greet returns the preface with which this node introduces itself.
func (n *Node) greet(protocol string) peer.Preface {
	p := peer.Preface{
		Magic: peer.Magic, Protocol: protocol, Node: n.config.ID, List: n.config.list, Address: n.config.advertised(), Build: n.ownBuild(),
	}
	if id := n.cluster.Load(); id != nil {
		p.Cluster = *id
	}
	return p
}

// admit accepts callers of the same cluster or, before the cluster has an id, with the same list. A node without either waits to be added
// and accepts the first cluster that calls. Raft connections are accepted only once this disk may take part.
func (n *Node) admit(caller peer.Preface) error {
	if caller.Magic != peer.Magic {
		return fmt.Errorf("%w: peer protocol mismatch: peer %q, local %q", logstore.ErrUnfitBuild, caller.Magic, peer.Magic)
	}
	own := n.greet("")
	if own.Cluster != "" && caller.Cluster != "" && own.Cluster != caller.Cluster {
		return fmt.Errorf("cluster ID mismatch: peer %s, local %s", caller.Cluster, own.Cluster)
	}
	if err := n.recordBuild(caller.Node, caller.Build); err != nil {
		return err
	}
	switch {
	case own.Cluster == "" && caller.Cluster == "" && own.List != caller.List && own.List != "" && caller.List != "" &&
		caller.Protocol == peer.ProtocolRaft:
		return errors.New("peer list mismatch: set the same list of peers on each node")
	case caller.Protocol == peer.ProtocolRaft && own.Cluster != "" && caller.Cluster == "" && (own.List == "" || own.List != caller.List):
		// A member has the id from the cluster's first entry on. A member that formed the cluster with this node may still lack it.
		return errors.New("the peer belongs to no cluster")
	case caller.Protocol == peer.ProtocolRaft:
		if err := n.admitMember(caller); err != nil {
			return err
		}
		if known, isMember := n.memberAddress(caller.Node); isMember && string(known) != caller.Address {
			n.peerLogger.Warn("a member advertises another Raft address than the cluster has for it and cannot be reached; "+
				"restore its address, or replace the node (\"quotad member replace\")", "node", caller.Node, "known", known, "says", caller.Address)
		}
		return n.admitDisk(caller)
	}
	return nil
}

// admitDisk determines, before the first vote and the first acknowledgement, whether an empty disk may take part. The wiped disk of a voter
// must not: its votes are lost, and so are entries that count as held by it. A node with a list forms the cluster first (formCluster). A
// joining node asks its caller, and takes part once a current leader says that it is a learner. If it is known as a voter already, its disk
// was wiped. While one caller is being asked, others are refused and retry. If they waited here, an unresponsive caller would block them
// all, and the node's stop.
func (n *Node) admitDisk(caller peer.Preface) error {
	if n.admitted.Load() {
		return nil
	}
	if len(n.config.Peers) > 0 {
		return peer.ErrNotAdmitted
	}
	if !n.admitting.CompareAndSwap(false, true) {
		return peer.ErrNotAdmitted
	}
	defer n.admitting.Store(false)
	if n.admitted.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), peer.Timeout)
	defer cancel()
	reply, err := n.port.Ask(ctx, caller.Node, caller.Address, peer.Request{Kind: "hello", Node: n.config.ID, Newcomer: true})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", peer.ErrNotAdmitted, err)
	case reply.Node != caller.Node:
		return fmt.Errorf("%w: at the address of %s answers %q", peer.ErrNotAdmitted, caller.Node, reply.Node)
	case reply.Voter:
		n.fail(logstore.ErrWiped)
		return logstore.ErrWiped
	case reply.Learner == 0:
		return peer.ErrNotAdmitted
	}
	if err := n.log.WritePart(logstore.JoinedFile, strconv.FormatUint(reply.Learner, 10)); err != nil {
		n.fail(err)
		return err
	}
	n.admitted.Store(true)
	return nil
}

// wasAdmitted tells whether this disk had taken part before this start.
func (n *Node) wasAdmitted() bool {
	_, err := os.Stat(filepath.Join(n.config.DataDir, logstore.JoinedFile))
	return err == nil || n.raft.LastIndex() > 0
}

// answerPeer answers another node's question. With TLS, the caller's certificate was checked against its id.
func (n *Node) answerPeer(caller string, request peer.Request) peer.Reply {
	reply := peer.Reply{
		Node: n.config.ID, Term: n.raft.CurrentTerm(), Wall: n.config.Clock.Wall(), List: n.config.list, Nonce: n.config.nonce,
		Last: n.raft.LastIndex(), Build: n.ownBuild(), Room: !n.diskLow.Load(), API: n.config.APIAddress,
	}
	if id := n.cluster.Load(); id != nil {
		reply.Cluster = *id
	}
	if request.Kind == "key" && n.knownMember(caller) { // with this key a node attests callers' addresses
		reply.Key = n.attester.own
	}
	if request.Kind == "hello" {
		reply.Empty = n.raft.LastIndex() == 0
		var committed bool
		reply.Configuration, committed = n.committedOf(request.Node)
		reply.Member, reply.Voter = n.membershipOf(request.Node)
		reply.Member = reply.Member || committed
		if nonces := n.formedWith(); request.Nonce != "" && slices.Contains(nonces, request.Nonce) {
			reply.FormedWith = nonces
		}
		if request.Newcomer {
			reply.Learner = n.learnerNow(request.Node)
		}
	}
	return reply
}

// learnerNow returns the index of a committed configuration in which a node is certainly a learner, 0 for none. It makes sure that this
// node still leads: a deposed leader may not know that the node was promoted. An uncommitted configuration does not count, since it may be
// undone.
func (n *Node) learnerNow(id string) uint64 {
	ctx, cancel := context.WithTimeout(context.Background(), peer.Timeout)
	defer cancel()
	if n.readable(ctx, Linearizable) != nil {
		return 0
	}
	index, member := n.committedOf(id)
	if _, voter := n.membershipOf(id); !member || voter {
		return 0
	}
	return index
}

// formedWith returns the nonces of the disks that formed the cluster with this node.
func (n *Node) formedWith() (nonces []string) {
	data, err := os.ReadFile(filepath.Join(n.config.DataDir, logstore.FormedFile))
	if err != nil || json.Unmarshal(data, &nonces) != nil {
		return nil
	}
	return nonces
}

// Nodes of a cluster seldom start at the same moment. formationGrace is how long to stay silent about missing peers, formationWarning how
// often to warn afterwards.
const (
	formationGrace   = 3 * time.Second
	formationWarning = 30 * time.Second
)

// whyStopping returns, as the end of a sentence, the error with which the node stops.
func (n *Node) whyStopping() string {
	if err := n.Err(); err != nil {
		return ": " + err.Error()
	}
	return ""
}

// whyNoLeader returns, as the end of a sentence, what a node without a leader waits for, or that its peers cannot reach it.
func (n *Node) whyNoLeader() string {
	known, isMember := n.memberAddress(n.config.ID)
	switch reason := n.unformed.Load(); {
	case isMember && string(known) != n.config.advertised():
		return fmt.Sprintf(": the members know this node at %s, but it advertises %s: restore its address, or replace the node "+
			`("quotad member replace")`, known, n.config.advertised())
	case n.admitted.Load():
		return ""
	case len(n.config.Peers) == 0:
		return `: this node waits to be added ("quotad member add")`
	case reason != nil:
		return ": the cluster cannot be formed yet: " + *reason
	}
	return ""
}

// formCluster forms the cluster from the static list, if this node's disk is empty. That is safe only if every listed peer has answered,
// has an empty disk too, and has the same list. Each then records the disks with which it formed the cluster. If a peer already has a
// cluster, this disk either belongs to it and was only slower, or was wiped since. Until formCluster is done this node speaks no raft.
func (n *Node) formCluster() {
	if n.admitted.Load() || len(n.config.Peers) == 0 {
		return
	}
	began, warned := time.Now(), time.Time{}
	for {
		err := n.tryToForm()
		switch {
		case err == nil:
			n.admitted.Store(true)
			n.unformed.Store(nil)
			return
		case errors.Is(err, logstore.ErrWiped), errors.Is(err, ErrForeignCluster):
			n.fail(err)
			return
		}
		reason := strings.ReplaceAll(err.Error(), "\n", "; ")
		n.unformed.Store(&reason)
		if time.Since(began) > formationGrace && time.Since(warned) > formationWarning {
			n.logger.Warn("the cluster cannot be formed yet: start every node of the list of peers, and check that they reach each other", "reason",
				reason)
			warned = time.Now()
		}
		if !n.pause(100 * time.Millisecond) {
			return
		}
	}
}

// tryToForm asks all peers, even if one does not answer: another may know that this disk was wiped, or that the cluster was formed with it.
func (n *Node) tryToForm() error {
	nonces := []string{n.config.nonce}
	var formed []string
	var missing []error
	wiped := false
	for _, answer := range n.askPeers() {
		p, reply, err := answer.peer, answer.reply, answer.err
		switch {
		case errors.As(err, new(*peer.RefusedError)):
			missing = append(missing, fmt.Errorf("%s at %s rejects this node: %w", p.ID, p.RaftAddress, err))
		case err != nil:
			missing = append(missing, fmt.Errorf("%s at %s does not answer: %w", p.ID, p.RaftAddress, err))
		case reply.Node != p.ID:
			missing = append(missing, fmt.Errorf("at the address of %s, %s, answers %q", p.ID, p.RaftAddress, reply.Node))
		case reply.List != n.config.list && reply.Empty:
			missing = append(missing, fmt.Errorf("peer list mismatch with %s", p.ID))
		case reply.List != n.config.list:
			return fmt.Errorf("%w: peer %s formed a cluster from another list of peers", ErrForeignCluster, p.ID)
		case len(reply.FormedWith) > 0:
			formed = reply.FormedWith
		case !reply.Empty:
			wiped = true
		default:
			nonces = append(nonces, reply.Nonce)
		}
	}
	switch {
	case len(formed) > 0:
		nonces = formed // this peer has seen all disks
	case wiped:
		return logstore.ErrWiped
	case len(missing) > 0:
		return errors.Join(missing...)
	}
	data, err := json.Marshal(nonces)
	if err != nil {
		return err
	}
	if err := n.log.WritePart(logstore.FormedFile, string(data)); err != nil {
		return err
	}
	return n.bootstrap()
}

// peerAnswer is the answer of one peer of the list.
type peerAnswer struct {
	peer  Peer
	reply peer.Reply
	err   error
}

// askPeers asks all other peers of the list concurrently.
func (n *Node) askPeers() []peerAnswer {
	answers := make([]peerAnswer, 0, len(n.config.Peers))
	for _, p := range n.config.Peers {
		if p.ID != n.config.ID {
			answers = append(answers, peerAnswer{peer: p})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			a := &answers[i]
			a.reply, a.err = n.port.Ask(ctx, a.peer.ID, a.peer.RaftAddress, peer.Request{Kind: "hello", Nonce: n.config.nonce})
		})
	}
	wg.Wait()
	return answers
}

func (n *Node) bootstrap() error {
	servers := make([]raft.Server, len(n.config.Peers))
	for i, p := range n.config.Peers {
		servers[i] = raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.RaftAddress)}
		if len(n.config.Peers) == 1 {
			servers[i].Address = raft.ServerAddress(n.config.advertised())
		}
	}
	err := n.raft.BootstrapCluster(raft.Configuration{Servers: servers}).Error()
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return err
	}
	n.logger.Info("formed the cluster", "peers", len(servers))
	return nil
}
