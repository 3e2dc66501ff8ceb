package raftnode_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode"
)

// countingNetwork is TCP that counts dialled connections.
type countingNetwork struct{ dials atomic.Int64 }

// Listen implements peer.Network.
func (*countingNetwork) Listen(address string) (net.Listener, error) {
	return net.Listen("tcp", address)
}

// Dial implements peer.Network.
func (n *countingNetwork) Dial(address string, timeout time.Duration) (net.Conn, error) {
	n.dials.Add(1)
	return net.DialTimeout("tcp", address, timeout)
}

// TestStatus_AsksTheOthersOncePerSecond: however many callers there are, the members are asked at most once a second. Checks ask no other
// node.
func TestStatus_AsksTheOthersOncePerSecond(t *testing.T) {
	networks := map[string]*countingNetwork{}
	c := newCluster(t, 3, func(conf *raftnode.Config) {
		networks[conf.ID] = &countingNetwork{}
		conf.Network = networks[conf.ID]
	})
	var leader *raftnode.Node
	eventually(t, "the leader has heard from all members", func() bool {
		leader = c.nodes[c.leader()]
		for _, m := range leader.Status().Members {
			if m.MatchIndex == 0 {
				return false
			}
		}
		return true
	})
	network := networks[leader.ID()]
	const askers, each = 20, 50
	began, before := time.Now(), network.dials.Load()
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			for range each {
				_, _ = leader.Status(), leader.Checks()
			}
		})
	}
	wg.Wait()
	// Two connections a round, and raft's own: far fewer than a thousand questions would make.
	most := int64(50 + 20*time.Since(began)/time.Second)
	if asked := network.dials.Load() - before; asked > most {
		t.Errorf("%d questions made %d connections", askers*each, asked)
	}
}
