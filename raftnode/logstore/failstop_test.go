package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/hashicorp/raft"
)

// TestDeleteRange_LeavesNoHole: at whichever point the process ends while a long range is deleted, the rest is contiguous. The log's
// beginning is deleted from the front, its end from the back.
func TestDeleteRange_LeavesNoHole(t *testing.T) {
	const entries = 3*2048 + 100
	for name, c := range map[string]struct {
		first, last uint64
	}{
		"the beginning": {1, entries - 50}, "beyond the beginning": {0, entries - 50}, "the end": {60, entries}, "everything": {1, entries},
	} {
		for piece := 1; piece <= 4; piece++ {
			t.Run(fmt.Sprintf("%s, ended at piece %d", name, piece), func(t *testing.T) {
				s := openLog(t, t.TempDir())
				defer func() { _ = s.store.Close() }()
				s.fatal = func(err error) { t.Error(err) }
				logs := make([]*raft.Log, entries)
				for i := range logs {
					logs[i] = &raft.Log{Index: uint64(i + 1), Term: 1}
				}
				if err := s.StoreLogs(logs); err != nil {
					t.Fatal(err)
				}
				left := piece
				s.crash = func(point string) {
					if left--; point == "in-delete-range" && left == 0 {
						panic("the process ends")
					}
				}
				func() {
					defer func() { _ = recover() }()
					_ = s.DeleteRange(c.first, c.last)
				}()
				checkWhole(t, s)
				s.crash = func(string) {}
				if err := s.DeleteRange(c.first, c.last); err != nil { // after a restart raft deletes again
					t.Fatal(err)
				}
				for _, index := range []uint64{max(c.first, 1), c.last} {
					if err := s.GetLog(index, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
						t.Errorf("entry %d is still there: %v", index, err)
					}
				}
				checkWhole(t, s)
			})
		}
	}
}

// checkWhole fails if an entry between a log's first and last is missing.
func checkWhole(t *testing.T, log raft.LogStore) {
	t.Helper()
	first, err := log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for index := first; index <= last && first > 0; index++ {
		if err := log.GetLog(index, new(raft.Log)); err != nil {
			t.Fatalf("entry %d of %d..%d: %v", index, first, last, err)
		}
	}
}

// overwrite changes a byte of an entry in the log's file.
func overwrite(t *testing.T, dir string, index uint64, at int, change byte) {
	t.Helper()
	if UnderTest == WAL {
		overwriteWAL(t, dir, index, at, change)
		return
	}
	db, err := bolt.Open(Bolt.path(dir), 0o600, nil)
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
	return &failStop{store: store, fatal: func(error) {}, monotonic: monotonic, crash: func(string) {}}
}

// TestLog_RefusesDamagedEntry: after any flipped bit of a stored entry, a read is refused or returns what was written.
func TestLog_RefusesDamagedEntry(t *testing.T) {
	if UnderTest != Bolt {
		t.Skip("of a file of a write-ahead log all bits are flipped in TestWAL_RefusesDamage")
	}
	dir := t.TempDir()
	written := raft.Log{Index: 7, Term: 3, Type: raft.LogCommand, Data: []byte("a command of some length")}
	store := openLog(t, dir)
	if err := store.StoreLog(&written); err != nil {
		t.Fatal(err)
	}
	var size int
	if err := store.store.GetLog(7, new(raft.Log)); err != nil {
		t.Fatal(err)
	}
	if err := store.store.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(Bolt.path(dir), 0o600, &bolt.Options{ReadOnly: true})
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
			if err := store.store.Close(); err != nil {
				t.Fatal(err)
			}
			overwrite(t, dir, 7, at, change)
		}
	}
	if refused < 3*len(written.Data) {
		t.Errorf("%d of %d flips were refused", refused, 3*size)
	}
}

// TestLog_StoresNoEntryDamagedInTransit: an entry carries the checksum that its leader stored.
func TestLog_StoresNoEntryDamagedInTransit(t *testing.T) {
	leader, follower := openLog(t, t.TempDir()), openLog(t, t.TempDir())
	defer func() { _, _ = leader.store.Close(), follower.store.Close() }()
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
