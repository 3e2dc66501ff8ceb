package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// VerifySnapshot returns the error of Restore for a snapshot, nil if Restore would accept it. It reads the snapshot
// once, and temporarily needs the memory of the state in it.
func VerifySnapshot(r io.Reader) error {
	_, err := Restore(r)
	return err
}

// VerifyWritten checks that a snapshot is of this state: the state must be consistent, and each byte must equal the
// output of WriteSnapshot. Its memory does not grow with the state. Tests show that Restore accepts each consistent
// state; callers with enough memory use VerifySnapshot too.
func (s *State) VerifyWritten(r io.Reader) error {
	if err := s.Verify(); err != nil {
		return fmt.Errorf("%w: the state does not add up: %w", ErrCorruptSnapshot, err)
	}
	compared := &comparing{with: r}
	if err := s.WriteSnapshot(compared); err != nil {
		return err
	}
	return compared.ended()
}

// comparing is a writer that compares its input with a reader.
type comparing struct {
	with io.Reader
	read []byte
	at   int64
}

// Write implements io.Writer.
func (c *comparing) Write(p []byte) (int, error) {
	c.read = slices.Grow(c.read[:0], len(p))[:len(p)]
	switch n, err := io.ReadFull(c.with, c.read); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, fmt.Errorf("%w: it ends at byte %d", ErrCorruptSnapshot, c.at+int64(n))
	case err != nil:
		return 0, err
	}
	if !bytes.Equal(c.read, p) {
		return 0, fmt.Errorf("%w: it is not what was written, after byte %d", ErrCorruptSnapshot, c.at)
	}
	c.at += int64(len(p))
	return len(p), nil
}

// ended returns an error if there is more to read.
func (c *comparing) ended() error {
	switch _, err := io.ReadFull(c.with, make([]byte, 1)); {
	case err == nil:
		return fmt.Errorf("%w: it continues after byte %d", ErrCorruptSnapshot, c.at)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}
