package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

//go:embed quotas.yaml
var quotasYAML []byte

// clusterSize is how many nodes the demo's cluster has.
const clusterSize = 3

// startTimeout is how long the cluster may take to have a leader.
const startTimeout = 30 * time.Second

// cluster is three nodes as processes.
type cluster struct {
	nursery *nursery
	nodes   []*node
	http    *http.Client
}

// node is one of them.
type node struct {
	id, api, raft, config string
	admin                 quotav1connect.AdminServiceClient
	quota                 quotav1connect.QuotaServiceClient

	mu      sync.Mutex
	process *child
	// wanted: it should run. mended is how often it had to be started again although it was.
	wanted bool
	mended int
}

// newCluster writes the configuration of nodes that keep their data below dir.
func newCluster(n *nursery, dir string) (*cluster, error) {
	addresses, err := freeAddresses(2 * clusterSize)
	if err != nil {
		return nil, err
	}
	c := &cluster{nursery: n, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}}
	var peers strings.Builder
	for i := range clusterSize {
		nd := &node{id: fmt.Sprintf("n%d", i+1), api: addresses[2*i], raft: addresses[2*i+1]}
		nd.config = filepath.Join(dir, nd.id+".yaml")
		nd.admin = quotav1connect.NewAdminServiceClient(c.http, "http://"+nd.api)
		nd.quota = quotav1connect.NewQuotaServiceClient(c.http, "http://"+nd.api)
		c.nodes = append(c.nodes, nd)
		fmt.Fprintf(&peers, "  - {id: %s, raft: %q, api: %q}\n", nd.id, nd.raft, nd.api)
	}
	for _, nd := range c.nodes {
		text := fmt.Sprintf("node_id: %s\ndata_dir: %q\napi: {listen: %q}\nraft: {listen: %q}\npeers:\n%s",
			nd.id, filepath.Join(dir, nd.id), nd.api, nd.raft, peers.String())
		if err := os.WriteFile(nd.config, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// freeAddresses returns loopback addresses that nobody listens on. Somebody else could take one before the node does;
// then the node says so in its log and the demo ends.
func freeAddresses(n int) ([]string, error) {
	var listen net.ListenConfig
	var addresses []string
	for range n {
		listener, err := listen.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() //nolint:errcheck // nothing was done with it
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}

// start starts a node's process.
func (c *cluster) start(n *node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return c.startLocked(n)
}

func (c *cluster) startLocked(n *node) (err error) {
	n.process, err = c.nursery.start(n.id, nil, "serve", "--config", n.config)
	n.wanted = err == nil
	return err
}

// kill ends a node at once.
func (n *node) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted = false
	n.process.kill()
}

// mostMended is how often a node is started again that ends by itself.
const mostMended = 10

// mend starts nodes again that ended by themselves, as an init system would: a node whose disk stalls ends on purpose,
// and recovers by reading its disk anew. It names those that it started.
func (c *cluster) mend() (mended []*node, err error) {
	for _, n := range c.nodes {
		n.mu.Lock()
		if n.wanted && !n.process.alive() {
			if n.mended == mostMended {
				err = fmt.Errorf("node %s ended by itself %d times: see %s", n.id, mostMended, n.process.log.Name())
			} else if err = c.startLocked(n); err == nil {
				n.mended++
				mended = append(mended, n)
			}
		}
		n.mu.Unlock()
		if err != nil {
			return mended, err
		}
	}
	return mended, nil
}

// servers are the nodes' API addresses.
func (c *cluster) servers() []string {
	var servers []string
	for _, n := range c.nodes {
		servers = append(servers, n.api)
	}
	return servers
}

// ready waits until the cluster has a leader, and applies the quotas.
func (c *cluster) ready(ctx context.Context) error {
	file, err := quotafile.Parse("quotas.yaml", quotasYAML)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var last error
	for {
		for _, n := range c.nodes {
			if !n.process.alive() {
				return fmt.Errorf("node %s ended: see %s", n.id, n.process.log.Name())
			}
		}
		for _, n := range c.nodes {
			attempt, end := context.WithTimeout(ctx, 5*time.Second)
			_, err := n.admin.ApplyQuotas(attempt, file.Request())
			end()
			if err == nil {
				return nil
			}
			last = err
		}
		if !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the cluster did not come up: %w", errors.Join(context.Cause(ctx), last))
		}
	}
}

// clusterView is what the nodes say.
type clusterView struct {
	// Nodes are their roles, by position: leader, follower and so on; "down" where none answers.
	Nodes []string
	// Leader is the position of the leader, -1 where none is known.
	Leader int
	Term   uint64
	// Leases and Waiting are how many leases live and Reserves wait.
	Leases, Waiting int64
	Quotas          []*quotav1.QuotaStatus
}

// lookTimeout bounds one look at one node.
const lookTimeout = 400 * time.Millisecond

// look asks all nodes how they are. Of several that think that they lead, the one with the highest term does.
func (c *cluster) look(ctx context.Context) clusterView {
	v := clusterView{Nodes: make([]string, len(c.nodes)), Leader: -1}
	answers := make([]*quotav1.GetStatusResponse, len(c.nodes))
	each(len(c.nodes), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		answers[i], _ = c.nodes[i].admin.GetStatus(ctx, &quotav1.GetStatusRequest{}) // no answer: down
	})
	for i, status := range answers {
		if status == nil {
			v.Nodes[i] = "down"
			continue
		}
		v.Nodes[i] = status.GetRole()
		if term := status.GetMeta().GetTerm(); status.GetRole() == "leader" && (v.Leader < 0 || term > v.Term) {
			v.Leader, v.Term = i, term
			v.Leases, v.Waiting = status.GetLeases(), status.GetWaiting()
		}
	}
	if v.Leader >= 0 {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		request := &quotav1.ListQuotasRequest{Read: quotav1.ReadMode_READ_MODE_STALE}
		if list, err := c.nodes[v.Leader].quota.ListQuotas(ctx, request); err == nil {
			v.Quotas = list.GetQuotas()
		}
	}
	return v
}

// stop ends the nodes in order: what is left of them writes and hands over.
func (c *cluster) stop() {
	var running []*child
	for _, n := range c.nodes {
		n.mu.Lock()
		if n.wanted = false; n.process != nil {
			running = append(running, n.process)
		}
		n.mu.Unlock()
	}
	stop(12*time.Second, running...)
	c.http.CloseIdleConnections()
}
