package usage

import (
	"bytes"
	"encoding/binary"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
)

// frames reads the messages of an Amazon event stream. It puts them together and leaves reading them to AWS's own decoder, which
// checks their sums.
type frames struct {
	// take is given each message. It is valid during the call only.
	take func(eventstream.Message)
	// skip is called for each message that is too large.
	skip func()

	decoder *eventstream.Decoder
	frame   []byte
	// left is how much of a message that is too large is still to come.
	left int64
	// broken: a message could not be read, so where the next one begins is not known.
	broken bool
}

const (
	// lengthSize is the size of the length at the beginning of a message, minFrame the size of the smallest one.
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

// fill adds to the frame until it has a size, and returns what is left.
func (f *frames) fill(p []byte, size int) []byte {
	n := min(size-len(f.frame), len(p))
	f.frame = append(f.frame, p[:n]...)
	return p[n:]
}

// begin looks at the length of a message.
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
