package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/raft"
)

// Migrate moves a stopped node's log, votes and terms into another store. It copies them under another name, reads the copy back and
// compares it, renames the copy, and then removes the old store: an old log that is put back later would have forgotten votes. An
// interrupted Migrate can be repeated at any point; until the copy is renamed, the node starts from the old store. If the directory has the
// wanted store already, Migrate does nothing and returns nil. Errors: ErrDataDirInUse, ErrDamaged, fs.ErrNotExist (not a node's data
// directory), *UnsupportedError, and the system's.
func Migrate(dir string, to Kind) error {
	if err := Supported(); err != nil {
		return err
	}
	from := WAL
	if to == WAL {
		from = Bolt
	}
	has, err := storeOf(dir)
	switch {
	case errors.Is(err, ErrTwoLogStores): // the copy is renamed, the old store still exists
		return removeStore(dir, from)
	case err != nil:
		return err
	case has == "":
		return fmt.Errorf("%s is not the data directory of a node: %w", dir, os.ErrNotExist)
	case has == to:
		return nil
	}
	disk, err := readDisk(dir)
	if err != nil {
		return err
	}
	source, err := openStore(dir, from, storeOptions{judge: disk.judgeStore})
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	if err := verifySnapshots(dir, source); err != nil {
		return err
	}
	path := to.path(dir) + ".new"
	if err := os.RemoveAll(path); err != nil { // from an interrupted migration
		return err
	}
	for _, step := range []func(target Store) error{
		func(target Store) error { return copyStore(target, source) },
		func(target Store) error {
			return errors.Join(compareStores(target, source), verifySnapshots(dir, target))
		},
	} {
		target, err := to.open(path, storeOptions{})
		if err != nil {
			return err
		}
		if err := errors.Join(step(target), target.Close()); err != nil {
			return errors.Join(err, os.RemoveAll(path))
		}
	}
	if err := errors.Join(os.Rename(path, to.path(dir)), syncDir(dir)); err != nil {
		return err
	}
	if err := source.Close(); err != nil {
		return err
	}
	return removeStore(dir, from)
}

// removeStore removes a replaced store, unless another process has it open.
func removeStore(dir string, s Kind) error {
	store, err := s.open(s.path(dir), storeOptions{})
	if err != nil {
		return err
	}
	return errors.Join(store.Close(), os.RemoveAll(s.path(dir)), syncDir(dir))
}

// wholeFrom returns the first index from which a log is contiguous, and its last index. A log that continued after a leader's snapshot has
// a gap; entries before the gap are of no use.
func wholeFrom(log raft.LogStore) (first, last uint64, err error) {
	if first, err = log.FirstIndex(); err != nil {
		return 0, 0, err
	}
	if last, err = log.LastIndex(); err != nil || last == 0 {
		return 0, 0, err
	}
	for index := last; index > first; index-- {
		err := log.GetLog(index-1, new(raft.Log))
		if errors.Is(err, raft.ErrLogNotFound) {
			return index, last, nil
		}
		if err != nil {
			return 0, 0, entryDamage(log, index-1, "cannot be read: "+err.Error(), err)
		}
	}
	return first, last, nil
}

// copyAtOnce bounds the bytes that one append copies.
const copyAtOnce = 1 << 20

// copyStore copies a store's contents into an empty one.
func copyStore(to, from Store) error {
	first, last, err := wholeFrom(from)
	if err != nil {
		return err
	}
	var some []*raft.Log
	size := 0
	for index := max(first, 1); index <= last; index++ {
		entry := new(raft.Log)
		if err := getIntact(from, index, entry); err != nil {
			return err
		}
		some, size = append(some, entry), size+len(entry.Data)
		if size >= copyAtOnce || len(some) >= int(boltLog{}.CutAtOnce()) || index == last {
			if err := to.StoreLogs(some); err != nil {
				return err
			}
			some, size = nil, 0
		}
	}
	values, err := stableOf(from)
	if err != nil {
		return err
	}
	return copyStable(&stable{store: to}, values)
}

// badCopy returns a DamageError for a copy that differs. No data is lost: the copy is removed, and the node starts from the old store.
func badCopy(copied any, place, problem string) error {
	return &DamageError{
		File: fileOf(copied, 0), Place: place, Problem: problem, Advice: "the old store is unchanged: check the disk, and repeat the migration",
	}
}

// compareStores returns an error that names the first difference between two stores.
func compareStores(a, b Store) error {
	firstA, lastA, errA := wholeFrom(a)
	firstB, lastB, errB := wholeFrom(b)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if firstA != firstB || lastA != lastB {
		return badCopy(a, "its entries", fmt.Sprintf("entries %d to %d instead of %d to %d", firstA, lastA, firstB, lastB))
	}
	for index := max(firstA, 1); index <= lastA; index++ {
		var one, other raft.Log
		if err := errors.Join(getIntact(a, index, &one), getIntact(b, index, &other)); err != nil {
			return err
		}
		if one.Term != other.Term || one.Type != other.Type || !bytes.Equal(one.Data, other.Data) || !one.AppendedAt.Equal(other.AppendedAt) {
			return badCopy(a, fmt.Sprintf("log entry %d", index), "the entry differs from the old store's")
		}
	}
	one, errA := stableOf(a)
	other, errB := stableOf(b)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	return compareStable(one, other)
}
