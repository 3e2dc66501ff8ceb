//go:build linux

package disk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// The writer of these tests is a process of its own: a file system and its user in one process can wait for each other.
func TestMain(m *testing.M) {
	if path := os.Getenv("DISK_TEST_WRITE"); path != "" {
		if err := write(path, os.Getenv("DISK_TEST_NOSYNC") != ""); err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if path := os.Getenv("DISK_TEST_READ"); path != "" {
		if err := read(path); err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// write commits ascending numbers until it fails, and prints each after its commit.
func write(path string, noSync bool) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: noSync, NoGrowSync: noSync})
	if err != nil {
		return err
	}
	for n := lastOf(db) + 1; ; n++ {
		err := db.Update(func(tx *bbolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("b"))
			if err != nil {
				return err
			}
			return bucket.Put(binary.BigEndian.AppendUint64(nil, n), make([]byte, 600))
		})
		if err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// read checks all numbers and prints the last.
func read(path string) error {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	last := lastOf(db)
	err = db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		for n := uint64(1); n <= last; n++ {
			if tx.Bucket([]byte("b")).Get(binary.BigEndian.AppendUint64(nil, n)) == nil {
				return fmt.Errorf("%d is missing", n)
			}
		}
		return nil
	})
	fmt.Println(last)
	return errors.Join(err, db.Close())
}

func lastOf(db *bbolt.DB) uint64 {
	var last uint64
	_ = db.View(func(tx *bbolt.Tx) error {
		if bucket := tx.Bucket([]byte("b")); bucket != nil {
			if key, _ := bucket.Cursor().Last(); key != nil {
				last = binary.BigEndian.Uint64(key)
			}
		}
		return nil
	})
	return last
}

func mount(t *testing.T) (*Disk, string) {
	t.Helper()
	dir := t.TempDir()
	d, err := Mount(filepath.Join(dir, "backing"), filepath.Join(dir, "data"))
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, filepath.Join(dir, "data", "db")
}

// seed is the source of randomness of a test; its seed is QUOTAD_SEED or random.
func seed(t *testing.T) *rand.Rand {
	t.Helper()
	number := rand.Uint64()
	if text := os.Getenv("QUOTAD_SEED"); text != "" {
		var err error
		if number, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("QUOTAD_SEED=%d", number)
	return rand.New(rand.NewPCG(number, 0))
}

// writeUntil starts a writer, kills it once it has printed count numbers, and returns the last one.
func writeUntil(t *testing.T, path string, count int, environ ...string) uint64 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append(environ, "DISK_TEST_WRITE="+path)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var last uint64
	for said := 0; lines.Scan(); said++ {
		if strings.HasPrefix(lines.Text(), "failed") {
			t.Log(lines.Text())
			break
		}
		if last, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
			t.Fatal(err)
		}
		if said == count {
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	return last
}

func readLast(t *testing.T, path string) (uint64, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "DISK_TEST_READ="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
}

func TestPowerCut_KeepsSyncedData(t *testing.T) {
	r := seed(t)
	d, path := mount(t)
	for round := range 12 {
		acknowledged := writeUntil(t, path, r.IntN(40))
		torn := r.IntN(2) == 0
		lost, err := d.PowerCut(r, torn)
		if err != nil {
			t.Fatal(err)
		}
		last, err := readLast(t, path)
		if err != nil || last < acknowledged {
			t.Fatalf("round %d: %d were acknowledged, %d are there, %d bytes were lost, torn %v: %v", round, acknowledged, last, lost, torn, err)
		}
	}
}

// A writer that does not sync loses acknowledged data, which shows that power cuts take effect.
func TestPowerCut_LosesUnsyncedData(t *testing.T) {
	r := seed(t)
	d, path := mount(t)
	writeUntil(t, path, 3)
	for range 10 {
		acknowledged := writeUntil(t, path, 10+r.IntN(30), "DISK_TEST_NOSYNC=1")
		lost, err := d.PowerCut(r, false)
		if err != nil {
			t.Fatal(err)
		}
		last, err := readLast(t, path)
		if lost > 0 && (err != nil || last < acknowledged) {
			return
		}
	}
	t.Error("ten power cuts took nothing from a writer that does not sync")
}

func TestFaults_Hit(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*Disk)
		hurt func(Counters) uint64
	}{
		"failing sync": {func(d *Disk) { d.FailSync(syscall.EIO, 3, 1) }, func(c Counters) uint64 { return c.FailedSyncs }},
		"full":         {func(d *Disk) { d.Full(50_000) }, func(c Counters) uint64 { return c.NoSpace }},
	} {
		t.Run(name, func(t *testing.T) {
			d, path := mount(t)
			before := writeUntil(t, path, 5)
			c.set(d)
			after := writeUntil(t, path, 100_000) // ends by itself, with the error
			if c.hurt(d.Counters()) == 0 {
				t.Errorf("nothing was hurt: %+v", d.Counters())
			}
			d.Heal()
			if last, err := readLast(t, path); err != nil || last < max(before, after) {
				t.Errorf("%d were acknowledged, %d are there: %v", max(before, after), last, err)
			}
		})
	}
}

// Heal releases a delayed sync: the end of the fault in a run's history is its real end.
func TestSlowSync_EndsWithItsFault(t *testing.T) {
	d, path := mount(t)
	writeUntil(t, path, 1)
	d.SlowSync(time.Hour)
	done := make(chan uint64)
	go func() { done <- writeUntil(t, path, 0) }()
	for deadline := time.Now().Add(20 * time.Second); d.Counters().SlowSyncs == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no sync was slowed")
		}
		<-time.After(time.Millisecond)
	}
	d.Heal()
	if last := <-done; last == 0 {
		t.Error("nothing was written after all")
	}
}

func TestFailSync_NextSyncRepairsNothing(t *testing.T) {
	d, path := mount(t)
	writeUntil(t, path, 1)
	d.mu.Lock()
	for ino := range d.files {
		d.forgetLocked(ino)
	}
	d.mu.Unlock()
	backing := filepath.Join(d.backing, "db")
	d.mu.Lock()
	f, err := d.openLocked(1, backing)
	d.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.remember(0, 4); err != nil {
		t.Fatal(err)
	}
	old := string(f.before[0].old)
	if _, err := f.file.WriteAt([]byte("lost"), 0); err != nil {
		t.Fatal(err)
	}
	f.fail()
	f.synced()
	if _, err := d.PowerCut(seed(t), false); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(backing)
	if err != nil || string(data[:4]) != old {
		t.Errorf("%q, want %q: %v", data[:4], old, err)
	}
}

// Data that is written again and synced after a failed sync is durable: only data that was not written again is lost.
func TestFailSync_RewrittenDataIsDurable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("abcdefgh"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &Disk{files: map[uint64]*unsynced{}}
	f, err := d.openLocked(1, path)
	if err != nil {
		t.Fatal(err)
	}
	put := func(text string, offset int64) {
		t.Helper()
		if err := f.remember(offset, int64(len(text))); err != nil {
			t.Fatal(err)
		}
		if _, err := f.file.WriteAt([]byte(text), offset); err != nil {
			t.Fatal(err)
		}
	}
	put("BCDEFG", 1)
	f.fail()
	put("xy", 3)
	put("longer", 8)
	f.synced()
	put("z", 4)
	if _, err := f.undo(seed(t), false); err != nil {
		t.Fatal(err)
	}
	d.forgetLocked(1)
	if data, err := os.ReadFile(path); err != nil || string(data) != "abcxyfghlonger" {
		t.Errorf("%q %v", data, err)
	}
}

// A store that continues after a failed sync keeps acknowledged data: bbolt never builds on the data of that sync. So a node whose disk
// failed may be started again unchanged.
func TestFailSync_StoreSurvivesPowerCut(t *testing.T) {
	r := seed(t)
	d, path := mount(t)
	for round := range 6 {
		writeUntil(t, path, 20+r.IntN(20))
		d.FailSync(syscall.EIO, r.IntN(6), 1)
		writeUntil(t, path, 100_000) // ends by itself, with the error
		d.Heal()
		acknowledged := writeUntil(t, path, r.IntN(40))
		if _, err := d.PowerCut(r, r.IntN(2) == 0); err != nil {
			t.Fatal(err)
		}
		if last, err := readLast(t, path); err != nil || last < acknowledged {
			t.Fatalf("round %d: %d were acknowledged, %d are there: %v", round, acknowledged, last, err)
		}
	}
}
