package raftnode_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// wipe gives a stopped node an empty disk; join also removes its list of peers.
func (c *cluster) wipe(i int, join bool) {
	c.configs[i].DataDir = c.t.TempDir()
	if join {
		c.configs[i].Peers = nil
	}
}

// endsWiped waits until a node has stopped by itself because its disk was lost.
func (c *cluster) endsWiped(i int) {
	c.t.Helper()
	n := c.nodes[i]
	select {
	case <-n.Done():
	case <-time.After(time.Minute):
		c.t.Fatalf("%s continues with an empty disk: %+v", c.configs[i].ID, n.Status())
	}
	if !errors.Is(n.Err(), logstore.ErrWiped) {
		c.t.Fatalf("it ended with %v", n.Err())
	}
	n.Kill()
	c.nodes[i] = nil
}

// TestWipedVoter_DoesNotElect: two of three hold the acknowledged entries, and one of the two loses its disk. With the third, which has
// none of them, it would form a majority without them. Neither its list nor `join` lets it take part, even if one of its peers is dead.
func TestWipedVoter_DoesNotElect(t *testing.T) {
	t.Parallel() // mostly waiting
	for name, join := range map[string]bool{"with its list": false, "that joins": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3)
			c.propose(rate("q", 1000))
			leader := c.leader()
			wiped, behind := (leader+1)%3, (leader+2)%3
			c.stop(behind)
			c.propose(rate("acknowledged", 1000))
			c.stop(wiped)
			c.stop(leader)
			c.wipe(wiped, join)
			c.start(wiped)
			c.start(behind)
			c.endsWiped(wiped)
			c.start(leader)
			eventually(t, "what was acknowledged", func() bool {
				found := false
				err := c.nodes[c.leader()].Read(t.Context(), raftnode.Linearizable, func(s *fsm.State, at fsm.Clock, _ raftnode.Position) {
					_, found = s.Quota("acknowledged", at)
				})
				return err == nil && found
			})
		})
	}
}

// TestWipedLearner_DoesNotReturn: an old log entry in which it was a learner does not make it one now.
func TestWipedLearner_DoesNotReturn(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	joining := c.configs[0]
	joining.ID, joining.DataDir, joining.Peers = "n3", t.TempDir(), nil
	joining.RaftAddress, joining.APIAddress = freeAddress(t), "127.0.0.1:1003"
	c.nodes, c.configs = append(c.nodes, nil), append(c.configs, joining)
	c.start(3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.addLearner(3)
	eventually(t, "the learner has caught up", func() bool { return c.nodes[3].Status().LastIndex >= c.nodes[c.leader()].Status().LastIndex })
	c.stop(3)
	c.start(3) // as a learner with its disk
	eventually(t, "the learner is a voter", func() bool { return c.nodes[c.leader()].Promote(ctx, "n3") == nil })
	c.stop(3)
	c.start(3) // as a voter with its disk
	c.hashesAgree()
	c.stop(3)
	c.wipe(3, true)
	c.start(3)
	c.endsWiped(3)
	c.propose(reserve("q", 1))
}

// TestJoined_WithoutAPartIsRefused: an added node has another small file than the nodes that formed the cluster. It needs that file and all
// other parts of its disk as they do.
func TestJoined_WithoutAPartIsRefused(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	joining := c.configs[0]
	joining.ID, joining.DataDir, joining.Peers = "n3", t.TempDir(), nil
	joining.RaftAddress, joining.APIAddress = freeAddress(t), "127.0.0.1:1003"
	c.nodes, c.configs = append(c.nodes, nil), append(c.configs, joining)
	c.start(3)
	c.addLearner(3)
	eventually(t, "the learner has caught up", func() bool { return c.nodes[3].Status().LastIndex >= c.nodes[c.leader()].Status().LastIndex })
	c.stop(3)
	if _, err := os.Stat(filepath.Join(joining.DataDir, logstore.FormedFile)); err == nil {
		t.Fatal("it is a disk of a node that formed the cluster")
	}
	store := "raft.db"
	if joining.LogStore == logstore.WAL {
		store = "wal"
	}
	empty := func(path string) error { return os.Truncate(path, 0) }
	for _, spoil := range []struct {
		part string
		by   func(path string) error
	}{
		{logstore.JoinedFile, os.Remove},
		{logstore.JoinedFile, empty},
		{logstore.NodeFile, os.Remove},
		{logstore.NonceFile, os.Remove},
		{logstore.ClusterFile, os.Remove},
		{"witness", os.Remove},
		{store, os.RemoveAll},
	} {
		conf := joining
		conf.DataDir = filepath.Join(t.TempDir(), "data")
		err := errors.Join(os.CopyFS(conf.DataDir, os.DirFS(joining.DataDir)), spoil.by(filepath.Join(conf.DataDir, spoil.part)))
		if err != nil {
			t.Fatal(err)
		}
		n, err := raftnode.Open(conf)
		if err == nil {
			n.Kill()
		}
		if !errors.Is(err, logstore.ErrWiped) && !errors.Is(err, logstore.ErrDamaged) {
			t.Errorf("%s: it starts: %v", spoil.part, err)
		}
	}
	c.start(3) // complete, it starts again
	c.hashesAgree()
}
