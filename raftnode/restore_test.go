package raftnode_test

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/peer"
)

// TestRestore_KnowsItsOutcome: if leadership is lost during a restore, either nothing was done, or the cluster has the restored state
// under any leader.
func TestRestore_KnowsItsOutcome(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 1_000_000))
	backup := c.backup()
	var last uint32
	refused, restored := 0, 0
	for try := range 12 {
		at := c.leader()
		lead := c.nodes[at]
		var moving sync.WaitGroup
		var ended atomic.Bool
		moving.Go(func() {
			for try%3 != 0 && !ended.Load() { // until raft has restored on this node, before the others have the restore
				now, _, _, err := lead.Frozen(t.Context(), raftnode.Stale)
				if err != nil || now.Epoch() > last {
					break
				}
			}
			_, _ = lead.TransferLeadership(t.Context(), c.configs[(at+1+try%2)%3].ID) // leadership may have moved already
		})
		epoch, _, err := lead.Restore(t.Context(), bytes.NewReader(backup), false)
		ended.Store(true)
		moving.Wait()
		notAccepted := (*raftnode.NotAcceptedError)(nil)
		switch {
		case errors.As(err, &notAccepted):
			refused++
		case err != nil:
			t.Errorf("try %d: %v", try, err)
		default:
			restored++
			if epoch <= last {
				t.Errorf("try %d: epoch %d after %d", try, epoch, last)
			}
			last = epoch
		}
		c.hashesAgree()
		now, _, _, err := c.nodes[c.leader()].Frozen(t.Context(), raftnode.Linearizable)
		if err != nil {
			continue // leadership moved once more
		}
		if now.Epoch() != last {
			t.Fatalf("try %d: the cluster is in epoch %d, %d was reported last", try, now.Epoch(), last)
		}
	}
	t.Logf("%d restored, %d refused", restored, refused)
}

// TestRestore_RefusesALevelThatAMemberDoesNotKnow: a snapshot of a newer feature level would stop members whose build cannot read it. Once
// all members have the newer build, the same backup is restored.
func TestRestore_RefusesALevelThatAMemberDoesNotKnow(t *testing.T) {
	t.Parallel() // mostly waiting
	newer := newCluster(t, 1)
	newer.propose(rate("newer", 10))
	backup := newer.backup()
	c := newCluster(t, 3, func(conf *raftnode.Config) {
		if conf.ID != "n0" {
			conf.Build = peer.Build{Version: "old", Oldest: fsm.OldestEntryVersion, Newest: fsm.EntryVersion - 1}
		}
	})
	c.propose(rate("q", 10))
	restore := func() (err error) {
		eventually(t, "n0 leads and takes or refuses the backup", func() bool {
			if at := c.leader(); at != 0 {
				_, _ = c.nodes[at].TransferLeadership(t.Context(), "n0") // the next try checks the result
				return false
			}
			_, _, err = c.nodes[0].Restore(t.Context(), bytes.NewReader(backup), true)
			return !leadershipMoved(err)
		})
		return err
	}
	err := restore()
	if refused, ok := errors.AsType[*raftnode.NotAcceptedError](err); !ok || refused.Cause != raftnode.OldMember {
		t.Errorf("a backup of level %d while members know level %d at most: %v", fsm.EntryVersion, fsm.EntryVersion-1, err)
	}
	c.propose(rate("still", 10))
	for i, n := range c.nodes {
		if level := n.Status().Build.Level; level >= fsm.EntryVersion {
			t.Errorf("n%d is at feature level %d", i, level)
		}
	}
	for _, i := range []int{1, 2} {
		c.stop(i)
		c.configs[i].Build = c.configs[0].Build
		c.start(i)
	}
	eventually(t, "the members know the backup's level", func() bool { return c.nodes[c.leader()].EntryVersion() == fsm.EntryVersion })
	if err := restore(); err != nil {
		t.Errorf("all members know the backup's level: %v", err)
	}
	c.hashesAgree()
}
