package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxRecordBytes bounds what a reader allocates for one record.
const maxRecordBytes = 64 << 20

// reader reads records and computes count and checksum.
type reader struct {
	from    *bufio.Reader
	version uint32
	sum     uint32
	records uint64
	buffer  []byte
}

// Read calls fn for each record except the trailer, with the snapshot's version, and checks count and checksum. It
// returns ErrNewer, ErrCorrupt, and the errors of r and fn.
func Read(r io.Reader, fn func(version uint32, record *logpb.SnapshotRecord) error) error {
	in := &reader{from: bufio.NewReaderSize(r, 1<<16)}
	if err := in.header(); err != nil {
		return err
	}
	var unknown error
	for {
		sum := in.sum
		record, err := in.record()
		switch {
		case errors.Is(err, entry.ErrUnknownField):
			if unknown == nil {
				unknown = err
			}
			continue // up to the trailer: only a snapshot with a valid checksum is newer, not damaged
		case err != nil:
			return err
		}
		if trailer := record.GetTrailer(); trailer != nil {
			if trailer.Records != in.records-1 || trailer.Crc32C != sum {
				return fmt.Errorf("%w: its checksum or count does not fit", ErrCorrupt)
			}
			if err := in.end(); err != nil {
				return err
			}
			return unknown
		}
		if unknown != nil {
			continue
		}
		if err := fn(in.version, record); err != nil {
			return err
		}
	}
}

// end checks that nothing follows the trailer.
func (r *reader) end() error {
	switch _, err := r.from.ReadByte(); {
	case err == nil:
		return fmt.Errorf("%w: something follows its end", ErrCorrupt)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

func (r *reader) header() error {
	header := make([]byte, len(Magic)+4)
	if _, err := io.ReadFull(r.from, header); err != nil {
		return cutOff(err)
	}
	r.sum = crc32.Update(0, castagnoli, header)
	if string(header[:len(Magic)]) != Magic {
		return fmt.Errorf("%w: it does not begin as one", ErrCorrupt)
	}
	r.version = binary.BigEndian.Uint32(header[len(Magic):])
	switch {
	case r.version == 0:
		return fmt.Errorf("%w: version 0", ErrCorrupt)
	case r.version > Version:
		return fmt.Errorf("%w (it has %d, this is %d)", ErrNewer, r.version, Version)
	}
	return nil
}

func (r *reader) record() (*logpb.SnapshotRecord, error) {
	size, err := binary.ReadUvarint(r.from)
	if err != nil {
		return nil, cutOff(err)
	}
	if size > maxRecordBytes {
		return nil, fmt.Errorf("%w: a record of %d bytes", ErrCorrupt, size)
	}
	r.sum = crc32.Update(r.sum, castagnoli, binary.AppendUvarint(nil, size))
	if err := r.fill(int(size)); err != nil {
		return nil, err
	}
	r.sum = crc32.Update(r.sum, castagnoli, r.buffer)
	r.records++
	record := new(logpb.SnapshotRecord)
	if err := proto.Unmarshal(r.buffer, record); err != nil {
		return nil, fmt.Errorf("%w: record %d: %w", ErrCorrupt, r.records, err)
	}
	if err := entry.KnownRecord.Check(r.buffer); err != nil {
		return nil, fmt.Errorf("%w: record %d: %w", ErrNewer, r.records, err)
	}
	return record, nil
}

// fill reads size bytes into the buffer, growing it as they arrive: a wrong length allocates no more than there is.
func (r *reader) fill(size int) error {
	const step = 1 << 20
	r.buffer = r.buffer[:0]
	for len(r.buffer) < size {
		start := len(r.buffer)
		r.buffer = append(r.buffer, make([]byte, min(step, size-start))...)
		if _, err := io.ReadFull(r.from, r.buffer[start:]); err != nil {
			return cutOff(err)
		}
	}
	return nil
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut off", ErrCorrupt)
	}
	return err
}
