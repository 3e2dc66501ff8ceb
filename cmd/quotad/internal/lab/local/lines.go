package local

import "bytes"

// maxLine is the longest incomplete line that is buffered, in bytes. Of a longer one, only the part written later is kept.
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
