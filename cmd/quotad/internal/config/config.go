// Package config is quotad's configuration: one table of settings from which the file's keys, the environment's
// variables, the flags, the defaults, `quotad config check` and the reference in docs/operations.md all come.
//
// Precedence: flag, then environment, then file, then default. Everything unknown is an error with a place and a
// suggestion; a mistake in a layer that is overridden is an error as well, since the layer above may be gone tomorrow.
package config

import (
	"reflect"
	"time"
)

// Config is the effective configuration of a server.
type Config struct {
	// NodeID is this node's stable name in the cluster.
	NodeID string
	// DataDir holds everything that must survive.
	DataDir string
	// LogStore is what the node keeps its log in: boltdb or wal.
	LogStore string
	// API is where holders and operators call.
	API Listener
	// Ops is where operators alone call; not set: nowhere.
	Ops Ops
	// Raft is where the other nodes call.
	Raft Listener
	// RaftNames maps names of certificates to the node ids that they stand for.
	RaftNames map[string][]string
	// Profile is lan or wan: which times of Raft apply where they are not set one by one.
	Profile string
	// Times are Raft's, taken from the profile where not set.
	Times Times
	// Peers is the static list that forms the cluster, this node included.
	Peers []Peer
	// Join says that this node forms no cluster: it waits until `quotad member add` names it.
	Join bool
	// TokensFile maps tokens to what they allow; empty: every caller is believed.
	TokensFile string
	// QuotasFile is applied when the cluster has no quota yet; empty: none.
	QuotasFile string
	// Log says what is logged and how.
	Log Log
	// Disk are the watermarks of free space.
	Disk Disk
	// MemoryLimit is how much memory the process may have, in bytes; 0: what the system allows it; -1: no limit.
	MemoryLimit int64
	// Snapshots say when the log is cut.
	Snapshots Snapshots
	// Testing opens the doors that only a fault suite needs.
	Testing bool
	// TestingRecord takes every entry that is applied; empty: none.
	TestingRecord string
}

// Snapshots say when the state is written out and the log is cut.
type Snapshots struct {
	// Entries is after how many log entries a snapshot is taken, Trailing how many stay in the log behind it.
	Entries, Trailing uint64
	// Interval is how often is looked whether one is due.
	Interval time.Duration
}

// Listener is an address to listen on, and what the others are told.
type Listener struct {
	// Listen is host:port.
	Listen string
	// Advertise is host:port as others reach it; Listen where it was not set.
	Advertise string
	// TLS are the files; zero: plain TCP.
	TLS TLSFiles
	// Insecure allows what Insecurities lists of this port.
	Insecure bool
}

// Ops is the port of operators.
type Ops struct {
	// Listen is host:port; empty: there is no such port. It has the certificate of the API.
	Listen string
	// Pprof says that it serves profiles of the process.
	Pprof bool
}

// TLSFiles names PEM files.
type TLSFiles struct {
	// Cert and Key are this node's chain and private key.
	Cert, Key string
	// CA verifies the other side. For the API it may be empty (callers need no certificate), for Raft it may not.
	CA string
	// PeerCA verifies other nodes' API certificates; empty: CA does, or the system's. Raft has none: there CA does.
	PeerCA string
}

// Enabled says whether TLS is on.
func (f TLSFiles) Enabled() bool { return f.Cert != "" }

// Times are Raft's times.
type Times struct {
	// Heartbeat is how long a follower waits for the leader before it calls an election.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes.
	Election time.Duration
	// Lease is how long a leader without a majority goes on before it steps down; at most Heartbeat.
	Lease time.Duration
}

// Peer is a member of the static list.
type Peer struct {
	// ID is its node id.
	ID string
	// Raft and API are its advertised addresses, host:port.
	Raft, API string
}

// Log says what is logged and how.
type Log struct {
	// Level is trace, debug, info, warn or error.
	Level string
	// Format is text or json.
	Format string
}

// Disk are watermarks of free space on the file system of the data directory, in bytes.
type Disk struct {
	// RefuseBelow is where new grants are refused; giving back still works.
	RefuseBelow int64
	// StopBelow is where the node stops; at most RefuseBelow.
	StopBelow int64
}

// profiles are Raft's times by name. On a LAN a leader is missed within a third of a second; a WAN's round trips and
// losses need more patience.
var profiles = map[string]Times{
	"lan": {Heartbeat: 300 * time.Millisecond, Election: 300 * time.Millisecond, Lease: 200 * time.Millisecond},
	"wan": {Heartbeat: 1500 * time.Millisecond, Election: 1500 * time.Millisecond, Lease: 1000 * time.Millisecond},
}

// Same says whether two configurations mean the same, apart from the log's level, which may change while a node runs.
func (c Config) Same(other Config) bool {
	c.Log.Level, other.Log.Level = "", ""
	return reflect.DeepEqual(c, other)
}
