// Package ahead reads the beginning of a body without waiting for the rest of it.
package ahead

import (
	"errors"
	"io"
	"sync"
	"time"
)

// pieceSize is the size of one read, in bytes.
const pieceSize = 4 << 10

// rest is a body whose beginning another goroutine may still be reading.
type rest struct {
	io.ReadCloser
	// pieces delivers the goroutine's reads; it is closed at the end of the beginning.
	pieces chan piece
	// left is the unread rest of the last piece, failed is its error.
	left   []byte
	failed error
	closed chan struct{}
	once   sync.Once
}

type piece struct {
	data []byte
	err  error
}

// Read reads up to most bytes of a body, for at most within, and returns them with the rest of the body. It returns the body's
// error; nil: the body has ended, or there is a rest.
func Read(body io.ReadCloser, most int64, within time.Duration) (start []byte, then io.ReadCloser, err error) {
	ahead := &rest{ReadCloser: body, pieces: make(chan piece), closed: make(chan struct{})}
	go ahead.fetch(most)
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case next, more := <-ahead.pieces:
			start = append(start, next.data...)
			switch {
			case errors.Is(next.err, io.EOF):
				return start, body, nil // its next Read returns EOF again
			case next.err != nil || !more:
				return start, body, next.err
			}
		case <-timer.C:
			return start, ahead, nil
		}
	}
}

// fetch reads the beginning.
func (a *rest) fetch(most int64) {
	defer close(a.pieces)
	for most > 0 {
		data := make([]byte, min(most, pieceSize))
		n, err := a.ReadCloser.Read(data)
		most -= int64(n)
		select {
		case a.pieces <- piece{data[:n], err}:
		case <-a.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (a *rest) Read(p []byte) (int, error) {
	for len(a.left) == 0 {
		if a.failed != nil {
			return 0, a.failed
		}
		select {
		case next, more := <-a.pieces:
			if !more {
				return a.ReadCloser.Read(p)
			}
			a.left, a.failed = next.data, next.err
		case <-a.closed:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, a.left)
	a.left = a.left[n:]
	return n, nil
}

// Close implements io.Closer. It ends a blocked Read.
func (a *rest) Close() error {
	a.once.Do(func() { close(a.closed) })
	return a.ReadCloser.Close()
}
