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
	// walMetaFile is the file that is there once the store was made.
	walMetaFile = metadb.FileName
	// walSegment is how large a file of the log is made, in bytes. The next one is reserved whole: two of them are the
	// default of disk.stop_below, so that a node stops for want of space before its log does.
	walSegment = 16 << 20
)

// walLog is WAL: raft-wal, with what it leaves to others. Entries have a checksum that is looked at when they are
// read; damage in the middle of the last file is told from a write that was torn by a power cut; a last file that was
// full when the power went is followed by a new one; a file that cannot be made ends the node; one process at a time has it
// open. To raft it is a store like the other one, not a "monotonic" one: then raft would clear the whole log after every
// snapshot that it is given, what is beyond the snapshot and acknowledged included.
type walLog struct {
	*wal.WAL
	snapshot func() (uint64, error)
	lock     *os.File
	// damage is what was found when a store was opened for reading only.
	damage error
	dir    string
	// mu keeps Close from those who read: in the middle of it raft-wal has no state to read.
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

// judgeWAL judges an existing store that nothing has changed yet: opening it makes files, removes those that its list lacks, and drops what
// a torn append left.
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

// endsAt checks that raft-wal takes the log to end where we do. It does not look at the sums of appends but the last one.
func (l *walLog) endsAt(end uint64) error {
	last, err := l.LastIndex()
	if err == nil && last != end && l.damage == nil {
		err = entryDamage(l, end, fmt.Sprintf("the last complete one, but the log ends at %d", last), nil)
	}
	return err
}

// fileOf is for fileOf: the file that begins last of those that begin at an entry or before it.
func (l *walLog) fileOf(index uint64) string {
	if index == 0 {
		return filepath.Join(filepath.Base(l.dir), walMetaFile)
	}
	name := ""
	files, _ := os.ReadDir(l.dir) // sorted by where they begin
	for _, file := range files {
		var first, id uint64
		if _, err := fmt.Sscanf(file.Name(), "%020d-%016x.wal", &first, &id); err == nil && first <= index {
			name = file.Name()
		}
	}
	return filepath.Join(filepath.Base(l.dir), name)
}

// lockDir takes a store for this process.
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

// CutAtOnce implements Store: what is cut off is a line in a small file.
func (*walLog) CutAtOnce() uint64 { return unbounded }

// IsMonotonic hides what raft-wal says of itself: see walLog.
func (*walLog) IsMonotonic() bool { return false }

// StoreLogs implements raft.LogStore. After a snapshot from a leader, or a restore, raft goes on behind it, with a gap in the
// log that the snapshot stands for. raft-wal has no gaps, so what was before is cut off.
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

// GetLog implements raft.LogStore. What is cut off from the beginning of the last file raft-wal would still find.
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

// walCodec writes an entry as raft-wal does, with its checksum behind it. raft-wal checks no sum when it reads, and its
// decoder trusts lengths: what is damaged must not reach it.
type walCodec struct{ wal.BinaryCodec }

// walCodecID names the codec in every file. It stays the same for as long as the codec does.
const walCodecID = wal.FirstExternalCodecID + 1

// walFiler writes the codec's number into the head of a new file, as walMeta.CommitState writes it into the list of files:
// raft-wal takes other codecs than its own, but writes its own one's number, and refuses the files when it reads them.
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
