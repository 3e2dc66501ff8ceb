package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// ErrDamaged says that a data directory does not hold what a node needs to go on.
var ErrDamaged = errors.New("the data directory is damaged")

// replaceIt is what to do about most damage.
const replaceIt = "replace the node: its peers have the data"

// wholeFile is the place of damage that only a file's one checksum tells, or that leaves nothing of it to read.
const wholeFile = "the whole file"

// DamageError is an ErrDamaged that says where.
type DamageError struct {
	// File is relative to the data directory, Place is where in it.
	File, Place string
	Problem     string
	// Advice is what to do; empty: replace the node, as Error says.
	Advice string
	// cause is what found it; nil: this package did.
	cause error
}

// Error implements error.
func (e *DamageError) Error() string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "%v: %s", ErrDamaged, e.File)
	if e.Place != "" {
		_, _ = fmt.Fprintf(&text, ", %s", e.Place)
	}
	_, _ = fmt.Fprintf(&text, ": %s", e.Problem)
	_, _ = fmt.Fprintf(&text, "; %s", cmp.Or(e.Advice, replaceIt))
	return text.String()
}

// Unwrap implements errors.Unwrap.
func (e *DamageError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrDamaged}
	}
	return []error{ErrDamaged, e.cause}
}

// fileOf returns the file of the data directory in which a store has an entry, or its values with index 0.
func fileOf(store any, index uint64) string {
	if places, ok := store.(interface{ fileOf(index uint64) string }); ok {
		return places.fileOf(index)
	}
	return "the log store"
}

// entryDamage says that an entry in a store is damaged.
func entryDamage(store any, index uint64, problem string, cause error) error {
	return &DamageError{File: fileOf(store, index), Place: fmt.Sprintf("log entry %d", index), Problem: problem, cause: cause}
}

// InDir says which data directory is damaged.
func InDir(dir string, err error) error {
	if errors.Is(err, ErrDamaged) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return err
}

// ErrWiped says that this node is a member whose disk was lost: its votes are forgotten, so it must not come back under
// its old id.
var ErrWiped = errors.New("this node is a member of the cluster, but its disk is empty: remove the member and add it under a new id")

// LostPartError is an ErrWiped that says which part of the disk was lost, or went back to an older state.
type LostPartError struct {
	Dir string
	// Part is the file or folder, relative to the data directory.
	Part    string
	Problem string
}

// Error implements error.
func (e *LostPartError) Error() string {
	return fmt.Sprintf("%s: %s: %s: a part of this node's data is lost, including votes or acknowledged entries; "+
		"remove the member, empty the directory, and add the node under a new id", e.Dir, e.Part, e.Problem)
}

// Unwrap implements errors.Unwrap.
func (*LostPartError) Unwrap() error { return ErrWiped }
