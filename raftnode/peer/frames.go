package peer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Raft's transport reads MessagePack from a connection and allocates as much memory as the sender claims. A framed connection parses along
// and knows where each message ends. It fails before raft reads the header of a value that no message of that kind contains.

// Kinds of raft's messages, by their first byte.
const (
	kindAppendEntries   = 0
	kindRequestVote     = 1
	kindInstallSnapshot = 2
	kindTimeoutNow      = 3
	kindRequestPreVote  = 4
	// kindReply is a made-up kind: replies have no kind byte. A reply is two values, an error's text and an answer.
	kindReply = 0xff
)

const (
	// maxSmallMessage bounds all messages except those with entries. The header of a snapshot carries two configurations.
	maxSmallMessage = 256 << 10
	// MaxAppendEntries is the most entries that raft sends in one message.
	MaxAppendEntries = 64
	// entryOverhead bounds the encoding around an entry's data.
	entryOverhead = 64 << 10
	// maxFields and maxDepth bound a message's maps and their nesting.
	maxFields = 64
	maxDepth  = 6

	frameBuffer = 64 << 10
)

// errFrame says that bytes are no valid Raft message, or that a message is larger than its kind allows.
var errFrame = errors.New("malformed or oversized Raft message")

// frames parses the messages of one direction of a connection.
type frames struct {
	// replies: the messages are replies. maxEntry bounds the data of an entry, in bytes.
	replies  bool
	maxEntry int

	kind byte
	// inside: a message has begun. left is how many more bytes it may have.
	inside bool
	left   int
	// open has the number of missing values of each open map or list, outermost first. values counts the completed top-level values.
	open   []int64
	values int
	// head collects the type and length bytes of a value: have bytes so far, of need.
	head       [9]byte
	have, need int
	// skip is how many more bytes the value's content has.
	skip int64
	// keyed: the content being skipped is a key of the outermost map; key collects it. sizeNext: the next value is the size of a snapshot.
	// size is that size, -1 before it was read. raw is how many bytes of the snapshot are still to follow the header.
	keyed, sizeNext bool
	key             []byte
	size, raw       int64
}

// feed parses the next bytes and returns how many of them belong to the current message. For a message that must not be read, it returns
// errFrame with the reason.
func (f *frames) feed(b []byte) (int, error) {
	used := 0
	for used < len(b) {
		switch {
		case f.raw > 0:
			n := min(int64(len(b)-used), f.raw)
			f.raw -= n
			used += int(n)
			if f.raw == 0 {
				return used, nil
			}
		case !f.inside:
			if used > 0 {
				return used, nil // the next call parses the next message
			}
			n, err := f.begin(b[0])
			if err != nil {
				return 0, err
			}
			used += n
		case f.skip > 0:
			n := int(min(int64(len(b)-used), f.skip))
			if f.keyed {
				f.key = append(f.key, b[used:used+n]...)
			}
			f.skip -= int64(n)
			used += n
			if f.skip == 0 {
				f.ended()
			}
		default:
			f.head[f.have] = b[used]
			f.have++
			used++
			if f.have == 1 {
				f.need = headLength(f.head[0])
			}
			if f.have < f.need {
				continue
			}
			if err := f.value(); err != nil {
				return 0, err
			}
		}
	}
	return used, nil
}

// begin starts a message and returns the length of its kind, in bytes.
func (f *frames) begin(first byte) (int, error) {
	*f = frames{
		replies: f.replies, maxEntry: f.maxEntry, open: f.open[:0], key: f.key[:0], inside: true, kind: kindReply, left: maxSmallMessage,
		size: -1,
	}
	if f.replies {
		return 0, nil
	}
	f.kind = first
	switch first {
	case kindAppendEntries:
		f.left += MaxAppendEntries * (f.maxEntry + entryOverhead)
	case kindRequestVote, kindRequestPreVote, kindTimeoutNow, kindInstallSnapshot:
	default:
		return 0, fmt.Errorf("%w: kind %d", errFrame, first)
	}
	return 1, nil
}

// headLength returns how many bytes a value's type and length take; for a number, how many the whole value takes.
func headLength(first byte) int {
	switch first {
	case 0xc4, 0xd9, 0xcc, 0xd0, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // bin 8, str 8, 8-bit numbers; fixext and its type
		return 2
	case 0xc5, 0xda, 0xdc, 0xde, 0xcd, 0xd1, 0xc7: // 16-bit lengths and numbers; ext 8 and its type
		return 3
	case 0xc8: // ext 16
		return 4
	case 0xc6, 0xdb, 0xdd, 0xdf, 0xce, 0xd2, 0xca: // 32-bit lengths and numbers, float 32
		return 5
	case 0xc9: // ext 32
		return 6
	case 0xcf, 0xd3, 0xcb: // 64-bit numbers
		return 9
	}
	return 1
}

// value checks a value once its head is complete.
func (f *frames) value() error {
	first := f.head[0]
	f.left -= f.have
	f.have = 0
	isMap := first>>4 == 0x8 || first == 0xde || first == 0xdf
	switch {
	case f.left < 0, first == 0xc1:
		return f.refuse("invalid value", int64(first))
	case len(f.open) == 0 && !isMap && !f.replies:
		return f.refuse("expected a map, got type", int64(first))
	case f.sizeNext:
		return f.snapshotSize()
	case isMap:
		return f.container(2*f.length(int64(first&0xf)), 2*maxFields)
	case first>>4 == 0x9, first == 0xdc, first == 0xdd:
		return f.container(f.length(int64(first&0xf)), MaxAppendEntries)
	}
	length := f.length(0)
	switch {
	case first>>5 == 0x5:
		length = int64(first & 0x1f)
	case first >= 0xd4 && first <= 0xd8:
		length = 1 << (first - 0xd4)
	}
	bound := int64(maxSmallMessage)
	if f.kind == kindAppendEntries {
		bound = int64(f.maxEntry + entryOverhead)
	}
	if length > bound || length > int64(f.left) {
		return f.refuse("too many bytes in one value:", length)
	}
	f.left -= int(length)
	if f.keyed = f.kind == kindInstallSnapshot && len(f.open) == 1 && f.open[0]%2 == 0; f.keyed {
		f.key = f.key[:0]
	}
	if f.skip = length; length == 0 {
		f.ended()
	}
	return nil
}

func (f *frames) refuse(what string, value int64) error {
	return fmt.Errorf("%w of kind %[4]d: %[2]s %[3]d", errFrame, what, value, f.kind)
}

// ended counts a completed value and the containers that it completes.
func (f *frames) ended() {
	if f.keyed {
		f.keyed, f.sizeNext = false, string(f.key) == "Size"
	}
	for len(f.open) > 0 {
		last := len(f.open) - 1
		if f.open[last]--; f.open[last] > 0 {
			return
		}
		f.open = f.open[:last]
	}
	if f.values++; f.replies && f.values < 2 {
		return // a reply is an error's text, then the answer
	}
	f.inside, f.raw = false, max(f.size, 0)
}

// length returns the length that a head states; short is the length for types that have it in their first byte.
func (f *frames) length(short int64) int64 {
	switch f.head[0] {
	case 0xc4, 0xd9, 0xc7:
		return int64(f.head[1])
	case 0xc5, 0xda, 0xdc, 0xde, 0xc8:
		return int64(binary.BigEndian.Uint16(f.head[1:]))
	case 0xc6, 0xdb, 0xdd, 0xdf, 0xc9:
		return int64(binary.BigEndian.Uint32(f.head[1:]))
	}
	return short
}

// snapshotSize reads the field of a snapshot's header that says how many bytes follow.
func (f *frames) snapshotSize() error {
	first, b := f.head[0], f.head[1:]
	var size uint64
	switch {
	case first < 0x80:
		size = uint64(first)
	case first == 0xcc, first == 0xd0 && b[0] < 0x80:
		size = uint64(b[0])
	case first == 0xcd, first == 0xd1 && b[0] < 0x80:
		size = uint64(binary.BigEndian.Uint16(b))
	case first == 0xce, first == 0xd2 && b[0] < 0x80:
		size = uint64(binary.BigEndian.Uint32(b))
	case (first == 0xcf || first == 0xd3) && b[0] < 0x80:
		size = binary.BigEndian.Uint64(b)
	default:
		return f.refuse("invalid snapshot size of type", int64(first))
	}
	if f.size >= 0 {
		return f.refuse("duplicate snapshot size", int64(size)) //nolint:gosec // below 2^63
	}
	f.sizeNext, f.size = false, int64(size) //nolint:gosec // below 2^63
	f.ended()
	return nil
}

// container opens a map or list with the given number of values.
func (f *frames) container(values, most int64) error {
	if values > most || len(f.open) >= maxDepth {
		return f.refuse("too many values in one list:", values)
	}
	if values == 0 {
		f.ended()
		return nil
	}
	f.open = append(f.open, values)
	return nil
}

// framedConn is a connection of raft that yields only valid Raft messages. A Read ends at the end of a message, so that read-ahead bytes of
// the next message are not counted for this one.
type framedConn struct {
	net.Conn
	reader *bufio.Reader
	frames frames
	// timed: the connection has a deadline of snapshotStall.
	timed bool
}

// snapshotStall is how long a snapshot may take for its next bytes. Raft reads it on its main goroutine: until it is read or has failed,
// the node neither votes nor follows another leader. So one behind a sender that fell silent would keep the others from a majority.
const snapshotStall = 3 * time.Second

func newFramedConn(conn net.Conn, reader io.Reader, replies bool, maxEntry int) *framedConn {
	return &framedConn{Conn: conn, reader: bufio.NewReaderSize(reader, frameBuffer), frames: frames{replies: replies, maxEntry: maxEntry}}
}

// Read implements net.Conn.
func (c *framedConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if err := c.setDeadline(); err != nil {
		return 0, err
	}
	if _, err := c.reader.Peek(1); err != nil {
		return 0, err
	}
	ready, err := c.reader.Peek(min(c.reader.Buffered(), len(b)))
	if err != nil {
		return 0, err
	}
	n, err := c.frames.feed(ready)
	if err != nil {
		return 0, err
	}
	copy(b, ready[:n])
	_, err = c.reader.Discard(n)
	return n, err
}

// setDeadline bounds the wait for the next bytes of a snapshot. Between messages, a connection may be silent for any time.
func (c *framedConn) setDeadline() error {
	switch {
	case c.frames.raw > 0:
		c.timed = true
		return c.SetReadDeadline(time.Now().Add(snapshotStall))
	case c.timed:
		c.timed = false
		return c.SetReadDeadline(time.Time{})
	}
	return nil
}
