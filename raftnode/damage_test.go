package raftnode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"

	"github.com/quotad/quotad/fsm/logpb"
)

// overwrite changes a byte of what the log's file holds under an index.
func overwrite(t *testing.T, dir string, index uint64, at int, change byte) {
	t.Helper()
	if UnderTest == StoreWAL {
		overwriteWAL(t, dir, index, at, change)
		return
	}
	db, err := bolt.Open(StoreBolt.path(dir), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	err = db.Update(func(tx *bolt.Tx) error {
		bucket := tx.Bucket([]byte("logs"))
		key := binary.BigEndian.AppendUint64(nil, index)
		value := bytes.Clone(bucket.Get(key))
		value[at] ^= change
		return bucket.Put(key, value)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func openLog(t *testing.T, dir string) *failStop {
	t.Helper()
	store, err := openStore(dir, UnderTest, storeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &failStop{raftLog: store, fatal: func(error) {}, clock: NewSystemClock()}
}

// TestADamagedEntryIsNotRead: whatever bit of a stored entry is flipped, it is refused, or what is read is what was
// written.
func TestADamagedEntryIsNotRead(t *testing.T) {
	if UnderTest != StoreBolt {
		t.Skip("of a file of a write-ahead log all bits are flipped in TestADamagedWALIsNotRead")
	}
	dir := t.TempDir()
	written := raft.Log{Index: 7, Term: 3, Type: raft.LogCommand, Data: []byte("a command of some length")}
	store := openLog(t, dir)
	if err := store.StoreLog(&written); err != nil {
		t.Fatal(err)
	}
	var size int
	if err := store.raftLog.GetLog(7, new(raft.Log)); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(StoreBolt.path(dir), 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = db.View(func(tx *bolt.Tx) error {
		size = len(tx.Bucket([]byte("logs")).Get(binary.BigEndian.AppendUint64(nil, 7)))
		return nil
	})
	_ = db.Close()
	refused := 0
	for at := range size {
		for _, change := range []byte{1, 0x80, 0x10} {
			overwrite(t, dir, 7, at, change)
			store := openLog(t, dir)
			var read raft.Log
			err := store.GetLog(7, &read)
			switch {
			case errors.Is(err, ErrDamaged):
				refused++
			case err != nil:
				t.Errorf("byte %d: %v", at, err)
			case read.Index != written.Index || read.Term != written.Term || read.Type != written.Type || !bytes.Equal(read.Data, written.Data):
				t.Errorf("byte %d: read %+v", at, read)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			overwrite(t, dir, 7, at, change)
		}
	}
	if refused < 3*len(written.Data) {
		t.Errorf("%d of %d flips were refused", refused, 3*size)
	}
}

// TestADamagedEntryOnTheWireIsNotStored: what a leader sends carries the sum that it stored.
func TestADamagedEntryOnTheWireIsNotStored(t *testing.T) {
	leader, follower := openLog(t, t.TempDir()), openLog(t, t.TempDir())
	defer func() { _, _ = leader.Close(), follower.Close() }()
	follower.fatal = func(err error) { t.Errorf("it stopped: %v", err) }
	if err := leader.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("whole")}); err != nil {
		t.Fatal(err)
	}
	var sent raft.Log
	if err := leader.GetLog(1, &sent); err != nil {
		t.Fatal(err)
	}
	if err := follower.StoreLog(&sent); err != nil {
		t.Fatal(err)
	}
	sent.Index, sent.Data = 2, []byte("wholf")
	if err := follower.StoreLog(&sent); !errors.Is(err, ErrDamaged) {
		t.Errorf("stored: %v", err)
	}
	if last, _ := follower.LastIndex(); last != 1 {
		t.Errorf("the log ends at %d", last)
	}
}

// TestANodeWithADamagedLogDoesNotStart, and says which entry it is.
func TestANodeWithADamagedLogDoesNotStart(t *testing.T) {
	n := openOne(t)
	propose := func() {
		if _, _, err := n.Propose(t.Context(), &logpb.Command{Kind: &logpb.Command_PutMember{PutMember: &logpb.PutMember{Id: "x", ApiAddress: "a:1"}}}); err != nil {
			t.Fatal(err)
		}
	}
	propose()
	index := n.Status().LastIndex
	propose()
	n.Kill()
	overwrite(t, n.config.DataDir, index, 40, 1)
	conf := n.config.Config
	conf.Clock = nil
	again, err := Open(conf)
	if err == nil {
		again.Kill()
	}
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("started: %v", err)
	}
	offline, err := OpenOffline(conf.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = offline.Close() }()
	if err := offline.Verify(); !errors.Is(err, ErrDamaged) {
		t.Errorf("verify says %v", err)
	}
}

// TestASnapshotThatWasBeingRemovedIsNoDamage: the power goes while an old snapshot is removed, and its folder is left, with or without
// its state; the node starts, and the rest is gone. Where the newest one lacks its description the node does not start. (Found by the
// fault suite: mix power-cuts, seed 1301.)
func TestASnapshotThatWasBeingRemovedIsNoDamage(t *testing.T) {
	n := openWithSnapshot(t)
	conf := n.config.Config
	conf.Clock = nil
	n.Kill()
	folder := filepath.Join(conf.DataDir, "snapshots")
	newest, _, err := listSnapshots(conf.DataDir)
	if err != nil || len(newest) == 0 {
		t.Fatal(newest, err)
	}
	sameIndex := fmt.Sprintf("%d-%d-1700000000003", newest[0].Term, newest[0].Index) // made before
	for name, files := range map[string][]string{
		"1-3-1700000000000": {}, "1-4-1700000000001": {"state.bin"}, "1-9-1700000000002.tmp": {"meta.json"}, sameIndex: {"state.bin"},
	} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(folder, name, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	offline, err := OpenOffline(conf.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(offline.Verify(), offline.Close()); err != nil {
		t.Errorf("verify says %v", err)
	}
	again, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	poll(t, "it leads", func() bool { return again.leading.Load() != nil })
	if _, _, err := again.Propose(t.Context(), take(1)); err != nil {
		t.Error(err)
	}
	again.Kill()
	all, unfinished, err := listSnapshots(conf.DataDir)
	if err != nil || len(all) == 0 || len(unfinished) > 0 {
		t.Fatalf("%v, %v, %v", all, unfinished, err)
	}
	if err := os.Remove(filepath.Join(folder, all[0].ID, "meta.json")); err != nil {
		t.Fatal(err)
	}
	again, err = Open(conf)
	if err == nil {
		again.Kill()
	}
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("without the newest one's description it starts: %v", err)
	}
}
