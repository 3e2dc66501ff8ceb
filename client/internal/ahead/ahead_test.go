package ahead

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"
)

// TestReadAhead_ChangesNothingOfABody: the bytes read ahead and the rest make up the body, for any sizes of pieces and any end.
func TestReadAhead_ChangesNothingOfABody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 3*pieceSize).Draw(t, "body")
		most := rapid.Int64Range(0, 4*pieceSize).Draw(t, "most")
		ends := rapid.SampledFrom([]error{io.EOF, io.ErrUnexpectedEOF}).Draw(t, "end")
		// With a time of 0, the goroutine and the reader interleave in any order.
		within := rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "within")
		pieces := io.MultiReader(bytes.NewReader(data), iotest.ErrReader(ends))
		if rapid.Bool().Draw(t, "halves") {
			pieces = iotest.HalfReader(pieces)
		}
		start, rest, err := Read(io.NopCloser(pieces), most, within)
		if int64(len(start)) > most {
			t.Fatalf("%d bytes were read ahead, and %d asked for", len(start), most)
		}
		whole := start
		if err == nil {
			var after []byte
			after, err = io.ReadAll(rest)
			whole = append(whole, after...)
		}
		if !bytes.Equal(whole, data) || (err != nil) == errors.Is(ends, io.EOF) || err != nil && !errors.Is(err, ends) {
			t.Fatalf("%d bytes of %d, and %v", len(whole), len(data), err)
		}
	})
}

func TestReadAhead_CloseEndsAReadThatWaits(t *testing.T) {
	from, to := io.Pipe()
	defer func() { _ = to.Close() }()
	start, rest, err := Read(from, 10, time.Millisecond)
	if len(start) != 0 || err != nil {
		t.Fatalf("%q, %v", start, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := rest.Read(make([]byte, 1))
		ended <- err
	}()
	if err := rest.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("a read after Close succeeded")
	}
}
