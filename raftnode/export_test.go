package raftnode

import (
	"cmp"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// UnderTest is the store that all tests of nodes use; `make test-wal` runs them with the other kind.
var UnderTest = logstore.Kind(cmp.Or(os.Getenv("QUOTAD_TEST_LOG_STORE"), string(logstore.Bolt)))

// SampleOften makes a node compare clocks five times as often as by default.
func (c *Config) SampleOften() { c.sampleTick = 200 * time.Millisecond }

// FreshWalls returns the number of voters' clocks that a node currently knows, its own included.
func (n *Node) FreshWalls() int {
	all, _ := n.samples.walls(n)
	return len(all)
}

// HasHeardOf returns the API address that a member reported to this node.
func (n *Node) HasHeardOf(id string) string {
	n.apis.mu.Lock()
	defer n.apis.mu.Unlock()
	return n.apis.of[id]
}

// Patient makes nodes tolerate a machine loaded by other tests: calls wait longer, a slow disk ends no node, and late heartbeats cause no
// election. A node alone elects itself at once: it loses to nobody.
func (c *Config) Patient() {
	c.ApplyTimeout, c.StallLimit = time.Minute, 30*time.Second
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease = 500*time.Millisecond, 500*time.Millisecond, 450*time.Millisecond
	if len(c.Peers) == 1 {
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease = 20*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	}
}

// openDisk opens the log of a stopped node's data directory as the node does.
func openDisk(t *testing.T, dir, node string) *logstore.Log {
	t.Helper()
	disk, err := logstore.ReadDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	log, err := disk.Open(logstore.Options{
		Kind: UnderTest, Node: node, Leads: func() bool { return false }, Fatal: func(err error) { t.Error(err) },
		Monotonic: NewSystemClock().Monotonic,
	})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// AppendToLog appends an entry to a stopped node's log, as its leader would have.
func AppendToLog(t *testing.T, dir, node string, entry raft.Log) {
	t.Helper()
	log := openDisk(t, dir, node)
	defer func() { _ = log.Close() }()
	last, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var before raft.Log
	if err := log.GetLog(last, &before); err != nil {
		t.Fatal(err)
	}
	entry.Index, entry.Term = last+1, before.Term
	if err := log.StoreLog(&entry); err != nil {
		t.Fatal(err)
	}
}

// emptyState returns a state without quotas.
func emptyState() *fsm.State { return fsm.New().Freeze() }

// stuckAppend makes a node's next append hang once armed, or fail with the armed error.
type stuckAppend struct {
	armed            chan error
	reached, release chan struct{}
}

func newStuckAppend() *stuckAppend {
	return &stuckAppend{armed: make(chan error, 1), reached: make(chan struct{}), release: make(chan struct{})}
}

func (s *stuckAppend) append(write func() error) error {
	select {
	case err := <-s.armed:
		close(s.reached)
		<-s.release
		if err != nil {
			return err
		}
	default:
	}
	return write()
}
