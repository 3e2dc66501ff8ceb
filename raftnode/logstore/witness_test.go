package logstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// rewitness changes a stopped node's witness, for a test that needs a different history.
func rewitness(t *testing.T, dir string, change func(w *witness)) {
	t.Helper()
	w, damage, err := readWitness(dir)
	if err != nil || damage != nil || w == nil {
		t.Fatal(w, damage, err)
	}
	change(w)
	file, err := os.OpenFile(filepath.Join(dir, witnessFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.write(file), file.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestWitness_SurvivesTornWrite: after a torn write the other slot counts, and a damaged slot is written again.
func TestWitness_SurvivesTornWrite(t *testing.T) {
	dir := t.TempDir()
	w := &witness{term: 1}
	if err := createWitness(dir, w); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(dir, witnessFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for term := uint64(2); term < 9; term++ {
		w.term = term
		if err := w.write(file); err != nil {
			t.Fatal(err)
		}
		got, damage, err := readWitness(dir)
		if err != nil || damage != nil || *got != *w {
			t.Fatalf("%+v, %v, %v", got, damage, err)
		}
		flip(t, file.Name(), int64(w.sequence%2)*witnessPage+20, 1)
		got, damage, err = readWitness(dir)
		if err != nil || !errors.Is(damage, ErrDamaged) || got.term != term-1 {
			t.Fatalf("%+v, %v, %v", got, damage, err)
		}
		flip(t, file.Name(), int64(w.sequence%2)*witnessPage+20, 1)
	}
}

// TestWitness_ForgetsTruncatedEntries: it also drops recorded entries that it has not written yet.
func TestWitness_ForgetsTruncatedEntries(t *testing.T) {
	dir := t.TempDir()
	w := new(witness)
	if err := createWitness(dir, w); err != nil {
		t.Fatal(err)
	}
	k, err := openKeeper(dir, w, func(_ string, write func() error) error { return write() })
	if err != nil {
		t.Fatal(err)
	}
	k.recordSynced(&raft.Log{Index: 10, Term: 2})
	if err := errors.Join(k.lower(5, 1), k.close()); err != nil {
		t.Fatal(err)
	}
	if got, _, err := readWitness(dir); err != nil || got.index != 5 || got.entryTerm != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWitness_IsAtMost1000EntriesBehind: after 1,000 entries it is written without waiting for the delay.
func TestWitness_IsAtMost1000EntriesBehind(t *testing.T) {
	dir := t.TempDir()
	w := new(witness)
	if err := createWitness(dir, w); err != nil {
		t.Fatal(err)
	}
	k, err := openKeeper(dir, w, func(_ string, write func() error) error { return write() })
	if err != nil {
		t.Fatal(err)
	}
	for index := uint64(1); index < witnessEntries; index++ {
		k.recordSynced(&raft.Log{Index: index, Term: 1})
	}
	if len(k.soon) != 0 || len(k.dirty) != 1 {
		t.Error("it is due before a thousand entries, or not noted")
	}
	k.recordSynced(&raft.Log{Index: witnessEntries, Term: 1})
	if len(k.soon) != 1 {
		t.Error("it is not due after a thousand entries")
	}
	if err := k.close(); err != nil {
		t.Fatal(err)
	}
	if got, _, err := readWitness(dir); err != nil || got.index != witnessEntries || got.entryTerm != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWitness_FollowsLog: it follows within 1,000 entries or a second, and no append waits for it. It never claims entries cut off
// from the log's end, wherever the process ends.
func TestWitness_FollowsLog(t *testing.T) {
	dir := t.TempDir()
	l := openDisk(t, dir)
	if err := errors.Join(l.SetUint64(keyTerm, 2), l.SetUint64(keyVoteTerm, 2), l.Set(keyVote, []byte("n"))); err != nil {
		t.Fatal(err)
	}
	closing := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(closing, nil)
	}()
	if err := l.StoreLogs(entries(t, 2, 1, 10)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(2 * time.Millisecond) {
		w, _, err := readWitness(dir)
		if err == nil && w.index == 10 && w.term == 2 && w.voteTerm == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the witness never knew the last entry: %+v, %v", w, err)
		}
	}
	l.keeper.mu.Lock() // a stalled write of the witness
	err := l.StoreLogs(entries(t, 2, 11, 13))
	l.keeper.mu.Unlock()
	if err := errors.Join(err, l.keeper.flush()); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteRange(8, 13); err != nil {
		t.Fatal(err)
	}
	w, _, err := readWitness(dir)
	var entry raft.Log
	if err := errors.Join(err, l.GetLog(7, &entry)); err != nil || w.index != 7 || w.entryTerm != entry.Term {
		t.Errorf("%+v, and the log ends at 7: %v", w, err)
	}
	close(closing)
	<-ended
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// openDisk opens a data directory's log as its node does.
func openDisk(t *testing.T, dir string) *Log {
	t.Helper()
	disk, err := ReadDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := disk.Open(Options{
		Kind: UnderTest, Node: "n", Leads: func() bool { return false }, Fatal: func(err error) { t.Error(err) }, Monotonic: monotonic,
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// monotonic is the clock of tests.
func monotonic() int64 { return time.Now().UnixNano() }
