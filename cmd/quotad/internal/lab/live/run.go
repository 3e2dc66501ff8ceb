// Package live runs a fleet in real time, with real processes: three nodes of quotad on loopback, and a provider that is an
// HTTP server with its own count. Agents call the provider through the Go client or directly. Package sim decides the
// agents' work and records it; this package makes it real.
package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// Setting is the environment of a run.
type Setting struct {
	// Binary is quotad's binary; Dir is a folder for data and logs.
	Binary, Dir string
	Seed        uint64
}

// Outcome is the result of a run.
type Outcome struct {
	*sim.Result
	// Seen are all attempts that the provider saw, in order.
	Seen []Attempt
	// Kills are the kills of the leader.
	Kills []Kill
	// Revived counts restarts of nodes that ended unexpectedly.
	Revived int
}

// Kill is one kill of the leader.
type Kill struct {
	// Node is the killed node, At the time of the kill since the run began. Heir led after Failover.
	Node, Heir   string
	At, Failover time.Duration
}

// Run runs a fleet on one side. It ends at the latest after the fleet's time and twice local.StartTimeout.
func Run(ctx context.Context, f *fleet.Fleet, side sim.Side, setting Setting) (*Outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.For+2*local.StartTimeout, errors.New("the run hangs"))
	defer cancel()
	r := &run{}
	if side == sim.Governed {
		stop, err := r.startCluster(ctx, f, setting)
		defer stop()
		if err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(setting.Dir, 0o700); err != nil {
		return nil, err
	}
	var nodes []string
	if r.cluster != nil {
		nodes = r.cluster.Servers()
	}
	var err error
	if r.callers, err = newCallers(f, nodes); err != nil {
		return nil, err
	}
	defer r.close() //nolint:errcheck // what it could not give back comes back by itself
	outcome, err := r.play(ctx, f, side, setting.Seed)
	if err != nil {
		return nil, err
	}
	return outcome, writeLines(filepath.Join(setting.Dir, "provider-"+string(side)+".jsonl"), outcome.Seen)
}

// writeLines writes the provider's attempts, one to a line.
func writeLines(path string, seen []Attempt) error {
	var lines bytes.Buffer
	for _, attempt := range seen {
		if err := json.NewEncoder(&lines).Encode(attempt); err != nil {
			return err
		}
	}
	return os.WriteFile(path, lines.Bytes(), 0o600)
}

// LongestWay returns the longest delay between caller and provider of the attempts that arrived in (from, to].
func (o *Outcome) LongestWay(from, to time.Duration) (longest time.Duration) {
	for _, a := range o.Seen {
		if a.At > from && a.At <= to {
			longest = max(longest, a.Way)
		}
	}
	return longest
}

// run is one run; it is the outside of its sim.Live.
type run struct {
	*callers
	cluster *local.Cluster
	live    *sim.Live

	mu      sync.Mutex
	kills   []Kill
	revived int
}

// starts is the maximum number of attempts to start a cluster: another process may have taken an address that was free.
const starts = 3

// startCluster starts the nodes and applies the fleet's quotas. stop stops what was started, also after an error.
func (r *run) startCluster(ctx context.Context, f *fleet.Fleet, setting Setting) (stop func(), err error) {
	nursery := local.NewNursery(setting.Binary, setting.Dir)
	for start := 1; ; start++ {
		if err = r.tryCluster(ctx, f, nursery, filepath.Join(setting.Dir, fmt.Sprintf("nodes-%d", start))); err == nil {
			break
		}
		if start == starts || ctx.Err() != nil || r.cluster == nil {
			break
		}
		r.cluster.Stop()
	}
	return func() {
		if r.cluster != nil {
			r.cluster.Stop()
		}
		nursery.Close(5 * time.Second)
	}, err
}

// tryCluster starts nodes with their data in a folder of their own.
func (r *run) tryCluster(ctx context.Context, f *fleet.Fleet, nursery *local.Nursery, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if r.cluster, err = local.NewCluster(nursery, dir); err != nil {
		return err
	}
	for _, n := range r.cluster.Nodes {
		if err := r.cluster.Start(n); err != nil {
			return err
		}
	}
	return r.cluster.Ready(ctx, sim.Request(f))
}

// play lets the fleet work.
func (r *run) play(ctx context.Context, f *fleet.Fleet, side sim.Side, seed uint64) (outcome *Outcome, err error) {
	if r.live, err = sim.NewLive(f, side, seed, r); err != nil {
		return nil, err
	}
	r.server, err = serve(ctx, r.live.Provider(), r.live.Began(), f.Network, seed)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var reviving sync.WaitGroup
	if r.cluster != nil {
		reviving.Go(func() { r.revive(ctx, cancel) })
	}
	err = r.live.Run(ctx)
	cancel(nil)
	reviving.Wait()
	if err = errors.Join(err, r.server.close(ctx)); err != nil {
		return nil, err
	}
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	return &Outcome{Result: r.live.Result(), Seen: r.server.attempts, Kills: r.kills, Revived: r.revived}, nil
}

// KillLeader implements sim.Outside: it kills the process with SIGKILL, and restarts it once another node leads.
func (r *run) KillLeader(ctx context.Context) error {
	victim, found := r.cluster.Leader(ctx)
	if !found {
		return nil // the run has ended
	}
	killed := time.Now()
	victim.Kill()
	heir, found := r.cluster.Leader(ctx)
	if !found {
		return nil
	}
	kill := Kill{Node: victim.ID, Heir: heir.ID, At: killed.Sub(r.live.Began()), Failover: time.Since(killed)}
	r.mu.Lock()
	r.kills = append(r.kills, kill)
	r.mu.Unlock()
	return r.cluster.Start(victim)
}

// revive restarts nodes that end unexpectedly, as an init system would.
func (r *run) revive(ctx context.Context, fail context.CancelCauseFunc) {
	for pause(ctx, 500*time.Millisecond) {
		revived, err := r.cluster.Revive()
		r.revived += len(revived)
		if err != nil {
			fail(fmt.Errorf("the cluster is broken: %w", err))
		}
	}
}
