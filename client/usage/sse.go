package usage

import "bytes"

// maxEvent is the largest event that is read, in bytes.
const maxEvent = 1 << 20

// events reads server-sent events according to the HTML standard: lines end with LF, CR or CRLF, several lines of data are one text,
// and an event without a final empty line does not count.
type events struct {
	// take receives the data of each event, which is valid only during the call.
	take func(data []byte)
	// skip is called for each event that is too large.
	skip func()

	line, data []byte
	// lineSize and size are the sizes of the line and of the event so far, whether kept or not.
	lineSize, size int
	// started: the position of a byte order mark has passed. returned: the last byte was a CR.
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

// read reads one line. Only data matters: providers repeat the event's name in the data.
func (e *events) read(line []byte) {
	value, found := bytes.CutPrefix(line, []byte("data"))
	switch {
	case !found:
		return
	case len(value) == 0:
	case value[0] != ':':
		return // a different field with this prefix
	default:
		value = bytes.TrimPrefix(value[1:], []byte(" "))
	}
	e.data = append(append(e.data, value...), '\n')
}

// endEvent handles the event that an empty line ends.
func (e *events) endEvent() {
	switch {
	case e.size > maxEvent:
		e.skip()
	case len(e.data) > 0:
		e.take(e.data[:len(e.data)-1])
	}
	e.data, e.size = e.data[:0], 0
}
