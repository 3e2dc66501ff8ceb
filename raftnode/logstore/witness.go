package logstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// The witness is a second, checksummed record of what the rest of a data directory must hold: term and vote, a log entry known to be
// synced, the newest verified snapshot, and the checksums of the small files. A disk that lost a part of this, or went back to an older
// state, contradicts its witness and is refused.
//
// The file has two slots that are written in turn, so that an interrupted write damages only the older one. A slot is one sector, which a
// disk writes whole or not at all, at the start of its own page.
const (
	witnessFile  = "witness"
	witnessPage  = 4096
	witnessSize  = 512
	witnessMagic = "QUOTAD-WITNESS\n\x01"
)

// Small files whose checksums are in the witness, in the order of witness.parts.
var partNames = [...]string{NodeFile, NonceFile, ClusterFile, FormedFile, JoinedFile}

// witness is the content of one slot. Everything in it was durable elsewhere before it was written.
type witness struct {
	sequence uint64
	// bound: the log store carries this directory's nonce, which tells it from the store of another directory.
	bound bool
	// term and voteTerm are raft's; voteFor is the digest of the candidate voted for.
	term, voteTerm uint64
	voteFor        [8]byte
	// index is a synced entry, entryTerm its term; 0: unknown. The log was not cut below index since.
	index, entryTerm uint64
	// snapshot is the index of the newest verified snapshot, snapshotMeta the checksum of its description.
	snapshot, snapshotTerm uint64
	snapshotMeta           uint32
	// parts has the checksums of the small files; 0: the file was not written yet.
	parts [len(partNames)]uint32
}

// started says whether the disk took part in a cluster: such a disk has a term.
func (w *witness) started() bool { return w.term > 0 || w.index > 0 || w.snapshot > 0 }

// digest identifies a candidate.
func digest(candidate []byte) (short [8]byte) {
	if len(candidate) > 0 {
		sum := sha256.Sum256(candidate)
		copy(short[:], sum[:])
	}
	return short
}

// partSum returns the checksum of a small file; never 0.
func partSum(content []byte) uint32 { return max(crc32.Checksum(content, castagnoli), 1) }

func (w *witness) encode() []byte {
	out := append(make([]byte, 0, witnessSize), witnessMagic...)
	bound := uint64(0)
	if w.bound {
		bound = 1
	}
	for _, number := range []uint64{w.sequence, bound, w.term, w.voteTerm, w.index, w.entryTerm, w.snapshot, w.snapshotTerm} {
		out = binary.BigEndian.AppendUint64(out, number)
	}
	out = binary.BigEndian.AppendUint32(append(out, w.voteFor[:]...), w.snapshotMeta)
	for _, sum := range w.parts {
		out = binary.BigEndian.AppendUint32(out, sum)
	}
	out = out[:witnessSize-crc32.Size] // zeros
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func decodeWitness(data []byte) (*witness, error) {
	body := data[:witnessSize-crc32.Size]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(data[len(body):]) {
		return nil, errors.New("checksum mismatch")
	}
	if !bytes.HasPrefix(body, []byte(witnessMagic)) {
		return nil, errors.New("unknown version")
	}
	body = body[len(witnessMagic):]
	next := func() uint64 {
		number := binary.BigEndian.Uint64(body)
		body = body[8:]
		return number
	}
	w := &witness{sequence: next()}
	w.bound = next() == 1
	w.term, w.voteTerm, w.index, w.entryTerm, w.snapshot, w.snapshotTerm = next(), next(), next(), next(), next(), next()
	copy(w.voteFor[:], body)
	body = body[len(w.voteFor):]
	w.snapshotMeta = binary.BigEndian.Uint32(body)
	for i := range w.parts {
		body = body[4:]
		w.parts[i] = binary.BigEndian.Uint32(body)
	}
	return w, nil
}

// readWitness reads the newest slot. damage reports that the other slot is damaged. If there is no witness file, all results are nil.
func readWitness(dir string) (newest *witness, damage, err error) {
	data, err := os.ReadFile(filepath.Join(dir, witnessFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	case len(data) < witnessPage+witnessSize:
		return nil, nil, &DamageError{File: witnessFile, Place: fmt.Sprintf("%d bytes long", len(data)), Problem: "truncated"}
	}
	for slot := range 2 {
		w, err := decodeWitness(data[slot*witnessPage:][:witnessSize])
		switch {
		case err != nil && damage != nil:
			return nil, nil, &DamageError{File: witnessFile, Place: "both slots", Problem: err.Error()}
		case err != nil:
			damage = &DamageError{
				File: witnessFile, Place: fmt.Sprintf("slot %d", slot), Problem: err.Error(),
				Advice: "the other slot is intact: start the node, which writes this one again",
			}
		case newest == nil || w.sequence > newest.sequence:
			newest = w
		}
	}
	return newest, damage, nil
}

// createWitness creates the witness file: both slots, then its name.
func createWitness(dir string, w *witness) error {
	data := make([]byte, witnessPage+witnessSize)
	w.sequence = 1
	copy(data[witnessPage:], w.encode())
	older := *w
	older.sequence = 0
	copy(data, older.encode())
	return writeDurably(filepath.Join(dir, witnessFile), string(data))
}

// write replaces the older slot.
func (w *witness) write(file *os.File) error {
	w.sequence++
	if _, err := file.WriteAt(w.encode(), int64(w.sequence%2)*witnessPage); err != nil {
		return err
	}
	return syncData(file)
}
