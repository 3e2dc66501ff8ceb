package raftnode

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
)

// TestOutcomeOfRestore_OtherSnapshotProvesNothing: a snapshot after a restore may come from a leader that lacks the restore and restored
// another backup under the same epoch. Only the restored state with a later entry proves that the restore is kept.
func TestOutcomeOfRestore_OtherSnapshotProvesNothing(t *testing.T) {
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress, conf.LogStore = "n0", t.TempDir(), "127.0.0.1:0", UnderTest
	conf.Peers = []Peer{{ID: "n0", RaftAddress: "127.0.0.1:0"}}
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close(t.Context()) }()
	for n.leading.Load() == nil {
		select {
		case <-t.Context().Done():
			t.Fatal("it never led")
		case <-time.After(time.Millisecond):
		}
	}
	restore := func(epoch uint32) {
		state := fsm.New()
		state.Rebase(n.raft.LastIndex()+1, n.raft.CurrentTerm(), epoch, "", nil, n.Clock())
		var snapshot bytes.Buffer
		if err := state.State().WriteSnapshot(&snapshot); err != nil {
			t.Fatal(err)
		}
		if err := (machine{n}).Restore(io.NopCloser(&snapshot)); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		epochs []uint32
		kept   bool
	}{
		"the restore":                              {[]uint32{7}, true},
		"another leader's restore behind it":       {[]uint32{7, 7}, false},
		"another leader's snapshot of before":      {[]uint32{7, 6}, false},
		"two restores of other leaders' behind it": {[]uint32{7, 7, 8}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := n.restores.Load()
			for _, epoch := range tc.epochs {
				restore(epoch)
			}
			err := n.outcomeOfRestore(t.Context(), raft.ErrLeadershipLost, false, before, 10*time.Second)
			if _, unknown := errors.AsType[*UnknownError](err); unknown == tc.kept || err != nil && !unknown {
				t.Errorf("it receives %v", err)
			}
		})
	}
}
