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
	// own is the client of the helpers below.
	own    *client.Client
	dir    string
	serves sync.WaitGroup
	// tb receives failures; nil: a failure panics.
	tb testing.TB

	mu      sync.Mutex
	clients []*client.Client
	url     string
}

// within bounds what the helpers do.
const within = 30 * time.Second

// New starts a cluster with quotas, such as [Rate], [Window] and [Slots] make them. It ends with the test; its clients end before it.
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

// Start is New where there is no test, as in an example. What fails panics. Close ends it.
func Start(quotas ...*quotav1.Quota) *Cluster {
	c, err := open()
	if err != nil {
		panic(err)
	}
	c.Apply(quotas...)
	return c
}

// timeouts of raft: there is nobody else to wait for.
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
	// A test's machine may be busy, its disk full or slow: that is not what is tested.
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
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		if _, _, leads := c.node.Leader(); leads {
			return nil
		}
		select {
		case <-look.C:
		case <-deadline.C:
			return errors.New("quotatest: the node does not lead after 30 s")
		}
	}
}

// apiAddress names the node where it is reached in memory.
const apiAddress = "quotatest:7450"

func (c *Cluster) listen(on net.Listener) {
	c.serves.Go(func() { _ = c.server.Serve(on) }) // it ends with Close
}

// Close ends the cluster and all clients that it made.
func (c *Cluster) Close() {
	c.mu.Lock()
	clients := c.clients
	c.clients = nil
	c.mu.Unlock()
	for _, made := range append(clients, c.own) {
		if made != nil {
			_ = made.Close() // what it held ends with the cluster
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = c.api.Drain(ctx) // calls that go on for longer end with their connections
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

// fail ends the test.
func (c *Cluster) fail(err error) {
	if c.tb == nil {
		panic(err)
	}
	c.tb.Helper()
	c.tb.Fatal(err)
}

// Clock returns the cluster's clock.
func (c *Cluster) Clock() *Clock { return c.clock }

// Client returns a client of the cluster. It is closed with the cluster, if not before.
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

// HTTPClient returns a client of HTTP that reaches the cluster's API under any host name, without a network.
func (c *Cluster) HTTPClient() *http.Client { return c.http }

// URL returns where the API listens for programs that bring a client of their own: http://127.0.0.1:port. It begins to listen when it
// is called for the first time, which does not work in a bubble of testing/synctest.
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
