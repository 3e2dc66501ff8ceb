package raftnode

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/logstore"
)

// TestSnapshot_CutsDisagreeingLog: a follower whose log ends with uncommitted entries that conflict with the leader's snapshot
// stops. After a restart it continues from the snapshot. Logs without a conflict are kept.
func TestSnapshot_CutsDisagreeingLog(t *testing.T) {
	for name, c := range map[string]struct {
		index, term uint64
		last        uint64
		fatal       bool
	}{
		"it agrees":                       {10, 1, 20, false},
		"it disagrees at the snapshot":    {10, 3, 9, true},
		"it disagrees at its very end":    {20, 3, 19, true},
		"it ends before the snapshot":     {30, 3, 20, false},
		"it agrees at the snapshot's end": {20, 1, 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			log := openDisk(t, t.TempDir(), "n")
			defer func() { _ = log.Close() }()
			for index := uint64(1); index <= 20; index++ {
				if err := log.StoreLog(&raft.Log{Index: index, Term: 1}); err != nil {
					t.Fatal(err)
				}
			}
			files, err := raft.NewFileSnapshotStore(t.TempDir(), 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			var fatal error
			store := &checkedSnapshots{SnapshotStore: files, log: log, fatal: func(err error) { fatal = err }}
			_, transport := raft.NewInmemTransport("")
			sink, err := store.Create(raft.SnapshotVersionMax, c.index, c.term, raft.Configuration{}, 0, transport)
			if err != nil {
				t.Fatal(err)
			}
			if err := sink.Close(); (err != nil) != c.fatal || errors.Is(fatal, ErrConflictingLog) != c.fatal {
				t.Errorf("%v, %v", err, fatal)
			}
			if last, _ := log.LastIndex(); last != c.last {
				t.Errorf("the log ends at %d", last)
			}
			if kept, _ := files.List(); len(kept) != 1 || kept[0].Index != c.index {
				t.Errorf("the snapshot is not there: %v", kept)
			}
		})
	}
}

// TestStart_CutsDisagreeingLog: the node had ended before it cut its log.
func TestStart_CutsDisagreeingLog(t *testing.T) {
	n := openWithSnapshot(t)
	conf := n.config.Config
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
	all, _, err := logstore.ListSnapshots(conf.DataDir)
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	log := openDisk(t, conf.DataDir, conf.ID)
	foreign := []*raft.Log{{Index: all[0].Index, Term: all[0].Term + 7}, {Index: all[0].Index + 1, Term: all[0].Term + 7}}
	last, _ := log.LastIndex()
	if err := errors.Join(log.DeleteRange(all[0].Index, last), log.StoreLogs(foreign), log.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Kill()
	poll(t, "it leads", func() bool { return again.leading.Load() != nil })
	if _, _, err := again.Propose(t.Context(), take(1)); err != nil {
		t.Fatal(err)
	}
}

// TestRestore_UncommittedEndsNode: a leader was lost while it restored a backup. It has the snapshot, at an index that the next
// leader gave to another entry. Applying later entries to the restored state would make replicas diverge.
func TestRestore_UncommittedEndsNode(t *testing.T) {
	n := openOne(t)
	index, term := n.raft.LastIndex()+1, n.raft.CurrentTerm()
	sink, err := n.snapshots.Create(raft.SnapshotVersionMax, index, term, raft.Configuration{}, 0, n.transport)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(emptyState().WriteSnapshot(sink), sink.Close()); err != nil {
		t.Fatal(err)
	}
	err = n.log.StoreLog(&raft.Log{Index: index, Term: term + 1, Type: raft.LogNoop})
	if !errors.Is(err, logstore.ErrUncommittedRestore) || !errors.Is(n.Err(), logstore.ErrUncommittedRestore) {
		t.Errorf("%v; the node ends with %v", err, n.Err())
	}
	if last, err := n.log.LastIndex(); err != nil || last != index-1 {
		t.Errorf("the log ends at %d, %v", last, err)
	}
}

// openWithSnapshot starts a node that has made a snapshot and still has its whole log.
func openWithSnapshot(t *testing.T) *Node {
	t.Helper()
	n := openOne(t, func(c *Config) {
		c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 20, 20*time.Millisecond, 1000
	})
	if _, _, err := n.Propose(t.Context(), slots(1000)); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "a snapshot", func() bool { return n.Status().SnapshotIndex > 20 })
	return n
}
