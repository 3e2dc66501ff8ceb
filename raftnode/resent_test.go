package raftnode

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestASnapshotThatANodeIsBeyondIsNotInstalled: what this node has is answered without raft; any other snapshot, one of an older
// leader, and calls that follow on the same connection, are raft's.
func TestASnapshotThatANodeIsBeyondIsNotInstalled(t *testing.T) {
	const state = "what the snapshot holds"
	open := func() *raft.NetworkTransport {
		inner, err := raft.NewTCPTransport("127.0.0.1:0", nil, 1, 5*time.Second, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = inner.Close() })
		return inner
	}
	from, inner, closed := open(), open(), make(chan struct{})
	defer close(closed)
	to := raftTransport{
		inner, newReturns(nil, closed, NewSystemClock()),
		func(index, term uint64) bool { return index <= 10 && term == 2 }, func() uint64 { return 3 },
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
		leads, index, term uint64
		answered           bool
	}{
		"before its end":        {3, 9, 2, true},
		"its end":               {3, 10, 2, true},
		"of a new leader":       {4, 10, 2, true},
		"of a leader of before": {2, 10, 2, false},
		"of another term":       {3, 10, 1, false},
		"beyond what it has":    {3, 11, 2, false},
	} {
		request := &raft.InstallSnapshotRequest{Term: c.leads, LastLogIndex: c.index, LastLogTerm: c.term, Size: int64(len(state))}
		var response raft.InstallSnapshotResponse
		if err := from.InstallSnapshot("to", inner.LocalAddr(), request, &response, bytes.NewReader([]byte(state))); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if response.Success != c.answered {
			t.Errorf("%s: success is %v", name, response.Success)
		}
		if err := from.AppendEntries("to", inner.LocalAddr(), &raft.AppendEntriesRequest{Term: c.leads}, new(raft.AppendEntriesResponse)); err != nil {
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
