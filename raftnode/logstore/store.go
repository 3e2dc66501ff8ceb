package logstore

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Kind names the store in which a node keeps its log, votes and terms.
type Kind string

const (
	// Bolt is one bbolt file, by hashicorp/raft-boltdb. An append is a transaction with two syncs. It is the default.
	Bolt Kind = "boltdb"
	// WAL is a set of append-only files, one sync per append, by hashicorp/raft-wal.
	WAL Kind = "wal"
)

// ErrDataDirInUse says that another process has the data directory open.
var ErrDataDirInUse = errors.New("another process has the data directory open")

// ErrTwoLogStores says that a data directory has the files of both stores, as after an interrupted migration: Migrate finishes it.
var ErrTwoLogStores = errors.New("the data directory has logs in two stores")

// OtherKindError says that a data directory keeps its log in another store than the configured one. The node does not start with an empty
// store instead: it would have lost its votes and the entries that it acknowledged.
type OtherKindError struct {
	Dir         string
	Has, Wanted Kind
}

// Error implements error.
func (e *OtherKindError) Error() string {
	return fmt.Sprintf("%s keeps its log in %q, the configuration says %q", e.Dir, e.Has, e.Wanted)
}

// Store keeps raft's log, votes and terms.
type Store interface {
	raft.LogStore
	raft.StableStore
	// CutAtOnce is how many entries one DeleteRange may delete without blocking the log for long.
	CutAtOnce() uint64
	// Close closes the files; no other method may be called afterwards.
	Close() error
}

// path is the path of a store in a data directory: a file or a folder, which exists once the store is complete.
func (s Kind) path(dir string) string {
	if s == WAL {
		return filepath.Join(dir, "wal")
	}
	return filepath.Join(dir, "raft.db")
}

// in tells whether a data directory has this store.
func (s Kind) in(dir string) (bool, error) {
	path := s.path(dir)
	if s == WAL {
		path = filepath.Join(path, walMetaFile)
	}
	_, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// open opens or creates a store at a path.
func (s Kind) open(path string, o storeOptions) (Store, error) {
	if s == WAL {
		return openWAL(path, o)
	}
	return openBolt(path, o)
}

// storeOptions says how to open a store.
type storeOptions struct {
	// readOnly leaves the files unchanged.
	readOnly bool
	// failed, if set, gets the error of a failed background write.
	failed func(error)
	logger hclog.Logger
	// snapshot returns the last index that the newest snapshot covers, 0 without a snapshot; nil: no snapshots exist.
	snapshot func() (uint64, error)
	// judge, if set, checks an existing store, opened for reading only, before any byte of it is written or removed.
	judge func(Store) error
}

// storeOf returns the store of a data directory; empty: none.
func storeOf(dir string) (Kind, error) {
	inBolt, err := Bolt.in(dir)
	if err != nil {
		return "", err
	}
	inWAL, err := WAL.in(dir)
	switch {
	case err != nil:
		return "", err
	case inBolt && inWAL:
		return "", fmt.Errorf("%w: %s", ErrTwoLogStores, dir)
	case inBolt:
		return Bolt, nil
	case inWAL:
		return WAL, nil
	}
	return "", nil
}

// openStore opens the store of a data directory, or creates it. An existing store must be of the wanted kind.
func openStore(dir string, wanted Kind, o storeOptions) (Store, error) {
	has, err := storeOf(dir)
	if err != nil {
		return nil, err
	}
	if has != "" && has != wanted {
		return nil, &OtherKindError{Dir: dir, Has: has, Wanted: wanted}
	}
	if has == "" {
		o.judge = nil
	}
	o.snapshot = func() (uint64, error) {
		all, _, err := ListSnapshots(dir)
		if err != nil || len(all) == 0 {
			return 0, err
		}
		return all[0].Index, nil
	}
	return wanted.open(wanted.path(dir), o)
}

// boltLog is the store of kind Bolt.
type boltLog struct {
	*raftboltdb.BoltStore
	// name is the name of its file in the data directory.
	name string
}

// fileOf serves the function fileOf.
func (l boltLog) fileOf(uint64) string { return l.name }

func boltOptions() raftboltdb.Options {
	return raftboltdb.Options{
		BoltOptions: &bolt.Options{
			Timeout: lockPatience, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, InitialMmapSize: 256 << 20,
		},
		MsgpackUseNewTimeFormat: true,
	}
}

// lockPatience is how long to wait for another process that has the store open, such as a stopping node.
const lockPatience = time.Second

func openBolt(path string, o storeOptions) (Store, error) {
	_, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && !o.readOnly:
		if err := makeBolt(path); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	gapEnds, err := checkBoltFile(path, boltLogs, boltValues)
	if err != nil {
		return nil, err
	}
	if gapEnds > 0 && o.snapshot != nil {
		if covered, err := o.snapshot(); err != nil || gapEnds > covered+1 {
			return nil, firstError(err, &DamageError{
				File: filepath.Base(path), Place: fmt.Sprintf("entry %d", gapEnds),
				Problem: fmt.Sprintf("no entries before it, but the newest snapshot ends at %d", covered),
			})
		}
	}
	if o.judge != nil && !o.readOnly {
		log, err := openBoltFile(path, true)
		if err == nil {
			err = errors.Join(o.judge(log), log.Close())
		}
		if err != nil {
			return nil, err
		}
	}
	return openBoltFile(path, o.readOnly)
}

// makeBolt creates a file that gets its name once it is complete.
func makeBolt(path string) error {
	making := path + ".making"
	if err := os.RemoveAll(making); err != nil {
		return err
	}
	store, err := openBoltFile(making, false)
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	if err := os.Rename(making, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func openBoltFile(path string, readOnly bool) (Store, error) {
	options := boltOptions()
	options.Path = path
	options.BoltOptions.ReadOnly = readOnly
	var store *raftboltdb.BoltStore
	err := guarded(filepath.Base(path), func() (err error) {
		store, err = raftboltdb.New(options)
		return err
	})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrDataDirInUse, filepath.Dir(path))
	}
	if err != nil {
		return nil, err
	}
	return boltLog{store, filepath.Base(path)}, nil
}

// CutAtOnce implements Store: one transaction deletes the whole range and blocks the log meanwhile.
func (boltLog) CutAtOnce() uint64 { return 2048 }

// unbounded is the CutAtOnce of a store that deletes any range at once.
const unbounded = math.MaxUint64

// isMissing says that a store lacks a key.
func isMissing(err error) bool { return errors.Is(err, raftboltdb.ErrKeyNotFound) }
