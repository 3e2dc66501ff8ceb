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
				case <-t.returns.closed:
					return
				}
			case <-t.returns.closed:
				return
			}
		}
	}()
	return calls
}

// answered answers a snapshot that this node is beyond.
func (t raftTransport) answered(call raft.RPC) bool {
	request, ok := call.Command.(*raft.InstallSnapshotRequest)
	if !ok || request.Term < t.term() || !t.goneBeyond(request.LastLogIndex, request.LastLogTerm) {
		return false
	}
	_, _ = io.Copy(io.Discard, call.Reader) // what follows on this connection is another call
	call.Respond(&raft.InstallSnapshotResponse{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: request.Term, Success: true,
	}, nil)
	return true
}

// goneBeyond says whether this node has a committed entry and all before it: in its snapshot, or in its log, since an entry of
// the same index and term has the same ones before it.
func (n *Node) goneBeyond(index, term uint64) bool {
	if index <= n.ends.last() {
		return true
	}
	var log raft.Log
	return n.store.GetLog(index, &log) == nil && log.Term == term
}
