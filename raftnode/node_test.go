package raftnode_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
)

// cluster is a cluster of nodes in this process, each with its own disk and loopback address.
type cluster struct {
	t       *testing.T
	configs []raftnode.Config
	nodes   []*raftnode.Node
}

func newCluster(t *testing.T, size int, change ...func(*raftnode.Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, configs: make([]raftnode.Config, size), nodes: make([]*raftnode.Node, size)}
	peers := make([]raftnode.Peer, size)
	for i, address := range freeAddresses(t, size) {
		peers[i] = raftnode.Peer{ID: fmt.Sprintf("n%d", i), RaftAddress: address, APIAddress: fmt.Sprintf("127.0.0.1:%d", 1000+i)}
	}
	for i := range peers {
		conf := raftnode.DefaultConfig()
		conf.ID, conf.RaftAddress, conf.APIAddress = peers[i].ID, peers[i].RaftAddress, peers[i].APIAddress
		conf.DataDir, conf.Peers, conf.Testing, conf.LogStore = t.TempDir(), peers, true, raftnode.UnderTest
		conf.Logger = hclog.New(&hclog.LoggerOptions{Name: peers[i].ID, Level: hclog.Warn, Output: testWriter{t}})
		for _, fn := range change {
			fn(&conf)
		}
		c.configs[i] = conf
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.stop(i)
		}
	})
	return c
}

// testWriter writes log lines to a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) { return len(b), nil }

func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	addresses, err := loopback.Free(n)
	if err != nil {
		t.Fatal(err)
	}
	return addresses
}

func freeAddress(t *testing.T) string { return freeAddresses(t, 1)[0] }

func (c *cluster) start(i int) {
	c.t.Helper()
	n, err := raftnode.Open(c.configs[i])
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[i] = n
}

func (c *cluster) stop(i int) {
	if c.nodes[i] == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.nodes[i].Close(ctx); err != nil {
		c.t.Error(err)
	}
	c.nodes[i] = nil
}

// eventually polls until ok, within a generous bound.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(what)
		}
	}
}

// leader waits for a node that leads and is ready.
func (c *cluster) leader() int {
	c.t.Helper()
	found := -1
	eventually(c.t, "a leader", func() bool {
		for i, n := range c.nodes {
			if n == nil {
				continue
			}
			if _, _, self := n.Leader(); self {
				found = i
				return true
			}
		}
		return false
	})
	return found
}

// propose proposes through whoever leads, under a session's number, until it is applied.
func (c *cluster) propose(command *logpb.Command) *logpb.Result {
	c.t.Helper()
	var result *logpb.Result
	eventually(c.t, "a command is applied", func() bool {
		n := c.nodes[c.leader()]
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		results, _, err := n.Propose(ctx, command)
		if err != nil {
			return false
		}
		result = results[0]
		return true
	})
	return result
}

// id waits until node i knows its cluster's id. A new leader founds the cluster beside the first commands, not before them.
func (c *cluster) id(i int) (id string) {
	c.t.Helper()
	eventually(c.t, "a cluster's id", func() bool {
		id = c.nodes[i].Status().ClusterID
		return id != ""
	})
	return id
}

func rate(name string, limit int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{{
		Name: name, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit, PerNs: int64(time.Minute)}},
	}}}}}
}

func reserve(quota string, amount int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
		Holder: "h", Items: []*logpb.Item{{Quota: quota, Amount: &amount}},
	}}}
}

func TestThreeNodesKeepWhatWasAcknowledged(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 1000))
	session := c.propose(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{}}}).GetSessionOpened().GetSession()
	granted := map[uint64]uint64{}
	for seq := uint64(1); seq <= 30; seq++ {
		command := reserve("q", 1)
		command.Session, command.Seq = session, seq
		g := c.propose(command).GetGranted()
		if g == nil {
			t.Fatalf("request %d was not granted", seq)
		}
		if granted[g.Fence] != 0 {
			t.Fatalf("fence %d twice", g.Fence)
		}
		granted[g.Fence] = g.Lease
		if seq%10 == 5 {
			victim := c.leader()
			c.nodes[victim].Kill()
			c.nodes[victim] = nil
			c.leader()
			c.start(victim)
		}
	}
	n := c.nodes[c.leader()]
	err := n.Read(t.Context(), raftnode.Linearizable, func(s *fsm.State, at fsm.Clock, _ raftnode.Position) {
		q, _ := s.Quota("q", at)
		if q.Held != 30 || q.Leases != 30 {
			t.Errorf("held %d by %d leases, want 30", q.Held, q.Leases)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestIdleClusterWritesNothing(t *testing.T) {
	c := newCluster(t, 1)
	c.propose(rate("q", 10))
	n := c.nodes[0]
	c.id(0)
	before := n.Status().LastIndex
	<-time.After(1200 * time.Millisecond) // in which nothing is to happen
	if after := n.Status().LastIndex; after != before {
		t.Fatalf("the log went from %d to %d while nothing was pending", before, after)
	}
}
