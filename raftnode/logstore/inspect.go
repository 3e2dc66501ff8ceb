package logstore

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
)

// Offline is a stopped node's data directory, opened for reading.
type Offline struct {
	dir   string
	store Store
}

// OpenOffline opens a stopped node's data directory for reading. Errors are ErrDataDirInUse, fs.ErrNotExist (not a node's data directory),
// ErrTwoLogStores, ErrDamaged, *UnsupportedError, and the system's.
func OpenOffline(dir string) (*Offline, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	has, err := storeOf(dir)
	if err != nil {
		return nil, err
	}
	if has == "" {
		if disk, err := readDisk(dir); err != nil || disk.started() {
			return nil, firstError(err, disk.lost("log store", "missing"))
		}
		return nil, fmt.Errorf("%s is not the data directory of a node: %w", dir, os.ErrNotExist)
	}
	store, err := openStore(dir, has, storeOptions{readOnly: true})
	if err != nil {
		return nil, err
	}
	return &Offline{dir: dir, store: store}, nil
}

// Close closes the directory's log store.
func (o *Offline) Close() error { return o.store.Close() }

// Entries calls fn for the entries from..to (0: the last) of the log.
func (o *Offline) Entries(from, to uint64, fn func(Entry) error) error {
	return eachEntry(&failStop{store: o.store}, from, to, fn)
}

// SnapshotFile is a snapshot in a data directory.
type SnapshotFile struct {
	ID          string
	Index, Term uint64
	Size        int64
	// Path is the path of the file with the state.
	Path string
	// meta is the checksum of the snapshot's description, sum raft's of the state: CRC-64/ECMA.
	meta uint32
	sum  []byte
}

// metaPath is the path of the description, relative to the data directory.
func (s *SnapshotFile) metaPath() string { return filepath.Join("snapshots", s.ID, "meta.json") }

// Snapshots lists the snapshots, newest first.
func (o *Offline) Snapshots() ([]SnapshotFile, error) {
	all, _, err := ListSnapshots(o.dir)
	return all, err
}

// Verify checks that the snapshots can be restored, that the log continues where the newest one ends, and that every entry of it is intact.
func (o *Offline) Verify() error {
	if log, ok := o.store.(*walLog); ok && log.damage != nil {
		return log.damage
	}
	disk, err := readDisk(o.dir)
	if err != nil {
		return err
	}
	if err := disk.judgeStore(o.store); err != nil {
		return err
	}
	if disk.slot != nil {
		return disk.slot
	}
	if err := verifySnapshots(o.dir, o.store); err != nil {
		return err
	}
	for _, older := range disk.snapshots[min(1, len(disk.snapshots)):] {
		if err := older.Verify(); err != nil {
			return err
		}
	}
	return o.Entries(0, 0, func(Entry) error { return nil })
}

// State returns the state that the directory holds: the newest snapshot with every later entry of the log applied. One node alone cannot
// know whether the last entries were committed. Counting them is the safe side: no amount is granted twice.
func (o *Offline) State() (*fsm.State, error) {
	all, err := o.Snapshots()
	if err != nil {
		return nil, err
	}
	machine, from := fsm.New(), uint64(1)
	if len(all) > 0 {
		file, err := os.Open(all[0].Path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		if machine, err = fsm.Restore(file); err != nil {
			return nil, all[0].damaged(err.Error(), err)
		}
		from = all[0].Index + 1
	}
	err = o.Entries(from, 0, func(e Entry) error {
		if e.Kind == "command" {
			if version, ok := versionOf(e.Data); ok {
				if err := fsm.CheckVersion(e.Index, version); err != nil {
					return fmt.Errorf("%w: %w", ErrUnfitBuild, err)
				}
			}
			machine.Follow(e.Index, e.Term, e.Data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return machine.Freeze(), nil
}

// compareSnapshots orders snapshots by their names as raft does, oldest first: by the term and index at which they end, then by their
// creation time in milliseconds. Names of another form sort last.
func compareSnapshots(a, b string) int {
	parts := func(name string) (parts [3]uint64) {
		if _, err := fmt.Sscanf(name, "%d-%d-%d", &parts[0], &parts[1], &parts[2]); err != nil {
			parts[0] = math.MaxUint64
		}
		return parts
	}
	x, y := parts(a), parts(b)
	return slices.Compare(x[:], y[:])
}

// ListSnapshots returns the snapshots of a data directory, newest first, and the names of those whose creation or removal was interrupted.
// The latter have no meta.json, and a newer snapshot exists: an old one is removed only after its successors are durable.
func ListSnapshots(dir string) (all []SnapshotFile, unfinished []string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	unread := map[string]error{}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".tmp") {
			unfinished = append(unfinished, entry.Name())
			continue
		}
		if !entry.IsDir() {
			continue
		}
		found, err := ReadSnapshot(filepath.Join(dir, "snapshots", entry.Name()))
		if err != nil {
			unread[entry.Name()] = err
			continue
		}
		all = append(all, found)
	}
	slices.SortFunc(all, func(a, b SnapshotFile) int { return -compareSnapshots(a.ID, b.ID) })
	for _, name := range slices.Sorted(maps.Keys(unread)) {
		if err := unread[name]; !errors.Is(err, os.ErrNotExist) || len(all) == 0 || compareSnapshots(name, all[0].ID) > 0 {
			return nil, nil, &DamageError{File: filepath.Join("snapshots", name, "meta.json"), Place: wholeFile, Problem: err.Error()}
		}
		unfinished = append(unfinished, name)
	}
	return all, unfinished, nil
}

// ReadSnapshot reads and checks the description in a snapshot's folder. Raft trusts the description, and some flipped bits in it would
// crash raft.
func ReadSnapshot(path string) (found SnapshotFile, err error) {
	data, err := os.ReadFile(filepath.Join(path, "meta.json"))
	if err != nil {
		return found, err
	}
	var meta struct {
		raft.SnapshotMeta
		CRC []byte
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&meta); err != nil {
		return found, err
	}
	name := filepath.Base(path)
	switch {
	case meta.Version != raft.SnapshotVersionMax:
		return found, fmt.Errorf("unknown version %d", meta.Version)
	case meta.ID != name || !strings.HasPrefix(name, fmt.Sprintf("%d-%d-", meta.Term, meta.Index)):
		return found, fmt.Errorf("snapshot %s of term %d and index %d does not belong in %s", meta.ID, meta.Term, meta.Index, name)
	case len(meta.CRC) != 8 || meta.Index == 0:
		return found, errors.New("no checksum, or no index")
	}
	return SnapshotFile{
		ID: meta.ID, Index: meta.Index, Term: meta.Term, Size: meta.Size, Path: filepath.Join(path, "state.bin"), meta: partSum(data),
		sum: meta.CRC,
	}, nil
}

// verifySnapshots refuses two states that raft would silently accept: an unreadable snapshot, for which raft would fall back to an older
// one, with a gap; and a log that begins after the end of the newest snapshot.
func verifySnapshots(dir string, store raft.LogStore) error {
	all, _, err := ListSnapshots(dir)
	if err != nil {
		return err
	}
	first, err := store.FirstIndex()
	if err != nil {
		return &DamageError{File: fileOf(store, 0), Place: "the beginning of the log", Problem: "cannot be read: " + err.Error(), cause: err}
	}
	if len(all) == 0 {
		if first > 1 {
			return entryDamage(store, first, "the log begins here, but there is no snapshot of the entries before", nil)
		}
		return nil
	}
	newest := all[0]
	if err := newest.Verify(); err != nil {
		return err
	}
	if first > newest.Index+1 {
		return entryDamage(store, first, fmt.Sprintf("the log begins here, but the newest snapshot ends at %d", newest.Index), nil)
	}
	return nil
}

// Verify reads the state back and checks it.
func (s *SnapshotFile) Verify() error { return s.VerifyBy(fsm.VerifySnapshot) }

// VerifySum compares the content with raft's checksum of it, in constant memory. Verify finds more: content that was written wrongly.
func (s *SnapshotFile) VerifySum() error {
	return s.VerifyBy(func(r io.Reader) error {
		sum := crc64.New(crc64.MakeTable(crc64.ECMA))
		if _, err := io.Copy(sum, r); err != nil {
			return err
		}
		if !bytes.Equal(sum.Sum(nil), s.sum) {
			return errors.New("checksum mismatch")
		}
		return nil
	})
}

// VerifyBy is Verify with another check of the content.
func (s *SnapshotFile) VerifyBy(check func(io.Reader) error) error {
	file, err := os.Open(s.Path)
	if err != nil {
		return s.damaged(err.Error(), err)
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || info.Size() != s.Size {
		return s.damaged(fmt.Sprintf("not %d bytes long, as meta.json says", s.Size), nil)
	}
	if err := check(bufio.NewReaderSize(file, 1<<20)); err != nil {
		return s.damaged(err.Error(), err)
	}
	return nil
}

// damaged returns a DamageError for the state, which one checksum covers.
func (s *SnapshotFile) damaged(problem string, cause error) error {
	return &DamageError{File: filepath.Join("snapshots", s.ID, "state.bin"), Place: wholeFile, Problem: problem, cause: cause}
}
