package local

import "bytes"

// maxLine is the longest line that a child may write, in bytes. What goes beyond is dropped.
const maxLine = 64 << 10

// lineReader is an io.Writer that calls fn for each whole line.
type lineReader struct {
	fn      func(line []byte)
	partial []byte
}

// Write implements io.Writer.
func (r *lineReader) Write(p []byte) (int, error) {
	r.partial = append(r.partial, p...)
	for {
		line, rest, whole := bytes.Cut(r.partial, []byte("\n"))
		if !whole {
			break
		}
		r.fn(line)
		r.partial = rest
	}
	if len(r.partial) > maxLine {
		r.partial = nil
	}
	return len(p), nil
}
