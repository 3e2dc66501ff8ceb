// Package cluster runs the nodes under test as processes: it starts, kills, pauses and stops them, restarts them as a supervisor does, and
// reads their state.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/jepsen/canary"
	"github.com/quotad/quotad/jepsen/certs"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// The ports that every node listens on, each node at its own address.
const (
	APIPort  = 7450
	RaftPort = 7451
	OpsPort  = 7453
)

// Ports are all of them.
func Ports() []int { return []int{APIPort, RaftPort, OpsPort} }

// Host is the machine of a node. *network.Host implements it.
type Host interface {
	// Name is the host's name.
	Name() string
	// ListenIP is the address that its processes listen on.
	ListenIP() string
	// IP is the address at which others reach them.
	IP() string
	// Start starts a process whose sockets are the host's.
	Start(cmd *exec.Cmd) error
	// DialContext connects from the host.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// apiAddress, raftAddress and opsAddress are the addresses at which others reach a node on a host.
func apiAddress(host Host) string  { return net.JoinHostPort(host.IP(), fmt.Sprint(APIPort)) }
func raftAddress(host Host) string { return net.JoinHostPort(host.IP(), fmt.Sprint(RaftPort)) }
func opsAddress(host Host) string  { return net.JoinHostPort(host.IP(), fmt.Sprint(OpsPort)) }

// Config describes a cluster.
type Config struct {
	// Binary is the path of the quotad that all nodes begin with.
	Binary string
	// Hosts are the nodes' hosts; their names are the nodes' IDs.
	Hosts []Host
	// Operator is the host from which the suite itself calls the nodes.
	Operator Host
	// Guest is a host without a node, for builds that ask to be added.
	Guest Host
	// History is the folder of the run.
	History history.Dir
	// Data returns the data directory of a node.
	Data func(node string) string
	// Secret is the token that the suite's own calls carry; empty: none.
	Secret string
	// Certificates are the nodes' certificates for both ports; nil: all connections are in clear text.
	Certificates *certs.Set
	// Flags are further flags of every node.
	Flags []string
	// RestartAfter is how long the supervisor waits before it restarts a node that ended by itself.
	RestartAfter time.Duration
}

// Cluster is a running cluster.
type Cluster struct {
	config Config
	nodes  map[string]*Node
	order  []*Node
	http   *http.Client

	mu    sync.Mutex
	exits []history.Exit
	done  bool
	wg    sync.WaitGroup
}

// New prepares a cluster. Start starts it.
func New(config Config) *Cluster {
	c := &Cluster{config: config, nodes: map[string]*Node{}}
	transport := &http.Transport{DialContext: config.Operator.DialContext, MaxIdleConnsPerHost: 2, IdleConnTimeout: 10 * time.Second}
	if config.Certificates != nil {
		transport.DialTLSContext = certs.Secured(config.Operator.DialContext, config.Certificates.Bundle())
	}
	c.http = &http.Client{Transport: &canary.Carry{Secret: config.Secret, Next: transport}}
	var peers []string
	for _, host := range config.Hosts {
		peers = append(peers, fmt.Sprintf("%s=%s/%s", host.Name(), raftAddress(host), apiAddress(host)))
	}
	for _, host := range config.Hosts {
		c.add(host.Name(), host, "--peers", strings.Join(peers, ","))
	}
	return c
}

func (c *Cluster) add(id string, host Host, how ...string) *Node {
	node := &Node{
		ID: id, API: apiAddress(host), Raft: raftAddress(host), Ops: opsAddress(host),
		cluster: c, host: host, how: how, binary: c.config.Binary,
	}
	node.quota = quotav1connect.NewQuotaServiceClient(c.http, node.URL())
	node.admin = quotav1connect.NewAdminServiceClient(c.http, node.URL())
	node.operators = quotav1connect.NewAdminServiceClient(c.http, node.OpsURL())
	c.mu.Lock()
	c.nodes[node.ID] = node
	c.order = append(c.order, node)
	c.mu.Unlock()
	return node
}

// Nodes are all nodes, in the order in which they were added.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Node(nil), c.order...)
}

// Node returns a node by its ID.
func (c *Cluster) Node(id string) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

// URLs are the URLs of the nodes' APIs.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, node := range c.Nodes() {
		if !slices.Contains(urls, node.URL()) {
			urls = append(urls, node.URL())
		}
	}
	return urls
}

// Transport carries calls of the operator to the nodes.
func (c *Cluster) Transport() http.RoundTripper { return c.http.Transport }

// Certificates are the nodes' certificates; nil: all connections are in clear text.
func (c *Cluster) Certificates() *certs.Set { return c.config.Certificates }

// Start starts all nodes and waits until all are ready.
func (c *Cluster) Start(ctx context.Context) error {
	for _, node := range c.Nodes() {
		if err := node.Start(); err != nil {
			return err
		}
	}
	return c.AwaitReady(ctx)
}

// AwaitReady waits until all nodes are ready to serve.
func (c *Cluster) AwaitReady(ctx context.Context) error {
	for _, node := range c.Nodes() {
		if err := node.awaitReady(ctx); err != nil {
			return fmt.Errorf("%s is not ready: %w", node.ID, err)
		}
	}
	return nil
}

// ErrNoLeader says that no node claims to lead.
var ErrNoLeader = errors.New("no node leads")

// Leader returns the node that claims to lead in the highest term.
func (c *Cluster) Leader(ctx context.Context) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	type answer struct {
		node   *Node
		status *quotav1.GetStatusResponse
	}
	nodes := c.Nodes()
	answers := make(chan answer, len(nodes))
	for _, node := range nodes {
		go func() {
			status, err := node.Status(ctx)
			if err != nil {
				status = nil
			}
			answers <- answer{node, status}
		}()
	}
	var leader *Node
	var term uint64
	for range nodes {
		a := <-answers
		if a.status != nil && a.status.Leader == a.node.ID && a.status.Meta.Term >= term {
			leader, term = a.node, a.status.Meta.Term
		}
	}
	if leader == nil {
		return nil, ErrNoLeader
	}
	return leader, nil
}

// AwaitLeader waits until a node leads.
func (c *Cluster) AwaitLeader(ctx context.Context) (*Node, error) {
	for {
		leader, err := c.Leader(ctx)
		if err == nil {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Exits are the unexpected ends of processes so far.
func (c *Cluster) Exits() []history.Exit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]history.Exit(nil), c.exits...)
}

// Close kills all running nodes.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.done = true
	c.mu.Unlock()
	for _, node := range c.Nodes() {
		node.Kill()
	}
	c.wg.Wait()
	c.http.CloseIdleConnections()
}
