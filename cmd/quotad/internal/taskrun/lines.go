package taskrun

import (
	"bytes"
	"io"
)

// maxLine is how much of a line is looked at, in bytes. The rest of a longer one is passed through unread.
const maxLine = 64 << 10

// tee passes what a child writes through as it comes, and hands each line to each. What cannot be passed through any more
// is an error, which the child then meets as well.
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

// read cuts text into lines. A carriage return ends one too: progress is drawn with it.
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

// end ends a line. One without a character on it is none.
func (t *tee) end() {
	if len(bytes.TrimSpace(t.line)) > 0 {
		t.each(t.line)
	}
	t.line = t.line[:0]
}
