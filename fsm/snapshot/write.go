// Package snapshot writes and reads the form of snapshots and backups: magic and version, then records with their length before them, the
// last of which has their count and the checksum of everything before it. What the records say is package fsm's.
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
	// Version is the highest version of snapshots that this build writes and reads. It reads all before it.
	Version = 12
)

// ErrNewer says that a snapshot was written by a newer version than this one knows: it has a higher version, or fields that are not known
// here.
var ErrNewer = errors.New("the snapshot is newer than this binary knows: upgrade it")

// ErrCorrupt says that a snapshot is damaged or cut off.
var ErrCorrupt = errors.New("the snapshot is damaged")

// castagnoli is the polynomial of the checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes records and keeps count and checksum.
type Writer struct {
	to      *bufio.Writer
	sum     uint32
	records uint64
	buffer  []byte
	err     error
}

// NewWriter begins a snapshot of a version. What goes wrong is said by Finish.
func NewWriter(to io.Writer, version uint32) *Writer {
	w := &Writer{to: bufio.NewWriterSize(to, 1<<16)}
	w.raw(binary.BigEndian.AppendUint32([]byte(Magic), version))
	return w
}

// Record writes a record, and tells whether to go on.
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

// Finish writes the trailer, and everything out.
func (w *Writer) Finish() error {
	w.Record(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Trailer{
		Trailer: &logpb.SnapshotTrailer{Records: w.records, Crc32C: w.sum},
	}})
	if w.err == nil {
		w.err = w.to.Flush()
	}
	return w.err
}
