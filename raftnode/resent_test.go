package raftnode

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/logstore"
)

// TestInstallSnapshot_SkipsOlderThanState: such a snapshot is answered without raft. Other snapshots, and later calls on the same
// connection, reach raft.
func TestInstallSnapshot_SkipsOlderThanState(t *testing.T) {
	const state = "what the snapshot holds"
	open := func() *raft.NetworkTransport {
		inner, err := raft.NewTCPTransport("127.0.0.1:0", nil, 1, 5*time.Second, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			inner.CloseStreams() // Close leaves the other ends open
			_ = inner.Close()
		})
		return inner
	}
	from, inner, closed := open(), open(), make(chan struct{})
	defer close(closed)
	to := raftTransport{
		inner, newHeartbeats(nil, closed, NewSystemClock()),
		func(snapshot *raft.InstallSnapshotRequest) bool { return snapshot.LastLogIndex <= 10 },
		nil,
	}
	calls, asked := to.Consumer(), make(chan uint64, 10)
	answer := func(call raft.RPC) {
		request, ok := call.Command.(*raft.InstallSnapshotRequest)
		if !ok {
			asked <- 0
			call.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			return
		}
		_, _ = io.Copy(io.Discard, call.Reader)
		asked <- request.LastLogIndex
		call.Respond(&raft.InstallSnapshotResponse{Term: 3}, nil)
	}
	go func() {
		for {
			select {
			case call := <-calls:
				answer(call)
			case <-closed:
				return
			}
		}
	}()
	for name, c := range map[string]struct {
		index    uint64
		answered bool
	}{
		"what it has":        {10, true},
		"beyond what it has": {11, false},
	} {
		request := &raft.InstallSnapshotRequest{Term: 3, LastLogIndex: c.index, LastLogTerm: 2, Size: int64(len(state))}
		var response raft.InstallSnapshotResponse
		if err := from.InstallSnapshot("to", inner.LocalAddr(), request, &response, bytes.NewReader([]byte(state))); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if response.Success != c.answered {
			t.Errorf("%s: success is %v", name, response.Success)
		}
		if err := from.AppendEntries("to", inner.LocalAddr(), &raft.AppendEntriesRequest{Term: 3}, new(raft.AppendEntriesResponse)); err != nil {
			t.Fatalf("%s: the call after it: %v", name, err)
		}
		want := []uint64{0}
		if !c.answered {
			want = []uint64{c.index, 0}
		}
		for _, one := range want {
			if got := <-asked; got != one {
				t.Errorf("%s: raft was asked for %d, not %d", name, got, one)
			}
		}
	}
}

// TestHasAllOf_SnapshotsAndLog: once raft runs, a node is beyond a snapshot that its own snapshots or log cover in the same term. Raft
// itself refuses snapshots of an older leader.
func TestHasAllOf_SnapshotsAndLog(t *testing.T) {
	c := DefaultConfig()
	c.ID, c.DataDir, c.RaftAddress, c.APIAddress = "n1", t.TempDir(), "127.0.0.1:0", "127.0.0.1:1"
	const term = 3
	c.LogStore = UnderTest
	before := openDisk(t, c.DataDir, c.ID)
	if err := errors.Join(before.WritePart(logstore.JoinedFile, "1"), before.SetUint64([]byte("CurrentTerm"), term),
		before.Close()); err != nil {
		t.Fatal(err)
	}
	n, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Kill()
	last, err := n.log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	kept := []*raft.Log{{Index: last + 1, Term: 2}, {Index: last + 2, Term: 2}}
	if err := n.log.StoreLogs(kept); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		leads, index, term uint64
		want               bool
	}{
		"in its log":            {term, last + 2, 2, true},
		"of a new leader":       {term + 1, last + 1, 2, true},
		"of another term":       {term, last + 1, 1, false},
		"beyond what it has":    {term, last + 3, 2, false},
		"of a leader of before": {term - 1, last + 2, 2, false},
	} {
		if got := n.hasAllOf(&raft.InstallSnapshotRequest{Term: c.leads, LastLogIndex: c.index, LastLogTerm: c.term}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	n.log.AddSnapshot(last+5, 1)
	if !n.hasAllOf(&raft.InstallSnapshotRequest{Term: term + 1, LastLogIndex: last + 4, LastLogTerm: 1}) {
		t.Error("it is not beyond what its snapshot has")
	}
	early := &Node{log: logstore.New(nil, logstore.Options{})}
	if early.hasAllOf(&raft.InstallSnapshotRequest{Term: term + 1, LastLogIndex: last + 4, LastLogTerm: 1}) {
		t.Error("it is beyond a snapshot before raft runs")
	}
}
