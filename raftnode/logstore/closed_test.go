package logstore

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hashicorp/raft"
)

// TestClosedFile_DamageIsFound: closed files of the log are checked as well as the last one. Every flipped bit and every truncation is
// detected, at the latest when the entry is read.
func TestClosedFile_DamageIsFound(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	last := fillFiles(t, dir)
	closed := segments(t, dir)[0]
	data, err := os.ReadFile(closed)
	if err != nil {
		t.Fatal(err)
	}
	used := int64(len(bytes.TrimRight(data, "\x00")))
	// The header, and the end of the file: its index of entries and the last commit.
	places := []int64{0, 16, 31, 36, used - 300, used - 40, used - 8, used - 1}
	for range 4 {
		places = append(places, random.Int64N(used))
	}
	for _, at := range places {
		change := byte(1) << random.IntN(8)
		flip(t, closed, at, change)
		if err := readsAll(t, dir, last); err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("bits %#x at %d: %v", change, at, err)
		}
		flip(t, closed, at, change)
	}
	for _, length := range []int64{0, used / 2, used - 1} {
		short := t.TempDir()
		if err := os.CopyFS(short, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(segments(t, short)[0], length); err != nil {
			t.Fatal(err)
		}
		if err := readsAll(t, short, last); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrWiped) {
			t.Errorf("cut to %d of %d bytes: %v", length, used, err)
		}
	}
}

// fillFiles writes entries until the log has more than one file, and returns the last index.
func fillFiles(t *testing.T, dir string) (last uint64) {
	t.Helper()
	log := openRaw(t, dir, WAL)
	for range 4 {
		var logs []*raft.Log
		for range 6 {
			last++
			logs = append(logs, &raft.Log{Index: last, Term: 1, Data: bytes.Repeat([]byte{byte(last), 7}, 1<<19)})
		}
		logs, err := seal(logs)
		if err == nil {
			err = log.StoreLogs(logs)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if files := segments(t, dir); len(files) < 2 {
		t.Fatalf("the log has one file: %v", files)
	}
	return last
}

// readsAll opens a log and reads all its entries, each of which must equal the one that was written.
func readsAll(t *testing.T, dir string, last uint64) error {
	t.Helper()
	log, err := openStore(dir, WAL, storeOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if end, err := log.LastIndex(); err != nil || end != last {
		t.Errorf("the log ends at %d, %v: it has %d entries", end, err, last)
	}
	for index := uint64(1); index <= last; index++ {
		var entry raft.Log
		if err := getIntact(log, index, &entry); err != nil {
			return err
		}
		if !bytes.HasPrefix(entry.Data, []byte{byte(index), 7}) {
			t.Errorf("entry %d differs", index)
		}
	}
	return nil
}
