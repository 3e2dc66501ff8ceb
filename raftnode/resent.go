package raftnode

import (
	"io"

	"github.com/hashicorp/raft"
)

// Consumer implements raft.Transport: it returns the calls of other nodes. It answers a snapshot itself if this node's log is beyond it, as
// in the Raft paper (figure 13, rule 6). Raft 1.7.3 would install it again: it would return to that snapshot's members and apply its log
// from there, and panic if the beginning of that part is gone. A leader sends such a snapshot if the answer to the first one was lost, or
// to the address of a removed member that another member now has.
func (t raftTransport) Consumer() <-chan raft.RPC {
	calls := make(chan raft.RPC)
	go func() {
		for {
			select {
			case call := <-t.NetworkTransport.Consumer():
				if t.answered(call) {
					continue
				}
				select {
				case calls <- call:
				case <-t.heartbeats.closed:
					return
				}
			case <-t.heartbeats.closed:
				return
			}
		}
	}()
	return calls
}

// answered answers a snapshot that this node is beyond; false: the call is for raft.
func (t raftTransport) answered(call raft.RPC) bool {
	request, ok := call.Command.(*raft.InstallSnapshotRequest)
	if !ok || !t.hasAllOf(request) {
		return false
	}
	_, _ = io.Copy(io.Discard, call.Reader) // the rest of the snapshot precedes the next call on this connection
	call.Respond(&raft.InstallSnapshotResponse{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: request.Term, Success: true,
	}, nil)
	return true
}

// hasAllOf says whether this node has everything that a leader's snapshot covers, in a snapshot of its own or in its log: logs with an
// entry of the same index and term agree before it. It is false for calls that arrive before raft runs.
func (n *Node) hasAllOf(snapshot *raft.InstallSnapshotRequest) bool {
	if !n.log.Started() || snapshot.Term < n.raft.CurrentTerm() {
		return false
	}
	return n.log.Has(snapshot.LastLogIndex, snapshot.LastLogTerm)
}
