package raftnode

import (
	"io"

	"github.com/hashicorp/raft"
)

// Consumer implements raft.Transport: it returns the calls of other nodes. A snapshot that this node is beyond is answered
// here, as the Raft paper has it (figure 13, rule 6). Raft 1.7.3 installs it once more: it goes back to that snapshot's
// members, and applies its log from there again, of which the beginning may be gone, at which it panics. A leader sends one so
// where the answer to the first got lost, and to the address of a member that was removed while another has taken its place.
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

// answered answers a snapshot that this node is beyond.
func (t raftTransport) answered(call raft.RPC) bool {
	request, ok := call.Command.(*raft.InstallSnapshotRequest)
	if !ok || !t.hasAllOf(request) {
		return false
	}
	_, _ = io.Copy(io.Discard, call.Reader) // what follows on this connection is another call
	call.Respond(&raft.InstallSnapshotResponse{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: request.Term, Success: true,
	}, nil)
	return true
}

// hasAllOf says whether this node has all that a snapshot of its leader stands for: in a snapshot of its own, or in its log,
// since entries of the same index and term have the same ones before them. Calls come before raft runs, too.
func (n *Node) hasAllOf(snapshot *raft.InstallSnapshotRequest) bool {
	if !n.log.Started() || snapshot.Term < n.raft.CurrentTerm() {
		return false
	}
	return n.log.Has(snapshot.LastLogIndex, snapshot.LastLogTerm)
}
