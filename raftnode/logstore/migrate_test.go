package logstore

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
)

// treeOf describes the files below a folder by name, size and content.
func treeOf(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		_, _ = fmt.Fprintf(&out, "%s %d %x\n", strings.TrimPrefix(path, dir), len(data), sha256.Sum256(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// fillStore writes a node's data: entries from 5 on, a term, a vote, and a snapshot of the entries before.
func fillStore(t *testing.T, dir string, s Kind) {
	t.Helper()
	log := openRaw(t, dir, s)
	long := entries(t, 4, 5, 3000)
	values := &stable{store: log}
	err := errors.Join(log.StoreLogs(long), values.setNumber(keyTerm, 9), values.setNumber(keyVoteTerm, 8),
		values.set(keyVote, []byte("n2")), log.Close())
	if err != nil {
		t.Fatal(err)
	}
	putSnapshot(t, dir, 4, 4)
}

// putSnapshot writes a snapshot of an empty state.
func putSnapshot(t *testing.T, dir string, index, term uint64) {
	t.Helper()
	files, err := raft.NewFileSnapshotStore(dir, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, transport := raft.NewInmemTransport("")
	sink, err := files.Create(raft.SnapshotVersionMax, index, term, raft.Configuration{}, 0, transport)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fsm.New().Freeze().WriteSnapshot(sink), sink.Close()); err != nil {
		t.Fatal(err)
	}
}

// holds fails unless a store has the data of fillStore.
func holds(t *testing.T, dir string, s Kind) {
	t.Helper()
	log := openRaw(t, dir, s)
	defer func() { _ = log.Close() }()
	first, _ := log.FirstIndex()
	last, _ := log.LastIndex()
	if first != 5 || last != 3000 {
		t.Fatalf("entries %d to %d", first, last)
	}
	for _, want := range entries(t, 4, first, last) {
		var got raft.Log
		if err := getIntact(log, want.Index, &got); err != nil {
			t.Fatal(err)
		}
		if got.Term != want.Term || string(got.Data) != string(want.Data) || string(got.Extensions) != string(want.Extensions) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
	values := &stable{store: log}
	term, _ := values.number(keyTerm)
	vote, _ := values.get(keyVote)
	if term != 9 || string(vote) != "n2" {
		t.Errorf("term %d, vote %q", term, vote)
	}
}

// TestMigrate: the other store has everything, and the old one is gone.
func TestMigrate(t *testing.T) {
	bothStores(t, func(t *testing.T, from Kind) {
		dir := t.TempDir()
		fillStore(t, dir, from)
		for range 2 { // the second call finds nothing to do
			if err := Migrate(dir, other(from)); err != nil {
				t.Fatal(err)
			}
			if has, err := storeOf(dir); has != other(from) || err != nil {
				t.Fatalf("%q, %v", has, err)
			}
		}
		if _, err := os.Stat(from.path(dir)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the old store is still there: %v", err)
		}
		holds(t, dir, other(from))
	})
}

// TestMigrate_Interrupted: before the copy is renamed the node starts from the old store. Afterwards it does not start, and another Migrate
// finishes the move.
func TestMigrate_Interrupted(t *testing.T) {
	bothStores(t, func(t *testing.T, from Kind) {
		to := other(from)
		t.Run("half a copy", func(t *testing.T) {
			dir := t.TempDir()
			fillStore(t, dir, from)
			log, err := to.open(to.path(dir)+".new", storeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(log.StoreLogs(entries(t, 4, 5, 700)), log.Close()); err != nil {
				t.Fatal(err)
			}
			holds(t, dir, from)
			if err := Migrate(dir, to); err != nil {
				t.Fatal(err)
			}
			holds(t, dir, to)
		})
		t.Run("the old store is still there", func(t *testing.T) {
			dir, old := t.TempDir(), t.TempDir()
			fillStore(t, dir, from)
			if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if err := Migrate(dir, to); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(from.path(old), from.path(dir)); err != nil {
				t.Fatal(err)
			}
			for _, s := range []Kind{from, to} {
				if _, err := openStore(dir, s, storeOptions{}); !errors.Is(err, ErrTwoLogStores) {
					t.Errorf("%s: %v", s, err)
				}
			}
			if err := Migrate(dir, to); err != nil {
				t.Fatal(err)
			}
			holds(t, dir, to)
		})
	})
}

// TestMigrate_RefusesDamagedOrUsedStore: a damaged directory, one in use, or one that is not a node's is refused and stays unchanged.
func TestMigrate_RefusesDamagedOrUsedStore(t *testing.T) {
	bothStores(t, func(t *testing.T, from Kind) {
		if err := Migrate(t.TempDir(), other(from)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an empty folder: %v", err)
		}
		dir := t.TempDir()
		fillStore(t, dir, from)
		log := openRaw(t, dir, from)
		if err := Migrate(dir, other(from)); !errors.Is(err, ErrDataDirInUse) {
			t.Errorf("in use: %v", err)
		}
		unsealed := &raft.Log{Index: 3001, Term: 4, Data: []byte("without a sum")}
		if err := errors.Join(log.StoreLog(unsealed), log.Close()); err != nil {
			t.Fatal(err)
		}
		if err := Migrate(dir, other(from)); !errors.Is(err, ErrDamaged) {
			t.Errorf("damaged: %v", err)
		}
		if has, err := storeOf(dir); has != from || err != nil {
			t.Errorf("%q, %v", has, err)
		}
	})
}

// TestMigrate_DropsEntriesBeforeGap: a log that continued after a leader's snapshot may have older entries before a gap.
func TestMigrate_DropsEntriesBeforeGap(t *testing.T) {
	dir := t.TempDir()
	log := openRaw(t, dir, Bolt)
	if err := errors.Join(log.StoreLogs(entries(t, 1, 1, 10)), log.StoreLogs(entries(t, 2, 51, 60)), log.Close()); err != nil {
		t.Fatal(err)
	}
	putSnapshot(t, dir, 50, 2)
	if err := Migrate(dir, WAL); err != nil {
		t.Fatal(err)
	}
	log = openRaw(t, dir, WAL)
	defer func() { _ = log.Close() }()
	first, _ := log.FirstIndex()
	last, _ := log.LastIndex()
	if first != 51 || last != 60 {
		t.Errorf("entries %d to %d", first, last)
	}
}
