package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// VerifySnapshot returns what Restore would say of a snapshot, nil where it would take it. It reads the snapshot once, and takes for that
// time the memory of the state that is in it.
func VerifySnapshot(r io.Reader) error {
	_, err := Restore(r)
	return err
}

// VerifyWritten returns what is wrong with a snapshot that is to be this state's: the state has to add up, and each byte has to be what
// WriteSnapshot writes of it. It takes no memory in proportion to the state. That Restore takes what adds up is for tests to show; who has
// the memory asks VerifySnapshot, too.
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

// comparing takes what is written and compares it with what is read.
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

// ended tells whether there is nothing more to read.
func (c *comparing) ended() error {
	switch _, err := io.ReadFull(c.with, make([]byte, 1)); {
	case err == nil:
		return fmt.Errorf("%w: it continues after byte %d", ErrCorruptSnapshot, c.at)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}
