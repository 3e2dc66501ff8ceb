package jsonscan

import (
	"encoding/json"
	"unicode/utf16"
	"unicode/utf8"
)

// Handler receives the content of a document in its order. Slices are valid only during the call.
type Handler interface {
	// Key names the next value of an object. Names are decoded, and truncated to MaxKey bytes.
	Key(name []byte)
	// Open begins an object or an array.
	Open(array bool)
	// Close ends the value opened last.
	Close()
	// Text is the next piece of a string value, decoded. An empty string has none.
	Text(piece []byte)
	// TextEnd ends a string value.
	TextEnd()
	// Literal is a number, true, false or null.
	Literal(text []byte)
}

// Bounds of a Scanner's memory.
const (
	// MaxKey is how much of a key is kept, in bytes.
	MaxKey = 128
	// maxDepth bounds the nesting of values, as in encoding/json.
	maxDepth = 10_000
	// maxLiteral bounds the length of a number.
	maxLiteral = 64
)

type state uint8

const (
	wantValue state = 1
	// wantElement is a value or the end of an empty array; wantKey a key; wantFirstKey a key or the end of an empty object.
	wantElement  state = 2
	wantKey      state = 3
	wantFirstKey state = 4
	wantColon    state = 5
	// wantNext is a comma or the end of the open value.
	wantNext  state = 6
	inString  state = 7
	inEscape  state = 8
	inUnicode state = 9
	inLiteral state = 10
	// complete: the top-level value has ended.
	complete state = 11
	broken   state = 12
)

// Scanner reads one JSON value. Its zero value is not ready: see New.
type Scanner struct {
	handler Handler
	state   state
	// arrays holds one bit for each open value, set for an array; depth is the number of open values.
	arrays []uint64
	depth  int
	// key: the current string is a key.
	key  bool
	held []byte
	// unit is the code unit of a \u escape read so far, with digits still missing. high is a surrogate that waits for its other half.
	unit   rune
	digits int
	high   rune
	offset int64
	failed int64
}

// New returns a Scanner that calls handler.
func New(handler Handler) *Scanner {
	return &Scanner{handler: handler, state: wantValue, held: make([]byte, 0, MaxKey)}
}

// Reset makes the Scanner ready for another value, with the same handler.
func (s *Scanner) Reset() {
	*s = Scanner{handler: s.handler, state: wantValue, held: s.held[:0], arrays: s.arrays[:0]}
}

// Offset returns the number of bytes before the current one.
func (s *Scanner) Offset() int64 { return s.offset }

// Complete reports whether the value has ended.
func (s *Scanner) Complete() bool { return s.state == complete }

// Broken reports whether the bytes are not JSON, and from which offset on.
func (s *Scanner) Broken() (at int64, is bool) { return s.failed, s.state == broken }

// Finish ends the document: a number at the top ends here.
func (s *Scanner) Finish() {
	if s.state == inLiteral {
		s.endLiteral()
	}
}

// Write reads the next bytes. It returns len(p) and no error.
func (s *Scanner) Write(p []byte) (int, error) {
	size := len(p)
	for len(p) > 0 {
		n := 1
		switch s.state {
		case inString:
			n = s.readString(p)
		case inEscape:
			s.readEscape(p[0])
		case inUnicode:
			s.readUnicode(p[0])
		case inLiteral:
			n = s.readLiteral(p)
		case broken:
			n = len(p)
		default:
			s.readToken(p[0])
		}
		s.offset += int64(n)
		p = p[n:]
	}
	return size, nil
}

func (s *Scanner) fail() {
	s.state, s.failed = broken, s.offset
}

// readToken reads one byte outside of strings and literals.
func (s *Scanner) readToken(c byte) {
	if c == ' ' || c == '\n' || c == '\r' || c == '\t' {
		return
	}
	switch s.state {
	case wantValue:
		s.beginValue(c)
	case wantElement:
		if c == ']' {
			s.close(true)
			return
		}
		s.beginValue(c)
	case wantKey, wantFirstKey:
		switch {
		case c == '"':
			s.beginString(true)
		case c == '}' && s.state == wantFirstKey:
			s.close(false)
		default:
			s.fail()
		}
	case wantColon:
		if s.state = wantValue; c != ':' {
			s.fail()
		}
	case wantNext:
		s.readNext(c)
	default:
		s.fail()
	}
}

func (s *Scanner) readNext(c byte) {
	switch {
	case c == ',' && s.inArray():
		s.state = wantValue
	case c == ',':
		s.state = wantKey
	case c == ']' || c == '}':
		s.close(c == ']')
	default:
		s.fail()
	}
}

func (s *Scanner) beginValue(c byte) {
	switch {
	case c == '{' || c == '[':
		s.open(c == '[')
	case c == '"':
		s.beginString(false)
	case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f' || c == 'n':
		s.held = append(s.held[:0], c)
		s.state = inLiteral
	default:
		s.fail()
	}
}

func (s *Scanner) open(array bool) {
	if s.depth == maxDepth {
		s.fail()
		return
	}
	word, bit := s.depth/64, uint64(1)<<(s.depth%64)
	if word == len(s.arrays) {
		s.arrays = append(s.arrays, 0)
	}
	s.arrays[word] &^= bit
	s.state = wantFirstKey
	if array {
		s.arrays[word] |= bit
		s.state = wantElement
	}
	s.depth++
	s.handler.Open(array)
}

func (s *Scanner) inArray() bool {
	return s.arrays[(s.depth-1)/64]>>((s.depth-1)%64)&1 == 1
}

func (s *Scanner) close(array bool) {
	if s.inArray() != array {
		s.fail()
		return
	}
	s.depth--
	s.handler.Close()
	s.endValue()
}

func (s *Scanner) endValue() {
	if s.state = wantNext; s.depth == 0 {
		s.state = complete
	}
}

func (s *Scanner) beginString(key bool) {
	s.key, s.high, s.held = key, 0, s.held[:0]
	s.state = inString
}

// readString reads up to the end of a string or its next escape. It reads either of those separately, so that Offset is exact.
func (s *Scanner) readString(p []byte) int {
	end := 0
	for end < len(p) && p[end] != '"' && p[end] != '\\' {
		end++
	}
	switch {
	case end > 0:
		s.text(p[:end])
		return end
	case p[0] == '\\':
		s.state = inEscape
	default:
		s.endString()
	}
	return 1
}

func (s *Scanner) endString() {
	s.lone()
	if s.key {
		s.handler.Key(s.held)
		s.state = wantColon
		return
	}
	s.handler.TextEnd()
	s.endValue()
}

// text forwards decoded bytes of a string.
func (s *Scanner) text(piece []byte) {
	s.lone()
	s.pass(piece)
}

func (s *Scanner) pass(piece []byte) {
	if !s.key {
		s.handler.Text(piece)
		return
	}
	s.held = append(s.held, piece[:min(len(piece), MaxKey-len(s.held))]...)
}

// lone replaces a surrogate without its other half.
func (s *Scanner) lone() {
	if s.high != 0 {
		s.high = 0
		s.pass([]byte(string(utf8.RuneError)))
	}
}

func (s *Scanner) readEscape(c byte) {
	s.state = inString
	switch c {
	case '"', '\\', '/':
		s.text([]byte{c})
	case 'b':
		s.text([]byte{'\b'})
	case 'f':
		s.text([]byte{'\f'})
	case 'n':
		s.text([]byte{'\n'})
	case 'r':
		s.text([]byte{'\r'})
	case 't':
		s.text([]byte{'\t'})
	case 'u':
		s.state, s.unit, s.digits = inUnicode, 0, 4
	default:
		s.fail()
	}
}

func (s *Scanner) readUnicode(c byte) {
	switch {
	case c >= '0' && c <= '9':
		c -= '0'
	case c >= 'a' && c <= 'f':
		c -= 'a' - 10
	case c >= 'A' && c <= 'F':
		c -= 'A' - 10
	default:
		s.fail()
		return
	}
	s.unit = s.unit<<4 | rune(c)
	if s.digits--; s.digits > 0 {
		return
	}
	s.state = inString
	if s.high != 0 {
		if r := utf16.DecodeRune(s.high, s.unit); r != utf8.RuneError {
			s.high = 0
			s.pass(utf8.AppendRune(nil, r))
			return
		}
		s.lone()
	}
	if s.unit >= 0xd800 && s.unit < 0xdc00 {
		s.high = s.unit
		return
	}
	s.pass(utf8.AppendRune(nil, s.unit))
}

// readLiteral reads up to the end of a number or word.
func (s *Scanner) readLiteral(p []byte) int {
	end := 0
	for end < len(p) && literal(p[end]) {
		end++
	}
	if end == 0 {
		s.endLiteral()
		return 0
	}
	if room := maxLiteral - len(s.held); end > room {
		s.offset += int64(room)
		s.fail()
		s.offset -= int64(room)
		return end
	}
	s.held = append(s.held, p[:end]...)
	return end
}

func literal(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '+' || c == '-' || c == '.' || c == 'E'
}

func (s *Scanner) endLiteral() {
	if !json.Valid(s.held) {
		s.fail()
		return
	}
	s.handler.Literal(s.held)
	s.endValue()
}
