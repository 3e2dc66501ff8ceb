package logstore

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
)

// flipListKey flips a bit of the key of the list of files, in every copy in the pages.
func flipListKey(t *testing.T, dir string, change byte) {
	t.Helper()
	path := filepath.Join(WAL.path(dir), walMetaFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at, copies := 0, 0
	for list := []byte(`{"NextSegmentID":`); ; copies++ {
		next := bytes.Index(data[at:], list)
		if next < 0 {
			break
		}
		at += next + len(list)
		flip(t, path, int64(at-len(list)-len(walMetaKey)), change)
	}
	if copies == 0 {
		t.Fatal("no list of files")
	}
}

// dropValues removes all values except the list of files.
func dropValues(dir string) error {
	db, err := bolt.Open(filepath.Join(WAL.path(dir), walMetaFile), 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return errors.Join(tx.Bucket(walMetaBucket).Delete(walSumKey), tx.Bucket(walStableBucket).Delete(keyLastFile))
	})
	return errors.Join(err, db.Close())
}

// TestWALMeta_ALostListIsDamage: a damaged key of the list of files does not make the log look new, even if its first file, whose name a
// new log would use, is gone. Nothing is written or removed.
func TestWALMeta_ALostListIsDamage(t *testing.T) {
	onceForBoth(t)
	large := make([]*raft.Log, 18)
	for i := range large {
		large[i] = &raft.Log{Index: uint64(i + 1), Term: 1, Data: make([]byte, 1<<20)}
	}
	large, err := seal(large)
	if err != nil {
		t.Fatal(err)
	}
	for name, fill := range map[string]func(dir string, log Store) error{
		"its first file is there": func(_ string, log Store) error {
			return errors.Join(log.StoreLogs(entries(t, 1, 1, 9)), log.Close())
		},
		"its first file is gone": func(_ string, log Store) error {
			return errors.Join(log.StoreLogs(large), log.StoreLogs(entries(t, 1, 19, 21)), log.DeleteRange(1, 18), log.Close())
		},
		"it has no checksums, as in a directory from before": func(dir string, log Store) error {
			return errors.Join(log.StoreLogs(entries(t, 1, 1, 9)), log.Close(), dropValues(dir))
		},
		"its files are gone too": func(dir string, log Store) error {
			return errors.Join(log.StoreLogs(entries(t, 1, 1, 9)), log.Close(), os.Remove(segments(t, dir)[0]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := fill(dir, openRaw(t, dir, WAL)); err != nil {
				t.Fatal(err)
			}
			tree := treeOf(t, dir)
			for bit := range 8 {
				change := byte(1) << bit
				flipListKey(t, dir, change)
				damaged := treeOf(t, dir)
				for _, readOnly := range []bool{true, false} {
					log, err := openStore(dir, WAL, storeOptions{readOnly: readOnly})
					if err == nil {
						last, _ := log.LastIndex()
						t.Fatalf("bit %d, read only %v: it opens and ends at %d: %v", bit, readOnly, last, log.Close())
					}
					var reported *DamageError
					if !errors.As(err, &reported) || reported.File != filepath.Join("wal", walMetaFile) {
						t.Errorf("bit %d, read only %v: %v", bit, readOnly, err)
					}
					if treeOf(t, dir) != damaged {
						t.Fatalf("bit %d, read only %v: opening it changed it", bit, readOnly)
					}
				}
				flipListKey(t, dir, change)
			}
			if treeOf(t, dir) != tree {
				t.Error("the bits are not as they were")
			}
		})
	}
}

// TestOpenStore_JudgesFirst: a store that its judge refuses stays as it was found, including what a start would remove or wipe.
func TestOpenStore_JudgesFirst(t *testing.T) {
	bothStores(t, func(t *testing.T, s Kind) {
		dir := t.TempDir()
		log := openRaw(t, dir, s)
		if err := errors.Join(log.StoreLogs(entries(t, 1, 1, 3)), log.StoreLogs(entries(t, 1, 4, 6)), log.Close()); err != nil {
			t.Fatal(err)
		}
		last := uint64(6)
		if s == WAL { // a torn append, and a file missing in the list
			path := segments(t, dir)[0]
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, first := readAppend(data, 0, walHeader)
			_, second := readAppend(data, first, first)
			flip(t, path, int64(second-1), 1)
			unlisted := filepath.Join(filepath.Dir(path), "00000000000000000001-0000000000000009.wal")
			if err := os.WriteFile(unlisted, data[:second], 0o600); err != nil {
				t.Fatal(err)
			}
			last = 3
		}
		tree, refused := treeOf(t, dir), errors.New("refused")
		_, err := openStore(dir, s, storeOptions{judge: func(log Store) error {
			if got, err := log.LastIndex(); got != last || err != nil {
				t.Errorf("the judge sees the log end at %d, %v; want %d", got, err, last)
			}
			return refused
		}})
		if !errors.Is(err, refused) {
			t.Fatalf("it opens: %v", err)
		}
		if treeOf(t, dir) != tree {
			t.Error("it changed")
		}
		log = openRaw(t, dir, s)
		if got, err := log.LastIndex(); got != last || err != nil {
			t.Errorf("the log ends at %d, %v; want %d", got, err, last)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
}
