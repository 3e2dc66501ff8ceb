package raftnode_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// hashesAgree waits until all running nodes have the same state hash at the same index.
func (c *cluster) hashesAgree() {
	c.t.Helper()
	eventually(c.t, "equal state hashes at an equal index", func() bool {
		var index uint64
		var hash [32]byte
		for i, n := range c.nodes {
			if n == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			at, _, whole, err := n.StateHash(ctx, 0)
			cancel()
			if err != nil {
				return false
			}
			if i == 0 || index == 0 {
				index, hash = at, whole
			}
			if at != index || whole != hash {
				return false
			}
		}
		return true
	})
}

// TestSnapshot_ReachesFarBehindNode: a node whose missing entries were trimmed gets a snapshot and reaches the same state.
func TestSnapshot_ReachesFarBehindNode(t *testing.T) {
	c := newCluster(t, 3, func(conf *raftnode.Config) {
		conf.SnapshotThreshold, conf.TrailingLogs, conf.SnapshotInterval = 20, 10, 50*time.Millisecond
	})
	c.propose(rate("q", 1_000_000))
	behind := (c.leader() + 1) % 3
	has := c.nodes[behind].Status().LastIndex
	c.stop(behind)
	for range 200 {
		c.propose(reserve("q", 1))
	}
	for i, node := range c.nodes {
		if i != behind { // so that no possible leader has the entries that it lacks
			eventually(t, "a cut log", func() bool { return node.Status().FirstIndex > has+1 })
		}
	}
	c.start(behind)
	c.hashesAgree()
	eventually(t, "the snapshot it got is its newest", func() bool { return c.nodes[behind].Status().SnapshotIndex > has })
	c.stop(behind)
	c.start(behind) // from its own snapshot and log
	c.hashesAgree()
}

// TestFormation_OfEachDisk: which disks may form a cluster, and which may not return.
func TestFormation_OfEachDisk(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	id := c.id(c.leader())
	c.stop(2)
	t.Run("the same disk comes back", func(t *testing.T) {
		c.start(2)
		if again := c.id(2); again != id {
			t.Errorf("it is of cluster %s, want %s", again, id)
		}
	})
	t.Run("a second process on the same disk", func(t *testing.T) {
		again := c.configs[2]
		again.RaftAddress = freeAddress(t)
		again.Peers = nil
		if _, err := raftnode.Open(again); !errors.Is(err, logstore.ErrDataDirInUse) {
			t.Fatalf("%v", err)
		}
	})
	c.stop(2)
	t.Run("another node's disk", func(t *testing.T) {
		other := c.configs[1]
		other.DataDir = c.configs[2].DataDir
		other.RaftAddress = freeAddress(t)
		other.Peers = nil
		if _, err := raftnode.Open(other); !errors.Is(err, raftnode.ErrForeignDataDir) {
			t.Fatalf("%v", err)
		}
	})
	t.Run("a wiped disk", func(t *testing.T) {
		wiped := c.configs[2]
		wiped.DataDir = t.TempDir()
		n, err := raftnode.Open(wiped)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Kill()
		<-n.Done()
		if !errors.Is(n.Err(), logstore.ErrWiped) {
			t.Fatalf("it ended with %v", n.Err())
		}
	})
}

// TestMembers_JoinPromoteAndRemove: a learner joins and is promoted. A removed member stops with ErrRemoved, also after a restart.
func TestMembers_JoinPromoteAndRemove(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	joining := c.configs[0]
	joining.ID, joining.DataDir, joining.Peers = "n3", t.TempDir(), nil
	joining.RaftAddress, joining.APIAddress = freeAddress(t), "127.0.0.1:1003"
	n, err := raftnode.Open(joining)
	if err != nil {
		t.Fatal(err)
	}
	c.nodes = append(c.nodes, n)
	c.configs = append(c.configs, joining)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.addLearner(3)
	eventually(t, "the learner is a voter", func() bool { return c.nodes[c.leader()].Promote(ctx, "n3") == nil })
	c.hashesAgree()
	follower := (c.leader() + 1) % 3
	c.remove(c.configs[follower].ID)
	endsRemoved := func() {
		t.Helper()
		select {
		case <-c.nodes[follower].Done():
		case <-time.After(time.Minute):
			t.Fatalf("the removed node runs on: %+v", c.nodes[follower].Status())
		}
		if !errors.Is(c.nodes[follower].Err(), raftnode.ErrRemoved) {
			t.Fatalf("the removed node ended with %v", c.nodes[follower].Err())
		}
	}
	endsRemoved()
	c.stop(follower)
	c.start(follower) // as a process supervisor does
	endsRemoved()
	c.propose(reserve("q", 1))
}

// lines collects a node's log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestFullDisk_TakesOnlyReleases: new grants are refused; releases continue.
func TestFullDisk_TakesOnlyReleases(t *testing.T) {
	free, log := make(chan int64, 1), new(lines)
	free <- 1 << 40
	c := newCluster(t, 1, func(conf *raftnode.Config) {
		conf.Logger = hclog.New(&hclog.LoggerOptions{Name: conf.ID, Level: hclog.Info, Output: log})
		conf.Free = func(string) (int64, error) {
			now := <-free
			free <- now
			return now, nil
		}
	})
	c.propose(rate("q", 10))
	g := c.propose(reserve("q", 1)).GetGranted()
	<-free
	free <- 100 << 20
	n := c.nodes[0]
	var notAccepted *raftnode.NotAcceptedError
	defer func() {
		for _, word := range []string{
			"[WARN]  n0: the disk is nearly full", "[INFO]  n0: the disk has enough free space again",
			"disk.refuse_below=\"256.0 MiB\"",
		} {
			if !strings.Contains(log.String(), word) {
				t.Errorf("the log does not say %q:\n%s", word, log)
			}
		}
	}()
	eventually(t, "grants are refused", func() bool {
		_, _, err := n.Propose(t.Context(), reserve("q", 1))
		return errors.As(err, &notAccepted) && notAccepted.Cause == raftnode.DiskFull
	})
	results, _, err := n.Propose(t.Context(), &logpb.Command{Kind: &logpb.Command_Release{
		Release: &logpb.Release{Lease: g.Lease, Fence: g.Fence},
	}})
	if err != nil || results[0].GetReleased() == nil {
		t.Fatalf("%v %v", results, err)
	}
	<-free
	free <- 1 << 40
	eventually(t, "grants continue", func() bool {
		_, _, err := n.Propose(t.Context(), reserve("q", 1))
		return err == nil
	})
	<-free
	free <- 1 << 20
	<-n.Done()
	if n.Err() == nil {
		t.Fatal("a full disk did not end the node")
	}
	for _, word := range []string{c.configs[0].DataDir, "1.0 MiB", "disk.stop_below", "free some space"} {
		if !strings.Contains(n.Err().Error(), word) {
			t.Errorf("%q does not say %q", n.Err(), word)
		}
	}
}

// TestRestore_RaisesEpoch: a restore raises the epoch, so that no fence from before is issued again.
func TestRestore_RaisesEpoch(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 100))
	old := c.propose(reserve("q", 1)).GetGranted()
	backup := c.backup()
	late := c.propose(reserve("q", 1)).GetGranted()
	damaged := bytes.Clone(backup)
	damaged[len(damaged)/2] ^= 1
	if _, _, err := c.nodes[c.leader()].Restore(t.Context(), bytes.NewReader(damaged), false); !errors.Is(err, fsm.ErrCorruptSnapshot) {
		t.Fatalf("a damaged backup: %v", err)
	}
	var before, term uint64
	var epoch uint32
	err := c.atLeader(func(leader int) (err error) {
		lead := c.nodes[leader]
		before, term = lead.Status().LastIndex, lead.Status().Term
		epoch, _, err = lead.Restore(t.Context(), bytes.NewReader(backup), false)
		return err
	})
	if err != nil || epoch != 1 {
		t.Fatalf("epoch %d, %v", epoch, err)
	}
	c.hashesAgree()
	for i, n := range c.nodes {
		_, _, at, err := n.Frozen(t.Context(), raftnode.Stale)
		if err != nil || at.Index <= before || at.Term < term {
			t.Errorf("n%d shows the restored state as of index %d, term %d (%v); it was restored after index %d, term %d", i, at.Index, at.Term, err,
				before, term)
		}
		if _, err := n.Watch(before); !isCompacted(err) {
			t.Errorf("n%d lets a stream continue at index %d, which the restore took back: %v", i, before, err)
		}
	}
	release := func(g *logpb.Granted) *logpb.Result {
		return c.propose(&logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: g.Lease, Fence: g.Fence}}})
	}
	if got := release(late).GetFailure().GetReason(); got != logpb.Reason_REASON_STALE_FENCE {
		t.Fatalf("a lease granted after the backup: %v", got)
	}
	fresh := c.propose(reserve("q", 1)).GetGranted()
	if fresh.Fence <= late.Fence || fresh.Fence <= old.Fence {
		t.Fatalf("fence %d after %d", fresh.Fence, late.Fence)
	}
}

func isCompacted(err error) bool {
	_, ok := errors.AsType[*raftnode.CompactedError](err)
	return ok
}

// TestRestore_RefusesBackupOfOtherCluster: such a backup is refused, unless the caller allows it explicitly.
func TestRestore_RefusesBackupOfOtherCluster(t *testing.T) {
	c, other := newCluster(t, 1), newCluster(t, 1)
	c.propose(rate("here", 10))
	other.propose(rate("there", 10))
	foreign := other.id(0)
	backup := other.backup()
	n := c.nodes[0]
	own, before := c.id(0), n.Status().LastIndex
	_, _, err := n.Restore(t.Context(), bytes.NewReader(backup), false)
	if refused, ok := errors.AsType[*raftnode.ForeignBackupError](err); !ok || refused.Backup != foreign || refused.Cluster != own {
		t.Fatalf("%v", err)
	}
	if n.Status().LastIndex != before {
		t.Error("a refused restore left something in the log")
	}
	if _, _, err := n.Restore(t.Context(), bytes.NewReader(backup), true); err != nil {
		t.Fatal(err)
	}
	if n.Status().ClusterID != own {
		t.Error("the cluster has the backup's id")
	}
	c.propose(reserve("there", 1))
}

// TestFormation_NamesMissingMembers: log and status name all missing peers at once.
func TestFormation_NamesMissingMembers(t *testing.T) {
	t.Parallel() // mostly waiting
	c, log := newCluster(t, 1), new(lines)
	alone := c.configs[0]
	addresses := freeAddresses(t, 3)
	alone.DataDir, alone.RaftAddress = t.TempDir(), addresses[0]
	alone.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: log})
	alone.Peers = []raftnode.Peer{
		{ID: "n0", RaftAddress: addresses[0]}, {ID: "gone1", RaftAddress: addresses[1]}, {ID: "gone2", RaftAddress: addresses[2]},
	}
	n, err := raftnode.Open(alone)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Kill()
	names := func(text string) bool {
		return strings.Contains(text, "gone1 at ") && strings.Contains(text, "gone2 at ")
	}
	eventually(t, "a check names them", func() bool {
		for _, check := range n.Status().Checks {
			if check.Name == "leader" && !check.OK && names(check.Message) {
				return true
			}
		}
		return false
	})
	eventually(t, "so does the log", func() bool { return names(log.String()) })
	if count := strings.Count(log.String(), "cannot be formed"); count != 1 {
		t.Errorf("it is said %d times", count)
	}
}

// TestOpen_RefusesDamagedData: a node does not fall back to an older state.
func TestOpen_RefusesDamagedData(t *testing.T) {
	c := newCluster(t, 1, func(conf *raftnode.Config) {
		conf.SnapshotThreshold, conf.TrailingLogs, conf.SnapshotInterval = 10, 5, 30*time.Millisecond
	})
	c.propose(rate("q", 1000))
	for range 60 {
		c.propose(reserve("q", 1))
	}
	eventually(t, "a snapshot", func() bool { return c.nodes[0].Status().SnapshotIndex > 20 })
	c.stop(0)
	offline, err := logstore.OpenOffline(c.configs[0].DataDir)
	if err != nil {
		t.Fatal(err)
	}
	snapshots, err := offline.Snapshots()
	if err != nil || len(snapshots) == 0 {
		t.Fatalf("%v %v", snapshots, err)
	}
	if err := offline.Verify(); err != nil {
		t.Fatal(err)
	}
	if err := offline.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(snapshots[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(snapshots[0].Path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := raftnode.Open(c.configs[0]); !errors.Is(err, logstore.ErrDamaged) {
		t.Fatalf("%v", err)
	}
}

// TestWatch_Resumes: a resumed watch misses no event from its index on. If the index is no longer kept, Watch returns a *CompactedError.
func TestWatch_Resumes(t *testing.T) {
	c := newCluster(t, 1, func(conf *raftnode.Config) { conf.EventEntries = 32 })
	c.propose(rate("q", 1000))
	n := c.nodes[0]
	subscription, err := n.Watch(0)
	if err != nil {
		t.Fatal(err)
	}
	defer subscription.Close()
	first := c.propose(reserve("q", 1)).GetGranted()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var from uint64
	for from == 0 {
		at, events, err := subscription.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == effect.EventGranted && e.Fence == first.Fence {
				from = at.Index
			}
		}
	}
	for range 10 {
		c.propose(reserve("q", 1))
	}
	again, err := n.Watch(from)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for fence := first.Fence; fence <= first.Fence+10; {
		_, events, err := again.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == effect.EventGranted {
				if e.Fence != fence {
					t.Fatalf("fence %d, want %d", e.Fence, fence)
				}
				fence++
			}
		}
	}
	for range 60 {
		c.propose(reserve("q", 1))
	}
	var compacted *raftnode.CompactedError
	if _, err := n.Watch(from); !errors.As(err, &compacted) {
		t.Fatalf("%v", err)
	}
}
