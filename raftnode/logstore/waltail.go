package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// walMeta tells raft-wal which files make up the log. On load it reads the files and makes up for faults of raft-wal, which
//
//   - takes damage anywhere in the last file for the end of the log, and silently loses the acknowledged entries after it;
//   - is misled by what a torn append leaves after the end: by an index in it (then no append succeeds any more), and by older remains that
//     happen to follow directly on a second torn append (then that append counts);
//   - keeps a file that was full, but without a successor when the process ended, as the last file, to which no append is possible;
//   - creates a deleted last file again, empty;
//   - verifies no checksum of the files before the last one.
type walMeta struct {
	walDB
	// end is the index of the last complete entry, endByte the offset of its end in the last file.
	end     uint64
	endByte int
	// damage is the damage found if readOnly is set; otherwise Load returns it.
	damage error
}

// Load implements types.MetaStore.
func (m *walMeta) Load(dir string) (types.PersistentState, error) {
	state, err := m.walDB.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return state, err
	}
	for i := range state.Segments[:len(state.Segments)-1] {
		if err := checkSealed(dir, &state.Segments[i], state.Segments[i+1].BaseIndex); err != nil {
			if !m.readOnly {
				return state, err
			}
			m.damage = err
		}
	}
	info := &state.Segments[len(state.Segments)-1]
	if !info.SealTime.IsZero() {
		m.end = info.MaxIndex
		return state, checkSealed(dir, info, info.MaxIndex+1)
	}
	path := filepath.Join(dir, segment.FileName(*info))
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist): // if the process ended before the file was created, raft-wal creates it
		err = m.notMade(info.ID, path)
	case err == nil:
		err = m.cutOff(info.ID, path, len(data))
	}
	if err != nil {
		return state, err
	}
	data = withoutReserve(data)
	tail, err := readTail(data)
	if err != nil {
		err = &DamageError{File: filepath.Join("wal", segment.FileName(*info)), Place: fmt.Sprintf("byte %d", tail.end), Problem: err.Error()}
		if !m.readOnly {
			return state, err
		}
		m.damage = err
	} else if !m.readOnly {
		if err := wipe(path, data, tail.end); err != nil {
			return state, err
		}
	}
	m.endByte = tail.end
	m.end = info.BaseIndex + tail.entries - 1
	if tail.entries == 0 && len(state.Segments) == 1 {
		m.end = 0
	}
	if tail.index == 0 {
		return state, nil
	}
	follow(&state, tail)
	return state, m.CommitState(state)
}

// checkSealed checks a closed file: it must consist of complete appends up to its index.
func checkSealed(dir string, info *types.SegmentInfo, next uint64) error {
	name := segment.FileName(*info)
	damaged := func(at int, format string, args ...any) error {
		return &DamageError{File: filepath.Join("wal", name), Place: fmt.Sprintf("byte %d", at), Problem: fmt.Sprintf(format, args...)}
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return &LostPartError{Dir: filepath.Dir(dir), Part: filepath.Join("wal", name), Problem: "missing"}
	}
	if err != nil {
		return err
	}
	tail, err := readTail(withoutReserve(data))
	switch {
	case err != nil:
		return damaged(tail.end, "%v", err)
	case tail.index != info.IndexStart || info.SealTime.IsZero():
		return damaged(tail.end, "incomplete: its index is at %d, not at %d", tail.index, info.IndexStart)
	case info.MaxIndex < info.MinIndex || info.MinIndex < info.BaseIndex || info.BaseIndex+tail.entries <= info.MaxIndex ||
		next != info.MaxIndex+1:
		return damaged(tail.end, "its %d entries differ from the listed %d to %d; the next is %d", tail.entries, info.MinIndex, info.MaxIndex,
			next)
	}
	return nil
}

// wipe overwrites what a torn append left at the end of a file. It was never acknowledged.
func wipe(path string, data []byte, end int) error {
	rest := bytes.TrimRight(data[end:], "\x00")
	if len(rest) == 0 {
		return nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(make([]byte, len(rest)), int64(end))
	return errors.Join(err, file.Sync(), file.Close())
}

// withoutReserve cuts off most of a file's reserved space, which is large and all zeros.
func withoutReserve(data []byte) []byte {
	var zeros [64 << 10]byte
	for len(data) > len(zeros) && bytes.Equal(data[len(data)-len(zeros):], zeros[:]) {
		data = data[:len(data)-len(zeros)]
	}
	return data
}

// follow closes a full file and adds the next one to the list, as raft-wal does in the background.
func follow(state *types.PersistentState, tail tailInfo) {
	full := &state.Segments[len(state.Segments)-1]
	full.SealTime, full.MaxIndex, full.IndexStart = time.Now(), full.BaseIndex+tail.entries-1, tail.index
	next := *full
	next.ID, next.BaseIndex, next.MinIndex = state.NextSegmentID, full.MaxIndex+1, full.MaxIndex+1
	next.MaxIndex, next.IndexStart, next.SealTime, next.CreateTime = 0, 0, time.Time{}, time.Now()
	state.NextSegmentID++
	state.Segments = append(state.Segments, next)
}

// CommitState implements types.MetaStore.
func (m *walMeta) CommitState(state types.PersistentState) error {
	if m.readOnly {
		return nil
	}
	for i := range state.Segments {
		state.Segments[i].Codec = walCodecID // see walFiler
	}
	return m.walDB.CommitState(state)
}

// Format of raft-wal's files: a header, and frames padded to 8 bytes. Each frame has a head of 8 bytes: its kind, three zeros, and a length
// or a checksum. An append is entries, optionally an index of the file, and a commit with the checksum of the append.
const (
	walHeader   = 32
	frameHead   = 8
	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3
)

// tailInfo describes the complete appends of a file.
type tailInfo struct {
	// entries is their number of entries. index is the offset of a full file's index; 0: the file is not full.
	entries, index uint64
	// end is the offset at which the last complete append ends; 0: there is none, and even the header may be incomplete.
	end int
}

// errLostAppends says that complete appends follow a broken one. An append begins only after the one before is durable, so this is not a
// torn write but damage to acknowledged entries.
var errLostAppends = errors.New("an append is damaged, but complete ones follow it")

// readTail reads a file up to the end of its last complete append.
func readTail(data []byte) (tailInfo, error) {
	var tail tailInfo
	from, at := 0, walHeader // the first append's checksum covers the header too
	for {
		one, next := readAppend(data, from, at)
		if next == 0 {
			break
		}
		tail.entries += one.entries
		if one.index > 0 {
			tail.index = one.index
		}
		tail.end, from, at = next, next, next
	}
	for ; at+frameHead <= len(data); at += frameHead {
		if binary.LittleEndian.Uint64(data[at:]) == 0 {
			continue
		}
		if _, next := readAppend(data, at, at); next > 0 {
			return tail, errLostAppends
		}
	}
	return tail, nil
}

// readAppend reads the append whose frames begin at offset at; its checksum covers the bytes from offset from. next is where it ends; 0: it
// is incomplete.
func readAppend(data []byte, from, at int) (one tailInfo, next int) {
	for begin := at; at+frameHead <= len(data); {
		head := data[at : at+frameHead]
		if head[1] != 0 || head[2] != 0 || head[3] != 0 {
			return one, 0
		}
		value := binary.LittleEndian.Uint32(head[4:])
		switch head[0] {
		case frameEntry:
			one.entries++
		case frameIndex:
			one.index = uint64(at + frameHead)
		case frameCommit:
			if at == begin || crc32.Checksum(data[from:at], castagnoli) != value {
				return one, 0
			}
			return one, at + frameHead
		default:
			return one, 0
		}
		at += frameHead + (int(value)+frameHead-1)/frameHead*frameHead
	}
	return one, 0
}
