package raftnode

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
)

// Files in the data directory beside the log.
const (
	clusterFile = "cluster"   // the cluster's id
	nodeFile    = "node"      // this node's id
	nonceFile   = "formation" // this disk's nonce, by which a wiped disk is told from the one that formed the cluster
	formedFile  = "formed"    // the nonces of the members with which this node formed the cluster
	joinedFile  = "joined"    // the index of the configuration in which a leader took this disk in as a learner
)

// Position says where in the log something stands.
type Position struct {
	Term, Index uint64
	// ClusterTime is the cluster time of the entry (nanoseconds since the cluster's birth).
	ClusterTime int64
}

// Node is one member of a cluster.
type Node struct {
	config nodeConfig
	logger hclog.Logger

	port      *peerPort
	store     *failStop
	log       *parallelLog
	snapshots raft.SnapshotStore
	transport raftTransport
	raft      *raft.Raft
	proposer  *proposer
	hub       *hub
	metrics   *metrics
	samples   *samples
	probes    probes
	crash     *crashPoints
	faulty    *FaultyClock

	// mu guards machine and tickets: written by raft's one goroutine, read by many. And looksAt, the cluster time at which the
	// ticker looks at the state again by itself.
	mu      sync.RWMutex
	machine *fsm.Machine
	tickets *tickets
	looksAt int64

	appliedIndex atomic.Uint64
	cluster      atomic.Pointer[string]
	configured   configurations
	handover     *handover
	ends         snapshotEnds
	// leading is set while this node leads and its barrier is applied.
	leading atomic.Pointer[leadership]
	// led is the newest leadership, also when it has ended: its clock has seen time pass that the state has not.
	led atomic.Pointer[leadership]
	// asked counts entries that this node proposed and of which it awaits the outcome.
	asked    atomic.Int64
	paused   atomic.Bool
	stopping atomic.Bool
	diskLow  atomic.Bool
	skew     atomic.Int64
	// settled is set when this disk may take part: see settle. settling is set while that is found out.
	settled  atomic.Bool
	settling atomic.Bool
	// unformed says why the cluster cannot be formed yet; nil: not tried, or done.
	unformed atomic.Pointer[string]
	// suspicious is set while a transfer of leadership is watched.
	suspicious atomic.Bool

	tickKick  chan struct{}
	closing   chan struct{}
	done      chan struct{}
	closeOnce sync.Once
	doneOnce  sync.Once
	wg        sync.WaitGroup
	errMu     sync.Mutex
	err       error
}

// nodeConfig is a Config with what was worked out of it.
type nodeConfig struct {
	Config
	crash *crashPoints
	list  string
	nonce string
}

// Open opens the node's data, joins or forms the cluster, and starts. It returns before a leader is known. Errors are
// those of Validate, ErrDataDirInUse, ErrForeignDataDir, *OtherLogStoreError, ErrTwoLogStores, ErrDamaged, and the system's.
func Open(config Config) (*Node, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	if config.Clock == nil {
		config.Clock = NewSystemClock()
	}
	if config.Network == nil {
		config.Network = newTCP(config.RaftAddress)
	}
	if config.Free == nil {
		config.Free = freeSpace
	}
	if err := prepareDir(config.DataDir); err != nil {
		return nil, err
	}
	n := &Node{
		config: nodeConfig{Config: config, list: config.listHash()}, logger: config.Logger,
		machine: fsm.New(), tickets: newTickets(), hub: newHub(config.EventEntries), samples: newSamples(), handover: newHandover(),
		tickKick: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	if len(config.Peers) == 0 {
		n.config.list = ""
	}
	if config.Testing {
		n.faulty = NewFaultyClock(config.Clock)
		n.config.Clock = n.faulty
		n.crash = &crashPoints{crash: killSelf}
		n.config.crash = n.crash
	} else {
		n.config.Append = nil
	}
	n.metrics = newMetrics(config.Registerer)
	n.proposer = newProposer(n)
	if err := n.open(); err != nil {
		n.closeFiles()
		return nil, err
	}
	if config.Registerer != nil {
		config.Registerer.MustRegister(peerContact{n})
	}
	n.start()
	return n, nil
}

// transportTimeout bounds one call of raft to a peer; that of a snapshot grows with its size.
const transportTimeout = 3 * time.Second

func killSelf() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) }

// open opens files and the port, and makes raft.
func (n *Node) open() error {
	log, err := openStore(n.config.DataDir, n.config.LogStore, storeOptions{failed: n.fail, logger: n.logger.Named("log")})
	if err != nil {
		return err
	}
	n.store = &failStop{
		raftLog: log, fatal: n.fail, clock: n.config.Clock, crash: n.crash, append: n.config.Append,
		took: func(d time.Duration) { n.metrics.fsync.Observe(d.Seconds()) },
	}
	n.log = newParallelLog(n.store, n.leadsNow)
	if err := n.identify(); err != nil {
		return err
	}
	if err := clearSnapshots(n.config.DataDir); err != nil {
		return err
	}
	if err := verifySnapshots(n.config.DataDir, log); err != nil {
		return err
	}
	if err := cutOldConflict(n.config.DataDir, n.store); err != nil {
		return err
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(n.config.DataDir, n.config.SnapshotsRetained, n.logger.Named("snapshots"))
	if err != nil {
		return err
	}
	n.snapshots = &checkedSnapshots{SnapshotStore: files, log: n.log, fatal: n.fail, configured: &n.configured, ends: &n.ends}
	n.port, err = listenPeers(n.config.Network, n.config.RaftAddress, n.config.PeerTLS, n.logger.Named("peers"), 64)
	if err != nil {
		return err
	}
	if n.config.AdvertiseRaft == "" && strings.HasSuffix(n.config.RaftAddress, ":0") {
		n.config.AdvertiseRaft = n.port.Addr().String()
	}
	n.port.greet, n.port.admit, n.port.serve = n.greet, n.admit, n.answerPeer
	n.transport = raftTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.port, MaxPool: 3, MaxRPCsInFlight: 1, Timeout: transportTimeout,
		Logger: newQuiet(n.logger.Named("transport"), &n.stopping), MsgpackUseNewTimeFormat: true,
	}), newReturns(n.leadsFor, n.port.closed, n.config.Clock), n.goneBeyond, n.log.durable}
	if err := n.newRaft(); err != nil {
		return err
	}
	n.store.running.Store(true)
	n.settled.Store(n.wasSettled())
	return nil
}

// newRaft makes raft, which reads the whole log and writes its term. Of damage to the last entry raft returns the text only, at
// any other entry, or a term that cannot be written, it panics.
func (n *Node) newRaft() (err error) {
	defer func() {
		if n.store.failed == nil {
			return
		}
		_ = recover()
		err = n.store.failed
	}()
	log := snapshotLog{n.log, &n.ends}
	n.raft, err = raft.NewRaft(n.raftConfig(), machine{n}, log, n.store, n.snapshots, n.transport)
	return err
}

// leadsNow says whether raft leads. Raft's goroutines ask from their start, before this node has raft in hand: then it does not.
func (n *Node) leadsNow() bool { return n.store.running.Load() && n.raft.State() == raft.Leader }

// leadsFor says whether this node leads in a term and a server is in its configuration.
func (n *Node) leadsFor(term uint64, id raft.ServerID) bool {
	return n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term && n.isMember(string(id))
}

// raftConfig sets every parameter of raft, for the reasons in docs/decisions.
func (n *Node) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.ProtocolVersion = raft.ProtocolVersionMax
	c.LocalID = raft.ServerID(n.config.ID)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = n.config.HeartbeatTimeout, n.config.ElectionTimeout, n.config.LeaderLease
	c.CommitTimeout = 20 * time.Millisecond
	c.MaxAppendEntries = 64
	c.BatchApplyCh = false
	c.ShutdownOnRemove = false
	c.TrailingLogs, c.SnapshotThreshold, c.SnapshotInterval = n.config.TrailingLogs, n.config.SnapshotThreshold, n.config.SnapshotInterval
	c.NoSnapshotRestoreOnStart = false
	c.NoLegacyTelemetry = true
	c.PreVoteDisabled = false
	c.Logger = newQuiet(n.logger.Named("raft"), &n.stopping)
	return c
}

// identify binds the data directory to this node's id and reads what it knows of its cluster.
func (n *Node) identify() error {
	known, err := os.ReadFile(filepath.Join(n.config.DataDir, nodeFile))
	switch {
	case err == nil && strings.TrimSpace(string(known)) != n.config.ID:
		return fmt.Errorf("%w: %s holds the data of node %q, this is %q",
			ErrForeignDataDir, n.config.DataDir, strings.TrimSpace(string(known)), n.config.ID)
	case errors.Is(err, os.ErrNotExist):
		if err := writeDurably(filepath.Join(n.config.DataDir, nodeFile), n.config.ID); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	nonce, err := os.ReadFile(filepath.Join(n.config.DataDir, nonceFile))
	if errors.Is(err, os.ErrNotExist) {
		random := make([]byte, 16)
		_, _ = rand.Read(random)
		nonce = []byte(hex.EncodeToString(random))
		err = writeDurably(filepath.Join(n.config.DataDir, nonceFile), string(nonce))
	}
	if err != nil {
		return err
	}
	n.config.nonce = strings.TrimSpace(string(nonce))
	if id, err := os.ReadFile(filepath.Join(n.config.DataDir, clusterFile)); err == nil {
		text := strings.TrimSpace(string(id))
		n.cluster.Store(&text)
	}
	return nil
}

// start starts the goroutines.
func (n *Node) start() {
	n.port.start()
	for _, run := range []func(){n.proposer.run, n.lead, n.tick, n.watchStall, n.watchSpace, n.formCluster, n.sampleWalls, n.watchMembership} {
		n.wg.Go(func() {
			run()
		})
	}
}

// ID returns this node's id.
func (n *Node) ID() string { return n.config.ID }

// Leader returns the leader's id and API address as far as this node knows (a hint), and whether it is this node, ready
// to serve.
func (n *Node) Leader() (id, apiAddress string, self bool) {
	leader := n.heard()
	if leader == "" {
		return "", "", false
	}
	return leader, n.apiAddress(leader), n.leading.Load() != nil
}

// heard returns the leader that this node hears, itself where it leads, "" for none.
func (n *Node) heard() string {
	_, leader := n.raft.LeaderWithID()
	return heardIn(n.raft.State(), leader)
}

// heardIn is heard. A candidate hears none, though raft names it one that was elected in the term in which this node was asked to take
// over: such a candidate takes entries without becoming a follower (appendEntries in raft 1.7.3), and names that leader for as long as
// nobody elects it.
func heardIn(state raft.RaftState, leader raft.ServerID) string {
	if state == raft.Candidate {
		return ""
	}
	return string(leader)
}

func (n *Node) apiAddress(id string) string {
	if id == n.config.ID && n.config.APIAddress != "" {
		return n.config.APIAddress
	}
	n.mu.RLock()
	members := n.machine.State().Members()
	n.mu.RUnlock()
	for _, m := range members {
		if m.ID == id {
			return m.APIAddress
		}
	}
	for _, p := range n.config.Peers {
		if p.ID == id {
			return p.APIAddress
		}
	}
	return ""
}
