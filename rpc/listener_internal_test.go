package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// dialFrom connects to a listener from an address of the loopback network.
func dialFrom(t *testing.T, from string, to *Listener) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := dialer.DialContext(t.Context(), "tcp", to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// listenFor makes a listener for 50 connections, ten of them anonymous callers'. A silent connection makes room after idleGrace.
func listenFor(t *testing.T, idleGrace time.Duration) *Listener {
	t.Helper()
	tcp, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(tcp, 50, idleGrace)
	go l.take()
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestListener_BurstDelaysNoOtherAddress: of many connections that one address opens at once the first ones stay, because the client is
// about to use one of them. Those without room wait, and a connection of another address overtakes them.
func TestListener_BurstDelaysNoOtherAddress(t *testing.T) {
	l := listenFor(t, time.Hour) // silence makes no room
	var first []net.Conn
	for range 5 { // half of what is free
		dialFrom(t, "127.0.0.1", l)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, c)
	}
	for range 5 {
		dialFrom(t, "127.0.0.1", l)
	}
	dialFrom(t, "127.0.0.2", l)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if host, _, _ := net.SplitHostPort(c.RemoteAddr().String()); host != "127.0.0.2" {
		t.Errorf("%s came next", host)
	}
	for _, c := range first {
		if err := c.SetReadDeadline(time.Now()); err != nil {
			t.Errorf("one that came first ended: %v", err)
		}
	}
	if waiting := l.waiters(); waiting != 5 {
		t.Errorf("%d wait", waiting)
	}
	// Released room goes to waiting connections. Next to the other address, half of nine is free.
	_, _ = first[0].Close(), first[1].Close()
	if joined, left := l.tryWaiting(time.Now()); len(joined) != 1 || left != 4 {
		t.Errorf("%d joined, %d wait", len(joined), left)
	}
	// One more than may wait takes the place of the oldest silent one.
	for range 2 {
		dialFrom(t, "127.0.0.1", l)
	}
	if _, err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := first[2].SetReadDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the oldest one: %v", err)
	}
}

func (l *Listener) waiters() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.Len()
}

// TestListener_SilentOnesMakeRoom: a connection that has been silent for long enough is closed for a waiting one.
func TestListener_SilentOnesMakeRoom(t *testing.T) {
	l := listenFor(t, 10*time.Millisecond)
	var silent []net.Conn
	for range 5 {
		silent = append(silent, dialFrom(t, "127.0.0.1", l))
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	dialFrom(t, "127.0.0.1", l)
	if _, err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := silent[0].SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest one: %v", err)
	}
}

// TestListener_ClosesThoseThatWait: closing a listener ends Accept and the connections that wait for room.
func TestListener_ClosesThoseThatWait(t *testing.T) {
	l := listenFor(t, time.Hour)
	var last net.Conn
	for range 6 {
		last = dialFrom(t, "127.0.0.1", l)
	}
	for range 5 {
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if err := last.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the one that waited: %v", err)
	}
}

// TestListener_DroppedConnectionsFreeTheirPart: a connection that waited without success no longer counts as waiting.
func TestListener_DroppedConnectionsFreeTheirPart(t *testing.T) {
	l := listenFor(t, time.Hour)
	for range 5 {
		dialFrom(t, "127.0.0.1", l)
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	dialFrom(t, "127.0.0.1", l)
	dialFrom(t, "127.0.0.2", l)
	if _, err := l.Accept(); err != nil { // the previous one waits by now
		t.Fatal(err)
	}
	if waiting := l.waiters(); waiting != 1 {
		t.Fatalf("%d wait", waiting)
	}
	if joined, left := l.tryWaiting(time.Now().Add(2 * time.Hour)); len(joined) != 0 || left != 0 {
		t.Fatalf("%d joined, %d wait", len(joined), left)
	}
	if used, callers := l.waits.InUse(); used != 0 || callers != 0 {
		t.Errorf("%d of %d addresses count as waiting", used, callers)
	}
}

// TestListener_AnAddressMakesRoomForItself: an address that has its part loses its own oldest connection, not an older one of another
// address.
func TestListener_AnAddressMakesRoomForItself(t *testing.T) {
	l := listenFor(t, 10*time.Millisecond)
	dialFrom(t, "127.0.0.2", l)
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for range 10 { // twice its part
		dialFrom(t, "127.0.0.1", l)
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.SetReadDeadline(time.Now()); err != nil {
		t.Errorf("the connection of another address ended: %v", err)
	}
}

// TestListener_RefusedOnesMakeRoom: connections whose requests all wait for their refusal are closed for a new one at once. One on which
// another request is served, or the refusal is written, is not.
func TestListener_RefusedOnesMakeRoom(t *testing.T) {
	l := listenFor(t, time.Hour) // silence makes no room
	accept := func() *connection {
		dialFrom(t, "127.0.0.1", l)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ours, ok := c.(*connection)
		if !ok {
			t.Fatalf("%T", c)
		}
		return ours
	}
	open := func(c *connection) bool { return c.SetReadDeadline(time.Now()) == nil }
	var all []*connection
	for range 5 { // all of the address's part
		c := accept()
		c.serve()
		all = append(all, c)
	}
	all[0].serve() // and a second request
	all[0].yield()
	all[1].yield()()
	all[2].yield()
	join := func(closed ...int) {
		here, there := net.Pipe()
		t.Cleanup(func() { _, _ = here.Close(), there.Close() })
		l.mu.Lock()
		refused := l.joinLocked(&connection{Conn: here, listener: l}, &l.anonymous, all[0].owner, false, l.idleGrace)
		l.mu.Unlock()
		if refused != nil {
			t.Errorf("a new connection: %v", refused)
		}
		for i, c := range all {
			if want := !slices.Contains(closed, i); open(c) != want {
				t.Errorf("connection %d is open: %t", i, !want)
			}
		}
	}
	join(2)
	answered := all[3].serve() // and one of two refusals is written
	resume := all[3].yield()
	all[3].yield()
	resume()
	answered()
	join(2, 3)
}
