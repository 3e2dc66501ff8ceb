package nemesis

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quotad/quotad/jepsen/history"
)

// dataOf makes a data directory with non-empty files at some places.
func dataOf(t *testing.T, places ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, place := range places {
		path := filepath.Join(dir, filepath.FromSlash(place))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 1000), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestRotation_EachKindOfFile: each fault damages all kinds equally often, however many files a kind has, and skips a kind without files.
func TestRotation_EachKindOfFile(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	dir := dataOf(t, "wal/wal-meta.db", "wal/1-0.wal", "wal/70-1.wal", "snapshots/2-60-1/meta.json", "snapshots/2-60-1/state.bin", "witness",
		"node", "formed")
	all := new(damageOrder)
	for _, fault := range []string{"a", "b"} {
		times := map[string]int{}
		for range 3 * len(history.FileKinds) {
			path, kind, err := all.file(fault, dir, r)
			if err != nil || kindOf(placeOf(dir, path)) != kind {
				t.Fatal(path, kind, err)
			}
			times[kind]++
		}
		for _, kind := range history.FileKinds {
			if times[kind] != 3 {
				t.Errorf("%s: %d times a %s: %v", fault, times[kind], kind, times)
			}
		}
	}
	early := dataOf(t, "raft.db", "witness")
	for range 20 {
		if path, kind, err := all.file("a", early, r); err != nil || kind != history.FileLog && kind != history.FileWitness {
			t.Fatal(path, kind, err)
		}
	}
	if _, _, err := all.file("a", t.TempDir(), r); err == nil {
		t.Error("an empty folder has a file")
	}
}

// TestDamage_ChangesTheFile: bits change and the length stays, or the end is cut off and the beginning stays.
func TestDamage_ChangesTheFile(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	for range 100 {
		path := filepath.Join(dataOf(t, "node"), "node")
		if _, err := cut(path, r); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() >= 1000 {
			t.Fatalf("it has %d bytes: %v", info.Size(), err)
		}
		path = filepath.Join(dataOf(t, "node"), "node")
		if _, err := flip(path, r); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 1000 {
			t.Fatalf("it has %d bytes: %v", info.Size(), err)
		}
	}
}
