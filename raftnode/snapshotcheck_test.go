package raftnode

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// damaging is a snapshot store that flips a bit of its input, so that its own checksums still match.
type damaging struct{ raft.SnapshotStore }

func (s damaging) Create(
	version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	return &damagingSink{SnapshotSink: sink}, err
}

type damagingSink struct {
	raft.SnapshotSink
	written int
}

func (s *damagingSink) Write(data []byte) (int, error) {
	const place = 100
	if at := place - s.written; at >= 0 && at < len(data) {
		data = append([]byte(nil), data...)
		data[at] ^= 4
	}
	s.written += len(data)
	return s.SnapshotSink.Write(data)
}

// takeSome proposes some commands that take quota.
func takeSome(t *testing.T, n *Node, count int) {
	t.Helper()
	for range count {
		if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
			t.Fatal(err)
		}
	}
}

func checkOf(n *Node, name string) Check {
	for _, c := range n.Status().Checks {
		if c.Name == name {
			return c
		}
	}
	return Check{}
}

// TestSnapshot_UnreadableTrimsNothing: the node keeps its log and the previous snapshot, reports it, and continues. The next good
// snapshot clears the alarm.
func TestSnapshot_UnreadableTrimsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		restoreUpTo, limit int64
		compared           bool
	}{
		"restored":                         {restoreUpTo: 1 << 30},
		"restored, since there is room":    {limit: 1 << 30},
		"compared, since no limit is set":  {compared: true},
		"compared, since there is no room": {limit: 2048, compared: true},
	} {
		t.Run(name, func(t *testing.T) { unreadableTrimsNothing(t, c.restoreUpTo, c.limit, c.compared) })
	}
}

func unreadableTrimsNothing(t *testing.T, restoreUpTo, limit int64, compared bool) {
	t.Helper()
	n := openOne(t, func(c *Config) {
		c.SnapshotsRetained, c.TrailingLogs, c.restoreUpTo = 1, 5, restoreUpTo
		c.MemoryLimit, c.Memory = limit, func() (int64, error) { return 1024, nil }
	})
	if _, _, err := n.Propose(t.Context(), slots(1000)); err != nil {
		t.Fatal(err)
	}
	takeSome(t, n, 20)
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	takeSome(t, n, 20)
	before := n.Status()
	checked, ok := n.snapshots.(*checkedSnapshots)
	if !ok {
		t.Fatalf("%T", n.snapshots)
	}
	whole := checked.SnapshotStore
	checked.SnapshotStore = damaging{whole}
	for range 3 {
		if err := n.raft.Snapshot().Error(); err == nil {
			t.Fatal("a snapshot that cannot be restored was taken for one")
		}
	}
	after := n.Status()
	if after.FirstIndex != before.FirstIndex || after.SnapshotIndex != before.SnapshotIndex {
		t.Errorf("the log begins at %d, after %d; the snapshot is %d, after %d", after.FirstIndex, before.FirstIndex, after.SnapshotIndex,
			before.SnapshotIndex)
	}
	all, _, err := logstore.ListSnapshots(n.config.DataDir)
	if err != nil || len(all) != 1 || all[0].Index != before.SnapshotIndex {
		t.Errorf("%+v, %v", all, err)
	}
	if c := checkOf(n, "snapshot"); c.OK || !strings.Contains(c.Message, "state.bin") || strings.Contains(c.Message,
		"is not what was written") != compared {
		t.Errorf("%+v", c)
	}
	if n.isDone() {
		t.Fatal(n.Err())
	}
	takeSome(t, n, 1)
	checked.SnapshotStore = whole
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if c := checkOf(n, "snapshot"); !c.OK {
		t.Errorf("%+v", c)
	}
	if last := n.Status(); last.FirstIndex <= before.FirstIndex || last.SnapshotIndex <= before.SnapshotIndex {
		t.Errorf("nothing was trimmed: %+v", last)
	}
}

// TestVerifyNew_OfTheLeaderFitsTheMemory: without memory for a second state, a snapshot from the leader is checked by its checksum alone.
func TestVerifyNew_OfTheLeaderFitsTheMemory(t *testing.T) {
	const limit = 1 << 30
	var used atomic.Int64
	n := openOne(t, func(c *Config) {
		c.MemoryLimit, c.Memory = limit, func() (int64, error) { return used.Load(), nil }
	})
	index := uint64(100)
	write := func() (id string) {
		store, err := raft.NewFileSnapshotStoreWithLogger(n.config.DataDir, 10, n.logger)
		if err != nil {
			t.Fatal(err)
		}
		index++
		sink, err := store.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write([]byte("this is no state")); err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
		return sink.ID()
	}
	if err := n.verifyNew(write(), nil); !errors.Is(err, fsm.ErrCorruptSnapshot) {
		t.Errorf("with memory for a second state: %v", err)
	}
	used.Store(limit/100*MemoryMark - restoredTimes)
	if err := n.verifyNew(write(), nil); err != nil {
		t.Errorf("without: %v", err)
	}
	flipped := write()
	if err := os.WriteFile(filepath.Join(n.config.DataDir, "snapshots", flipped, "state.bin"), []byte("this is nO state"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.verifyNew(flipped, nil); err == nil || !strings.Contains(err.Error(), "checksum mismatch") {
		t.Errorf("a flipped bit: %v", err)
	}
}

// gated is a snapshot store whose first snapshot does not finish before the gate opens.
type gated struct {
	raft.SnapshotStore
	created, open chan struct{}
}

func (s *gated) Create(
	version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	select {
	case <-s.created:
		return sink, err
	default:
		close(s.created)
		return &gatedSink{sink, s.open}, err
	}
}

type gatedSink struct {
	raft.SnapshotSink
	open chan struct{}
}

func (s *gatedSink) Close() error {
	<-s.open
	return s.SnapshotSink.Close()
}

// TestSnapshot_OvertakenByRestoreIsNotLast: raft took the older snapshot for its last. The leader then had no term for the entry of
// the restore, and installed the snapshot on each follower again and again: nothing was committed for 37 s, until it was killed.
func TestSnapshot_OvertakenByRestoreIsNotLast(t *testing.T) {
	n := openOne(t, func(c *Config) { c.TrailingLogs = 5 })
	if _, _, err := n.Propose(t.Context(), slots(1000)); err != nil {
		t.Fatal(err)
	}
	takeSome(t, n, 20)
	var backup bytes.Buffer
	state, _, _, err := n.Frozen(t.Context(), Linearizable)
	if err == nil {
		err = state.WriteSnapshot(&backup)
	}
	if err != nil {
		t.Fatal(err)
	}
	checked, ok := n.snapshots.(*checkedSnapshots)
	if !ok {
		t.Fatalf("%T", n.snapshots)
	}
	gate := &gated{SnapshotStore: checked.SnapshotStore, created: make(chan struct{}), open: make(chan struct{})}
	checked.SnapshotStore = gate
	late := n.raft.Snapshot()
	<-gate.created
	_, at, err := n.Restore(t.Context(), &backup, false)
	if err != nil {
		t.Fatal(err)
	}
	close(gate.open)
	if err := late.Error(); err == nil || !strings.Contains(err.Error(), errOvertaken.Error()) {
		t.Errorf("the older snapshot: %v", err)
	}
	if last := n.Status().SnapshotIndex; last < at.Index-1 {
		t.Errorf("the last snapshot is at %d, the restore is known at %d", last, at.Index)
	}
	takeSome(t, n, 20)
	if err := n.raft.Snapshot().Error(); err != nil || errors.Is(n.Err(), ErrConflictingLog) {
		t.Errorf("the next snapshot: %v, %v", err, n.Err())
	}
}
