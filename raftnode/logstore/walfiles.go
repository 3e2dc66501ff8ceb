package logstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// walFiles is the file system of WAL. Its files are readable only by their owner, and an append syncs data but no timestamps. A file that
// cannot be created is reported at once: raft-wal creates the next file in the background and only logs a failure, so the append after it
// would fail without a useful reason.
type walFiles struct {
	fs.FS
	failed   func(error)
	readOnly bool
	// meta knows where the last file ends, for stores opened for reading only.
	meta *walMeta
}

var _ types.VFS = (*walFiles)(nil)

// Create implements types.VFS.
func (f *walFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if f.readOnly {
		return cutFile{ReaderAt: strings.NewReader(""), Closer: io.NopCloser(nil)}, nil // it was not created yet
	}
	file, err := createReserved(filepath.Join(dir, name), int64(size))
	if err != nil {
		err = fmt.Errorf("making the next file of the log: %w", err)
		if f.failed != nil {
			f.failed(err)
		}
		return nil, err
	}
	if err := f.record(dir, name, file); err != nil {
		if f.failed != nil {
			f.failed(err)
		}
		return nil, errors.Join(err, file.Close())
	}
	return &walFile{File: file, dir: dir}, nil
}

// record makes a new file durable and then records it: a recorded file that is missing later was deleted.
func (f *walFiles) record(dir, name string, file *os.File) error {
	var base, id uint64
	if _, err := fmt.Sscanf(name, "%020d-%016x.wal", &base, &id); err != nil {
		return fmt.Errorf("file %q of the log: %w", name, err)
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	return f.meta.made(id, uint64(info.Size()))
}

// createReserved creates a file and reserves its space.
func createReserved(path string, size int64) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := reserve(file, size); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(path))
	}
	return file, nil
}

// OpenWriter implements types.VFS.
func (f *walFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	if f.readOnly {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		return cutFile{ReaderAt: io.NewSectionReader(file, 0, int64(f.meta.endByte)), Closer: file}, nil
	}
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	opened := &walFile{File: file, dir: dir}
	opened.unnamed.Store(true) // it is unknown whether its name was synced before the last process ended
	return opened, nil
}

// Delete implements types.VFS.
func (f *walFiles) Delete(dir, name string) error {
	if f.readOnly {
		return nil
	}
	return f.FS.Delete(dir, name)
}

// walFile is a file that is appended to.
type walFile struct {
	*os.File
	dir string
	// unnamed is set until the file's directory was synced; the first Sync does that.
	unnamed atomic.Bool
}

// Sync implements types.WritableFile.
func (f *walFile) Sync() error {
	if err := syncData(f.File); err != nil {
		return err
	}
	if f.unnamed.Swap(false) {
		return syncDir(f.dir)
	}
	return nil
}

// cutFile is a file up to the end of its last complete append, for stores opened for reading only.
type cutFile struct {
	io.ReaderAt
	io.Closer
}

// WriteAt implements types.WritableFile.
func (cutFile) WriteAt([]byte, int64) (int, error) { return 0, os.ErrPermission }

// Sync implements types.WritableFile.
func (cutFile) Sync() error { return os.ErrPermission }
