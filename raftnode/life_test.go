package raftnode_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

func reserveFor(quota string, ttl time.Duration) *logpb.Command {
	command := reserve(quota, 1)
	command.GetReserve().TtlNs = int64(ttl)
	return command
}

// TestClusterTime_NeverRunsBack: five leaders, one node with a wall clock an hour ahead and one an hour behind. Cluster time in the log
// only increases, and the remaining time of a lease only decreases. (A leader's own view may be ahead of the log by at most a tick, which
// its successor does not know.)
func TestClusterTime_NeverRunsBack(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	c.propose(rate("q", 1000))
	ahead, behind := time.Hour, -time.Hour
	for i, offset := range map[int]*time.Duration{0: &ahead, 1: &behind} {
		if err := c.nodes[i].SetFault(offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	granted := c.propose(reserveFor("q", 10*time.Minute)).GetGranted()
	left, last := int64(10*time.Minute), int64(0)
	for round := range 5 {
		leader := c.leader()
		eventually(t, "a linearizable read", func() bool {
			leader = c.leader()
			return c.nodes[leader].Read(t.Context(), raftnode.Linearizable, func(_ *fsm.State, clock fsm.Clock, at raftnode.Position) {
				now := granted.DeadlineNs - at.ClusterTime
				if now > left || at.ClusterTime < last || clock.Now != at.ClusterTime { // a lease is pending
					t.Errorf("round %d: %v were left and now %v", round, time.Duration(left), time.Duration(now))
				}
				left, last = now, at.ClusterTime
			}) == nil
		})
		if left < int64(9*time.Minute) {
			t.Fatalf("only %v are left: a wall clock moved cluster time", time.Duration(left))
		}
		if round%2 == 0 {
			c.nodes[leader].Kill()
			c.nodes[leader] = nil
			c.leader()
			c.start(leader)
			continue
		}
		c.transferLeadership(leader, "")
	}
}

// TestLease_EndsWithoutTraffic: without any calls the log gets an entry that ends the lease.
func TestLease_EndsWithoutTraffic(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 1)
	c.propose(rate("q", 1000))
	if c.propose(reserveFor("q", time.Second)).GetGranted() == nil {
		t.Fatal("not granted")
	}
	eventually(t, "the lease has ended", func() bool {
		leases := int64(1)
		_ = c.nodes[0].Read(t.Context(), raftnode.Stale, func(s *fsm.State, _ fsm.Clock, _ raftnode.Position) { leases = s.Counts().Leases })
		return leases == 0
	})
}

// TestRead_AtFollowerIsStaleOnly: a follower serves stale reads at once, with its own position. It refuses linearizable reads and names the
// leader.
func TestRead_AtFollowerIsStaleOnly(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 1000))
	for _, n := range c.nodes {
		eventually(t, "the quota is here", func() bool {
			found := false
			if err := n.Read(t.Context(), raftnode.Stale, func(s *fsm.State, at fsm.Clock, p raftnode.Position) {
				_, found = s.Quota("q", at)
				found = found && p.Index > 0
			}); err != nil {
				t.Fatal(err)
			}
			return found
		})
	}
	c.undisturbed(func(leader int) error {
		for i, n := range c.nodes {
			if i == leader {
				continue
			}
			err := n.Read(t.Context(), raftnode.Linearizable, func(*fsm.State, fsm.Clock, raftnode.Position) {})
			notAccepted, ok := errors.AsType[*raftnode.NotAcceptedError](err)
			if !ok || notAccepted.Cause != raftnode.NotLeader || notAccepted.Leader != c.configs[leader].ID ||
				notAccepted.LeaderAPIAddress != c.configs[leader].APIAddress {
				return fmt.Errorf("a linearizable read at a follower: %w", cmp.Or(err, errors.New("it was answered")))
			}
		}
		return nil
	})
}

// TestLeader_WithoutMajorityAnswersNothingNew: it answers neither linearizable reads nor commands. For a command accepted before it
// reports an unknown outcome.
func TestLeader_WithoutMajorityAnswersNothingNew(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3, func(conf *raftnode.Config) { conf.ApplyTimeout = 2 * time.Second })
	c.propose(rate("q", 1000))
	leader := c.leader()
	for i := range c.nodes {
		if i != leader {
			c.nodes[i].Kill()
			c.nodes[i] = nil
		}
	}
	n := c.nodes[leader]
	if err := n.Read(t.Context(), raftnode.Linearizable,
		func(*fsm.State, fsm.Clock, raftnode.Position) { t.Error("read without a majority") }); err == nil {
		t.Error("read without a majority")
	}
	_, _, err := n.Propose(t.Context(), reserve("q", 1))
	notAccepted, refused := errors.AsType[*raftnode.NotAcceptedError](err)
	if !errors.As(err, new(*raftnode.UnknownError)) && (!refused || notAccepted.Cause != raftnode.NotLeader) {
		t.Errorf("a command without a majority: %v", err)
	}
	eventually(t, "it steps down", func() bool { _, _, self := n.Leader(); return !self })
	if err := n.Read(t.Context(), raftnode.Stale, func(*fsm.State, fsm.Clock, raftnode.Position) {}); err != nil {
		t.Errorf("a stale read without a leader: %v", err)
	}
}

// TestClose_TransfersLeadership: the next term has a leader without an election timeout.
func TestClose_TransfersLeadership(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	c.propose(rate("q", 1000))
	eventually(t, "it is transferred, not lost and elected", func() bool { // the term rises by one, unless leadership moved just before
		leader := c.leader()
		term := c.nodes[leader].Status().Term
		c.stop(leader)
		next := c.nodes[c.leader()].Status().Term
		c.start(leader)
		return next == term+1
	})
}

// TestPeerPort_ClosesAnonymousConnections: invalid input of any kind gets the connection closed, and the cluster continues.
func TestPeerPort_ClosesAnonymousConnections(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 1000))
	junk := make([]byte, 64<<10)
	_, _ = rand.Read(junk)
	for name, sent := range map[string]string{
		"nothing":             "",
		"random bytes":        string(junk),
		"HTTP":                "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"half a preface":      `{"magic":"quotad-peer/2","pro`,
		"no line end":         strings.Repeat("x", 100_000),
		"another magic":       `{"magic":"other/1","protocol":"raft","node":"n1"}` + "\n",
		"another cluster":     `{"magic":"quotad-peer/2","protocol":"raft","node":"n1","cluster":"0123456789abcdef0123456789abcdef"}` + "\n",
		"no cluster":          `{"magic":"quotad-peer/2","protocol":"raft","node":"n1","oldest":4,"newest":4}` + "\n" + "\x03\x80",
		"an unknown protocol": `{"magic":"quotad-peer/2","protocol":"gossip","node":"n1","oldest":4,"newest":4}` + "\n",
	} {
		for i := range c.nodes {
			conn, err := net.Dial("tcp", c.configs[i].RaftAddress)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write([]byte(sent))
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			answer := make([]byte, 4096)
			for err == nil {
				var n int
				n, err = conn.Read(answer)
				if strings.Contains(string(answer[:n]), `"term"`) {
					t.Errorf("%s was answered: %s", name, answer[:n])
				}
			}
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Errorf("%s: the connection stays open", name)
			}
			_ = conn.Close()
		}
	}
	if c.propose(reserve("q", 1)).GetGranted() == nil {
		t.Error("not granted")
	}
}

// storeMetrics are the name prefixes of each store's metrics.
var storeMetrics = map[logstore.Kind]string{logstore.Bolt: "raft_boltdb_", logstore.WAL: "raft_wal_"}

// metricsTested says that the test of raft's metrics ran.
var metricsTested atomic.Bool

// TestMetrics: raft and its store report through two libraries, one of which could be silent. A leader also reports which follower does not
// answer: while there is a majority no other metric shows that.
func TestMetrics(t *testing.T) {
	if metricsTested.Swap(true) {
		t.Skip("raft counts for the whole process, into the first registry")
	}
	registry := prometheus.NewRegistry()
	c := newCluster(t, 3, func(conf *raftnode.Config) {
		conf.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"node": conf.ID}, registry)
	})
	c.propose(rate("q", 1000))
	lost := (c.leader() + 1) % 3
	c.stop(lost)
	eventually(t, "a metric of raft, one of its store, and the silent follower's", func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		raft, store, silent, answers := false, false, false, false
		for _, family := range families {
			if name := family.GetName(); strings.HasPrefix(name, "raft_net_") || strings.HasPrefix(name, "raft_rpc_appendEntries") ||
				name == "raft_fsm_enqueue" {
				t.Errorf("%s is made, which takes time for each entry", name)
			}
			raft = raft || strings.HasPrefix(family.GetName(), "raft_state_leader")
			store = store || strings.HasPrefix(family.GetName(), storeMetrics[raftnode.UnderTest])
			if family.GetName() != "quotad_raft_peer_last_contact_seconds" {
				continue
			}
			for _, metric := range family.Metric {
				seconds, peer := metric.Gauge.GetValue(), metric.Label[1].GetValue()
				silent = silent || peer == c.configs[lost].ID && seconds > 1
				answers = answers || peer != c.configs[lost].ID && seconds < 0.5
			}
		}
		return raft && store && silent && answers
	})
}

// TestWatch_SlowWatchersAreEnded: a slow reader gets an error, and so does a watch from an index no longer kept. A watch from a kept index
// misses nothing.
func TestWatch_SlowWatchersAreEnded(t *testing.T) {
	c := newCluster(t, 1, func(conf *raftnode.Config) { conf.EventEntries = 16 })
	c.propose(rate("q", 1000))
	n := c.nodes[0]
	slow, err := n.Watch(0)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	first := n.Status().AppliedIndex
	for range 40 {
		c.propose(reserve("q", 1))
	}
	if _, _, err := slow.Next(t.Context()); !errors.Is(err, raftnode.ErrSlowWatcher) {
		t.Errorf("40 entries behind in a ring of 16: %v", err)
	}
	_, err = n.Watch(first)
	compacted, ok := errors.AsType[*raftnode.CompactedError](err)
	if !ok || compacted.Oldest <= first {
		t.Fatalf("from what is gone: %v", err)
	}
	kept, err := n.Watch(compacted.Oldest)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	granted := 0
	for granted < 16 {
		_, events, err := kept.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			if events[i].Kind == effect.EventGranted {
				granted++
			}
		}
	}
}

// TestBookmarks_FollowLogUntilStop: a watcher without events gets the log's position, and an error when the node stops.
func TestBookmarks_FollowLogUntilStop(t *testing.T) {
	c := newCluster(t, 1)
	c.propose(rate("q", 1000))
	n := c.nodes[0]
	s, err := n.Watch(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c.propose(&logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: 99}}}) // causes no event
	at, events, err := s.Next(t.Context())
	if err != nil || len(events) != 0 || at.Index == 0 {
		t.Errorf("%v %v %v", at, events, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	c.stop(0)
	if _, _, err := s.Next(t.Context()); !errors.Is(err, raftnode.ErrWatchEnded) {
		t.Errorf("%v", err)
	}
}
