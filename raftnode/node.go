package raftnode

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// Position is a position in the log.
type Position struct {
	Term, Index uint64
	// ClusterTime is the cluster time of the entry (nanoseconds since the cluster was formed).
	ClusterTime int64
}

// Node is one member of a cluster.
type Node struct {
	config nodeConfig
	logger hclog.Logger
	// peerLogger takes messages about callers at the port for peers.
	peerLogger hclog.Logger

	port      *peer.Port
	log       *logstore.Log
	snapshots raft.SnapshotStore
	transport raftTransport
	raft      *raft.Raft
	proposer  *proposer
	hub       *hub
	metrics   *metrics
	samples   *samples
	probes    probes
	attester  *attester
	crash     *crashPoints
	faulty    *FaultyClock

	// mu guards machine, tickets and nextTick. Raft's one goroutine writes the first two, many goroutines read them. nextTick is the cluster
	// time at which the ticker next checks the state by itself.
	mu       sync.RWMutex
	machine  *fsm.Machine
	tickets  *tickets
	nextTick int64

	appliedIndex atomic.Uint64
	cluster      atomic.Pointer[string]
	configured   configurations
	transfers    *transfers
	// unreadable says why the newest snapshot could not be read back; nil: it could.
	unreadable atomic.Pointer[string]
	// leading is set while this node leads and its barrier is applied.
	leading atomic.Pointer[leadership]
	// lastLeadership is the newest leadership, also after it ended: its clock has advanced beyond the state's.
	lastLeadership atomic.Pointer[leadership]
	paused         atomic.Bool
	// restores counts the snapshots that replaced the state, changed under mu.
	restores atomic.Uint64
	stopping atomic.Bool
	// diskLow is set while the disk is low, transferring while this node therefore transfers leadership, and diskRefusesGrants while it
	// therefore refuses grants.
	diskLow, transferring, diskRefusesGrants atomic.Bool
	// skew is the deviation of this node's wall clock from the voters', viewAhead how far the state's earlier view of Unix time is ahead of
	// their clocks. Both are in nanoseconds.
	skew, viewAhead atomic.Int64
	// shift is the state's shift: how far its views are ahead of Unix time.
	shift  atomic.Int64
	builds builds
	apis   apiAddresses
	// entryVersion is the version of the entries that this node proposes.
	entryVersion atomic.Uint32
	// level is the feature level of the state.
	level   atomic.Uint32
	logEnds logEnds
	// memoryFull is set while the process uses too much memory: see watchMemory. memoryMark is in bytes; 0: no mark.
	memoryFull atomic.Bool
	memoryMark int64
	// admitted is set once this disk may take part: see admitDisk. admitting is set while that is being determined.
	admitted      atomic.Bool
	admitting     atomic.Bool
	confirmations confirmations
	// unformed says why the cluster cannot be formed yet; nil: not tried yet, or formed.
	unformed atomic.Pointer[string]
	// suspicious is set while a transfer of leadership is being watched.
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

// nodeConfig is a Config with values derived from it.
type nodeConfig struct {
	Config
	crash *crashPoints
	list  string
	nonce string
}

// Open opens the node's data, joins or forms the cluster, and starts. It returns before a leader is known. Errors are those of Validate,
// ErrForeignDataDir, those of package logstore (ErrDataDirInUse, *OtherKindError, ErrTwoLogStores, ErrDamaged, ErrWiped, ErrUnfitBuild,
// *UnsupportedError), and the system's.
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
		config.Network = peer.NewTCP(config.RaftAddress)
	}
	if config.Memory == nil {
		config.Memory = memoryInUse
	}
	if config.Free == nil {
		config.Free = freeSpace
	}
	if config.Build.Newest == 0 { // unless a test sets them
		config.Build.Oldest, config.Build.Newest = fsm.OldestEntryVersion, fsm.EntryVersion
	}
	disk, err := logstore.ReadDisk(config.DataDir)
	if err != nil {
		return nil, logstore.InDir(config.DataDir, err)
	}
	n := &Node{
		config: nodeConfig{Config: config, list: config.listHash()}, logger: config.Logger,
		machine: fsm.New(), tickets: newTickets(), hub: newHub(config.EventEntries),
		samples: newSamples(), transfers: newTransfers(), attester: newAttester(),
		confirmations: confirmations{of: map[string]confirmation{}}, configured: configurations{learned: make(chan struct{}, 1)},
		tickKick: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	if len(config.Peers) == 0 {
		n.config.list = ""
	}
	n.apis.learn(config.ID, config.APIAddress)
	if config.Testing {
		n.faulty = NewFaultyClock(config.Clock)
		n.config.Clock = n.faulty
		n.crash = &crashPoints{crash: killSelf}
		n.config.crash = n.crash
	} else {
		n.config.Append = nil
	}
	n.metrics = newMetrics(config.Registerer)
	n.proposer = newProposer(n, n.config, n.metrics, n.closing, n.done)
	n.peerLogger = newDedupLogger(n.logger.Named("peers"), &n.stopping)
	if err := n.open(disk); err != nil {
		n.closeFiles()
		return nil, logstore.InDir(config.DataDir, err)
	}
	if config.Registerer != nil {
		config.Registerer.MustRegister(peerContact{n})
	}
	n.start()
	return n, nil
}

// transportTimeout bounds one call of raft to a peer; for a snapshot raft extends it with the size.
const transportTimeout = 3 * time.Second

// open opens the files and the port, and creates raft.
func (n *Node) open(disk *logstore.Disk) error {
	if err := n.identify(disk); err != nil {
		return err
	}
	log, err := disk.Open(logstore.Options{
		Kind: n.config.LogStore, Node: n.config.ID, Leads: n.leadsNow, Fatal: n.fail, Monotonic: n.config.Clock.Monotonic,
		Crash: n.crash.pass, Append: n.config.Append, Logger: n.logger.Named("log"),
		Took: func(d time.Duration) { n.metrics.fsync.Observe(d.Seconds()) },
	})
	if err != nil {
		return err
	}
	n.log, n.config.nonce = log, log.Nonce()
	files, err := n.openSnapshots()
	if err != nil {
		return err
	}
	n.snapshots = files
	n.port, err = peer.Listen(peer.Config{
		Network: n.config.Network, Address: n.config.RaftAddress, TLS: n.config.PeerTLS, Logger: n.peerLogger,
		MaxEntry: max(n.config.MaxEntryBytes, DefaultConfig().MaxEntryBytes), // other nodes may use the default
		Local: peer.Local{
			Greet: n.greet, Admit: n.admit, Knows: n.knownMember, Identifies: n.identifies, NodeAt: n.nodeAt,
			Answer: n.answerPeer, Met: n.recordBuild,
		},
	})
	if err != nil {
		return err
	}
	if n.config.AdvertiseRaft == "" && strings.HasSuffix(n.config.RaftAddress, ":0") {
		n.config.AdvertiseRaft = n.port.Addr().String()
	}
	n.transport = raftTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.port, MaxPool: 3, MaxRPCsInFlight: 1, Timeout: transportTimeout,
		Logger: newDedupLogger(n.logger.Named("transport"), &n.stopping), MsgpackUseNewTimeFormat: true,
	}), newHeartbeats(n.leadsFor, n.port.Closed(), n.config.Clock), n.hasAllOf, n.log.Durable}
	if err := n.newRaft(); err != nil {
		return err
	}
	n.log.Start()
	n.admitted.Store(n.wasAdmitted())
	return nil
}

// newRaft creates raft, which reads the whole log and writes its term. For damage to the last entry raft returns only a text; for another
// damaged entry, or a term that cannot be written, it panics. newRaft returns the error of the log in each case.
func (n *Node) newRaft() (err error) {
	defer func() {
		if n.log.StartError() == nil {
			return
		}
		_ = recover()
		err = n.log.StartError()
	}()
	n.raft, err = raft.NewRaft(n.raftConfig(), machine{n}, n.log, n.log, n.snapshots, n.transport)
	return err
}

// leadsNow says whether raft leads. Raft's goroutines call it from their start, before n.raft is set: then it is false.
func (n *Node) leadsNow() bool {
	return n.log != nil && n.log.Started() && n.raft.State() == raft.Leader
}

// leadsFor says whether this node leads in a term and has a server in its configuration.
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
	c.MaxAppendEntries = peer.MaxAppendEntries
	c.BatchApplyCh = false
	c.ShutdownOnRemove = false
	c.TrailingLogs, c.SnapshotThreshold, c.SnapshotInterval = n.config.TrailingLogs, n.config.SnapshotThreshold, n.config.SnapshotInterval
	c.NoSnapshotRestoreOnStart = false
	c.NoLegacyTelemetry = true
	c.PreVoteDisabled = false
	c.Logger = newDedupLogger(n.logger.Named("raft"), &n.stopping)
	return c
}

// identify checks that the data directory belongs to this node, and reads its cluster id.
func (n *Node) identify(disk *logstore.Disk) error {
	if known, there := disk.Part(logstore.NodeFile); there && known != n.config.ID {
		return fmt.Errorf("%w: %s has the data of node %q, this is node %q", ErrForeignDataDir, n.config.DataDir, known, n.config.ID)
	}
	if id, there := disk.Part(logstore.ClusterFile); there {
		n.cluster.Store(&id)
	}
	return nil
}

// start starts the goroutines.
func (n *Node) start() {
	n.port.Start()
	n.wg.Go(func() { n.log.Run(n.closing, n.done) })
	n.markMemory()
	for _, run := range []func(){
		n.proposer.run, n.lead, n.tick, n.watchStall, n.watchSpace, n.watchMemory, n.formCluster, n.sampleWalls, n.watchMembership,
		n.judgeMembers,
	} {
		n.wg.Go(func() {
			run()
		})
	}
}

// ID returns this node's id.
func (n *Node) ID() string { return n.config.ID }

// Leader returns the leader's id and API address as far as this node knows (a hint). self: this node is the leader and ready to serve.
func (n *Node) Leader() (id, apiAddress string, self bool) {
	leader := n.knownLeader()
	if leader == "" {
		return "", "", false
	}
	return leader, n.apiAddress(leader), n.leading.Load() != nil
}

// knownLeader returns the id of the leader that this node knows, itself if it leads, "" for none.
func (n *Node) knownLeader() string {
	_, leader := n.raft.LeaderWithID()
	return knownLeaderIn(n.raft.State(), leader)
}

// knownLeaderIn is knownLeader for a given state of raft. For a candidate it is "", although raft may name a leader. That happens if
// another node is elected in the term in which this node was asked to take over: this node then takes entries without becoming a follower
// (appendEntries in raft 1.7.3). Raft names that leader until another is elected.
func knownLeaderIn(state raft.RaftState, leader raft.ServerID) string {
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
