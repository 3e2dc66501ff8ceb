package raftnode_test

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quotad/quotad/raftnode"
)

// TestRestore_KnowsWhatCameOfIt: leadership that is lost while a backup is restored leaves no doubt: either nothing was done, or the
// cluster has the
// restored state, whoever leads then.
func TestRestore_KnowsWhatCameOfIt(t *testing.T) {
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
			for try%3 != 0 && !ended.Load() { // once raft has restored on this node, and before anybody else has
				now, _, _, err := lead.Frozen(t.Context(), raftnode.Stale)
				if err != nil || now.Epoch() > last {
					break
				}
			}
			_, _ = lead.TransferLeadership(t.Context(), c.configs[(at+1+try%2)%3].ID) // it may have moved already
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
			t.Fatalf("try %d: the cluster is in epoch %d, %d was told last", try, now.Epoch(), last)
		}
	}
	t.Logf("%d restored, %d refused", restored, refused)
}
