package raftnode

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// Peer is a member of the static list that forms a cluster.
type Peer struct {
	// ID is the node's permanent name: a node that lost its disk returns under a new one.
	ID string
	// RaftAddress and APIAddress are host:port.
	RaftAddress, APIAddress string
}

// Config configures a Node. DefaultConfig has the defaults.
type Config struct {
	// ID is this node's name. Required.
	ID string
	// DataDir is the directory of all durable data. Required.
	DataDir string
	// LogStore is the kind of store for the log. Default Bolt. A data directory keeps the kind with which it was created; logstore.Migrate
	// changes it.
	LogStore logstore.Kind
	// RaftAddress is where to listen for peers, host:port. AdvertiseRaft is the address that peers use (default: RaftAddress).
	RaftAddress, AdvertiseRaft string
	// APIAddress is the address of this node's API, for other nodes and clients.
	APIAddress string
	// Peers is the static list of members, this node included, that form the cluster. Empty: the node waits to be added.
	Peers []Peer

	// HeartbeatTimeout: a follower without a leader for that long stands for election. ElectionTimeout bounds an election. Default 300 ms
	// each. LeaderLease: a leader without a majority for that long steps down. Default 200 ms. Election >= heartbeat >= lease.
	HeartbeatTimeout, ElectionTimeout, LeaderLease time.Duration
	// Tick is the longest time between entries while anything is pending. Default 1 s.
	Tick time.Duration
	// ApplyTimeout bounds the wait for the outcome of a proposal. Default 10 s.
	ApplyTimeout time.Duration

	// MaxEntryCommands, at most fsm.MaxEntryCommands, and MaxEntryBytes bound one log entry. Defaults 2,048 and 1 MiB.
	MaxEntryCommands, MaxEntryBytes int
	// MaxQueueCommands and MaxQueueBytes bound the proposer's queue. Defaults 32,768 and 32 MiB.
	MaxQueueCommands, MaxQueueBytes int
	// EntriesInFlight bounds the entries in flight. Default 2.
	EntriesInFlight int

	// SnapshotThreshold is the number of entries after which to take a snapshot, SnapshotInterval how often to check that. TrailingLogs is the
	// number of entries to keep for slow followers. Defaults 8,192, 15 s, 8,192.
	SnapshotThreshold, TrailingLogs uint64
	SnapshotInterval                time.Duration
	// SnapshotsRetained is the number of snapshots to keep. Default 3.
	SnapshotsRetained int

	// FreeLow is the free disk space (bytes) below which new grants are refused, FreeStop that below which the node stops. Defaults 256 MiB
	// and 32 MiB; 0 or less disables the check.
	FreeLow, FreeStop int64
	// MemoryLimit is the memory that the process may use (bytes). Above MemoryMark percent of it new grants are refused. 0: no limit.
	MemoryLimit int64
	// StallLimit is the longest time that a write to disk may take; then the node stops. Default 2 s.
	StallLimit time.Duration

	// EventEntries is the number of entries whose events are kept for watchers that resume. Default 65,536.
	EventEntries int

	// PeerTLS, if set, returns the TLS settings of the port for peers, for both directions. It is called for each connection.
	PeerTLS func() *tls.Config
	// PeerNames maps certificate names to the node ids that they stand for, in addition to the names that CheckIdentity accepts.
	PeerNames map[string][]string
	// Logger takes messages. Default: none.
	Logger hclog.Logger
	// Registerer takes metrics. Default: none.
	Registerer prometheus.Registerer
	// Build describes this node's binary. Oldest and Newest are fsm's unless a test sets them.
	Build peer.Build
	// Testing allows state hashes, log dumps, clock faults and crash points.
	Testing bool
	// Applied, with Testing, is called with every entry that this node applies, in order, before callers and watchers see the result. ledger
	// returns the hash of the ledger after the entry. The callback must not keep or change its arguments.
	Applied func(applied *fsm.Applied, payload []byte, ledger func() [32]byte)
	// Append, with Testing, makes each append to the log: it calls write, at once or later, or returns an error without a call. Default: call
	// write at once.
	Append func(write func() error) error
	// Network is how to reach peers. Default: TCP.
	Network peer.Network
	// Clock is the node's clock. Default: the system's.
	Clock Clock
	// Free returns the free space of the data directory, in bytes. Default: the file system's.
	Free func(dir string) (int64, error)
	// Memory returns the memory in use by the process, in bytes. Default: the system's figure.
	Memory func() (int64, error)

	// sampleTick is the interval between comparisons of clocks while this node leads. Tests shorten it.
	sampleTick time.Duration
	// restoreUpTo is the size in bytes up to which a new snapshot is test-restored next to the state, if no memory limit is known. Of a larger
	// one only the state's consistency and the written bytes are checked.
	restoreUpTo int64
}

// DefaultConfig returns the defaults, for nodes on one local network.
func DefaultConfig() Config {
	return Config{
		LogStore: logstore.Bolt, HeartbeatTimeout: 300 * time.Millisecond, ElectionTimeout: 300 * time.Millisecond,
		LeaderLease: 200 * time.Millisecond,
		Tick:        time.Second, ApplyTimeout: 10 * time.Second,
		MaxEntryCommands: fsm.MaxEntryCommands, MaxEntryBytes: 1 << 20, MaxQueueCommands: 32_768, MaxQueueBytes: 32 << 20, EntriesInFlight: 2,
		SnapshotThreshold: 8192, TrailingLogs: 8192, SnapshotInterval: 15 * time.Second, SnapshotsRetained: 3,
		FreeLow: 256 << 20, FreeStop: 32 << 20, StallLimit: 2 * time.Second, EventEntries: 65_536,
		sampleTick: time.Second, restoreUpTo: 64 << 20,
	}
}

// Validate checks the fields and their relations. It returns all errors, joined.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	need(c.ID != "" && len(c.ID) <= 128 && !strings.ContainsAny(c.ID, " \t\r\n"), "the node id must have 1 to 128 bytes and no blanks")
	need(c.DataDir != "", "the data directory is missing")
	need(c.LogStore == logstore.Bolt || c.LogStore == logstore.WAL, "the log store %q is not one of %q, %q", c.LogStore, logstore.Bolt,
		logstore.WAL)
	_, _, err := net.SplitHostPort(c.RaftAddress)
	need(err == nil, "the Raft address %q is not host:port", c.RaftAddress)
	need(c.LeaderLease > 0 && c.HeartbeatTimeout >= c.LeaderLease,
		"the heartbeat timeout (%v) must be at least the leader lease (%v)", c.HeartbeatTimeout, c.LeaderLease)
	need(c.ElectionTimeout >= c.HeartbeatTimeout,
		"the election timeout (%v) must be at least the heartbeat timeout (%v)", c.ElectionTimeout, c.HeartbeatTimeout)
	need(c.Tick > 0 && c.ApplyTimeout > 0 && c.StallLimit > 0, "tick, apply timeout and stall limit must be above 0")
	need(c.MaxEntryCommands > 0 && c.MaxEntryBytes > 0 && c.EntriesInFlight > 0, "the bounds of an entry must be above 0")
	need(c.MaxEntryCommands <= fsm.MaxEntryCommands, "an entry has at most %d commands", fsm.MaxEntryCommands)
	need(c.MaxQueueCommands >= c.MaxEntryCommands && c.MaxQueueBytes >= c.MaxEntryBytes, "the queue must hold at least one entry")
	need(c.SnapshotThreshold > 0 && c.SnapshotInterval > 0 && c.SnapshotsRetained > 0, "the snapshot settings must be above 0")
	need(len(c.Peers) == 0 || slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.ID == c.ID }),
		"the list of peers does not name this node, %q", c.ID)
	for i, p := range c.Peers {
		need(p.ID != "" && p.RaftAddress != "", "peer %d needs an id and a Raft address", i)
		for _, other := range c.Peers[:i] {
			need(other.ID != p.ID && other.RaftAddress != p.RaftAddress, "peer %q is listed twice", p.ID)
		}
	}
	return errors.Join(errs...)
}

// listHash identifies the static list: nodes with different lists do not form one cluster.
func (c *Config) listHash() string {
	names := make([]string, len(c.Peers))
	for i, p := range c.Peers {
		names[i] = p.ID + "=" + p.RaftAddress
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return hex.EncodeToString(sum[:8])
}

func (c *Config) advertised() string {
	if c.AdvertiseRaft != "" {
		return c.AdvertiseRaft
	}
	return c.RaftAddress
}
