package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	walmetrics "github.com/hashicorp/raft-wal/metrics"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

const (
	// walMetaFile is the name of the file that exists once the store is complete.
	walMetaFile = metadb.FileName
	// walSegment is the size of a file of the log, in bytes. The space of the next file is reserved in advance. Two files are the default of
	// disk.stop_below, so that a node stops for lack of space before its log does.
	walSegment = 16 << 20
)

// walLog is the store of kind WAL: raft-wal plus what it lacks.
//
//   - Entries have a checksum that is verified on reads.
//   - Damage in the middle of the last file is distinguished from a write that a power cut tore.
//   - If the last file was full at a power cut, a new one follows.
//   - A file that cannot be created ends the node.
//   - One process at a time has the store open.
//
// walLog is not "monotonic" in raft's sense. For a monotonic store raft clears the whole log after every snapshot from a leader, including
// acknowledged entries beyond the snapshot.
type walLog struct {
	*wal.WAL
	snapshot func() (uint64, error)
	lock     *os.File
	// damage is the damage found when the store was opened for reading only.
	damage error
	dir    string
	// mu keeps Close apart from reads: during its Close, raft-wal has no state to read.
	mu sync.RWMutex
}

func openWAL(dir string, o storeOptions) (log *walLog, err error) {
	if !o.readOnly {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	if o.judge != nil && !o.readOnly {
		if err := judgeWAL(dir, o.judge); err != nil {
			return nil, err
		}
	}
	if log, err = openWALFiles(dir, o); err != nil {
		return nil, err
	}
	log.lock = lock
	return log, nil
}

// judgeWAL checks an existing store before anything in it changes: opening it for writing creates files, removes those missing in its list,
// and drops torn appends.
func judgeWAL(dir string, judge func(Store) error) error {
	log, err := openWALFiles(dir, storeOptions{readOnly: true})
	if err != nil {
		return err
	}
	return errors.Join(firstError(log.damage, judge(log)), log.WAL.Close())
}

// openWALFiles opens a store that this process has locked.
func openWALFiles(dir string, o storeOptions) (*walLog, error) {
	meta := &walMeta{walDB: walDB{readOnly: o.readOnly}}
	files := &walFiles{failed: o.failed, readOnly: o.readOnly, meta: meta}
	logger := o.logger
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	log, err := wal.Open(dir,
		wal.WithCodec(walCodec{}), wal.WithSegmentFiler(walFiler{segment.NewFiler(dir, files)}), wal.WithMetaStore(meta),
		wal.WithSegmentSize(walSegment), wal.WithLogger(logger),
		wal.WithMetricsCollector(walmetrics.NewGoMetricsCollector([]string{"raft", "wal"}, nil, nil)))
	if err != nil {
		_ = meta.Close()
		if (errors.Is(err, wal.ErrCorrupt) || errors.Is(err, os.ErrNotExist)) && !errors.Is(err, ErrDamaged) {
			err = &DamageError{File: filepath.Base(dir), Place: "the files of the log", Problem: err.Error(), cause: err}
		}
		return nil, err
	}
	l := &walLog{WAL: log, snapshot: o.snapshot, damage: meta.damage, dir: dir}
	if err := l.endsAt(meta.end); err != nil {
		_ = log.Close()
		return nil, err
	}
	return l, nil
}

// endsAt checks that raft-wal finds the same end of the log as walMeta: raft-wal verifies the checksum of the last append only.
func (l *walLog) endsAt(end uint64) error {
	last, err := l.LastIndex()
	if err == nil && last != end && l.damage == nil {
		err = entryDamage(l, end, fmt.Sprintf("the last complete one, but the log ends at %d", last), nil)
	}
	return err
}

// fileOf serves the function fileOf. It returns the last file whose first entry is not after the index.
func (l *walLog) fileOf(index uint64) string {
	if index == 0 {
		return filepath.Join(filepath.Base(l.dir), walMetaFile)
	}
	name := ""
	files, _ := os.ReadDir(l.dir) // sorted by first entry
	for _, file := range files {
		var first, id uint64
		if _, err := fmt.Sscanf(file.Name(), "%020d-%016x.wal", &first, &id); err == nil && first <= index {
			name = file.Name()
		}
	}
	return filepath.Join(filepath.Base(l.dir), name)
}

// lockDir locks a store for this process.
func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for started := time.Now(); ; {
		taken, err := tryLock(lock, false)
		switch {
		case taken:
			return lock, nil
		case err != nil:
			_ = lock.Close()
			return nil, fmt.Errorf("locking %s: %w", dir, err)
		case time.Since(started) > lockPatience:
			_ = lock.Close()
			return nil, fmt.Errorf("%w: %s", ErrDataDirInUse, filepath.Dir(dir))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// CutAtOnce implements Store: a cut only changes a small file.
func (*walLog) CutAtOnce() uint64 { return unbounded }

// IsMonotonic hides raft-wal's own answer: see walLog.
func (*walLog) IsMonotonic() bool { return false }

// StoreLogs implements raft.LogStore. After a snapshot from a leader, or a restore, raft continues after it, and the snapshot covers the
// gap in the log. raft-wal allows no gaps, so the entries before are deleted.
func (l *walLog) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 && logs[0].Index > last+1 {
		if err := l.cutBehindSnapshot(last, logs[0].Index); err != nil {
			return err
		}
	}
	return l.WAL.StoreLogs(logs)
}

// StoreLog implements raft.LogStore.
func (l *walLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

func (l *walLog) cutBehindSnapshot(last, next uint64) error {
	covered := uint64(0)
	if l.snapshot != nil {
		var err error
		if covered, err = l.snapshot(); err != nil {
			return err
		}
	}
	if next > covered+1 {
		return entryDamage(l, last, fmt.Sprintf("entry %d must follow, but the newest snapshot ends at %d", next, covered), nil)
	}
	return l.DeleteRange(0, last)
}

// FirstIndex implements raft.LogStore.
func (l *walLog) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.WAL.FirstIndex()
}

// LastIndex implements raft.LogStore.
func (l *walLog) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.WAL.LastIndex()
}

// GetLog implements raft.LogStore. raft-wal would still find entries that were cut off from the beginning of the last file.
func (l *walLog) GetLog(index uint64, log *raft.Log) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	first, err := l.WAL.FirstIndex()
	if err != nil {
		return err
	}
	if first == 0 || index < first {
		return raft.ErrLogNotFound
	}
	return l.WAL.GetLog(index, log)
}

// Close closes the store.
func (l *walLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.WAL.Close(), l.lock.Close())
}

// walCodec encodes an entry as raft-wal does, followed by a checksum. raft-wal verifies no checksum on reads, and its decoder trusts
// lengths: damaged data must not reach it.
type walCodec struct{ wal.BinaryCodec }

// walCodecID names the codec in every file. It stays the same as long as the encoding does.
const walCodecID = wal.FirstExternalCodecID + 1

// walFiler writes the codec's number into the header of a new file, as walMeta.CommitState writes it into the list of files. raft-wal
// accepts custom codecs, but writes the number of its own codec and then refuses the files on reads.
type walFiler struct{ *segment.Filer }

// Create implements types.SegmentFiler.
func (f walFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	info.Codec = walCodecID
	return f.Filer.Create(info)
}

// ID implements wal.Codec.
func (walCodec) ID() uint64 { return walCodecID }

// Encode implements wal.Codec.
func (c walCodec) Encode(log *raft.Log, w io.Writer) error {
	sum := crc32.New(castagnoli)
	if err := c.BinaryCodec.Encode(log, io.MultiWriter(w, sum)); err != nil {
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

// Decode implements wal.Codec.
func (c walCodec) Decode(data []byte, log *raft.Log) error {
	at := len(data) - crc32.Size
	if at < 0 {
		return errors.New("too short")
	}
	sum := crc32.New(castagnoli)
	_, _ = sum.Write(data[:at])
	if !bytes.Equal(sum.Sum(nil), data[at:]) {
		return errors.New("checksum mismatch")
	}
	return c.BinaryCodec.Decode(data[:at], log)
}
