// Package snapshot writes and reads the format of snapshots and backups: magic and version, then records with length
// prefixes. The last record has their count and the checksum of everything before it. Package fsm defines the records.
package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

const (
	// Magic starts every snapshot; the version follows it, big-endian.
	Magic = "QUOTAD-SNAP\n"
	// Version is the highest version of snapshots that this build writes and reads. It also reads all older ones.
	Version = 12
)

// ErrNewer means that a newer build wrote a snapshot: it has a higher version, or unknown fields.
var ErrNewer = errors.New("the snapshot is newer than this binary knows: upgrade it")

// ErrCorrupt means that a snapshot is damaged or truncated.
var ErrCorrupt = errors.New("the snapshot is damaged")

// castagnoli is the table of the checksum's polynomial.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes records and computes count and checksum.
type Writer struct {
	to      *bufio.Writer
	sum     uint32
	records uint64
	buffer  []byte
	err     error
}

// NewWriter begins a snapshot of a version. Finish returns any error.
func NewWriter(to io.Writer, version uint32) *Writer {
	w := &Writer{to: bufio.NewWriterSize(to, 1<<16)}
	w.raw(binary.BigEndian.AppendUint32([]byte(Magic), version))
	return w
}

// Record writes a record, and reports whether to continue.
func (w *Writer) Record(record *logpb.SnapshotRecord) bool {
	if w.err != nil {
		return false
	}
	w.buffer = binary.AppendUvarint(w.buffer[:0], uint64(proto.Size(record)))
	w.buffer, w.err = proto.MarshalOptions{UseCachedSize: true, Deterministic: true}.MarshalAppend(w.buffer, record)
	w.raw(w.buffer)
	w.records++
	return w.err == nil
}

func (w *Writer) raw(data []byte) {
	if w.err == nil {
		w.sum = crc32.Update(w.sum, castagnoli, data)
		_, w.err = w.to.Write(data)
	}
}

// Finish writes the trailer and flushes.
func (w *Writer) Finish() error {
	w.Record(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Trailer{
		Trailer: &logpb.SnapshotTrailer{Records: w.records, Crc32C: w.sum},
	}})
	if w.err == nil {
		w.err = w.to.Flush()
	}
	return w.err
}
