package logstore

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Functions and names with which tests of whole nodes inspect and change a stopped node's data directory.
var (
	BothStores     = bothStores
	OpenRaw        = openRaw
	Flip           = flip
	FlipSeed       = flipSeed
	Segments       = segments
	Overwrite      = overwrite
	ReadWitness    = readWitness
	Rewitness      = rewitness
	WithoutReserve = withoutReserve
	StableOf       = stableOf
	NewNonce       = newNonce
	PartNames      = partNames
	PartSum        = partSum
	KeyTerm        = keyTerm
	KeyVote        = keyVote
	KeyVoteTerm    = keyVoteTerm
	KeyWitness     = keyWitness
)

// WitnessFile and WALMetaFile are file names.
const (
	WitnessFile = witnessFile
	WALMetaFile = walMetaFile
)

type (
	// Witness is the content of the witness.
	Witness = witness
	// Stable has a store's values.
	Stable = stable
)

// UsedBytes returns the offsets of the bytes that the newest transaction of a bbolt file uses: those of its pages, of both meta pages and
// of the list of free pages, without the zeros at their ends.
func UsedBytes(t *testing.T, path string) (used []int64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := &boltPages{
		file: bytes.NewReader(data), size: int64(len(data)), name: filepath.Base(path), reached: map[uint64]bool{0: true, 1: true},
	}
	root, freelist, err := p.meta()
	if err == nil {
		err = p.tree(root, nil, nil, 0, true)
	}
	if err == nil && freelist != boltNoFreelist {
		_, _, _, err = p.page(freelist)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range slices.Sorted(maps.Keys(p.reached)) {
		begin := page * p.pageSize
		for at := range bytes.TrimRight(data[begin:begin+p.pageSize], "\x00") {
			used = append(used, int64(begin)+int64(at))
		}
	}
	return used
}

// Path is where a store is in a data directory.
func (s Kind) Path(dir string) string { return s.path(dir) }

// Number returns a number.
func (s *stable) Number(key []byte) (uint64, error) { return s.number(key) }

// Value returns a value.
func (s *stable) Value(key []byte) ([]byte, error) { return s.get(key) }

// SetNumber writes a number.
func (s *stable) SetNumber(key []byte, number uint64) error { return s.setNumber(key, number) }

// SetValue writes a value.
func (s *stable) SetValue(key, value []byte) error { return s.set(key, value) }

// SetPlain writes a number without its checksum.
func (s *stable) SetPlain(key []byte, number uint64) error { return s.store.SetUint64(key, number) }

// Bound says whether the log store is bound to the witness.
func (w *witness) Bound() bool { return w.bound }

// Terms returns the term and the term of the vote.
func (w *witness) Terms() (term, voteTerm uint64) { return w.term, w.voteTerm }

// Snapshot is the index of the newest verified snapshot.
func (w *witness) Snapshot() uint64 { return w.snapshot }

// Part returns the checksum of a small file.
func (w *witness) Part(name string) uint32 { return *w.part(name) }

// ForgetSnapshot removes the snapshot from the witness.
func (w *witness) ForgetSnapshot() { w.snapshot, w.snapshotTerm, w.snapshotMeta = 0, 0, 0 }

// Values returns the values of a directory opened for reading.
func (o *Offline) Values() (*stable, error) { return stableOf(o.store) }
