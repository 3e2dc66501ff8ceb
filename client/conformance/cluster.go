package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// size is the number of nodes.
const size = 3

// member is one node, with a proxy in front of its API.
type member struct {
	config  raftnode.Config
	proxy   *proxy
	front   *http.Server
	node    *raftnode.Node
	api     *rpc.Server
	server  *http.Server
	backend string
	// full: its disk has no room for grants.
	full atomic.Bool
}

// cluster is three nodes in this process, on loopback addresses. Clients and peers know their APIs by the proxies' addresses.
type cluster struct {
	members []*member
	http    *http.Client
}

// nearlyFull is the free space of a disk with which the cluster grants nothing, roomy one with which it does.
const (
	nearlyFull = 128 << 20
	roomy      = 1 << 40
)

// startCluster starts the nodes and waits for a leader.
func startCluster(dir string, seen *recorder) (_ *cluster, err error) {
	c := &cluster{http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	raft, err := loopback.Free(size)
	if err != nil {
		return nil, err
	}
	var peers []raftnode.Peer
	for i := range size {
		front, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		m := &member{proxy: newProxy(i, seen)}
		m.front = m.proxy.serve(front)
		c.members = append(c.members, m)
		peers = append(peers, raftnode.Peer{ID: fmt.Sprintf("n%d", i+1), RaftAddress: raft[i], APIAddress: front.Addr().String()})
	}
	for i, m := range c.members {
		m.config = raftnode.DefaultConfig()
		m.config.ID, m.config.RaftAddress, m.config.APIAddress = peers[i].ID, peers[i].RaftAddress, peers[i].APIAddress
		m.config.Peers, m.config.DataDir = peers, filepath.Join(dir, peers[i].ID)
		m.config.Free = func(string) (int64, error) {
			if m.full.Load() {
				return nearlyFull, nil
			}
			return roomy, nil
		}
		if err := m.start(); err != nil {
			return nil, err
		}
	}
	return c, eventually("the cluster has a leader", func() bool { return c.leader() != nil })
}

// start starts the node, for the first time or again.
func (m *member) start() (err error) {
	if m.node, err = raftnode.Open(m.config); err != nil {
		return fmt.Errorf("open node %s: %w", m.config.ID, err)
	}
	if m.api, err = rpc.New(rpc.Config{Node: m.node}); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	m.backend = listener.Addr().String()
	m.server = rpc.NewHTTPServer(m.api.Handler(), nil, hclog.NewNullLogger())
	m.proxy.forwardTo(m.backend)
	server := m.server
	go func() { _ = server.Serve(listener) }() // it ends with kill
	return nil
}

// kill stops the node abruptly.
func (m *member) kill() {
	if m.node == nil {
		return
	}
	m.proxy.forwardTo("")
	_ = m.server.Close()
	m.node.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = m.api.Drain(ctx) // requests in flight have lost their connections
	m.node = nil
}

// leader returns the node that leads; nil: none does.
func (c *cluster) leader() *member {
	for _, m := range c.members {
		if m.node != nil {
			if _, _, leads := m.node.Leader(); leads {
				return m
			}
		}
	}
	return nil
}

// addresses returns the addresses for clients.
func (c *cluster) addresses() (all []string) {
	for _, m := range c.members {
		all = append(all, m.config.APIAddress)
	}
	return all
}

// setFull fills the disks of all nodes, or frees them.
func (c *cluster) setFull(full bool) {
	for _, m := range c.members {
		m.full.Store(full)
	}
}

func (c *cluster) stop() {
	for _, m := range c.members {
		m.kill()
		if m.front != nil {
			_ = m.front.Close()
		}
		m.proxy.out.CloseIdleConnections()
	}
	c.http.CloseIdleConnections()
}

// errNoLeader: no node leads at the moment.
var errNoLeader = errors.New("no node leads")

// quotas and admin connect to the leader directly, bypassing the proxies.
func (c *cluster) quotas() (quotav1connect.QuotaServiceClient, error) {
	leader := c.leader()
	if leader == nil {
		return nil, errNoLeader
	}
	return quotav1connect.NewQuotaServiceClient(c.http, "http://"+leader.backend), nil
}

func (c *cluster) admin() (quotav1connect.AdminServiceClient, error) {
	leader := c.leader()
	if leader == nil {
		return nil, errNoLeader
	}
	return quotav1connect.NewAdminServiceClient(c.http, "http://"+leader.backend), nil
}

// eventually waits until a condition holds.
func eventually(what string, holds func() bool) error {
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-deadline.C:
			return fmt.Errorf("it did not come about within a minute that %s", what)
		}
	}
	return nil
}
