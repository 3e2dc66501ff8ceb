package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/rpc"
)

// Frames of HTTP/2, as written by a client that obeys only windows.
const (
	frameData, frameHeaders, frameSettings, framePing, frameWindow = 0, 1, 4, 6, 8

	flagAck, flagEndHeaders          = 1, 4
	settingWindow, settingFrame      = 4, 5
	firstWindow, frameHead, oneFrame = 65_535, 9, 16 << 10
)

// rawConn is a connection of HTTP/2 whose frames a test writes and reads.
type rawConn struct {
	net.Conn
	// window is how many bytes of unread bodies the connection takes, stream how many each body may have, frame the longest frame.
	window, stream, frame int
}

func (c *rawConn) send(kind, flags byte, stream uint32, payload []byte) error {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind)) //nolint:gosec // a frame's
	head = binary.BigEndian.AppendUint32(append(head, flags), stream)
	_, err := c.Write(append(head, payload...))
	return err
}

// until reads frames up to an acknowledgement of a kind, and records windows.
func (c *rawConn) until(kind byte) error {
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[:])>>8)
		if _, err := io.ReadFull(c, payload); err != nil {
			return err
		}
		if head[3] == kind && head[4]&flagAck != 0 {
			return nil
		}
		switch {
		case head[3] == frameWindow && binary.BigEndian.Uint32(head[5:]) == 0:
			c.window += int(binary.BigEndian.Uint32(payload))
		case head[3] == frameSettings:
			for ; len(payload) >= 6; payload = payload[6:] {
				switch value := int(binary.BigEndian.Uint32(payload[2:])); binary.BigEndian.Uint16(payload) {
				case settingWindow:
					c.stream = value
				case settingFrame:
					c.frame = value
				}
			}
		}
	}
}

// dialRaw opens a connection and learns its windows.
func dialRaw(t *testing.T, address string) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &rawConn{Conn: conn, window: firstWindow, stream: firstWindow, frame: oneFrame}
	_, err = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	err = errors.Join(err, c.send(frameSettings, 0, 0, nil), c.send(framePing, 0, 0, make([]byte, 8)))
	if err == nil {
		err = c.until(framePing) // the server answers it after its first frames
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// fill starts requests and writes bodies until the connection takes no more. It returns the number of requests.
func (c *rawConn) fill() (requests int, err error) {
	head := []byte{0x83, 0x86, 0x84, 0x41, 1, 'x'} // POST http / x
	for stream, left := uint32(1), c.window; left > 0; stream += 2 {
		err = errors.Join(err, c.send(frameHeaders, flagEndHeaders, stream, head))
		for body := min(left, c.stream); body > 0; {
			n := min(body, oneFrame)
			err = errors.Join(err, c.send(frameData, 0, stream, make([]byte, n)))
			body, left = body-n, left-n
		}
		requests++
	}
	return requests, errors.Join(err, c.send(framePing, 0, 0, make([]byte, 8)), c.until(framePing))
}

// TestReceive_UnreadBodiesOfManyConnections: many connections buffer little of unread bodies, and one such body leaves room for others of
// its connection.
func TestReceive_UnreadBodiesOfManyConnections(t *testing.T) {
	const connections, most = 100, 128 << 10 // for each
	var begun atomic.Int64
	ctx, end := context.WithCancel(t.Context())
	server := rpc.NewHTTPServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun.Add(1)
		<-ctx.Done()
	}), nil, hclog.NewNullLogger())
	listener, err := rpc.Listen("127.0.0.1:0", 10*connections)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		end()
		_ = server.Close()
	})
	conns := make([]*rawConn, connections)
	for i := range conns {
		conns[i] = dialRaw(t, listener.Addr().String())
		if c := conns[i]; c.window > most || 2*c.stream > c.window+1 || c.frame > oneFrame {
			t.Fatalf("a connection takes %d bytes that nobody reads, a stream %d, a frame has up to %d", c.window, c.stream, c.frame)
		}
	}
	before, requests := live(), 0
	for _, c := range conns {
		n, err := c.fill()
		if err != nil {
			t.Fatal(err)
		}
		requests += n
	}
	eventually(t, "all requests are there", func() bool { return begun.Load() == int64(requests) })
	// Memory of earlier tests may be freed meanwhile: so the memory held is at least the growth until now, and at most what the end frees.
	full := live()
	if held := (full - before) / connections; held > 2*most {
		t.Errorf("%d KiB are held for each connection", held>>10)
	}
	end()
	_ = server.Close()
	eventually(t, "what was held goes", func() bool { return (full-live())/connections >= most/2 })
}

// TestIdleConnections_End: a connection without requests ends after a time, in both versions of HTTP, and so does one after its requests.
func TestIdleConnections_End(t *testing.T) {
	server := rpc.NewHTTPServer(http.NotFoundHandler(), nil, hclog.NewNullLogger())
	if server.IdleTimeout <= 0 || server.IdleTimeout > 10*time.Minute {
		t.Errorf("idle connections end after %v", server.IdleTimeout)
	}
	server.IdleTimeout = 50 * time.Millisecond
	listener, err := rpc.Listen("127.0.0.1:0", 10)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	second := dialRaw(t, listener.Addr().String())
	if err := second.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := second.until(framePing); !errors.Is(err, io.EOF) {
		t.Errorf("HTTP/2: %v", err)
	}
	first, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Close() })
	_, err = io.WriteString(first, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err = errors.Join(err, first.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(first); err != nil || len(answer) == 0 {
		t.Errorf("HTTP/1.1: %q, %v", answer, err)
	}
}

// live returns how much memory is in use, in bytes.
func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // less than that
}
