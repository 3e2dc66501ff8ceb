package logstore_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// refusesAs checks that both a node and verify refuse a directory, with the expected error.
func refusesAs(t *testing.T, conf raftnode.Config, what string, want error) {
	t.Helper()
	if err := reopens(t, conf); !errors.Is(err, want) {
		t.Errorf("%s: the node says %v, want %v", what, err, want)
	}
	offline, err := logstore.OpenOffline(conf.DataDir)
	if err == nil {
		err = errors.Join(offline.Verify(), offline.Close())
	}
	if !errors.Is(err, want) {
		t.Errorf("%s: verify says %v, want %v", what, err, want)
	}
}

// copied returns the settings of a copy of a stopped node's data directory.
func copied(t *testing.T, conf raftnode.Config) raftnode.Config {
	t.Helper()
	from := conf.DataDir
	conf.DataDir = filepath.Join(t.TempDir(), "data")
	fresh(t, conf.DataDir, from)
	return conf
}

// TestValues_FlippedBitIsFound: a flipped bit may make a term or a vote look newer. Only the checksum detects that: bbolt has none, and the
// witness detects only older values.
func TestValues_FlippedBitIsFound(t *testing.T) {
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		conf := stopped(t, s)
		for _, key := range [][]byte{logstore.KeyTerm, logstore.KeyVoteTerm, logstore.KeyVote} {
			one := copied(t, conf)
			log := logstore.OpenRaw(t, one.DataDir, s)
			value, err := log.Get(key)
			if err != nil || len(value) < 5 {
				t.Fatalf("%s: %x, %v", key, value, err)
			}
			value = bytes.Clone(value)
			value[0] ^= 1 // the highest byte of a number, so that it looks newer
			if err := errors.Join(log.Set(key, value), log.Close()); err != nil {
				t.Fatal(err)
			}
			refusesAs(t, one, string(key), logstore.ErrDamaged)
		}
	})
}

// TestSmallFiles_FlippedBitIsFound: each small file is compared with its checksum in the witness.
func TestSmallFiles_FlippedBitIsFound(t *testing.T) {
	conf := stopped(t, logstore.UnderTest)
	flipped := 0
	for _, name := range logstore.PartNames {
		one := copied(t, conf)
		path := filepath.Join(one.DataDir, name)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		flipped++
		logstore.Flip(t, path, 0, 1)
		if _, err := logstore.ReadDisk(one.DataDir); !errors.Is(err, logstore.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		refusesAs(t, one, name, logstore.ErrDamaged)
	}
	if flipped < 3 {
		t.Errorf("only %d small files are there", flipped)
	}
}

// TestWitness_KnowsEndOfLog: a log that ends too early, in the same term and otherwise intact, lost acknowledged entries.
func TestWitness_KnowsEndOfLog(t *testing.T) {
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		n, conf := openOne(t, func(c *raftnode.Config) { c.LogStore = s })
		if _, _, err := n.Propose(t.Context(), slots(1000)); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
				t.Fatal(err)
			}
		}
		n.Kill()
		whole := copied(t, conf)
		if err := reopens(t, whole); err != nil {
			t.Fatal(err)
		}
		log := logstore.OpenRaw(t, conf.DataDir, s)
		last, err := log.LastIndex()
		if err := errors.Join(err, log.DeleteRange(last, last), log.Close()); err != nil {
			t.Fatal(err)
		}
		refusesAs(t, conf, "without its last entry", logstore.ErrWiped)
	})
}
