package raftnode

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// raftTransport is raft's transport with four differences.
//
// It is without raft's asynchronous heartbeat path, which lets a heartbeat change term and state while the main loop does
// (hashicorp/raft issue 695). Heartbeats then go through the main loop as any call.
//
// It waits with a leader's entries for a follower that is away until the follower is back, where raft would wait
// longer with each failure, up to ten seconds: so long a node that is back would be no part of a majority.
//
// A snapshot of which this node has all is answered without being installed: see Consumer.
//
// And followers are told of commits up to what this node has on disk: see parallelLog.
type raftTransport struct {
	*raft.NetworkTransport
	heartbeats *heartbeats
	// hasAllOf says whether this node has all that a snapshot stands for.
	hasAllOf func(*raft.InstallSnapshotRequest) bool
	// durable returns how much of the log up to an index this node has on disk.
	durable func(index uint64) uint64
}

// SetHeartbeatHandler does nothing: see raftTransport.
func (raftTransport) SetHeartbeatHandler(func(raft.RPC)) {}

var (
	_ raft.WithPreVote = raftTransport{}
	_ raft.WithClose   = raftTransport{}
)

// AppendEntries implements raft.Transport. Heartbeats, which raft repeats often whatever comes of them, tell that a
// follower is there. A call with entries that fails is held until then.
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

// AppendEntriesPipeline implements raft.Transport. All calls go one after the other, through AppendEntries.
func (raftTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// isHeartbeat tells raft's heartbeats, which carry neither entries nor a place in the log.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0
}

// heartbeats counts those that each follower answered.
type heartbeats struct {
	// leads says whether this node leads in a term and still has a follower; closed ends all waits.
	leads  func(term uint64, id raft.ServerID) bool
	closed <-chan struct{}

	mu       sync.Mutex
	answered map[raft.ServerID]uint64
	// last is when each answered last, by the clock that does not jump.
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

// silentFor returns how long ago a follower answered, or since says that counting begins.
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

// lookAgain is how often a wait looks whether it still makes sense.
const lookAgain = 100 * time.Millisecond

// await waits until a follower has answered a heartbeat since before, or nobody wants its entries any more.
func (r *heartbeats) await(id raft.ServerID, before, term uint64) {
	timer := time.NewTicker(lookAgain)
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
