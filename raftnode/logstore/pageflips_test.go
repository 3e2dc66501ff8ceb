package logstore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// TestPageFlips_AreFound: flips bits in the pages that the newest transaction of raft.db or wal-meta.db uses. The log is refused, or a read
// of its content is, or the content is the same. QUOTAD_FLIPS=1000000 tries every bit; the default is a sample.
func TestPageFlips_AreFound(t *testing.T) {
	random := logstore.FlipSeed(t)
	most := flipsOr(400, 20)
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		n, conf := openOne(t, func(c *raftnode.Config) { c.LogStore = s }) // without a snapshot, so that every entry counts
		for range 40 {
			if _, _, err := n.Propose(t.Context(), slots(1000), take(1)); err != nil {
				t.Fatal(err)
			}
		}
		n.Kill()
		want, err := stateOf(conf.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Base(s.Path(""))
		if s == logstore.WAL {
			file = filepath.Join(file, logstore.WALMetaFile)
		}
		used := logstore.UsedBytes(t, filepath.Join(conf.DataDir, file))
		bits := random.Perm(len(used) * 8)
		bits = bits[:min(most, len(bits))]
		dir := filepath.Join(t.TempDir(), "data")
		refused := 0
		for _, bit := range bits {
			one := spoilt{file: file, at: used[bit/8], bit: bit % 8}
			fresh(t, dir, conf.DataDir)
			one.spoil(t, dir)
			if err := opensAlike(s, dir, want); err == nil {
				continue
			} else if !errors.Is(err, logstore.ErrDamaged) && !errors.Is(err, logstore.ErrWiped) {
				t.Errorf("%s: %v", one, err)
			} else {
				placed(t, one, dir, logstore.InDir(dir, err))
			}
			refused++
		}
		t.Logf("%s, %d bytes, %d bits: %d times the same, %d times refused", file, len(used), len(bits), len(bits)-refused, refused)
	})
}

// opensAlike opens the log of a damaged directory and reads it.
func opensAlike(s logstore.Kind, dir string, want held) (err error) {
	disk, err := logstore.ReadDisk(dir)
	if err != nil {
		return err
	}
	log, err := disk.Open(logstore.Options{
		Kind: s, Node: "n", Leads: func() bool { return false }, Fatal: func(error) {}, Monotonic: func() int64 { return 0 },
	})
	if err == nil {
		err = log.Close()
	}
	if err != nil {
		return err
	}
	state, err := stateOf(dir)
	if err == nil && state != want {
		err = fmt.Errorf("it opens with %s, want %s", state, want)
	}
	return err
}
