package raftnode

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// rewitness changes what a stopped node's witness says, for a test that gives it another past.
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

// stopped is a data directory of a node that was stopped, with 60 entries or more and a snapshot.
func stopped(t *testing.T, s LogStore, change ...func(*Config)) Config {
	t.Helper()
	n := openOne(t, append([]func(*Config){func(c *Config) {
		c.LogStore, c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = s, 20, 20*time.Millisecond, 30
	}}, change...)...)
	if _, _, err := n.Propose(t.Context(), slots(1000)); err != nil {
		t.Fatal(err)
	}
	for range 60 {
		if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "a snapshot", func() bool { return n.Status().SnapshotIndex > 20 })
	conf := n.config.Config
	n.Kill()
	conf.Clock = nil
	return conf
}

// reopens opens a data directory, and says what it says.
func reopens(t *testing.T, conf Config) error {
	t.Helper()
	n, err := Open(conf)
	if err == nil {
		n.Kill()
	}
	return err
}

// TestADiskWithAMissingPartIsRefused: whatever one file or folder is removed, emptied or replaced by an older one, the node does not
// start, says that its disk is no longer whole, and changes nothing.
func TestADiskWithAMissingPartIsRefused(t *testing.T) {
	bothStores(t, func(t *testing.T, s LogStore) {
		whole, older := stopped(t, s), t.TempDir()
		if err := reopens(t, whole); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(older, os.DirFS(whole.DataDir)); err != nil {
			t.Fatal(err)
		}
		n, err := Open(whole) // it goes on: the copy is older
		if err != nil {
			t.Fatal(err)
		}
		poll(t, "it leads", func() bool { return n.leading.Load() != nil })
		for range 30 {
			if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
				t.Fatal(err)
			}
		}
		n.Kill()
		store := filepath.Base(s.path(""))
		remove := func(name string) func(dir string) error {
			return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
		}
		cases := map[string]func(dir string) error{
			"the log store is missing": remove(store), "the snapshots are missing": remove("snapshots"),
			"the log store is an older one": func(dir string) error {
				return errors.Join(remove(store)(dir), copyPart(dir, older, store))
			},
		}
		for _, name := range []string{nodeFile, nonceFile, clusterFile, formedFile, witnessFile} {
			cases[name+" is missing"] = remove(name)
		}
		if s == StoreBolt {
			cases["the log store is emptied"] = func(dir string) error { return os.Truncate(s.path(dir), 0) }
		} else {
			cases["the last file is missing"] = func(dir string) error {
				all := segments(t, dir)
				return os.Remove(all[len(all)-1])
			}
			cases["the list of files is missing"] = remove(filepath.Join("wal", walMetaFile))
			cases["the last file is emptied"] = func(dir string) error {
				all := segments(t, dir)
				return os.Truncate(all[len(all)-1], 0)
			}
		}
		for name, spoil := range cases {
			t.Run(name, func(t *testing.T) {
				conf := whole
				conf.DataDir = t.TempDir()
				if err := errors.Join(os.CopyFS(conf.DataDir, os.DirFS(whole.DataDir)), spoil(conf.DataDir)); err != nil {
					t.Fatal(err)
				}
				err := reopens(t, conf)
				if !errors.Is(err, ErrWiped) && !errors.Is(err, ErrDamaged) {
					t.Fatalf("it starts: %v", err)
				}
				offline, err := OpenOffline(conf.DataDir)
				if err == nil {
					err = errors.Join(offline.Verify(), offline.Close())
				}
				if !errors.Is(err, ErrWiped) && !errors.Is(err, ErrDamaged) {
					t.Errorf("verify says %v", err)
				}
			})
		}
	})
}

// copyPart copies a file or folder of a data directory.
func copyPart(to, from, name string) error {
	info, err := os.Stat(filepath.Join(from, name))
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(filepath.Join(to, name), os.DirFS(filepath.Join(from, name)))
	}
	data, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, name), data, 0o600)
}

// TestADiskFromBeforeGetsItsWitness, if all else is there; where it is not, it is refused.
func TestADiskFromBeforeGetsItsWitness(t *testing.T) {
	bothStores(t, func(t *testing.T, s LogStore) {
		conf := stopped(t, s)
		log := openRaw(t, conf.DataDir, s)
		values, err := stableOf(log)
		if err != nil {
			t.Fatal(err)
		}
		term, errTerm := values.number(keyTerm)
		vote, errVote := values.get(keyVote)
		if s == StoreBolt { // bbolt has no nil values
			err = log.Set(keyWitness, []byte{})
		} else {
			err = log.Set(keyWitness, nil)
		}
		err = errors.Join(err, errTerm, errVote, log.SetUint64(keyTerm, term), log.SetUint64(keyVoteTerm, term), log.Set(keyVote, vote), log.Close(),
			os.Remove(filepath.Join(conf.DataDir, witnessFile)))
		if err != nil {
			t.Fatal(err)
		}
		before := t.TempDir()
		if err := os.CopyFS(before, os.DirFS(conf.DataDir)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := reopens(t, conf); err != nil {
				t.Fatal(err)
			}
		}
		w, _, err := readWitness(conf.DataDir)
		if err != nil || w == nil || !w.bound || w.term < term || w.snapshot == 0 {
			t.Fatalf("%+v, %v", w, err)
		}
		for _, name := range []string{filepath.Base(s.path("")), nodeFile, nonceFile, formedFile} {
			broken := conf
			broken.DataDir = t.TempDir()
			if err := errors.Join(os.CopyFS(broken.DataDir, os.DirFS(before)), os.RemoveAll(filepath.Join(broken.DataDir, name))); err != nil {
				t.Fatal(err)
			}
			if err := reopens(t, broken); !errors.Is(err, ErrWiped) {
				t.Errorf("without %s: %v", name, err)
			}
		}
	})
}

// TestAnInterruptedWitnessIsWhole: of a write that is torn the older slot is what is left, and one damaged slot is written again.
func TestAnInterruptedWitnessIsWhole(t *testing.T) {
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

// TestTheWitnessFollowsTheLog: within 1,000 entries or a second, no append waits for it, and what is cut off the end of the log it
// no longer claims, wherever the process ends.
func TestTheWitnessFollowsTheLog(t *testing.T) {
	n := openOne(t)
	if _, _, err := n.Propose(t.Context(), slots(1000)); err != nil {
		t.Fatal(err)
	}
	takeSome(t, n, 10)
	last, err := n.store.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	poll(t, "the witness knows the last entry", func() bool {
		w, _, err := readWitness(n.config.DataDir)
		return err == nil && w.index >= last && w.term == n.raft.CurrentTerm() && w.voteTerm == w.term
	})
	n.keeper.mu.Lock() // a witness that hangs
	takeSome(t, n, 3)
	n.keeper.mu.Unlock()
	if err := n.keeper.flush(); err != nil {
		t.Fatal(err)
	}
	cut := last - 3
	if err := n.store.DeleteRange(cut+1, last+3); err != nil {
		t.Fatal(err)
	}
	w, _, err := readWitness(n.config.DataDir)
	var entry raft.Log
	if err := errors.Join(err, n.store.GetLog(cut, &entry)); err != nil || w.index != cut || w.entryTerm != entry.Term {
		t.Errorf("%+v, and the log ends at %d: %v", w, cut, err)
	}
}

// TestTheWitness_ForgetsWhatIsCutOff: also entries that it was told of and has not written down yet.
func TestTheWitness_ForgetsWhatIsCutOff(t *testing.T) {
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

// TestTheWitness_KnowsEverySmallFile: of each that is there it has the checksum, so that none changes unseen.
func TestTheWitness_KnowsEverySmallFile(t *testing.T) {
	conf := stopped(t, UnderTest)
	w, _, err := readWitness(conf.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range partNames {
		content, err := os.ReadFile(filepath.Join(conf.DataDir, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			if *w.part(name) != 0 || name == nodeFile || name == nonceFile {
				t.Errorf("%s is not there, its checksum is %d", name, *w.part(name))
			}
		case err != nil:
			t.Fatal(err)
		case *w.part(name) != partSum(content):
			t.Errorf("%s has checksum %d, the witness says %d", name, partSum(content), *w.part(name))
		}
	}
}

// TestTheWitness_KnowsTheSnapshotsDescription: one that reads well and is not what was written is damage.
func TestTheWitness_KnowsTheSnapshotsDescription(t *testing.T) {
	conf := stopped(t, UnderTest)
	all, _, err := listSnapshots(conf.DataDir)
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	path := filepath.Join(conf.DataDir, "snapshots", all[0].ID, "meta.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reopens(t, conf); !errors.Is(err, ErrDamaged) {
		t.Errorf("it starts: %v", err)
	}
}

// TestTheWitnessIsAtMostAThousandEntriesBehind: many entries are not left to the clock.
func TestTheWitnessIsAtMostAThousandEntriesBehind(t *testing.T) {
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

// TestAVoteIsInTheWitnessFirst: what ends the process between the store and the witness leaves a disk that starts; once the vote was
// given, a store without it is refused.
func TestAVoteIsInTheWitnessFirst(t *testing.T) {
	bothStores(t, func(t *testing.T, s LogStore) {
		conf := stopped(t, s)
		spoilt := func(change func(values *stable) error) error {
			t.Helper()
			one := conf
			one.DataDir = filepath.Join(t.TempDir(), "data")
			fresh(t, one.DataDir, conf.DataDir)
			log := openRaw(t, one.DataDir, s)
			values, err := stableOf(log)
			if err := errors.Join(err, change(values), log.Close()); err != nil {
				t.Fatal(err)
			}
			return reopens(t, one)
		}
		w, _, err := readWitness(conf.DataDir)
		if err != nil || w.voteTerm == 0 {
			t.Fatal(w, err)
		}
		for name, c := range map[string]struct {
			change  func(values *stable) error
			refused bool
		}{
			"a newer term": {func(v *stable) error { return v.setNumber(keyTerm, w.term+1) }, false},
			"a newer vote": {func(v *stable) error {
				return errors.Join(v.setNumber(keyVoteTerm, w.voteTerm+1), v.set(keyVote, []byte("x")))
			}, false},
			"an older term":              {func(v *stable) error { return v.setNumber(keyTerm, w.term-1) }, true},
			"an older vote":              {func(v *stable) error { return v.setNumber(keyVoteTerm, w.voteTerm-1) }, true},
			"another vote in that term":  {func(v *stable) error { return v.set(keyVote, []byte("another")) }, true},
			"another directory's nonce":  {func(v *stable) error { return v.set(keyWitness, []byte(newNonce())) }, true},
			"a term without a checksum":  {func(v *stable) error { return v.store.SetUint64(keyTerm, w.term) }, true},
			"nothing but another number": {func(v *stable) error { return v.setNumber([]byte("Other"), 1) }, false},
		} {
			err := spoilt(c.change)
			if told := errors.Is(err, ErrWiped) || errors.Is(err, ErrDamaged); told != c.refused || !told && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
