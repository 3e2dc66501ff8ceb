package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// segments returns the paths of the log's files in order.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(WAL.path(dir), "*.wal"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%v %v", paths, err)
	}
	return paths
}

// overwriteWAL changes a byte of an entry in the last file.
func overwriteWAL(t *testing.T, dir string, index uint64, at int, change byte) {
	t.Helper()
	paths := segments(t, dir)
	path := paths[len(paths)-1]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for frame, next := walHeader, binary.LittleEndian.Uint64(data[8:]); ; {
		length := int(binary.LittleEndian.Uint32(data[frame+4:]))
		if data[frame] == frameCommit {
			length = 0
		}
		if data[frame] == frameEntry {
			if next == index {
				flip(t, path, int64(frame+frameHead+at), change)
				return
			}
			next++
		}
		frame += frameHead + (length+7)/8*8
	}
}

// flip flips bits of one byte of a file.
func flip(t *testing.T, path string, at int64, change byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var one [1]byte
	if _, err := file.ReadAt(one[:], at); err != nil {
		t.Fatal(err)
	}
	one[0] ^= change
	if _, err := file.WriteAt(one[:], at); err != nil {
		t.Fatal(err)
	}
}

// threeAppends makes a log of three appends, and returns the offsets at which they end.
func threeAppends(t *testing.T, dir string) (path string, ends []int) {
	t.Helper()
	log := openRaw(t, dir, WAL)
	for i := range uint64(3) {
		if err := log.StoreLogs(entries(t, 1, 3*i+1, 3*i+3)); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	path = segments(t, dir)[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for from, at := 0, walHeader; ; {
		_, next := readAppend(data, from, at)
		if next == 0 {
			break
		}
		ends, from, at = append(ends, next), next, next
	}
	if len(ends) != 3 {
		t.Fatalf("%d appends", len(ends))
	}
	return path, ends
}

// intactUpTo reads a log and returns its last index. Each entry that it finds must be as written.
func intactUpTo(t *testing.T, log raft.LogStore) (last uint64, err error) {
	t.Helper()
	if last, err = log.LastIndex(); err != nil {
		t.Fatal(err)
	}
	for index := uint64(1); index <= last; index++ {
		var got raft.Log
		if err := getIntact(log, index, &got); err != nil {
			return last, err
		}
		if want := entries(t, 1, index, index)[0]; got.Term != 1 || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("entry %d is %+v", index, got)
		}
	}
	return last, nil
}

// TestWAL_RefusesDamage: after any flipped bit of a file, the damage is reported, or reads return what was written. In the last append a
// flipped bit looks like a torn write, so that append is dropped.
func TestWAL_RefusesDamage(t *testing.T) {
	onceForBoth(t)
	dir := t.TempDir()
	path, ends := threeAppends(t, dir)
	refused := 0
	flips := 0
	const apart = 8
	offset := int64(flipSeed(t).IntN(apart)) // with -short every eighth byte
	for at := range int64(ends[2]) {
		for bit := range int64(8) {
			if testing.Short() && (at%apart != offset || bit != at/apart%8) {
				continue
			}
			if at < int64(ends[1]) {
				flips++
			}
			change := byte(1) << bit
			flip(t, path, at, change)
			log, err := openStore(dir, WAL, storeOptions{})
			if err == nil {
				var last uint64
				last, err = intactUpTo(t, log)
				if err == nil && last != 9 && (last != 6 || at < int64(ends[1])) {
					t.Errorf("byte %d: the log ends at %d", at, last)
				}
				_ = log.Close()
			}
			switch {
			case errors.Is(err, ErrDamaged):
				refused++
			case err != nil:
				t.Errorf("byte %d: %v", at, err)
			}
			flip(t, path, at, change)
		}
	}
	if refused < flips*9/10 {
		t.Errorf("%d of %d flips before the last append were refused", refused, flips)
	}
}

// TestWAL_DropsTornAppend: any sectors of the last append may be missing or wrong. All appends before it stay, and the log continues.
func TestWAL_DropsTornAppend(t *testing.T) {
	onceForBoth(t)
	random := rand.New(rand.NewPCG(1, 2))
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	for round := range rounds {
		dir := t.TempDir()
		log := openRaw(t, dir, WAL)
		long := entries(t, 1, 1, 300)
		if err := errors.Join(log.StoreLogs(long[:100]), log.StoreLogs(long[100:]), log.Close()); err != nil {
			t.Fatal(err)
		}
		path := segments(t, dir)[0]
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, begin := readAppend(data, 0, walHeader)
		_, end := readAppend(data, begin, begin)
		const sector = 512
		for at := begin / sector * sector; at < end; at += sector {
			if random.IntN(2) == 0 && at+sector > begin {
				piece := data[max(at, begin):min(at+sector, end)]
				clear(piece)
				if round%2 == 1 {
					for i := range piece {
						piece[i] = byte(random.Uint32())
					}
				}
			}
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		log = openRaw(t, dir, WAL)
		last, err := intactUpTo(t, log)
		if err != nil || last != 100 && last != 300 {
			t.Fatalf("round %d: the log ends at %d: %v", round, last, err)
		}
		if err := errors.Join(log.StoreLogs(entries(t, 1, last+1, last+50)), log.Close()); err != nil {
			t.Fatal(err)
		}
		log = openRaw(t, dir, WAL)
		if again, err := intactUpTo(t, log); again != last+50 || err != nil {
			t.Errorf("round %d: after more entries the log ends at %d: %v", round, again, err)
		}
		_ = log.Close()
	}
}

// TestWAL_ContinuesAfterFullFile: the process ends with a full file, before the next one is listed, or when it is listed but not created.
// raft-wal alone would refuse every later append.
func TestWAL_ContinuesAfterFullFile(t *testing.T) {
	large := func(first uint64) []*raft.Log {
		logs := make([]*raft.Log, 18)
		for i := range logs {
			logs[i] = &raft.Log{Index: first + uint64(i), Term: 1, Data: make([]byte, 1<<20)}
		}
		logs, err := seal(logs)
		if err != nil {
			t.Fatal(err)
		}
		return logs
	}
	dir := t.TempDir()
	log := openRaw(t, dir, WAL)
	if err := log.StoreLogs(entries(t, 1, 1, 3)); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	before := t.TempDir() // the list of files before the file was full
	if err := os.CopyFS(before, os.DirFS(WAL.path(dir))); err != nil {
		t.Fatal(err)
	}
	log = openRaw(t, dir, WAL)
	if err := errors.Join(log.StoreLogs(large(4)), log.StoreLogs(entries(t, 1, 22, 22)), log.Close()); err != nil {
		t.Fatal(err)
	}
	full := segments(t, dir)
	if len(full) != 2 {
		t.Fatalf("%v", full)
	}
	for name, remove := range map[string][]string{"not named": {full[1], "meta"}, "not made": {full[1]}} {
		t.Run(name, func(t *testing.T) {
			dir, wal := t.TempDir(), WAL.path(filepath.Dir(filepath.Dir(full[0])))
			if err := os.CopyFS(WAL.path(dir), os.DirFS(wal)); err != nil {
				t.Fatal(err)
			}
			for _, path := range remove {
				if path == "meta" {
					old, err := os.ReadFile(filepath.Join(before, walMetaFile))
					if err == nil {
						err = os.WriteFile(filepath.Join(WAL.path(dir), walMetaFile), old, 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
					continue
				}
				if err := os.Remove(filepath.Join(WAL.path(dir), filepath.Base(path))); err != nil {
					t.Fatal(err)
				}
			}
			if name == "not made" { // a file is recorded when it exists
				db := &walDB{}
				if _, err := db.Load(WAL.path(dir)); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(db.made(0, walSegment), db.Close()); err != nil {
					t.Fatal(err)
				}
			}
			tree := treeOf(t, dir)
			offline, err := OpenOffline(dir)
			if err != nil {
				t.Fatal(err)
			}
			if last, err := offline.store.LastIndex(); last != 21 || err != nil {
				t.Errorf("offline the log ends at %d, %v", last, err)
			}
			if err := errors.Join(offline.Verify(), offline.Close()); err != nil {
				t.Error(err)
			}
			if treeOf(t, dir) != tree {
				t.Error("looking at it changed it")
			}
			for last := uint64(21); last < 24; last++ {
				log := openRaw(t, dir, WAL)
				if got, err := log.LastIndex(); got != last || err != nil {
					t.Fatalf("the log ends at %d, %v; want %d", got, err, last)
				}
				if err := errors.Join(log.StoreLogs(entries(t, 1, last+1, last+1)), log.Close()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestWAL_ContinuesBehindSnapshot: after a leader's snapshot the entries before it are cut off; without one a gap is damage.
func TestWAL_ContinuesBehindSnapshot(t *testing.T) {
	dir := t.TempDir()
	log := openRaw(t, dir, WAL)
	defer func() { _ = log.Close() }()
	if err := log.StoreLogs(entries(t, 1, 1, 10)); err != nil {
		t.Fatal(err)
	}
	if err := log.StoreLogs(entries(t, 2, 51, 52)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a gap without a snapshot: %v", err)
	}
	if last, _ := log.LastIndex(); last != 10 {
		t.Errorf("the log ends at %d", last)
	}
	putSnapshot(t, dir, 50, 2)
	if err := log.StoreLogs(entries(t, 2, 51, 52)); err != nil {
		t.Fatal(err)
	}
	first, _ := log.FirstIndex()
	last, _ := log.LastIndex()
	if first != 51 || last != 52 {
		t.Errorf("entries %d to %d", first, last)
	}
}

// TestStore_IsNotMonotonic: for a monotonic store raft would clear the whole log after a snapshot from a leader, including
// acknowledged entries beyond it.
func TestStore_IsNotMonotonic(t *testing.T) {
	bothStores(t, func(t *testing.T, s Kind) {
		log := openRaw(t, t.TempDir(), s)
		defer func() { _ = log.Close() }()
		var store raft.LogStore = &failStop{store: log}
		if monotonic, ok := store.(raft.MonotonicLogStore); ok && monotonic.IsMonotonic() {
			t.Error("it says that it is monotonic")
		}
	})
}

// TestWAL_FailedNewFileEndsNode: the node ends at once, with the reason. Here the disk is full when the log needs its next file.
func TestWAL_FailedNewFileEndsNode(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("no file system of a given size can be made here: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	failed := make(chan error, 1)
	log, err := openStore(dir, WAL, storeOptions{failed: func(err error) { failed <- err }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	index := uint64(0)
	for len(failed) == 0 && index < 40 {
		index++
		sealed, err := seal([]*raft.Log{{Index: index, Term: 1, Data: make([]byte, 1<<20)}})
		if err != nil {
			t.Fatal(err)
		}
		if err := log.StoreLogs(sealed); err != nil {
			break
		}
	}
	select {
	case err := <-failed:
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("after %d entries nobody heard of it", index)
	}
}

// FuzzReadTail: a file of the log may have any content.
func FuzzReadTail(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		tail, err := readTail(data)
		if err != nil && !errors.Is(err, errLostAppends) {
			t.Error(err)
		}
		if tail.entries*frameHead > uint64(len(data)) || tail.index > uint64(len(data)) {
			t.Errorf("%+v in %d bytes", tail, len(data))
		}
	})
}

// FuzzWALCodec: invalid bytes are refused, and an entry is decoded as it was encoded.
func FuzzWALCodec(f *testing.F) {
	var written bytes.Buffer
	if err := (walCodec{}).Encode(&raft.Log{Index: 7, Term: 3, Data: []byte("data"), AppendedAt: time.Unix(1, 2)}, &written); err != nil {
		f.Fatal(err)
	}
	f.Add(written.Bytes())
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var read, again raft.Log
		if (walCodec{}).Decode(data, &read) != nil {
			return
		}
		var out bytes.Buffer
		if err := (walCodec{}).Encode(&read, &out); err != nil {
			t.Fatal(err)
		}
		if err := (walCodec{}).Decode(out.Bytes(), &again); err != nil || again.Index != read.Index || !bytes.Equal(again.Data, read.Data) {
			t.Errorf("%+v became %+v: %v", read, again, err)
		}
	})
}

// flipSeed returns the random source of the test, seeded from QUOTAD_SEED or the clock.
func flipSeed(t *testing.T) *rand.Rand {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("QUOTAD_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("QUOTAD_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 7))
}
