package realcluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// member is one node and its API's server.
type member struct {
	config raftnode.Config
	node   *raftnode.Node
	api    *rpc.Server
	server *http.Server
}

// cluster is some nodes on loopback addresses.
type cluster struct {
	tb      testing.TB
	members []*member
}

// start starts a cluster and waits for its leader.
func start(tb testing.TB, size int) *cluster {
	tb.Helper()
	c := &cluster{tb: tb}
	var peers []raftnode.Peer
	addresses, err := loopback.Free(2 * size)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range size {
		peers = append(peers, raftnode.Peer{ID: fmt.Sprintf("n%d", i), RaftAddress: addresses[2*i], APIAddress: addresses[2*i+1]})
	}
	for _, peer := range peers {
		config := raftnode.DefaultConfig()
		config.ID, config.RaftAddress, config.APIAddress = peer.ID, peer.RaftAddress, peer.APIAddress
		config.DataDir, config.Peers = tb.TempDir(), peers
		m := &member{config: config}
		c.members = append(c.members, m)
		c.run(m)
	}
	tb.Cleanup(func() {
		for _, m := range c.members {
			c.stop(m)
		}
	})
	c.leader()
	return c
}

func (c *cluster) run(m *member) {
	c.tb.Helper()
	node, err := raftnode.Open(m.config)
	if err != nil {
		c.tb.Fatal(err)
	}
	api, err := rpc.New(rpc.Config{Node: node})
	if err != nil {
		c.tb.Fatal(err)
	}
	listener, err := net.Listen("tcp", m.config.APIAddress)
	if err != nil {
		c.tb.Fatal(err)
	}
	m.node, m.api, m.server = node, api, rpc.NewHTTPServer(api.Handler(), nil, hclog.NewNullLogger())
	go func() { _ = m.server.Serve(listener) }()
}

// stop stops a member: its API at once, and then its node.
func (c *cluster) stop(m *member) {
	if m.node == nil {
		return
	}
	_ = m.server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = m.api.Drain(ctx)
	if err := m.node.Close(ctx); err != nil {
		c.tb.Error(err)
	}
	m.node = nil
}

// leader waits for a member that leads.
func (c *cluster) leader() (found *member) {
	c.tb.Helper()
	eventually(c.tb, "a leader", func() bool {
		for _, m := range c.members {
			if m.node != nil {
				if _, _, self := m.node.Leader(); self {
					found = m
					return true
				}
			}
		}
		return false
	})
	return found
}

func (c *cluster) addresses() []string {
	var out []string
	for _, m := range c.members {
		out = append(out, m.config.APIAddress)
	}
	return out
}

// client returns a client of all nodes, which is closed at the end of the test.
func (c *cluster) client(options ...client.Option) *client.Client {
	c.tb.Helper()
	made, err := client.New(c.addresses(), options...)
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { _ = made.Close() })
	return made
}

// admin returns the leader's operator API.
func (c *cluster) admin() quotav1connect.AdminServiceClient {
	return quotav1connect.NewAdminServiceClient(http.DefaultClient, "http://"+c.leader().config.APIAddress)
}

// apply creates quotas.
func (c *cluster) apply(quotas ...*quotav1.Quota) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.admin().ApplyQuotas(ctx, &quotav1.ApplyQuotasRequest{Quotas: quotas}); err != nil {
		c.tb.Fatal(err)
	}
}

func rate(name string, limit int64, per time.Duration) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(per)}}}
}

func slots(name string, limit int64) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: limit}}}
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-deadline.C:
			tb.Fatalf("never: %s", what)
		}
	}
}
