package raftnode

import (
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestKnownLeader_IsNoneForCandidate: a node is asked to take over, and another one is elected in the same term. Raft names that leader but
// leaves the node a candidate. It still names it after the leader is gone, and the node would never ask the others whether it was removed.
// (Found by the simulation, seed 71000, once in 13 runs.)
func TestKnownLeader_IsNoneForCandidate(t *testing.T) {
	conf, store := raft.DefaultConfig(), raft.NewInmemStore()
	conf.LocalID, conf.LogOutput = "a", io.Discard
	conf.HeartbeatTimeout, conf.ElectionTimeout = time.Minute, time.Minute // no timeout changes its state
	_, own := raft.NewInmemTransport("a")
	_, other := raft.NewInmemTransport("b")
	own.Connect("b", other)
	other.Connect("a", own)
	snapshots := raft.NewInmemSnapshotStore()
	servers := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}, {ID: "b", Address: "b"}, {ID: "c", Address: "c"}}}
	if err := raft.BootstrapCluster(conf, store, store, snapshots, own, servers); err != nil {
		t.Fatal(err)
	}
	node, err := raft.NewRaft(conf, &raft.MockFSM{}, store, store, snapshots, own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Shutdown().Error() })
	from := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("b"), Addr: []byte("b")}
	if err := other.TimeoutNow("a", "a", &raft.TimeoutNowRequest{RPCHeader: from}, &raft.TimeoutNowResponse{}); err != nil {
		t.Fatal(err)
	}
	asked, ok := (<-other.Consumer()).Command.(*raft.RequestVoteRequest) // which gets no answer
	if !ok {
		t.Fatal("it asks for something else than a vote")
	}
	var taken raft.AppendEntriesResponse
	if err := other.AppendEntries("a", "a", &raft.AppendEntriesRequest{RPCHeader: from, Term: asked.Term}, &taken); err != nil ||
		!taken.Success {
		t.Fatalf("%+v, %v", taken, err)
	}
	_, named := node.LeaderWithID()
	if state := node.State(); state != raft.Candidate || named != "b" {
		t.Fatalf("raft says %v, led by %q: where it does so, heardIn has no reason any more", state, named)
	}
	if heard := knownLeaderIn(node.State(), named); heard != "" {
		t.Errorf("a candidate hears %q", heard)
	}
	for _, state := range []raft.RaftState{raft.Follower, raft.Leader} {
		if knownLeaderIn(state, named) != "b" {
			t.Errorf("a %v does not hear its leader", state)
		}
	}
}
