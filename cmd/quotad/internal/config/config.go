// Package config is quotad's configuration. One table of settings is the source of the file's keys, the environment
// variables, the flags, the defaults, `quotad config check` and the reference in docs/operations.md.
//
// Precedence: flag, then environment, then file, then default. Every unknown name is an error with a place and a
// suggestion. A mistake in an overridden layer is an error as well, because the layer above it may be gone tomorrow.
package config

import (
	"reflect"
	"time"
)

// Config is the effective configuration of a server.
type Config struct {
	// NodeID is this node's stable name in the cluster.
	NodeID string
	// DataDir holds all durable data.
	DataDir string
	// LogStore is the storage engine of the log: boltdb or wal.
	LogStore string
	// API is the listener for holders and operators.
	API Listener
	// Ops is the listener for operators alone; zero: none.
	Ops Ops
	// Raft is the listener for other nodes.
	Raft Listener
	// RaftNames maps names in certificates to the node ids that they stand for.
	RaftNames map[string][]string
	// Profile is lan or wan: it selects the Raft times that are not set one by one.
	Profile string
	// Times are Raft's times; unset ones have the profile's values.
	Times Times
	// Peers is the static list that forms the cluster, this node included.
	Peers []Peer
	// Join says that this node forms no cluster: it waits until `quotad member add` adds it.
	Join bool
	// TokensFile maps tokens to permissions; empty: every caller is trusted.
	TokensFile string
	// QuotasFile is applied if the cluster has no quota yet; empty: none.
	QuotasFile string
	// Log is the level and format of the log.
	Log Log
	// Disk holds the watermarks of free space.
	Disk Disk
	// MemoryLimit is the process's memory limit in bytes; 0: the system's limit; -1: no limit.
	MemoryLimit int64
	// Snapshots say when to take a snapshot and truncate the log.
	Snapshots Snapshots
	// Testing enables test-only endpoints.
	Testing bool
	// TestingRecord is the directory for a copy of every applied entry; empty: none.
	TestingRecord string
}

// Snapshots say when to take a snapshot and truncate the log.
type Snapshots struct {
	// Entries is the number of log entries between snapshots; Trailing is the number of entries kept in the log after a
	// snapshot.
	Entries, Trailing uint64
	// Interval is how often to check whether a snapshot is due.
	Interval time.Duration
}

// Listener is an address to listen on, and the address that other nodes use.
type Listener struct {
	// Listen is host:port.
	Listen string
	// Advertise is host:port as other nodes reach it; Listen if it was not set.
	Advertise string
	// TLS names the certificate files; zero: plain TCP.
	TLS TLSFiles
	// Insecure allows what Insecurities lists for this port.
	Insecure bool
}

// Ops is the operators' port.
type Ops struct {
	// Listen is host:port; empty: there is no such port. The port uses the API's certificate.
	Listen string
	// Pprof enables profiles of the process at this port.
	Pprof bool
}

// TLSFiles names PEM files.
type TLSFiles struct {
	// Cert and Key are this node's chain and private key.
	Cert, Key string
	// CA verifies the other side. It is optional for the API (callers then need no certificate) and required for Raft.
	CA string
	// PeerCA verifies other nodes' API certificates; empty: CA verifies them, or the system's CAs. Raft does not use it:
	// there CA verifies peers.
	PeerCA string
}

// Enabled reports whether TLS is on.
func (f TLSFiles) Enabled() bool { return f.Cert != "" }

// Times are Raft's times.
type Times struct {
	// Heartbeat is how long a follower waits for the leader before it calls an election.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes.
	Election time.Duration
	// Lease is how long a leader without a majority leads before it steps down; at most Heartbeat.
	Lease time.Duration
}

// Peer is a member of the static list.
type Peer struct {
	// ID is its node id.
	ID string
	// Raft and API are its advertised addresses, host:port.
	Raft, API string
}

// Log is the level and format of the log.
type Log struct {
	// Level is trace, debug, info, warn or error.
	Level string
	// Format is text or json.
	Format string
}

// Disk are watermarks of free space on the file system of the data directory, in bytes.
type Disk struct {
	// RefuseBelow is the free space below which new grants are refused; releases still work.
	RefuseBelow int64
	// StopBelow is the free space below which the node stops; at most RefuseBelow.
	StopBelow int64
}

// profiles are Raft's times by name. On a LAN followers notice a lost leader within a third of a second; the round trips
// and losses of a WAN need more patience.
var profiles = map[string]Times{
	"lan": {Heartbeat: 300 * time.Millisecond, Election: 300 * time.Millisecond, Lease: 200 * time.Millisecond},
	"wan": {Heartbeat: 1500 * time.Millisecond, Election: 1500 * time.Millisecond, Lease: 1000 * time.Millisecond},
}

// Same reports whether two configurations are equal, apart from the log's level, which may change while a node runs.
func (c Config) Same(other Config) bool {
	c.Log.Level, other.Log.Level = "", ""
	return reflect.DeepEqual(c, other)
}
