package usage

import (
	"bytes"
	"encoding/binary"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
)

// frames reads the messages of an Amazon event stream. It assembles them, and AWS's own decoder parses them and checks their checksums.
type frames struct {
	// take receives each message, which is valid only during the call.
	take func(eventstream.Message)
	// skip is called for each message that is too large.
	skip func()

	decoder *eventstream.Decoder
	frame   []byte
	// left is the number of bytes still to come of a message that is too large.
	left int64
	// broken: a message could not be parsed, so the beginning of the next one is unknown.
	broken bool
}

const (
	// lengthSize is the size of the length at the beginning of a message, minFrame the size of the smallest message.
	lengthSize = 4
	minFrame   = 16
)

// Write reads more of the stream.
func (f *frames) Write(p []byte) (int, error) {
	size := len(p)
	for len(p) > 0 && !f.broken {
		switch {
		case f.left > 0:
			n := int(min(f.left, int64(len(p))))
			f.left -= int64(n)
			p = p[n:]
		case len(f.frame) < lengthSize:
			p = f.fill(p, lengthSize)
			if len(f.frame) == lengthSize {
				f.begin()
			}
		default:
			length := int(binary.BigEndian.Uint32(f.frame))
			p = f.fill(p, length)
			if len(f.frame) == length {
				f.read()
			}
		}
	}
	return size, nil
}

// fill extends the frame up to a size, and returns the remaining bytes.
func (f *frames) fill(p []byte, size int) []byte {
	n := min(size-len(f.frame), len(p))
	f.frame = append(f.frame, p[:n]...)
	return p[n:]
}

// begin checks the length of a message.
func (f *frames) begin() {
	switch length := int64(binary.BigEndian.Uint32(f.frame)); {
	case length < minFrame:
		f.broken = true
	case length > maxEvent:
		f.left, f.frame = length-lengthSize, f.frame[:0]
		f.skip()
	}
}

func (f *frames) read() {
	message, err := f.decoder.Decode(bytes.NewReader(f.frame), nil)
	f.frame = f.frame[:0]
	if err != nil {
		f.broken = true
		return
	}
	f.take(message)
}
