package raftnode

import (
	"context"
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
	"github.com/quotad/quotad/fsm/logpb"
)

// Files in the data directory beside the log.
const (
	clusterFile = "cluster"   // the cluster's id
	nodeFile    = "node"      // this node's id
	nonceFile   = "formation" // this disk's nonce, by which a wiped disk is told from the one that formed the cluster
	formedFile  = "formed"    // the nonces of the members with which this node formed the cluster
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

	// mu guards machine and tickets: written by raft's one goroutine, read by many.
	mu      sync.RWMutex
	machine *fsm.Machine
	tickets *tickets

	appliedIndex atomic.Uint64
	cluster      atomic.Pointer[string]
	// leading is set while this node leads and its barrier is applied.
	leading atomic.Pointer[leadership]
	// led is the newest leadership, also when it has ended: its clock has seen time pass that the state has not.
	led      atomic.Pointer[leadership]
	paused   atomic.Bool
	stopping atomic.Bool
	diskLow  atomic.Bool
	skew     atomic.Int64

	tickKick  chan struct{}
	closing   chan struct{}
	done      chan struct{}
	closeOnce sync.Once
	doneOnce  sync.Once
	wg        sync.WaitGroup
	errMu     sync.Mutex
	err       error
	transfers atomic.Int64
}

// nodeConfig is a Config with what was worked out of it.
type nodeConfig struct {
	Config
	crash *crashPoints
	list  string
	nonce string
}

// leadership is one term in which this node leads and is ready.
type leadership struct {
	term  uint64
	clock leaderClock
	lost  chan struct{}
}

// Open opens the node's data, joins or forms the cluster, and starts. It returns before a leader is known. Errors are
// those of Validate, ErrDataDirInUse, ErrForeignDataDir, damaged snapshots, and the system's.
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
	if config.Free == nil {
		config.Free = freeSpace
	}
	if err := prepareDir(config.DataDir); err != nil {
		return nil, err
	}
	n := &Node{
		config: nodeConfig{Config: config, list: config.listHash()}, logger: config.Logger,
		machine: fsm.New(), tickets: newTickets(), hub: newHub(config.EventEntries), samples: newSamples(),
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
	}
	n.metrics = newMetrics(config.Registerer)
	if err := n.open(); err != nil {
		n.closeFiles()
		return nil, err
	}
	n.start()
	return n, nil
}

func killSelf() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) }

// open opens files and the port, and makes raft.
func (n *Node) open() error {
	bolt, err := openBolt(n.config.DataDir, false)
	if err != nil {
		return err
	}
	n.store = &failStop{
		BoltStore: bolt, fatal: n.fail, clock: n.config.Clock, crash: n.crash,
		took: func(d time.Duration) { n.metrics.fsync.Observe(d.Seconds()) },
	}
	if err := n.identify(); err != nil {
		return err
	}
	if err := verifySnapshots(n.config.DataDir, bolt); err != nil {
		return err
	}
	n.snapshots, err = raft.NewFileSnapshotStoreWithLogger(n.config.DataDir, n.config.SnapshotsRetained, n.logger.Named("snapshots"))
	if err != nil {
		return err
	}
	n.port, err = listenPeers(n.config.RaftAddress, n.config.PeerTLS, n.logger.Named("peers"), 64)
	if err != nil {
		return err
	}
	if n.config.AdvertiseRaft == "" && strings.HasSuffix(n.config.RaftAddress, ":0") {
		n.config.AdvertiseRaft = n.port.Addr().String()
	}
	n.port.greet, n.port.admit, n.port.serve = n.greet, n.admit, n.answerPeer
	n.transport = raftTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.port, MaxPool: 3, MaxRPCsInFlight: 1, Timeout: 3 * time.Second,
		Logger: n.logger.Named("transport"), MsgpackUseNewTimeFormat: true,
	})}
	n.raft, err = raft.NewRaft(n.raftConfig(), machine{n}, n.store, n.store, n.snapshots, n.transport)
	return err
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
	c.Logger = n.logger.Named("raft")
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
	n.proposer = newProposer(n)
	n.port.start()
	for _, run := range []func(){n.proposer.run, n.lead, n.tick, n.watchDisk, n.formCluster, n.sampleWalls, n.watchMembership} {
		n.wg.Go(func() {
			run()
		})
	}
}

// lead follows whether this node leads. It becomes ready when a barrier of its term is applied, so that no entry of an
// older leader can still come with a larger stamp.
func (n *Node) lead() {
	for {
		select {
		case leads := <-n.raft.LeaderCh():
			if !leads {
				n.stopLeading()
				continue
			}
			n.beginLeading()
		case <-n.closing:
			n.stopLeading()
			return
		}
	}
}

// beginLeading waits for the barrier and starts the leader's clock at the state's own time.
func (n *Node) beginLeading() {
	term := n.raft.CurrentTerm()
	for n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term {
		if err := n.raft.Barrier(n.config.ApplyTimeout).Error(); err != nil {
			n.logger.Warn("the barrier of a new leader failed", "term", term, "error", err)
			if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) || errors.Is(err, raft.ErrRaftShutdown) {
				return
			}
			continue
		}
		n.sampleOnce()
		n.mu.RLock()
		base := n.machine.State().Clock().Now
		n.mu.RUnlock()
		lead := &leadership{
			term: term, lost: make(chan struct{}),
			clock: leaderClock{clock: n.config.Clock, base: base, since: n.config.Clock.Monotonic()},
		}
		n.led.Store(lead)
		n.leading.Store(lead)
		n.logger.Info("this node leads", "term", term)
		n.kickTicker()
		n.wg.Go(func() {
			n.settleIn()
		})
		return
	}
}

func (n *Node) stopLeading() {
	if lead := n.leading.Swap(nil); lead != nil {
		close(lead.lost)
		n.proposer.refuseAll(NotLeader)
		n.logger.Info("this node leads no more", "term", lead.term)
	}
}

// settleIn founds the cluster and records the API addresses of the static list, where that is still to do.
func (n *Node) settleIn() {
	ctx, cancel := context.WithTimeout(context.Background(), n.config.ApplyTimeout)
	defer cancel()
	n.mu.RLock()
	founded := n.machine.State().ClusterID()
	known := map[string]string{}
	for _, m := range n.machine.State().Members() {
		known[m.ID] = m.APIAddress
	}
	n.mu.RUnlock()
	var commands []*logpb.Command
	if founded == "" {
		random := make([]byte, 16)
		_, _ = rand.Read(random)
		commands = append(commands, &logpb.Command{Kind: &logpb.Command_Found{
			Found: &logpb.Found{ClusterId: hex.EncodeToString(random)},
		}})
	}
	peers := n.config.Peers
	if len(peers) == 0 || founded != "" {
		peers = []Peer{{ID: n.config.ID, APIAddress: n.config.APIAddress}}
	}
	for _, p := range peers {
		if p.APIAddress != "" && known[p.ID] != p.APIAddress {
			commands = append(commands, &logpb.Command{Kind: &logpb.Command_PutMember{
				PutMember: &logpb.PutMember{Id: p.ID, ApiAddress: p.APIAddress},
			}})
		}
	}
	if _, _, err := n.Propose(ctx, commands...); err != nil {
		n.logger.Warn("the members' addresses could not be recorded", "error", err)
	}
}

func (n *Node) whyNotLeading() NotAcceptedCause {
	switch {
	case n.stopping.Load():
		return Stopping
	case n.raft.State() == raft.Leader:
		return NotReady
	}
	return NotLeader
}

// transferStuck ends a leader that refuses everything because a transfer of its leadership hangs
// (hashicorp/raft issue 696).
func (n *Node) transferStuck() {
	now := n.config.Clock.Monotonic()
	if !n.transfers.CompareAndSwap(0, now) && now-n.transfers.Load() > int64(20*n.config.ElectionTimeout) {
		n.fail(errors.New("a transfer of leadership hangs: the node stops, so that another one can lead"))
	}
}

// fail ends the node.
func (n *Node) fail(err error) {
	n.errMu.Lock()
	if n.err == nil {
		n.err = err
	}
	n.errMu.Unlock()
	n.doneOnce.Do(func() {
		n.logger.Error("the node stops", "error", err)
		n.stopping.Store(true)
		if n.port != nil {
			_ = n.port.Close() // first of all: its peers must notice
		}
		close(n.done)
	})
}

// Done is closed when the node has stopped by itself; Err then says why.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err returns why the node stopped, nil while it runs or after Close.
func (n *Node) Err() error {
	n.errMu.Lock()
	defer n.errMu.Unlock()
	return n.err
}

// ID returns this node's id.
func (n *Node) ID() string { return n.config.ID }

// Leader returns the leader's id and API address as far as this node knows (a hint), and whether it is this node, ready
// to serve.
func (n *Node) Leader() (id, apiAddress string, self bool) {
	_, leader := n.raft.LeaderWithID()
	if leader == "" {
		return "", "", false
	}
	return string(leader), n.apiAddress(string(leader)), n.leading.Load() != nil
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

// Close hands leadership over, stops, and waits, bounded by ctx.
func (n *Node) Close(ctx context.Context) error {
	n.closeOnce.Do(func() {
		n.stopping.Store(true)
		n.handOver(ctx)
		close(n.closing)
		n.doneOnce.Do(func() {
			_ = n.port.Close()
			close(n.done)
		})
		n.hub.close()
	})
	stopped := make(chan struct{})
	go func() {
		n.wg.Wait()
		_ = n.transport.Close()
		_ = n.raft.Shutdown().Error()
		n.port.wg.Wait()
		n.closeFiles()
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the node did not stop in time: %w", ctx.Err())
	}
}

// Kill stops without handing leadership over, as a crash would, but for what the operating system has.
func (n *Node) Kill() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.stopping.Store(true)
	n.doneOnce.Do(func() {
		_ = n.port.Close()
		close(n.done)
	})
	_ = n.Close(ctx)
}

// handOver gives leadership to another voter, within two election timeouts.
func (n *Node) handOver(ctx context.Context) {
	if voters, _ := n.voters(); n.raft.State() != raft.Leader || n.isDone() || len(voters) < 2 {
		return
	}
	future := n.raft.LeadershipTransfer()
	finished := make(chan error, 1)
	go func() { finished <- future.Error() }()
	timer := time.NewTimer(2 * n.config.ElectionTimeout)
	defer timer.Stop()
	select {
	case err := <-finished:
		if err != nil {
			n.logger.Info("leadership could not be handed over", "error", err)
		}
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (n *Node) isDone() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

func (n *Node) closeFiles() {
	if n.store != nil {
		_ = n.store.Close()
	}
	if n.port != nil {
		_ = n.port.Close()
	}
}

// kickTicker makes the ticker look at the state again.
func (n *Node) kickTicker() {
	select {
	case n.tickKick <- struct{}{}:
	default:
	}
}

// tick proposes an entry when something in the state is due, and at least every Tick while anything is pending. With
// nothing pending nothing is written.
func (n *Node) tick() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	last := n.config.Clock.Monotonic()
	for {
		select {
		case <-n.tickKick:
		case <-timer.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		lead := n.leading.Load()
		if lead == nil {
			timer.Reset(time.Hour)
			continue
		}
		n.mu.RLock()
		due, pending := n.machine.State().NextDue()
		stamped := n.machine.State().Clock().Now
		n.mu.RUnlock()
		if !pending {
			timer.Reset(time.Hour)
			continue
		}
		now := lead.clock.now()
		wait := min(due-now, stamped+int64(n.config.Tick)-now)
		if wait <= 0 {
			if since := n.config.Clock.Monotonic() - last; since < int64(time.Millisecond) {
				timer.Reset(time.Millisecond)
				continue
			}
			last = n.config.Clock.Monotonic()
			n.proposeTick(lead)
			wait = int64(2 * time.Millisecond)
		}
		timer.Reset(time.Duration(max(wait, int64(time.Millisecond))))
	}
}

// proposeTick writes an entry without commands.
func (n *Node) proposeTick(lead *leadership) {
	if n.paused.Load() {
		return
	}
	select {
	case n.proposer.slots <- struct{}{}:
		n.proposer.send(lead, nil, nil)
	default: // entries are on their way: they carry the time
	}
}

// watchDisk ends the node when a write stalls or the disk is full, and stops grants before.
func (n *Node) watchDisk() {
	ticker := time.NewTicker(n.config.StallLimit / 8)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		if stalled := n.store.stalledFor(); stalled > n.config.StallLimit {
			n.fail(fmt.Errorf("a write to the log has been stuck for %v: the disk stalls", stalled.Round(time.Millisecond)))
			return
		}
		free, err := n.config.Free(n.config.DataDir)
		if err != nil {
			continue
		}
		low := n.config.FreeLow > 0 && free < n.config.FreeLow
		if low != n.diskLow.Swap(low) {
			n.logger.Warn("free disk space crossed the mark", "free", free, "mark", n.config.FreeLow, "low", low)
		}
		if n.config.FreeStop > 0 && free < n.config.FreeStop {
			n.fail(fmt.Errorf("%d bytes of disk are left, below the mark %d", free, n.config.FreeStop))
			return
		}
	}
}
