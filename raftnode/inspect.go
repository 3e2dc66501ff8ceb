package raftnode

import (
	"encoding/json"
	"errors"
	"fmt"
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

// ErrDamaged says that a data directory does not hold what a node needs to go on.
var ErrDamaged = errors.New("the data directory is damaged")

// Offline is a stopped node's data directory, opened for reading.
type Offline struct {
	dir   string
	store raftLog
}

// OpenOffline opens a stopped node's data directory for reading. ErrDataDirInUse: a process has it open; fs.ErrNotExist: it is
// none; ErrTwoLogStores, ErrDamaged.
func OpenOffline(dir string) (*Offline, error) {
	has, err := storeOf(dir)
	if err != nil {
		return nil, err
	}
	if has == "" {
		return nil, fmt.Errorf("%s is no data directory of a node: %w", dir, os.ErrNotExist)
	}
	store, err := openStore(dir, has, storeOptions{readOnly: true})
	if err != nil {
		return nil, err
	}
	return &Offline{dir: dir, store: store}, nil
}

// Close closes it.
func (o *Offline) Close() error { return o.store.Close() }

// Entries calls fn for the entries from..to (0: the last) of the log.
func (o *Offline) Entries(from, to uint64, fn func(LogEntry) error) error {
	return eachEntry(&failStop{raftLog: o.store}, from, to, fn)
}

// SnapshotFile is a snapshot in a data directory.
type SnapshotFile struct {
	ID          string
	Index, Term uint64
	Size        int64
	// Path is the file with the state.
	Path string
}

// Snapshots lists the snapshots, the newest first.
func (o *Offline) Snapshots() ([]SnapshotFile, error) {
	all, _, err := listSnapshots(o.dir)
	return all, err
}

// Verify checks that the newest snapshot can be restored, that the log goes on where it ends, and that every entry of it is
// what was written.
func (o *Offline) Verify() error {
	if log, ok := o.store.(*walLog); ok && log.damage != nil {
		return log.damage
	}
	if err := verifySnapshots(o.dir, o.store); err != nil {
		return err
	}
	return o.Entries(0, 0, func(LogEntry) error { return nil })
}

// State returns the state that the directory holds: its newest snapshot, and every entry after it that the log has. Whether the
// last of them were committed one node alone cannot know; that they count is the safe side, since nothing is granted twice.
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
			return nil, fmt.Errorf("%w: snapshot %s: %w", ErrDamaged, all[0].ID, err)
		}
		from = all[0].Index + 1
	}
	err = o.Entries(from, 0, func(e LogEntry) error {
		if e.Kind == "command" {
			machine.Follow(e.Index, e.Term, e.Data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return machine.Freeze(), nil
}

// compareSnapshots orders snapshots by their names, as raft does, the oldest first: by the term and the index up to which they go, and
// by when they were made, in milliseconds. A name of another kind comes last.
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

// listSnapshots returns the snapshots of a data directory, the newest first, and the names of those that were being made or removed
// when the process ended. The latter have no meta.json any more, and there is a newer one: an old snapshot is removed when its
// successors are durable.
func listSnapshots(dir string) (all []SnapshotFile, unfinished []string, err error) {
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
		path := filepath.Join(dir, "snapshots", entry.Name())
		data, err := os.ReadFile(filepath.Join(path, "meta.json"))
		var meta raft.SnapshotMeta
		if err == nil {
			err = json.Unmarshal(data, &meta)
		}
		if err != nil {
			unread[entry.Name()] = err
			continue
		}
		all = append(all, SnapshotFile{ID: meta.ID, Index: meta.Index, Term: meta.Term, Size: meta.Size, Path: filepath.Join(path, "state.bin")})
	}
	slices.SortFunc(all, func(a, b SnapshotFile) int { return -compareSnapshots(a.ID, b.ID) })
	for _, name := range slices.Sorted(maps.Keys(unread)) {
		if err := unread[name]; !errors.Is(err, os.ErrNotExist) || len(all) == 0 || compareSnapshots(name, all[0].ID) > 0 {
			return nil, nil, fmt.Errorf("%w: snapshot %s has no readable meta.json: %w", ErrDamaged, name, err)
		}
		unfinished = append(unfinished, name)
	}
	return all, unfinished, nil
}

// verifySnapshots refuses what raft would pass over in silence: a snapshot that cannot be read (it would fall back to
// an older one, with a gap), and a log that begins later than the snapshot ends.
func verifySnapshots(dir string, store raft.LogStore) error {
	all, _, err := listSnapshots(dir)
	if err != nil {
		return err
	}
	first, err := store.FirstIndex()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if len(all) == 0 {
		if first > 1 {
			return fmt.Errorf("%w: its log begins at %d and there is no snapshot of what was before", ErrDamaged, first)
		}
		return nil
	}
	newest := all[0]
	file, err := os.Open(newest.Path)
	if err != nil {
		return fmt.Errorf("%w: snapshot %s: %w", ErrDamaged, newest.ID, err)
	}
	defer func() { _ = file.Close() }()
	if err := VerifySnapshot(file); err != nil {
		return fmt.Errorf("%w: snapshot %s: %w", ErrDamaged, newest.ID, err)
	}
	if first > newest.Index+1 {
		return fmt.Errorf("%w: its log begins at %d, its newest snapshot ends at %d", ErrDamaged, first, newest.Index)
	}
	return nil
}

// VerifySnapshot checks that a snapshot or backup can be restored and that its totals are the sums of their parts.
func VerifySnapshot(r io.Reader) error {
	restored, err := fsm.Restore(r)
	if err != nil {
		return err
	}
	return restored.State().Verify()
}
