package gateway

import (
	"bytes"
	"net"
	"net/http"
	"strings"
	"sync"
)

// net/http accepts a request with both a Content-Length and a Transfer-Encoding, or with equal lengths twice, reads it in the one safe
// way, and hides the ambiguity. A proxy must refuse such requests: another proxy in front of it may have read them differently. So the
// raw head of each HTTP/1 request is recorded until its handler has checked it.

// headListener records the heads of its connections' requests.
type headListener struct{ net.Listener }

// Accept implements net.Listener.
func (l headListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &headConn{Conn: c}, nil
}

// headConn is a connection that records the head of its current request.
type headConn struct {
	net.Conn

	mu   sync.Mutex
	head []byte
	// whole: the head is complete.
	whole bool
}

// Read implements io.Reader.
func (c *headConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.whole || n == 0 {
		return n, err
	}
	from := max(len(c.head)-3, 0)
	c.head = append(c.head, p[:min(n, maxHeader+4096-len(c.head))]...)
	if end := headEnd(c.head[from:]); end >= 0 {
		c.head, c.whole = c.head[:from+end], true
	} else if len(c.head) >= maxHeader+4096 {
		c.whole = true
	}
	return n, err
}

// headEnd returns the end of a head: after its last header line, before the empty line. -1: not yet.
func headEnd(data []byte) int {
	for i := range data {
		if data[i] != '\n' {
			continue
		}
		if rest := data[i+1:]; bytes.HasPrefix(rest, []byte("\n")) || bytes.HasPrefix(rest, []byte("\r\n")) {
			return i + 1
		}
	}
	return -1
}

// headState discards a head when its request is over: the following bytes belong to the next request.
func headState(c net.Conn, state http.ConnState) {
	if head, ok := c.(*headConn); ok && state == http.StateIdle {
		head.mu.Lock()
		head.head, head.whole = head.head[:0], false
		head.mu.Unlock()
	}
}

// wrong returns why the head of the current request must be refused; empty: it is fine.
func (c *headConn) wrong() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.whole {
		return "a request must wait for the answer to the previous one"
	}
	wrong := wrongHead(c.head)
	c.head = nil // the call may wait for minutes
	return wrong
}

// wrongHead returns what is ambiguous in a head; empty: nothing.
func wrongHead(head []byte) string {
	_, lines, _ := strings.Cut(string(head), "\n")
	var lengths, encodings int
	for line := range strings.SplitSeq(strings.TrimSuffix(lines, "\n"), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			continue
		}
		if strings.Contains(line, "\r") {
			return "the head has a bare CR"
		}
		if line[0] == ' ' || line[0] == '\t' {
			return "a header is folded over two lines"
		}
		name, value, _ := strings.Cut(line, ":")
		switch strings.ToLower(name) {
		case "content-length":
			lengths++
		case "transfer-encoding":
			encodings++
			if !strings.EqualFold(strings.TrimSpace(value), "chunked") {
				return "the Transfer-Encoding must be chunked"
			}
		}
	}
	switch {
	case lengths > 1:
		return "Content-Length is repeated"
	case encodings > 1:
		return "Transfer-Encoding is repeated"
	case lengths > 0 && encodings > 0:
		return "both Content-Length and Transfer-Encoding are set"
	}
	return ""
}
