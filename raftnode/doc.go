// Package raftnode is everything that knows hashicorp/raft and its log stores: it keeps one fsm.Machine the same on all nodes.
//
// It has the one proposer (leader check, stamp, batch, encode, raft, wait, results by position), the cluster clock, the
// linearizable read, membership, snapshots, the transport, and fail-stop storage. It does not know the API: package rpc
// translates.
package raftnode
