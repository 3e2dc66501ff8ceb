// Package nemesis breaks a cluster: processes, links, clocks, disks and members, alone, in pairs and at random from a seed. Each fault
// records its targets and its effect as seen from outside; a fault without a visible effect has failed.
package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/hostile"
)

// Links breaks links between hosts. *network.Network implements it.
type Links interface {
	// Cut drops all packets from one host to another; HealLink ends Cut and Loss.
	Cut(from, to string) error
	// HealLink lets everything through again.
	HealLink(from, to string) error
	// Loss drops a percentage of the packets.
	Loss(from, to string, percent int) error
	// Rate bounds the bandwidth from a host; 0: no bound.
	Rate(host string, bytesPerSecond int64) error
	// Delay delays streams from one host to another.
	Delay(from, to string, mean, jitter time.Duration) error
	// ResetAfter resets the next stream after a number of bytes.
	ResetAfter(from, to string, bytes int64) error
	// Stall keeps streams open and delivers nothing.
	Stall(from, to string, on bool) error
	// Heal ends all faults.
	Heal() error
	// Dropped counts the packets or pieces of streams kept back so far, to confirm a fault.
	Dropped() uint64
}

// Disk breaks the disk under a node. faultyDisk implements it with *disk.Disk.
type Disk interface {
	// SlowSync makes each sync take longer.
	SlowSync(longer time.Duration)
	// Full leaves room for free more bytes.
	Full(free int64)
	// FailSyncs makes the next syncs fail; below 0: all.
	FailSyncs(times int)
	// Heal ends all faults.
	Heal()
	// PowerCut drops unsynced data, or tears it. The process must be gone.
	PowerCut(r *rand.Rand, torn bool) (lost int64, err error)
	// Injected counts the operations slowed or refused so far.
	Injected() int64
}

// Worker is a process of the workload.
type Worker interface {
	// Host is the name of its host.
	Host() string
	// Pause stops it with SIGSTOP.
	Pause() error
	// Resume continues it.
	Resume() error
}

// Trouble makes the provider refuse calls, or stops that.
type Trouble func(on bool)

// Env is the part of a run that can be broken.
type Env struct {
	Cluster *cluster.Cluster
	Links   Links
	// Disk returns the disk under a node; nil for plain disks.
	Disk func(node string) Disk
	// Sleepers are the workers that may be paused and cut off: they check fences, not clocks.
	Sleepers []Worker
	// Clients are the hosts of all workers.
	Clients []string
	Trouble Trouble
	// Gateway is the process through which programs of a machine call a model; nil: there is none. CutStreams makes the provider break streams
	// off, or stops that; Cut counts the broken streams.
	Gateway    Gateway
	CutStreams func(on bool)
	Cut        func() int64
	// Builds are the available builds.
	Builds Builds
	// Dial connects from a host without a node or a worker.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Attack starts a hostile caller on another such host; end ends it. Hostile is its token. Roomy says that the links take an attack of full
	// size: the suite's process carries none of its traffic.
	Attack  func(spec *hostile.Spec) (end func() (*hostile.Report, error), err error)
	Hostile string
	Roomy   bool
	// Recorded returns a transport to the cluster that records a client's calls; Folder is the run's.
	Recorded func(client string) http.RoundTripper
	Folder   string
	// Data returns the path of a node's data directory for the suite.
	Data func(node string) string

	// fullAttacks counts the attacks of full size; exhausted: one of them exhausted the budgets that only such an attack can exhaust.
	fullAttacks atomic.Int32
	exhausted   atomic.Bool
	// damageOrder chooses the next kind of file to damage.
	damageOrder damageOrder
}

// Fault is a fault that can be injected into a cluster.
type Fault struct {
	// Name is its name, such as kill-leader.
	Name string
	// Unavailable says that it takes the service away while it lasts.
	Unavailable bool
	// Ends says that it makes processes end by themselves.
	Ends bool
	// do breaks something, waits with hold, and heals it. It returns its targets and its visible effect.
	do func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error)
}

// hit is the targets of a fault, and its visible effect.
type hit struct {
	targets []string
	seen    string
	// restores are the restores of backups.
	restores []*history.Restore
	// refused counts refusals by budget; full says that the attack was of full size.
	refused map[string]int64
	full    bool
	// damaged is the kind of the damaged file.
	damaged string
}

// brokenError is a promise that a fault saw broken while it lasted.
type brokenError string

// Error implements error.
func (e brokenError) Error() string { return string(e) }

// errNotSeen says that a fault had no visible effect.
var errNotSeen = errors.New("nothing was seen of it")

// Nemesis injects faults and records them.
type Nemesis struct {
	env    *Env
	rand   *rand.Rand
	faults *history.Writer[history.Fault]
	tell   func(string)
}

// New returns a nemesis. tell gets a line for each fault.
func New(env *Env, seed uint64, faults *history.Writer[history.Fault], tell func(string)) *Nemesis {
	return &Nemesis{env: env, rand: rand.New(rand.NewPCG(seed, 0xfa017)), faults: faults, tell: tell} //nolint:gosec // no secret
}

// Run injects the faults of a mix until ctx ends, then heals all.
func (n *Nemesis) Run(ctx context.Context, mix Mix) error {
	steps := mix.steps(n.rand)
	first := mix.first(n.rand)
	for at := 0; ctx.Err() == nil; at++ {
		step := steps[n.rand.IntN(len(steps))]
		switch {
		case mix.Script && at == len(steps):
			return n.Heal(context.WithoutCancel(ctx))
		case mix.Script:
			step = steps[at]
		case at < len(first):
			step = first[at]
		}
		if len(step) == 0 {
			n.pause(ctx, time.Duration(1000+n.rand.IntN(4000))*time.Millisecond)
			continue
		}
		n.together(ctx, step, mix)
		n.pause(ctx, mix.Quiet+time.Duration(n.rand.Int64N(int64(mix.Quiet)+1)))
	}
	return n.Heal(context.WithoutCancel(ctx))
}

// together runs the faults of a step at overlapping times.
func (n *Nemesis) together(ctx context.Context, step []Fault, mix Mix) {
	var wg sync.WaitGroup
	for i, fault := range step {
		lag := time.Duration(0)
		if i > 0 {
			lag = time.Duration(n.rand.IntN(700)) * time.Millisecond
		}
		length := mix.Shortest + time.Duration(n.rand.Int64N(int64(mix.Longest-mix.Shortest)+1))
		own := rand.New(rand.NewPCG(n.rand.Uint64(), 1)) //nolint:gosec // no secret
		wg.Go(func() {
			n.pause(ctx, lag)
			if ctx.Err() == nil {
				n.once(ctx, fault, own, length)
			}
		})
	}
	wg.Wait()
}

// once runs one fault for a length of time.
func (n *Nemesis) once(ctx context.Context, fault Fault, r *rand.Rand, length time.Duration) {
	line := history.Fault{Kind: fault.Name, Began: history.Now(), Unavailable: fault.Unavailable, Ends: fault.Ends}
	hit, err := fault.do(ctx, n.env, r, func(ctx context.Context) { n.pause(ctx, length) })
	line.Ended, line.Targets, line.Confirmed = history.Now(), hit.targets, hit.seen
	line.Restores, line.Refused, line.Full, line.Damaged = hit.restores, hit.refused, hit.full, hit.damaged
	if broken, ok := errors.AsType[brokenError](err); ok {
		line.Broken = string(broken)
	} else if err != nil {
		line.Failed = err.Error()
	}
	n.faults.Write(&line)
	n.tell(fmt.Sprintf("%-22s %-28s %5.1f s  %s%s", fault.Name, strings.Join(hit.targets, " "),
		float64(line.Ended-line.Began)/1e9, line.Confirmed, apart(line.Failed, line.Broken)))
}

// apart separates a failure from the visible effect.
func apart(failed, broken string) string {
	if failed+broken == "" {
		return ""
	}
	return "; " + failed + broken
}

// Heal heals everything: links, disks, clocks, processes, certificates.
func (n *Nemesis) Heal(ctx context.Context) error {
	e := n.env
	err := e.Links.Heal()
	for _, node := range e.Cluster.Nodes() {
		if e.Disk != nil {
			e.Disk(node.ID).Heal()
		}
	}
	for _, worker := range e.Sleepers {
		err = errors.Join(err, worker.Resume())
	}
	if e.Trouble != nil {
		e.Trouble(false)
	}
	for _, node := range e.Cluster.Nodes() {
		if node.Running() {
			_ = node.Resume() // it has no effect on a node that is not paused
		} else if !node.Retired() {
			err = errors.Join(err, node.Start())
		}
	}
	for _, node := range e.Cluster.Nodes() {
		if node.Retired() {
			continue
		}
		err = errors.Join(err, within(ctx, 30*time.Second, func(ctx context.Context) error { return node.SetClock(ctx, 0, 1_000_000) }))
	}
	if e.Gateway != nil {
		e.CutStreams(false)
		if !e.Gateway.Running() {
			err = errors.Join(err, e.Gateway.Start(ctx))
		}
	}
	return errors.Join(err, finishRotation(ctx, e)) // the nodes must serve: one that starts does not handle the signal yet
}

// within repeats a call until it succeeds or the time is up.
func within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, 2*time.Second)
		err := do(attempt)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (n *Nemesis) pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

// leader returns the leader and the other running nodes.
func (e *Env) leader(ctx context.Context) (*cluster.Node, []*cluster.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	leader, err := e.Cluster.AwaitLeader(ctx)
	if err != nil {
		return nil, nil, err
	}
	var others []*cluster.Node
	for _, node := range e.Cluster.Nodes() {
		if node != leader && node.Running() && !node.Retired() {
			others = append(others, node)
		}
	}
	return leader, others, nil
}

// follower returns a random node that does not lead.
func (e *Env) follower(ctx context.Context, r *rand.Rand) (*cluster.Node, error) {
	_, others, err := e.leader(ctx)
	if err != nil {
		return nil, err
	}
	if len(others) == 0 {
		return nil, errors.New("there is no follower")
	}
	return others[r.IntN(len(others))], nil
}

func names(nodes ...*cluster.Node) []string {
	ids := make([]string, len(nodes))
	for i, node := range nodes {
		ids[i] = node.ID
	}
	slices.Sort(ids)
	return ids
}
