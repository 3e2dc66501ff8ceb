package sim

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/record"
)

// Outcome is the result of a seed.
type Outcome struct {
	Result *check.Result
	// Events are the faults and other events with their virtual times, to read after a failure.
	Events []string
	// Faults counts faults by kind.
	Faults map[string]int
	// Changed counts changes of membership.
	Changed int
	// Installed counts the snapshots that nodes installed from a leader.
	Installed int
	// Stuck says what did not recover after the last fault; empty: everything did.
	Stuck string
}

// Failed names the checkers that the seed failed; "stuck" stands for a missing recovery.
func (o *Outcome) Failed() []string {
	var names []string
	if o.Result != nil {
		for _, v := range o.Result.Verdicts {
			if v.Outcome == check.Fail {
				names = append(names, v.Checker)
			}
		}
	}
	if o.Stuck != "" {
		names = append(names, "stuck")
	}
	return names
}

// plan is drawn from a seed: each run has its own faults.
type plan struct {
	nodes    int
	length   time.Duration
	clients  int
	waiters  int
	runners  int
	watchers int
	events   int
	// rests: midway all clients rest for longer than a task waits after a failure.
	rests     bool
	heartbeat time.Duration
	threshold uint64
	// weights of the faults.
	crash, cut, flap, slow, reset, clock, transfer, all int
	// members: the membership changes.
	members bool
	// disk is the longest time of a write.
	disk time.Duration
}

func drawPlan(r *rand.Rand) plan {
	weight := func() int { return r.IntN(4) }
	p := plan{
		nodes: 3, length: time.Duration(8+r.IntN(10)) * time.Second, clients: 2 + r.IntN(3), waiters: 3 + r.IntN(4),
		runners: 1 + r.IntN(3), rests: r.IntN(4) == 0, watchers: 1 + r.IntN(2), events: []int{16, 300, 65_536}[r.IntN(3)],
		heartbeat: []time.Duration{60 * time.Millisecond, 150 * time.Millisecond, 350 * time.Millisecond}[r.IntN(3)],
		threshold: []uint64{20, 60, 200}[r.IntN(3)],
		crash:     1 + weight(), cut: 1 + weight(), flap: weight(), slow: weight(), reset: weight(), clock: weight(), transfer: weight(),
		all: r.IntN(2),
	}
	if r.IntN(4) == 0 {
		p.nodes = 5
	}
	p.members = r.IntN(2) == 0
	return p
}

// world is a run while it runs.
type world struct {
	plan  plan
	rand  *rand.Rand
	dir   string
	mesh  *mesh
	began time.Time
	logs  installs
	mu    sync.Mutex
	nodes map[string]*raftnode.Node
	// disk is the disk of each node's last life; disks is the source of their randomness.
	disk  map[string]*disk
	disks *rand.Rand
	// starts is held while a node is started, or ended permanently.
	starts chan struct{}
	// ids are the nodes of the cluster, retired the removed ones; ends are the nodes that ended by themselves.
	ids, retired []string
	ends         []end
	result       *check.Simulated
	// resting is until when clients rest.
	resting time.Time
	// watched is the index up to which each watcher has seen all events.
	watched map[string]uint64
	// settling: nothing more happens, so watchers read as fast as they can.
	settling atomic.Bool
	out      Outcome
}

// Run runs a seed in the present bubble, with files below a folder.
func Run(seed uint64, dir string) *Outcome {
	r := rand.New(rand.NewPCG(seed, 0x51)) //nolint:gosec // no secret
	p := drawPlan(r)
	p.disk = drawDisk(seed, p.heartbeat)
	w := newWorld(p, r, dir)
	w.say("plan %+v", w.plan)
	for _, id := range w.all() {
		if err := w.start(id); err != nil {
			w.stuck("%v", err)
			return &w.out
		}
	}
	w.play(seed)
	for _, id := range w.disband() {
		w.stop(id)
	}
	// Virtual time ends with this function, and raft's abandoned calls end by their deadlines.
	time.Sleep(time.Minute)
	w.out.Installed = w.logs.count()
	w.out.Result = check.RunSimulated(w.result)
	return &w.out
}

// newWorld prepares a run; nothing is started.
func newWorld(p plan, r *rand.Rand, dir string) *world {
	own := r.Uint64()
	w := &world{
		plan: p, rand: r, dir: dir, mesh: newMesh(rand.New(rand.NewPCG(own, 0x52))), began: time.Now(), //nolint:gosec // no secret
		disk: map[string]*disk{}, disks: rand.New(rand.NewPCG(own, 0x55)), //nolint:gosec // no secret
		nodes: map[string]*raftnode.Node{}, result: &check.Simulated{Applied: map[string][]*record.Line{}},
		watched: map[string]uint64{}, starts: make(chan struct{}, 1), out: Outcome{Faults: map[string]int{}},
	}
	for i := range p.nodes {
		w.ids = append(w.ids, address(i))
	}
	return w
}

func address(i int) string { return fmt.Sprintf("n%d:1", i+1) }

func (w *world) now() int64 { return int64(time.Since(w.began)) }

func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out.Events = append(w.out.Events, fmt.Sprintf("%9.3f  %s", float64(w.now())/1e9, fmt.Sprintf(format, args...)))
}

// start starts a node. A founder is named by its address, and forms the cluster with the others; any other node waits to be added.
func (w *world) start(id string) error {
	c := raftnode.DefaultConfig()
	c.ID, c.RaftAddress, c.APIAddress, c.DataDir = id, hostOf(id), hostOf(id), filepath.Join(w.dir, id)
	founder := false
	for i := range w.plan.nodes {
		founder = founder || id == address(i)
		c.Peers = append(c.Peers, raftnode.Peer{ID: address(i), RaftAddress: address(i), APIAddress: address(i)})
	}
	if !founder {
		c.Peers = nil
	}
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease = w.plan.heartbeat, w.plan.heartbeat, w.plan.heartbeat*3/4
	c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = w.plan.threshold, w.plan.threshold/2, 500*time.Millisecond
	c.EventEntries = w.plan.events
	c.FreeLow, c.FreeStop = -1, -1
	c.Network, c.Append = endpoint{w.mesh, hostOf(id)}, w.newDisk(id).append
	c.Logger = w.logs.logger(id)
	c.Testing = true
	c.Applied = func(applied *fsm.Applied, payload []byte, ledger func() [32]byte) {
		line := &record.Line{Index: applied.Index, Term: applied.Term, Payload: bytes.Clone(payload), Outcome: record.Digest(applied)}
		if applied.Index%64 == 0 {
			sum := ledger()
			line.Ledger = hex.EncodeToString(sum[:])
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.result.Applied[id] = append(w.result.Applied[id], line)
	}
	node, err := raftnode.Open(c)
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	w.mu.Lock()
	w.nodes[id] = node
	w.mu.Unlock()
	go w.attend(id, node)
	return nil
}

// node returns a running node, nil if it does not run.
func (w *world) node(id string) *raftnode.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[id]
}

// take returns a running node, nil if it does not run, and marks it as ended.
func (w *world) take(id string) *raftnode.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.takeLocked(id)
}

func (w *world) takeLocked(id string) *raftnode.Node {
	node := w.nodes[id]
	w.nodes[id] = nil
	return node
}

// kill ends nodes at once, as a loss of power does. It says whether one of them ran.
func (w *world) kill(ids ...string) bool {
	var nodes []*raftnode.Node
	for _, id := range ids {
		if node := w.takeDown(id); node != nil {
			nodes = append(nodes, node)
			w.mesh.reset(hostOf(id), "")
		}
	}
	// Work in flight completes before virtual time advances: a stopped raft does not answer entries that it was about to apply.
	time.Sleep(time.Nanosecond)
	for _, node := range nodes {
		node.Kill()
	}
	return len(nodes) > 0
}

func (w *world) stop(id string) {
	if node := w.take(id); node != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = node.Close(ctx)
	}
}

// leader is the node that leads and is ready, "" for none.
func (w *world) leader() string {
	for _, id := range w.all() {
		if node := w.node(id); node != nil {
			if _, _, self := node.Leader(); self {
				return id
			}
		}
	}
	return ""
}

// errNever says that a condition never held.
var errNever = errors.New("it did not come about")

// eventually waits until a condition holds, in virtual time.
func eventually(within time.Duration, holds func() bool) error {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return nil
		}
	}
	return errNever
}

// stuck records the first missing recovery.
func (w *world) stuck(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out.Stuck == "" {
		w.out.Stuck = fmt.Sprintf(format, args...)
	}
}

// patience is the longest recovery after the last fault.
const patience = 60 * time.Second

// play runs workload and faults, heals, and waits until all nodes have one state.
func (w *world) play(seed uint64) {
	if eventually(30*time.Second, func() bool { return w.leader() != "" }) != nil {
		w.stuck("no leader within 30 s of the start")
		return
	}
	if !w.define() {
		w.stuck("the quotas could not be defined")
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	watching, leave := context.WithCancel(context.Background())
	var clients, watchers sync.WaitGroup
	w.employ(ctx, &clients, seed)
	for number := range w.plan.watchers {
		watchers.Go(func() { w.newWatcher(seed, number).watch(watching) })
	}
	late := make(chan struct{})
	operator := w.newOperator(seed, late)
	if w.plan.members {
		clients.Go(func() { operator.work(ctx) })
	}
	w.breakThings()
	w.heal()
	for class := range classNames {
		clients.Go(func() { w.newClient(seed, classNames[class]+"-probe").probe(late) })
	}
	time.AfterFunc(patience, func() { close(late) })
	time.Sleep(2 * time.Second)
	stop()
	clients.Wait()
	w.settle(operator)
	if w.out.Stuck != "" {
		w.describe()
	}
	leave()
	watchers.Wait()
}

// describe reports the state of each node.
func (w *world) describe() {
	for _, id := range append(w.all(), w.retired...) {
		if node := w.node(id); node != nil {
			s := node.Status()
			w.say("%s: %s of term %d, led by %q, log %d to %d, committed %d, applied %d, members %+v", id, s.Role, s.Term, s.Leader,
				s.FirstIndex, s.LastIndex, s.CommitIndex, s.AppliedIndex, s.Members)
		}
	}
}

// employ starts the clients.
func (w *world) employ(ctx context.Context, clients *sync.WaitGroup, seed uint64) {
	for number := range w.plan.clients {
		c := w.newClient(seed, fmt.Sprintf("c%d", number))
		clients.Go(func() { c.busy(ctx, c.draw) })
	}
	for number := range w.plan.waiters {
		c := w.newClient(seed, fmt.Sprintf("%s-%d", classNames[number%len(classNames)], number))
		clients.Go(func() { c.busy(ctx, c.stand) })
	}
	for number := range w.plan.runners {
		r := &runner{client: w.newClient(seed, fmt.Sprintf("runner-%d", number))}
		clients.Go(func() { r.busy(ctx, r.act) })
	}
	for _, class := range classNames {
		c := w.newClient(seed, class+"-shares")
		clients.Go(func() { c.busy(ctx, c.share) })
	}
	for number := range chainSteps {
		c := w.newClient(seed, stepName(number))
		clients.Go(func() { c.busy(ctx, c.step) })
	}
}

// settle waits until all recovery is complete.
func (w *world) settle(o *operator) {
	if eventually(30*time.Second, w.gone) != nil {
		w.stuck("a node that was removed runs on")
	}
	if eventually(longestWait+5*time.Second, func() bool { return !w.awaited() }) != nil {
		w.stuck("waits continued after their time")
	}
	if err := eventually(60*time.Second, w.alike); err != nil {
		w.stuck("the nodes did not reach one state within 60 s of the last fault")
		return
	}
	w.noteMembers(o)
	// A slow watcher can be minutes behind, which says nothing about the nodes.
	w.settling.Store(true)
	if eventually(30*time.Second, func() bool { return w.allWatched(w.result.Final[0].Index) }) != nil {
		w.stuck("a watcher did not receive everything within 30 s")
	}
}

// awaited says whether the leader has a waiting Reserve, or no leader answers.
func (w *world) awaited() bool {
	node := w.node(w.leader())
	if node == nil {
		return true
	}
	awaited := true
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := node.Read(ctx, raftnode.Linearizable, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) { awaited = state.Awaited() })
	return awaited || err != nil
}

// alike says whether all nodes show one index, and records their states.
func (w *world) alike() bool {
	var finals []history.Final
	for _, id := range w.all() {
		node := w.node(id)
		if node == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		index, ledger, whole, err := node.StateHash(ctx, 0)
		cancel()
		if err != nil {
			return false
		}
		finals = append(finals, history.Final{Node: id, Index: index, Ledger: hex.EncodeToString(ledger[:]), Whole: hex.EncodeToString(whole[:])})
	}
	for _, final := range finals {
		if final.Index != finals[0].Index {
			return false
		}
	}
	w.result.Final = finals
	return true
}

// installs counts installed snapshots, by raft's log lines.
type installs struct {
	mu sync.Mutex
	n  int
}

func (i *installs) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.n
}

// Write implements io.Writer.
func (i *installs) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("Installed remote snapshot")) {
		i.mu.Lock()
		i.n++
		i.mu.Unlock()
	}
	return len(line), nil
}

func (i *installs) logger(name string) hclog.Logger {
	options := &hclog.LoggerOptions{Name: name, Level: hclog.Info, Output: i}
	if os.Getenv("QUOTAD_SIM_LOG") != "" {
		options.Output = os.Stderr
	}
	return hclog.New(options)
}
