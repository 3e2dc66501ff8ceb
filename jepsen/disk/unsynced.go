//go:build linux

package disk

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
)

// sector is the unit that a disk writes completely or not at all.
const sector = 512

// unsynced is the data that a file would lose: the overwritten content, in order.
type unsynced struct {
	file *os.File
	// before are the changes since the last successful sync.
	before []change
	// written is the end of the data ever written to the file, for the bound of Full.
	written int64
}

// change is the overwritten content of a write, or of a change of the file's size.
type change struct {
	offset int64
	old    []byte
	// length is the number of bytes written.
	length int64
	// size is the length of the file before; unknown: the new size is durable already.
	size int64
	// failed says that a sync of it failed: no later one makes it durable. Later writes to the same place are not affected.
	failed bool
}

const unknown = -1

// without returns the rest of a change after the bytes written between from and end have become durable.
func (c change) without(from, end int64) []change {
	has := c.offset + int64(len(c.old))
	if end <= c.offset || from >= has {
		return []change{c}
	}
	var left []change
	if from > c.offset {
		left = append(left, change{offset: c.offset, old: c.old[:from-c.offset], size: c.size, failed: c.failed})
	}
	if end < has {
		left = append(left, change{offset: end, old: c.old[end-c.offset:], size: c.size, failed: c.failed})
	}
	return left
}

// openLocked returns the unsynced data of a file, and opens the file if needed.
func (d *Disk) openLocked(ino uint64, path string) (*unsynced, error) {
	if f := d.files[ino]; f != nil {
		return f, nil
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f := &unsynced{file: file, written: info.Size()}
	d.files[ino] = f
	return f, nil
}

func (d *Disk) forgetLocked(ino uint64) {
	if f := d.files[ino]; f != nil {
		_ = f.file.Close() // nothing of it is lost: writes went through
		delete(d.files, ino)
	}
}

// remember keeps the content that a write is about to replace.
func (f *unsynced) remember(offset, length int64) error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	old := make([]byte, max(min(length, info.Size()-offset), 0))
	if len(old) > 0 {
		if _, err := f.file.ReadAt(old, offset); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	f.before = append(f.before, change{offset: offset, old: old, length: length, size: info.Size()})
	return nil
}

// synced forgets durable changes: all except failed ones that were not written again.
func (f *unsynced) synced() {
	var kept []change
	for _, c := range f.before {
		if c.failed {
			c.size = unknown
			kept = append(kept, c)
			continue
		}
		var left []change
		for _, lost := range kept {
			left = append(left, lost.without(c.offset, c.offset+c.length)...)
		}
		kept = left
	}
	f.before = kept
}

// fail marks the changes of a failed sync.
func (f *unsynced) fail() {
	for i := range f.before {
		f.before[i].failed = true
	}
}

// undo takes changes back, the newest first; with torn, some sectors remain at random.
func (f *unsynced) undo(r *rand.Rand, torn bool) (lost int64, err error) {
	for _, c := range slices.Backward(f.before) {
		for at := 0; at < len(c.old); at += sector {
			if torn && r.IntN(2) == 0 {
				continue
			}
			piece := c.old[at:min(at+sector, len(c.old))]
			if _, err := f.file.WriteAt(piece, c.offset+int64(at)); err != nil {
				return lost, err
			}
			lost += int64(len(piece))
		}
		if torn && r.IntN(2) == 0 {
			continue // the new size was written, its content perhaps not
		}
		info, err := f.file.Stat()
		if err != nil {
			return lost, err
		}
		if c.size != unknown && info.Size() != c.size {
			lost += max(info.Size()-c.size, 0)
			if err := f.file.Truncate(c.size); err != nil {
				return lost, err
			}
		}
	}
	f.before = nil
	return lost, nil
}
