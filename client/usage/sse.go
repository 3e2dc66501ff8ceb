package usage

import "bytes"

// maxEvent is the largest event that is read, in bytes.
const maxEvent = 1 << 20

// events reads server-sent events as the HTML standard has them: lines end with LF, CR or CRLF, several lines of data are one text, and
// what is not followed by an empty line does not count.
type events struct {
	// take is given the data of each event. It is valid during the call only.
	take func(data []byte)
	// skip is called for each event that is too large.
	skip func()

	line, data []byte
	// lineSize and size are how much of the line and of the event was read, kept or not.
	lineSize, size int
	// started: the place for a byte order mark is past. returned: the last byte was a CR.
	started, returned bool
}

// Write reads more of the stream.
func (e *events) Write(p []byte) (int, error) {
	size := len(p)
	for len(p) > 0 {
		if e.returned && p[0] == '\n' {
			p = p[1:]
		}
		e.returned = false
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			e.add(p)
			break
		}
		e.add(p[:end])
		e.endLine()
		e.returned = p[end] == '\r'
		p = p[end+1:]
	}
	return size, nil
}

func (e *events) add(piece []byte) {
	e.lineSize += len(piece)
	e.size += len(piece)
	if e.size <= maxEvent {
		e.line = append(e.line, piece...)
	}
}

func (e *events) endLine() {
	line, size := e.line, e.lineSize
	if !e.started {
		e.started = true
		if mark := []byte("\ufeff"); bytes.HasPrefix(line, mark) {
			line, size = line[len(mark):], size-len(mark)
		}
	}
	e.line, e.lineSize = e.line[:0], 0
	switch {
	case size == 0:
		e.endEvent()
	case e.size <= maxEvent:
		e.read(line)
	}
}

// read reads one line. Only data matters: what a provider calls an event stands in the data as well.
func (e *events) read(line []byte) {
	value, found := bytes.CutPrefix(line, []byte("data"))
	switch {
	case !found:
		return
	case len(value) == 0:
	case value[0] != ':':
		return // another field, whose name only begins so
	default:
		value = bytes.TrimPrefix(value[1:], []byte(" "))
	}
	e.data = append(append(e.data, value...), '\n')
}

// endEvent takes the event that an empty line ends.
func (e *events) endEvent() {
	switch {
	case e.size > maxEvent:
		e.skip()
	case len(e.data) > 0:
		e.take(e.data[:len(e.data)-1])
	}
	e.data, e.size = e.data[:0], 0
}
