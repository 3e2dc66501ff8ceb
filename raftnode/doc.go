// Package raftnode keeps one fsm.Machine identical on all nodes. It and its subpackages are the only users of hashicorp/raft.
//
// It contains the one proposer (leader check, stamp, batch, encode, raft, wait, results by position), the cluster clock, the linearizable
// read, membership, snapshots, the transport, and fail-stop storage. It does not know the API: package rpc translates.
package raftnode
