package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/cmd/quotad/internal/view"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// clusterSize is the number of nodes in a cluster.
const clusterSize = 3

// StartTimeout bounds the time until the cluster has a leader.
const StartTimeout = 30 * time.Second

// Cluster is three nodes as processes.
type Cluster struct {
	// Nodes are the nodes, in the order of their names.
	Nodes []*Node

	nursery *Nursery
	http    *http.Client
}

// Node is a node of a Cluster.
type Node struct {
	// ID is its node id.
	ID string

	api, raft, config string
	admin             quotav1connect.AdminServiceClient
	quota             quotav1connect.QuotaServiceClient

	mu      sync.Mutex
	process *Child
	// wanted: it should run. revived is the number of restarts after unexpected ends.
	wanted  bool
	revived int
}

// NewCluster writes the configuration of nodes with their data below dir. It starts none.
func NewCluster(n *Nursery, dir string) (*Cluster, error) {
	if err := logstore.Supported(); err != nil {
		return nil, err
	}
	addresses, err := loopback.Free(2 * clusterSize)
	if err != nil {
		return nil, err
	}
	c := &Cluster{nursery: n, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}}
	var peers strings.Builder
	for i := range clusterSize {
		nd := &Node{ID: fmt.Sprintf("n%d", i+1), api: addresses[2*i], raft: addresses[2*i+1]}
		nd.config = filepath.Join(dir, nd.ID+".yaml")
		nd.admin = quotav1connect.NewAdminServiceClient(c.http, "http://"+nd.api)
		nd.quota = quotav1connect.NewQuotaServiceClient(c.http, "http://"+nd.api)
		c.Nodes = append(c.Nodes, nd)
		fmt.Fprintf(&peers, "  - {id: %s, raft: %q, api: %q}\n", nd.ID, nd.raft, nd.api)
	}
	for _, nd := range c.Nodes {
		text := fmt.Sprintf("node_id: %s\ndata_dir: %q\napi: {listen: %q}\nraft: {listen: %q}\npeers:\n%s",
			nd.ID, filepath.Join(dir, nd.ID), nd.api, nd.raft, peers.String())
		if err := os.WriteFile(nd.config, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Start starts a node's process.
func (c *Cluster) Start(n *Node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return c.startLocked(n)
}

func (c *Cluster) startLocked(n *Node) (err error) {
	n.process, err = c.nursery.Start(n.ID, nil, "serve", "--config", n.config)
	n.wanted = err == nil
	return err
}

// Kill ends a node at once with SIGKILL.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted = false
	n.process.Kill()
}

// mostRevivals is the maximum number of restarts of a node that ends unexpectedly.
const mostRevivals = 10

// Revive restarts nodes that ended unexpectedly, as an init system would: a node whose disk stalls ends deliberately, and
// recovers by reading its disk again. It returns the restarted nodes.
func (c *Cluster) Revive() (revived []*Node, err error) {
	for _, n := range c.Nodes {
		n.mu.Lock()
		if n.wanted && !n.process.Alive() {
			if n.revived == mostRevivals {
				err = fmt.Errorf("node %s ended by itself %d times: see %s", n.ID, mostRevivals, n.process.Log())
			} else if err = c.startLocked(n); err == nil {
				n.revived++
				revived = append(revived, n)
			}
		}
		n.mu.Unlock()
		if err != nil {
			return revived, err
		}
	}
	return revived, nil
}

// Servers returns the nodes' API addresses.
func (c *Cluster) Servers() []string {
	var servers []string
	for _, n := range c.Nodes {
		servers = append(servers, n.api)
	}
	return servers
}

// Ready waits until the cluster has a leader and all nodes answer, and applies quotas. It fails at once if the quotas are
// wrong or a node ends.
func (c *Cluster) Ready(ctx context.Context, quotas *quotav1.ApplyQuotasRequest) error {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	var last error
	for {
		for _, n := range c.Nodes {
			if !n.process.Alive() {
				return fmt.Errorf("node %s ended: see %s", n.ID, n.process.Log())
			}
		}
		for _, n := range c.Nodes {
			attempt, end := context.WithTimeout(ctx, 5*time.Second)
			_, err := n.admin.ApplyQuotas(attempt, quotas)
			end()
			if err == nil && !slices.Contains(c.Observe(ctx).Nodes, view.Down) {
				return nil
			}
			if connect.CodeOf(err) == connect.CodeInvalidArgument {
				return fmt.Errorf("the quotas cannot be applied: %w", err)
			}
			last = err
		}
		if !pause(ctx, pollEvery) {
			return fmt.Errorf("the cluster did not come up: %w", errors.Join(context.Cause(ctx), last))
		}
	}
}

// pollEvery is the interval between two polls.
const pollEvery = 50 * time.Millisecond

// Leader returns the leader, waiting for one without a time limit; false: the context ended first.
func (c *Cluster) Leader(ctx context.Context) (*Node, bool) {
	for {
		if v := c.Observe(ctx); v.Leader >= 0 {
			return c.Nodes[v.Leader], true
		}
		if !pause(ctx, pollEvery) {
			return nil, false
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Observe reads the status of all nodes.
func (c *Cluster) Observe(ctx context.Context) view.Cluster {
	nodes := make([]view.Node, len(c.Nodes))
	for i, n := range c.Nodes {
		nodes[i] = view.Node{ID: n.ID, Admin: n.admin, Quota: n.quota}
	}
	return view.Observe(ctx, nodes, "")
}

// PIDs returns the process ids of the running nodes.
func (c *Cluster) PIDs() []int {
	var pids []int
	for _, n := range c.Nodes {
		n.mu.Lock()
		if n.process != nil && n.process.Alive() {
			pids = append(pids, n.process.PID())
		}
		n.mu.Unlock()
	}
	return pids
}

// Stop ends the nodes in order: they write their state, and transfer leadership where possible.
func (c *Cluster) Stop() {
	var running []*Child
	for _, n := range c.Nodes {
		n.mu.Lock()
		if n.wanted = false; n.process != nil {
			running = append(running, n.process)
		}
		n.mu.Unlock()
	}
	Stop(12*time.Second, running...)
	c.http.CloseIdleConnections()
}
