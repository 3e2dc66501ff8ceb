package usage

import (
	"bufio"
	"compress/gzip"
	"io"
	"iter"
)

// maxInflated is how much of a compressed answer is read, in bytes, so that a small one cannot keep its reader busy.
const maxInflated = 1 << 30

// inflater decompresses what it is given, piece by piece. The decoder of the standard library asks for bytes, and here they arrive; so
// it runs as a coroutine, which is resumed by each Write and returns to it when it wants more.
type inflater struct {
	to io.Writer
	// resume runs the decoder until it wants more; stop ends it.
	resume func() (struct{}, bool)
	stop   func()

	input []byte
	ended bool
	wait  func(struct{}) bool
}

func newInflater(to io.Writer) *inflater {
	f := &inflater{to: to}
	f.resume, f.stop = iter.Pull(func(yield func(struct{}) bool) {
		f.wait = yield
		f.run()
	})
	return f
}

// run decompresses one member after the other. The decoder could do that as well, but it looks for the next one before it gives out the
// end of the last. Where the input breaks off, what was read until then counts.
func (f *inflater) run() {
	input := bufio.NewReader(f)
	decoder, err := gzip.NewReader(input)
	for left := int64(maxInflated); err == nil && left > 0; err = decoder.Reset(input) {
		decoder.Multistream(false)
		var n int64
		if n, err = io.Copy(f.to, io.LimitReader(decoder, left)); err != nil {
			return
		}
		left -= n
	}
}

// Write decompresses more.
func (f *inflater) Write(p []byte) (int, error) {
	if !f.ended {
		f.input = p
		if _, more := f.resume(); !more {
			f.ended = true
		}
		f.input = nil
	}
	return len(p), nil
}

// Close ends the decoder. It may be called more than once.
func (f *inflater) Close() error {
	f.ended = true
	f.stop()
	return nil
}

// Read is what the decoder reads from.
func (f *inflater) Read(p []byte) (int, error) {
	for len(f.input) == 0 {
		if !f.wait(struct{}{}) {
			return 0, io.ErrUnexpectedEOF
		}
	}
	n := copy(p, f.input)
	f.input = f.input[n:]
	return n, nil
}
