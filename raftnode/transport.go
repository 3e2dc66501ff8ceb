package raftnode

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// raftTransport is raft's transport with four differences:
//
// It lacks raft's asynchronous heartbeat path, on which a heartbeat changes term and state concurrently with the main loop (hashicorp/raft
// issue 695). Heartbeats go through the main loop like other calls.
//
// After a failed call with entries, it waits until the follower is back. Raft would wait longer after each failure, up to ten seconds, and
// a follower that is back would not count in a majority for that long.
//
// It answers a snapshot without installing it if this node has everything that the snapshot covers: see Consumer.
//
// It announces commits to followers only up to the last entry on this node's disk: see parallelLog.
type raftTransport struct {
	*raft.NetworkTransport
	heartbeats *heartbeats
	// hasAllOf says whether this node has everything that a snapshot covers.
	hasAllOf func(*raft.InstallSnapshotRequest) bool
	// durable returns the last index, at most index, up to which the log is on disk.
	durable func(index uint64) uint64
}

// SetHeartbeatHandler does nothing: see raftTransport.
func (raftTransport) SetHeartbeatHandler(func(raft.RPC)) {}

var (
	_ raft.WithPreVote = raftTransport{}
	_ raft.WithClose   = raftTransport{}
)

// AppendEntries implements raft.Transport. Raft repeats heartbeats at short intervals whether or not they succeed, so an answered one shows
// that a follower is back. A failed call with entries is held until then.
func (t raftTransport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	before := t.heartbeats.count(id)
	args.LeaderCommitIndex = t.durable(args.LeaderCommitIndex)
	err := t.NetworkTransport.AppendEntries(id, target, args, resp)
	switch {
	case isHeartbeat(args):
		if err == nil {
			t.heartbeats.add(id)
		}
	case err != nil:
		t.heartbeats.await(id, before, args.Term)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport. It makes raft send all calls one after the other, through AppendEntries.
func (raftTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// isHeartbeat recognizes raft's heartbeats, which carry neither entries nor a position in the log.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0
}

// heartbeats counts the heartbeats that each follower answered.
type heartbeats struct {
	// leads says whether this node leads in a term and has a follower in its configuration; closed ends all waits.
	leads  func(term uint64, id raft.ServerID) bool
	closed <-chan struct{}

	mu       sync.Mutex
	answered map[raft.ServerID]uint64
	// last is when each follower last answered, by the monotonic clock.
	last    map[raft.ServerID]int64
	changed chan struct{}
	clock   Clock
}

func newHeartbeats(leads func(uint64, raft.ServerID) bool, closed <-chan struct{}, clock Clock) *heartbeats {
	return &heartbeats{
		leads: leads, closed: closed, clock: clock, answered: map[raft.ServerID]uint64{}, last: map[raft.ServerID]int64{},
		changed: make(chan struct{}),
	}
}

// silentFor returns the time since a follower's last answer, or since the moment since if that is later.
func (r *heartbeats) silentFor(id raft.ServerID, since int64) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Duration(max(r.clock.Monotonic()-max(r.last[id], since), 0))
}

func (r *heartbeats) count(id raft.ServerID) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered[id]
}

func (r *heartbeats) add(id raft.ServerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered[id]++
	r.last[id] = r.clock.Monotonic()
	close(r.changed)
	r.changed = make(chan struct{})
}

// pollEvery is how often await checks whether it is still needed.
const pollEvery = 100 * time.Millisecond

// await waits until a follower has answered a heartbeat after the count before, or this node no longer leads it in that term.
func (r *heartbeats) await(id raft.ServerID, before, term uint64) {
	timer := time.NewTicker(pollEvery)
	defer timer.Stop()
	for r.leads(term, id) {
		r.mu.Lock()
		there, changed := r.answered[id] > before, r.changed
		r.mu.Unlock()
		if there {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
		case <-r.closed:
			return
		}
	}
}
