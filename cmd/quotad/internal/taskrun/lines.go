package taskrun

import (
	"bytes"
	"io"
)

// maxLine is the part of a line that is matched, in bytes. The rest of a longer line is relayed unread.
const maxLine = 64 << 10

// tee relays a child's output at once, and passes each line to each. If the output cannot be relayed, Write returns the
// error, which then reaches the child as well.
type tee struct {
	to   io.Writer
	each func(line []byte)
	line []byte
}

// Write implements io.Writer.
func (t *tee) Write(p []byte) (int, error) {
	n, err := t.to.Write(p)
	t.read(p[:n])
	return n, err
}

// read splits text into lines. A carriage return ends a line too, because progress displays use it.
func (t *tee) read(p []byte) {
	for len(p) > 0 {
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			t.keep(p)
			return
		}
		t.keep(p[:end])
		t.end()
		p = p[end+1:]
	}
}

func (t *tee) keep(p []byte) {
	t.line = append(t.line, p[:min(len(p), maxLine-len(t.line))]...)
}

// end ends a line. It drops blank lines.
func (t *tee) end() {
	if len(bytes.TrimSpace(t.line)) > 0 {
		t.each(t.line)
	}
	t.line = t.line[:0]
}
