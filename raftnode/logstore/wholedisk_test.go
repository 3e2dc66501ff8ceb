package logstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// stopped returns the settings of a stopped node whose data directory has a snapshot and at least 60 entries.
func stopped(t *testing.T, s logstore.Kind, change ...func(*raftnode.Config)) raftnode.Config {
	t.Helper()
	n, conf := openOne(t, append([]func(*raftnode.Config){func(c *raftnode.Config) {
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
	n.Kill()
	return conf
}

// reopens opens a data directory and returns the error.
func reopens(t *testing.T, conf raftnode.Config) error {
	t.Helper()
	n, err := raftnode.Open(conf)
	if err == nil {
		n.Kill()
	}
	return err
}

// TestStart_RefusesDiskWithMissingPart: if any file or folder is removed, emptied or replaced by an older one, the node does not start. It
// reports that its disk is no longer complete, and changes nothing.
func TestStart_RefusesDiskWithMissingPart(t *testing.T) {
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		whole, older := stopped(t, s), t.TempDir()
		if err := reopens(t, whole); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(older, os.DirFS(whole.DataDir)); err != nil {
			t.Fatal(err)
		}
		n, err := raftnode.Open(whole) // the original continues, so that the copy is older
		if err != nil {
			t.Fatal(err)
		}
		poll(t, "it leads", func() bool { return leads(n) })
		covered := n.Status().SnapshotIndex
		for range 30 {
			if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
				t.Fatal(err)
			}
		}
		poll(t, "a snapshot of the new term", func() bool { return n.Status().SnapshotIndex > covered })
		n.Kill()
		store := filepath.Base(s.Path(""))
		remove := func(name string) func(dir string) error {
			return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
		}
		cases := map[string]func(dir string) error{
			"the log store is missing": remove(store), "the snapshots are missing": remove("snapshots"),
			"the log store is an older one": func(dir string) error {
				return errors.Join(remove(store)(dir), copyPart(dir, older, store))
			},
			"the log store and the witness are older ones, next to newer snapshots": func(dir string) error {
				return errors.Join(remove(store)(dir), copyPart(dir, older, store),
					remove(logstore.WitnessFile)(dir), copyPart(dir, older, logstore.WitnessFile))
			},
		}
		for _, name := range []string{logstore.NodeFile, logstore.NonceFile, logstore.ClusterFile, logstore.FormedFile, logstore.WitnessFile} {
			cases[name+" is missing"] = remove(name)
		}
		if s == logstore.Bolt {
			cases["the log store is emptied"] = func(dir string) error { return os.Truncate(s.Path(dir), 0) }
		} else {
			cases["the last file is missing"] = func(dir string) error {
				all := logstore.Segments(t, dir)
				return os.Remove(all[len(all)-1])
			}
			cases["the list of files is missing"] = remove(filepath.Join("wal", logstore.WALMetaFile))
			cases["the last file is emptied"] = func(dir string) error {
				all := logstore.Segments(t, dir)
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
				before := contents(t, conf.DataDir)
				err := reopens(t, conf)
				if !errors.Is(err, logstore.ErrWiped) && !errors.Is(err, logstore.ErrDamaged) {
					t.Fatalf("it starts: %v", err)
				}
				if contents(t, conf.DataDir) != before {
					t.Errorf("a start that was refused with %v changed it", err)
				}
				offline, err := logstore.OpenOffline(conf.DataDir)
				if err == nil {
					err = errors.Join(offline.Verify(), offline.Close())
				}
				if !errors.Is(err, logstore.ErrWiped) && !errors.Is(err, logstore.ErrDamaged) {
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

// TestStart_AddsWitnessToOldDisk: a complete disk of a version without a witness gets one; an incomplete one is refused.
func TestStart_AddsWitnessToOldDisk(t *testing.T) {
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		conf := stopped(t, s)
		log := logstore.OpenRaw(t, conf.DataDir, s)
		values, err := logstore.StableOf(log)
		if err != nil {
			t.Fatal(err)
		}
		term, errTerm := values.Number(logstore.KeyTerm)
		vote, errVote := values.Value(logstore.KeyVote)
		if s == logstore.Bolt { // bbolt has no nil values
			err = log.Set(logstore.KeyWitness, []byte{})
		} else {
			err = log.Set(logstore.KeyWitness, nil)
		}
		err = errors.Join(err, errTerm, errVote, log.SetUint64(logstore.KeyTerm, term), log.SetUint64(logstore.KeyVoteTerm, term),
			log.Set(logstore.KeyVote, vote), log.Close(),
			os.Remove(filepath.Join(conf.DataDir, logstore.WitnessFile)))
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
		w, _, err := logstore.ReadWitness(conf.DataDir)
		if err != nil || w == nil || !w.Bound() || w.Snapshot() == 0 {
			t.Fatalf("%+v, %v", w, err)
		}
		if now, _ := w.Terms(); now < term {
			t.Fatalf("it has term %d, the node was in term %d", now, term)
		}
		for _, name := range []string{filepath.Base(s.Path("")), logstore.NodeFile, logstore.NonceFile, logstore.FormedFile} {
			broken := conf
			broken.DataDir = t.TempDir()
			if err := errors.Join(os.CopyFS(broken.DataDir, os.DirFS(before)), os.RemoveAll(filepath.Join(broken.DataDir, name))); err != nil {
				t.Fatal(err)
			}
			if err := reopens(t, broken); !errors.Is(err, logstore.ErrWiped) {
				t.Errorf("without %s: %v", name, err)
			}
		}
	})
}

// TestWitness_KnowsEverySmallFile: the witness has the checksum of each existing small file, so that every change is detected.
func TestWitness_KnowsEverySmallFile(t *testing.T) {
	conf := stopped(t, logstore.UnderTest)
	w, _, err := logstore.ReadWitness(conf.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range logstore.PartNames {
		content, err := os.ReadFile(filepath.Join(conf.DataDir, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			if w.Part(name) != 0 || name == logstore.NodeFile || name == logstore.NonceFile {
				t.Errorf("%s is not there, its checksum is %d", name, w.Part(name))
			}
		case err != nil:
			t.Fatal(err)
		case w.Part(name) != logstore.PartSum(content):
			t.Errorf("%s has checksum %d, the witness says %d", name, logstore.PartSum(content), w.Part(name))
		}
	}
}

// TestWitness_KnowsSnapshotDescription: a valid description that differs from the written one is damage.
func TestWitness_KnowsSnapshotDescription(t *testing.T) {
	conf := stopped(t, logstore.UnderTest)
	all, _, err := logstore.ListSnapshots(conf.DataDir)
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
	if err := reopens(t, conf); !errors.Is(err, logstore.ErrDamaged) {
		t.Errorf("it starts: %v", err)
	}
}

// TestWitness_HasVoteFirst: if the process ends between the writes to the store and to the witness, the disk starts. Once the vote was
// sent, a store without it is refused.
func TestWitness_HasVoteFirst(t *testing.T) {
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		conf := stopped(t, s)
		spoilt := func(change func(values *logstore.Stable) error) error {
			t.Helper()
			one := conf
			one.DataDir = filepath.Join(t.TempDir(), "data")
			fresh(t, one.DataDir, conf.DataDir)
			log := logstore.OpenRaw(t, one.DataDir, s)
			values, err := logstore.StableOf(log)
			if err := errors.Join(err, change(values), log.Close()); err != nil {
				t.Fatal(err)
			}
			return reopens(t, one)
		}
		w, _, err := logstore.ReadWitness(conf.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		term, voteTerm := w.Terms()
		if voteTerm == 0 {
			t.Fatal(w)
		}
		for name, c := range map[string]struct {
			change  func(values *logstore.Stable) error
			refused bool
		}{
			"a newer term": {func(v *logstore.Stable) error { return v.SetNumber(logstore.KeyTerm, term+1) }, false},
			"a newer vote": {func(v *logstore.Stable) error {
				return errors.Join(v.SetNumber(logstore.KeyVoteTerm, voteTerm+1), v.SetValue(logstore.KeyVote, []byte("x")))
			}, false},
			"an older term":             {func(v *logstore.Stable) error { return v.SetNumber(logstore.KeyTerm, term-1) }, true},
			"an older vote":             {func(v *logstore.Stable) error { return v.SetNumber(logstore.KeyVoteTerm, voteTerm-1) }, true},
			"another vote in that term": {func(v *logstore.Stable) error { return v.SetValue(logstore.KeyVote, []byte("another")) }, true},
			"another directory's nonce": {
				func(v *logstore.Stable) error { return v.SetValue(logstore.KeyWitness, []byte(logstore.NewNonce())) }, true,
			},
			"a term without a checksum":  {func(v *logstore.Stable) error { return v.SetPlain(logstore.KeyTerm, term) }, true},
			"nothing but another number": {func(v *logstore.Stable) error { return v.SetNumber([]byte("Other"), 1) }, false},
		} {
			err := spoilt(c.change)
			if reported := errors.Is(err, logstore.ErrWiped) || errors.Is(err, logstore.ErrDamaged); reported != c.refused ||
				!reported && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
