package logstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// Keys of the values that raft keeps outside the log: its term and its last vote.
var (
	keyTerm     = []byte("CurrentTerm")
	keyVoteTerm = []byte("LastVoteTerm")
	keyVote     = []byte("LastVoteCand")
	// keyWitness is quotad's own: the nonce of the directory to which the store belongs.
	keyWitness = []byte("Witness")

	stableNumbers = [][]byte{keyTerm, keyVoteTerm}
	stableValues  = [][]byte{keyVote}
)

// stable reads and writes a store's values, each followed by a checksum, since neither store has one. Values written by older versions have
// none until the directory is bound to its witness.
type stable struct {
	store raft.StableStore
	// bound: a value without a checksum is damaged.
	bound bool
}

// stableOf returns a store's values, bound if the store is.
func stableOf(store raft.StableStore) (*stable, error) {
	s := &stable{store: store}
	raw, err := store.Get(keyWitness)
	if isMissing(err) || err == nil && len(raw) == 0 {
		return s, nil
	}
	s.bound = true
	if err == nil {
		_, err = s.get(keyWitness)
	}
	return s, err
}

func valueSum(key, value []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
	return binary.BigEndian.AppendUint32(nil, sum)
}

// set writes a value with its checksum.
func (s *stable) set(key, value []byte) error {
	return s.store.Set(key, append(bytes.Clone(value), valueSum(key, value)...))
}

// get returns a value; nil: the store has none.
func (s *stable) get(key []byte) ([]byte, error) {
	raw, err := s.store.Get(key)
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil || len(raw) == 0:
		return nil, err
	}
	if at := len(raw) - crc32.Size; at >= 0 && bytes.Equal(raw[at:], valueSum(key, raw[:at])) {
		return bytes.Clone(raw[:at]), nil
	}
	if s.bound {
		return nil, s.damaged(key, "checksum mismatch")
	}
	return bytes.Clone(raw), nil
}

func (s *stable) setNumber(key []byte, number uint64) error {
	return s.set(key, binary.BigEndian.AppendUint64(nil, number))
}

// number returns a number; 0: the store has none.
func (s *stable) number(key []byte) (uint64, error) {
	raw, err := s.get(key)
	switch {
	case err != nil || raw == nil:
		return 0, err
	case !s.bound && s.plain(key):
		return s.store.GetUint64(key) // each store has its own encoding
	case len(raw) != 8:
		return 0, s.damaged(key, fmt.Sprintf("%d bytes, not 8", len(raw)))
	}
	return binary.BigEndian.Uint64(raw), nil
}

// plain says whether a number has no checksum.
func (s *stable) plain(key []byte) bool {
	raw, err := s.store.Get(key)
	return err == nil && len(raw) == 8
}

func (s *stable) damaged(key []byte, problem string) error {
	return &DamageError{File: fileOf(s.store, 0), Place: string(key), Problem: problem}
}

// bind adds checksums to all values, and then binds the store to its directory's nonce.
func (s *stable) bind(nonce string) error {
	for _, key := range stableNumbers {
		number, err := s.number(key)
		if err == nil && number != 0 {
			err = s.setNumber(key, number)
		}
		if err != nil {
			return err
		}
	}
	for _, key := range stableValues {
		value, err := s.get(key)
		if err == nil && value != nil {
			err = s.set(key, value)
		}
		if err != nil {
			return err
		}
	}
	if err := s.set(keyWitness, []byte(nonce)); err != nil {
		return err
	}
	s.bound = true
	return nil
}

// copyStable copies all values to another store.
func copyStable(to, from *stable) error {
	for _, key := range stableNumbers {
		number, err := from.number(key)
		if err == nil && number != 0 {
			err = to.setNumber(key, number)
		}
		if err != nil {
			return err
		}
	}
	for _, key := range append([][]byte{keyWitness}, stableValues...) {
		value, err := from.get(key)
		if err == nil && value != nil {
			err = to.set(key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compareStable returns an error that names the first difference between the values of two stores.
func compareStable(a, b *stable) error {
	for _, key := range stableNumbers {
		one, errA := a.number(key)
		other, errB := b.number(key)
		if err := firstError(errA, errB); err != nil {
			return err
		}
		if one != other {
			return badCopy(a.store, string(key), fmt.Sprintf("%d instead of %d", one, other))
		}
	}
	for _, key := range append([][]byte{keyWitness}, stableValues...) {
		one, errA := a.get(key)
		other, errB := b.get(key)
		if err := firstError(errA, errB); err != nil {
			return err
		}
		if !bytes.Equal(one, other) {
			return badCopy(a.store, string(key), fmt.Sprintf("%q instead of %q", one, other))
		}
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
