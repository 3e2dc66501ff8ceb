package raftnode

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm/logpb"
)

// leadership is one term in which this node leads and is ready.
type leadership struct {
	term  uint64
	clock leaderClock
	lost  chan struct{}
	// rate is used only by the goroutine that samples clocks.
	rate rateMeter
}

// lead tracks whether this node leads. It becomes ready once a barrier of its term is applied, so that no entry of an older leader with a
// later stamp can follow.
func (n *Node) lead() {
	for {
		select {
		case leads := <-n.raft.LeaderCh():
			// The channel keeps only the newest value. Two trues in a row may hide a false between them, so a true ends the former term too.
			n.stopLeading()
			if leads {
				n.beginLeading()
			}
		case <-n.closing:
			n.stopLeading()
			return
		}
	}
}

// beginLeading waits for the barrier and starts the leader's clock at the state's time.
func (n *Node) beginLeading() {
	term := n.raft.CurrentTerm()
	for n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term {
		if err := n.await(n.raft.Barrier(n.config.ApplyTimeout)); err != nil {
			n.logger.Warn("elected, but could not commit the first entry; trying again", "term", term, "error", err)
			if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) || errors.Is(err, raft.ErrRaftShutdown) {
				return
			}
			if !n.pause(n.config.HeartbeatTimeout / 4) {
				return
			}
			continue
		}
		n.sampleOnce(majority) // a node that is cut off must not delay the new leader
		if _, _, ok := n.samples.views(n); !ok {
			// Without samples the later view would continue from before the election, and windows would close late by that time.
			n.logger.Warn("elected, but too few members report the time of day: this node does not lead yet", "term", term)
			if !n.pause(n.config.HeartbeatTimeout / 4) {
				return
			}
			continue
		}
		n.raiseVersion()
		n.mu.RLock()
		base := n.machine.State().Clock().Now
		n.mu.RUnlock()
		lead := &leadership{
			term: term, lost: make(chan struct{}),
			clock: leaderClock{clock: n.config.Clock, base: base, since: n.config.Clock.Monotonic()},
		}
		if err := n.found(lead); err != nil {
			n.logger.Warn("could not initialize the cluster", "term", term, "error", err)
			if !n.pause(n.config.HeartbeatTimeout / 4) {
				return
			}
			continue
		}
		n.lastLeadership.Store(lead)
		n.leading.Store(lead)
		n.logger.Info("this node leads", "term", term)
		n.kickTicker()
		n.wg.Go(func() { n.recordMembers(lead) })
		return
	}
}

// pause waits for a duration; false: the node stops.
func (n *Node) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-n.closing:
	case <-n.done:
	}
	return false
}

func (n *Node) stopLeading() {
	if lead := n.leading.Swap(nil); lead != nil {
		close(lead.lost)
		n.proposer.refuseAll(NotLeader)
		n.logger.Info("this node no longer leads", "term", lead.term)
	}
}

// found gives a new cluster its id and its members' API addresses, before this node is ready and takes commands. A backup without an id
// could be restored into any cluster.
func (n *Node) found(lead *leadership) error {
	n.mu.RLock()
	founded := n.machine.State().ClusterID() != ""
	n.mu.RUnlock()
	if founded {
		return nil
	}
	return n.proposer.proposeFirst(lead, n.introduction())
}

// recordMembers records this node's API address in the log if it is missing there.
func (n *Node) recordMembers(lead *leadership) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), n.config.ApplyTimeout)
		err := n.proposeOwn(ctx, n.introduction()...)
		cancel()
		if err == nil {
			return
		}
		n.logger.Warn("could not record the members' addresses", "error", err)
		select {
		case <-lead.lost:
			return
		default:
		}
		if !n.pause(n.config.Tick) {
			return
		}
	}
}

// introduction returns commands for what the state lacks: the cluster's id and members' API addresses.
func (n *Node) introduction() (commands []*logpb.Command) {
	n.mu.RLock()
	founded := n.machine.State().ClusterID()
	n.mu.RUnlock()
	known := n.recordedAddresses()
	if founded == "" {
		random := make([]byte, 16)
		_, _ = rand.Read(random)
		commands = append(commands, &logpb.Command{Kind: &logpb.Command_Found{
			Found: &logpb.Found{ClusterId: hex.EncodeToString(random)},
		}})
	}
	peers := n.config.Peers
	if len(peers) == 0 || founded != "" {
		peers = []Peer{{ID: n.config.ID, APIAddress: n.config.APIAddress}}
	}
	for _, p := range peers {
		if p.APIAddress != "" && known[p.ID] != p.APIAddress && (founded == "" || !n.apis.taken(known, p.ID, p.APIAddress)) {
			commands = append(commands, putMember(p.ID, p.APIAddress))
		}
	}
	return commands
}

func (n *Node) whyNotLeading() NotAcceptedCause {
	switch {
	case n.stopping.Load():
		return Stopping
	case n.raft.State() == raft.Leader:
		return NotReady
	}
	return NotLeader
}

// ErrTransferStuck says that a leader refused all commands because a transfer of its leadership hung.
var ErrTransferStuck = errors.New("a transfer of leadership hangs: the node stops, so that another node can lead")

// suspectTransfer watches a running transfer of leadership. Raft may forget that a transfer has ended, and then refuses all commands
// permanently (hashicorp/raft issue 696). Raft itself bounds a transfer to one election timeout.
func (n *Node) suspectTransfer() {
	if n.stopping.Load() || !n.suspicious.CompareAndSwap(false, true) {
		return
	}
	go func() { // not in n.wg: Close may be waiting for it already
		defer n.suspicious.Store(false)
		for range 8 {
			if !n.pause(n.config.ElectionTimeout / 4) {
				return
			}
			if err := n.await(n.raft.Barrier(n.config.ApplyTimeout)); !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
				return
			}
		}
		n.fail(ErrTransferStuck)
	}()
}

// await waits for a future of raft, or until the node is done: a future may never complete when raft stops.
func (n *Node) await(future raft.Future) error {
	failed := make(chan error, 1)
	go func() { failed <- future.Error() }()
	select {
	case err := <-failed:
		return err
	case <-n.done:
		return raft.ErrRaftShutdown
	}
}
