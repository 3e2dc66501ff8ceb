package logstore

import (
	"cmp"
	"errors"
	"os"
	"testing"

	"github.com/hashicorp/raft"
)

// UnderTest is the store that all tests of nodes use; `make test-wal` runs them with the other kind.
var UnderTest = Kind(cmp.Or(os.Getenv("QUOTAD_TEST_LOG_STORE"), string(Bolt)))

// bothStores runs a test with each store.
func bothStores(t *testing.T, run func(t *testing.T, s Kind)) {
	t.Helper()
	onceForBoth(t)
	for _, s := range []Kind{Bolt, WAL} {
		t.Run(string(s), func(t *testing.T) { run(t, s) })
	}
}

// onceForBoth skips a test that chooses its stores itself when the tests run again with the other store.
func onceForBoth(t *testing.T) {
	t.Helper()
	if UnderTest != Bolt {
		t.Skip("it has run with both stores")
	}
}

func other(s Kind) Kind {
	if s == Bolt {
		return WAL
	}
	return Bolt
}

// openRaw opens a store in a folder.
func openRaw(t *testing.T, dir string, s Kind) Store {
	t.Helper()
	log, err := openStore(dir, s, storeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// entries returns sealed entries of a term.
func entries(t *testing.T, term, first, last uint64) []*raft.Log {
	t.Helper()
	var logs []*raft.Log
	for index := first; index <= last; index++ {
		logs = append(logs, &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: []byte{byte(index), byte(index >> 8), 7}})
	}
	logs, err := seal(logs)
	if err != nil {
		t.Fatal(err)
	}
	return logs
}

// TestOpenStore_RefusesOtherKind: a node with another store configured refuses the data directory and leaves it unchanged.
func TestOpenStore_RefusesOtherKind(t *testing.T) {
	bothStores(t, func(t *testing.T, s Kind) {
		dir := t.TempDir()
		log := openRaw(t, dir, s)
		if err := errors.Join(log.StoreLogs(entries(t, 1, 1, 3)), log.Close()); err != nil {
			t.Fatal(err)
		}
		_, err := openStore(dir, other(s), storeOptions{})
		refused, ok := errors.AsType[*OtherKindError](err)
		if !ok || refused.Has != s || refused.Wanted != other(s) {
			t.Fatalf("%v", err)
		}
		if has, err := storeOf(dir); has != s || err != nil {
			t.Fatalf("%q, %v", has, err)
		}
		log = openRaw(t, dir, s)
		defer func() { _ = log.Close() }()
		if last, _ := log.LastIndex(); last != 3 {
			t.Errorf("the log ends at %d", last)
		}
	})
}

// TestOpenStore_HasOneOwner: a second process gets an error after a bounded wait.
func TestOpenStore_HasOneOwner(t *testing.T) {
	bothStores(t, func(t *testing.T, s Kind) {
		dir := t.TempDir()
		log := openRaw(t, dir, s)
		defer func() { _ = log.Close() }()
		if _, err := openStore(dir, s, storeOptions{}); !errors.Is(err, ErrDataDirInUse) {
			t.Errorf("%v", err)
		}
		if _, err := OpenOffline(dir); !errors.Is(err, ErrDataDirInUse) {
			t.Errorf("offline: %v", err)
		}
	})
}

// TestOpenOffline_ChangesNothing: opening for reading leaves the files unchanged.
func TestOpenOffline_ChangesNothing(t *testing.T) {
	bothStores(t, func(t *testing.T, s Kind) {
		dir := t.TempDir()
		log := openRaw(t, dir, s)
		if err := errors.Join(log.StoreLogs(entries(t, 1, 1, 100)), log.DeleteRange(90, 100), log.Close()); err != nil {
			t.Fatal(err)
		}
		before := treeOf(t, dir)
		offline, err := OpenOffline(dir)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		err = offline.Entries(0, 0, func(Entry) error { count++; return nil })
		if err := errors.Join(err, offline.Verify(), offline.Close()); err != nil || count != 89 {
			t.Errorf("%d entries, %v", count, err)
		}
		if after := treeOf(t, dir); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}
