package quotatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Cluster is a cluster of one node.
type Cluster struct {
	clock  *Clock
	node   *raftnode.Node
	api    *rpc.Server
	server *http.Server
	memory *listener
	http   *http.Client
	admin  quotav1connect.AdminServiceClient
	// own is the client that the helpers use.
	own    *client.Client
	dir    string
	serves sync.WaitGroup
	// tb receives failures; nil: a failure panics.
	tb testing.TB

	mu      sync.Mutex
	clients []*client.Client
	url     string
}

// within bounds each step of the helpers.
const within = 30 * time.Second

// New starts a cluster with quotas, such as those made by [Rate], [Window] and [Slots]. It ends with the test; its clients end before
// it.
func New(tb testing.TB, quotas ...*quotav1.Quota) *Cluster {
	tb.Helper()
	c, err := open()
	if err != nil {
		tb.Fatal(err)
	}
	c.tb = tb
	tb.Cleanup(c.Close)
	c.Apply(quotas...)
	return c
}

// Start is New for use outside of tests, as in an example. Failures panic. Close ends the cluster.
func Start(quotas ...*quotav1.Quota) *Cluster {
	c, err := open()
	if err != nil {
		panic(err)
	}
	c.Apply(quotas...)
	return c
}

// Raft timeouts: there are no other nodes to wait for.
const (
	electionTimeout = 20 * time.Millisecond
	leaderLease     = 10 * time.Millisecond
)

func open() (*Cluster, error) {
	dir, err := os.MkdirTemp("", "quotatest")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, clock: &Clock{}}
	c.clock.fail = c.fail
	if err := c.openNode(); err != nil {
		return nil, errors.Join(fmt.Errorf("quotatest: start a node: %w", err), os.RemoveAll(dir))
	}
	if err := c.serve(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) openNode() (err error) {
	config := raftnode.DefaultConfig()
	config.ID, config.RaftAddress, config.APIAddress = "quotatest", "quotatest:7451", "quotatest:7450"
	config.Peers = []raftnode.Peer{{ID: config.ID, RaftAddress: config.RaftAddress, APIAddress: config.APIAddress}}
	config.DataDir, config.Network, config.Clock = c.dir, alone{}, c.clock
	config.HeartbeatTimeout, config.ElectionTimeout, config.LeaderLease = electionTimeout, electionTimeout, leaderLease
	// A test's machine may be busy, or its disk full or slow: that is not under test.
	config.FreeLow, config.FreeStop, config.StallLimit = -1, -1, time.Minute
	if c.node, err = raftnode.Open(config); err != nil {
		return err
	}
	c.clock.node = c.node
	if c.api, err = rpc.New(rpc.Config{Node: c.node}); err != nil {
		return errors.Join(err, c.closeNode())
	}
	return nil
}

// serve serves the API in memory and waits until the node leads.
func (c *Cluster) serve() error {
	c.memory = newListener()
	c.server = rpc.NewHTTPServer(c.api.Handler(), nil, hclog.NewNullLogger())
	c.listen(c.memory)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c.http = &http.Client{Transport: &http.Transport{
		Protocols:   protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.memory.dial(ctx) },
	}}
	c.admin = quotav1connect.NewAdminServiceClient(c.http, "http://"+apiAddress)
	var err error
	if c.own, err = client.New([]string{apiAddress}, client.WithHTTPClient(c.http), client.WithHolder("quotatest")); err != nil {
		return err
	}
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for {
		if _, _, leads := c.node.Leader(); leads {
			return nil
		}
		select {
		case <-poll.C:
		case <-deadline.C:
			return errors.New("quotatest: the node does not lead after 30 s")
		}
	}
}

// apiAddress is the node's in-memory address.
const apiAddress = "quotatest:7450"

func (c *Cluster) listen(on net.Listener) {
	c.serves.Go(func() { _ = c.server.Serve(on) }) // ends with Close
}

// Close ends the cluster and all clients that it made.
func (c *Cluster) Close() {
	c.mu.Lock()
	clients := c.clients
	c.clients = nil
	c.mu.Unlock()
	for _, made := range append(clients, c.own) {
		if made != nil {
			_ = made.Close() // its leases end with the cluster
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = c.api.Drain(ctx) // longer calls end with their connections
	c.http.CloseIdleConnections()
	_ = c.server.Close()
	_ = c.memory.Close()
	c.serves.Wait()
	if err := errors.Join(c.closeNode(), os.RemoveAll(c.dir)); err != nil {
		c.fail(fmt.Errorf("quotatest: stop the node: %w", err))
	}
}

func (c *Cluster) closeNode() error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return c.node.Close(ctx)
}

// fail fails the test and ends it.
func (c *Cluster) fail(err error) {
	if c.tb == nil {
		panic(err)
	}
	c.tb.Helper()
	c.tb.Fatal(err)
}

// Clock returns the cluster's clock.
func (c *Cluster) Clock() *Clock { return c.clock }

// Client returns a client of the cluster. It is closed with the cluster at the latest.
func (c *Cluster) Client(options ...client.Option) *client.Client {
	made, err := client.New([]string{apiAddress}, append([]client.Option{client.WithHTTPClient(c.http)}, options...)...)
	if err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, made)
	return made
}

// HTTPClient returns an HTTP client that connects to the cluster's API under any host name, without a network.
func (c *Cluster) HTTPClient() *http.Client { return c.http }

// URL returns the API's address for programs with their own client: http://127.0.0.1:port. The first call starts to listen, which does
// not work in a bubble of testing/synctest.
func (c *Cluster) URL() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.url == "" {
		loopback, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			c.fail(err)
		}
		c.url = "http://" + loopback.Addr().String()
		c.listen(loopback)
	}
	return c.url
}
