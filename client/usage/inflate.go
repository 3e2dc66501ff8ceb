package usage

import (
	"bufio"
	"compress/gzip"
	"io"
	"iter"
)

// maxInflated bounds the decompressed size of an answer, in bytes, so that a small answer cannot keep its reader busy.
const maxInflated = 1 << 30

// inflater decompresses data piece by piece. The standard library's decoder pulls bytes, while here they are pushed. So the decoder
// runs as a coroutine: each Write resumes it, and it yields when it needs more.
type inflater struct {
	to io.Writer
	// resume runs the decoder until it needs more input; stop ends it.
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

// run decompresses one gzip member after the other. The decoder could do that itself, but it looks for the next member before it
// returns the end of the last. If the input is truncated, the data read so far counts.
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

// Close ends the decoder. It is idempotent.
func (f *inflater) Close() error {
	f.ended = true
	f.stop()
	return nil
}

// Read supplies the decoder with input.
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
