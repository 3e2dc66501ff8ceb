package raftnode_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
)

// cluster is a cluster of nodes in this process, each with its own data directory and loopback address.
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
		conf.Patient()
		for _, fn := range change {
			fn(&conf)
		}
		c.configs[i] = conf
		c.start(i)
	}
	t.Cleanup(func() {
		// All at once: the last one of a cluster would wait for a successor.
		var stopping sync.WaitGroup
		for i := range c.nodes {
			stopping.Go(func() { c.stop(i) })
		}
		stopping.Wait()
	})
	return c
}

// testWriter discards log lines.
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

// eventually polls until ok, for a minute at most.
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

// leader waits for a node that leads and is ready, and returns its number.
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

// propose proposes a command through the present leader until it is applied.
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

// leadershipMoved tells whether a call was refused because its node no longer leads, or is not ready: the next leader may accept it.
func leadershipMoved(err error) bool {
	refused, ok := errors.AsType[*raftnode.NotAcceptedError](err)
	return ok && (refused.Cause == raftnode.NotLeader || refused.Cause == raftnode.NotReady)
}

// atLeader makes a call at the leader, and repeats it at the next one if leadership moved: a busy machine may elect another leader at any
// time. It returns the last error.
func (c *cluster) atLeader(call func(leader int) error) (err error) {
	c.t.Helper()
	eventually(c.t, "a leader takes or refuses a call", func() bool {
		err = call(c.leader())
		return !leadershipMoved(err)
	})
	return err
}

// undisturbed runs a check while all running nodes follow one leader, and repeats it if that changed meanwhile.
func (c *cluster) undisturbed(check func(leader int) error) {
	c.t.Helper()
	var err error
	eventually(c.t, "a check while leadership stays where it is", func() bool {
		leader, term := c.leader(), c.followed()
		if term == 0 {
			return false
		}
		err = check(leader)
		return c.followed() == term
	})
	if err != nil {
		c.t.Error(err)
	}
}

// followed returns the term of the leader that all running nodes follow, 0 if they do not agree.
func (c *cluster) followed() (term uint64) {
	leader := c.nodes[c.leader()]
	for _, n := range c.nodes {
		if n == nil {
			continue
		}
		if known, _, self := n.Leader(); known != leader.ID() || self != (n == leader) || n.Status().Term != leader.Status().Term {
			return 0
		}
	}
	return leader.Status().Term
}

// addLearner adds node i, which must run, as a learner.
func (c *cluster) addLearner(i int) {
	c.t.Helper()
	eventually(c.t, c.configs[i].ID+" is a learner", func() bool {
		return c.nodes[c.leader()].AddLearner(c.t.Context(), c.configs[i].ID, c.configs[i].RaftAddress, c.configs[i].APIAddress) == nil
	})
}

// remove removes a member through the present leader, until it is no longer a member.
func (c *cluster) remove(id string) {
	c.t.Helper()
	eventually(c.t, id+" is no member any more", func() bool {
		err := c.nodes[c.leader()].Remove(c.t.Context(), id, false)
		unfit, refused := errors.AsType[*raftnode.MemberError](err)
		return err == nil || refused && unfit.Absent // an earlier call with an unknown outcome removed it
	})
}

// transferLeadership makes a node transfer leadership to another one; "" means any. The node may have lost leadership already.
func (c *cluster) transferLeadership(from int, to string) {
	c.t.Helper()
	eventually(c.t, "another node leads", func() bool {
		if c.leader() == from {
			_, _ = c.nodes[from].TransferLeadership(c.t.Context(), to) // c.leader() shows the result
		}
		leader := c.leader()
		return leader != from && (to == "" || c.configs[leader].ID == to)
	})
}

// backup returns a backup of the cluster's state.
func (c *cluster) backup() []byte {
	c.t.Helper()
	var backup bytes.Buffer
	if err := c.atLeader(func(leader int) error {
		state, _, _, err := c.nodes[leader].Frozen(c.t.Context(), raftnode.Linearizable)
		if err != nil {
			return err
		}
		return state.WriteSnapshot(&backup)
	}); err != nil {
		c.t.Fatal(err)
	}
	return backup.Bytes()
}

// id waits until node i knows its cluster's id.
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

func TestThreeNodes_KeepAcknowledged(t *testing.T) {
	t.Parallel() // mostly waiting
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
	if err := c.atLeader(func(leader int) error {
		return c.nodes[leader].Read(t.Context(), raftnode.Linearizable, func(s *fsm.State, at fsm.Clock, _ raftnode.Position) {
			q, _ := s.Quota("q", at)
			if q.Held != 30 || q.Leases != 30 {
				t.Errorf("held %d by %d leases, want 30", q.Held, q.Leases)
			}
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// TestFounding_PrecedesCommands: a node that leads and accepts commands has given the cluster its id. A backup without the id could be
// restored into any cluster.
func TestFounding_PrecedesCommands(t *testing.T) {
	n := newCluster(t, 1).nodes[0]
	for leads := false; !leads; runtime.Gosched() {
		_, _, leads = n.Leader()
		if t.Context().Err() != nil {
			t.Fatal("it does not lead")
		}
	}
	if n.Status().ClusterID == "" {
		t.Error("it leads a cluster without an id")
	}
}

func TestIdle_ClusterWritesNothing(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 1)
	c.propose(rate("q", 10))
	n := c.nodes[0]
	c.id(0)
	before := n.Status().LastIndex
	<-time.After(1200 * time.Millisecond) // nothing may happen meanwhile
	if after := n.Status().LastIndex; after != before {
		t.Fatalf("the log went from %d to %d while nothing was pending", before, after)
	}
}
