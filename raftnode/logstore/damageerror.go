package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// ErrDamaged says that a data directory lacks data that a node needs, or holds wrong data.
var ErrDamaged = errors.New("the data directory is damaged")

// replaceIt is the advice for most damage.
const replaceIt = "replace the node: its peers have the data"

// wholeFile is the place of damage that only a checksum over the whole file detects, or that leaves the file unreadable.
const wholeFile = "the whole file"

// DamageError is an ErrDamaged with the place of the damage.
type DamageError struct {
	// File is relative to the data directory, Place is a position in it.
	File, Place string
	Problem     string
	// Advice is the way out; empty: Error says to replace the node.
	Advice string
	// cause is the error that revealed the damage; nil: this package found it.
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

// fileOf returns the file of the data directory in which a store keeps an entry; index 0 stands for its values.
func fileOf(store any, index uint64) string {
	if places, ok := store.(interface{ fileOf(index uint64) string }); ok {
		return places.fileOf(index)
	}
	return "the log store"
}

// entryDamage returns a DamageError for an entry of a store.
func entryDamage(store any, index uint64, problem string, cause error) error {
	return &DamageError{File: fileOf(store, index), Place: fmt.Sprintf("log entry %d", index), Problem: problem, cause: cause}
}

// InDir adds the name of the data directory to an ErrDamaged.
func InDir(dir string, err error) error {
	if errors.Is(err, ErrDamaged) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return err
}

// ErrWiped says that this node is a member whose disk was lost. Its votes are lost too, so it must not return under its old id.
var ErrWiped = errors.New("this node is a member of the cluster, but its disk is empty: remove the member and add it under a new id")

// LostPartError is an ErrWiped that names the part of the disk that was lost or went back to an older state.
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
