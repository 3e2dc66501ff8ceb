// Package sim runs clusters of real nodes in one process in virtual time (testing/synctest). They use the production transport over
// connections in memory, and real logs and snapshots on a file system in memory. Faults and workload come from a seed. The checkers are
// those of the fault suite.
//
// A seed determines the faults and the workload, but not the order in which goroutines run, nor raft's own random draws. So all events are
// recorded, and a failed seed runs again several times to measure how often it fails. Only the state machine and the model replay exactly.
package sim

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

// mesh is a network in memory. A host is named by its address.
type mesh struct {
	mu        sync.Mutex
	rand      *rand.Rand
	listeners map[string]*listener
	streams   map[*stream]bool
	cut       map[link]bool
	latency   time.Duration
	jitter    time.Duration
}

// link is one direction between two hosts; an empty name stands for all hosts.
type link struct{ from, to string }

func newMesh(r *rand.Rand) *mesh {
	return &mesh{
		rand: r, listeners: map[string]*listener{}, streams: map[*stream]bool{}, cut: map[link]bool{},
		latency: 200 * time.Microsecond, jitter: 200 * time.Microsecond,
	}
}

// sever cuts a direction.
func (m *mesh) sever(l link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut[l] = true
}

// heal opens all directions. Data sent meanwhile arrives now, as by a TCP retransmission.
func (m *mesh) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.cut)
	for s := range m.streams {
		s.release()
	}
}

// isCut says whether a direction is cut. The caller holds the lock.
func (m *mesh) isCut(l link) bool {
	return m.cut[l] || m.cut[link{from: l.from}] || m.cut[link{to: l.to}]
}

func (m *mesh) setLatency(latency, jitter time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latency, m.jitter = latency, jitter
}

// reset breaks all connections of a host, as its crash does, or those between two hosts.
func (m *mesh) reset(host, other string) {
	m.mu.Lock()
	var broken []*stream
	for s := range m.streams {
		if (s.link.from == host || s.link.to == host) && (other == "" || s.link.from == other || s.link.to == other) {
			broken = append(broken, s)
		}
	}
	m.mu.Unlock()
	for _, s := range broken {
		s.close(errReset)
	}
}

var errReset = errors.New("connection reset")

// delay is the delay of a segment on a link now; held says that the link is cut. The caller holds the lock.
func (m *mesh) delay(l link) (d time.Duration, held bool) {
	if m.isCut(l) {
		return 0, true
	}
	d = m.latency
	if m.jitter > 0 {
		d += time.Duration(m.rand.Int64N(int64(m.jitter)))
	}
	return d, false
}

// endpoint is the network as one host sees it.
type endpoint struct {
	mesh *mesh
	host string
}

// Listen implements peer.Network.
func (e endpoint) Listen(address string) (net.Listener, error) {
	e.mesh.mu.Lock()
	defer e.mesh.mu.Unlock()
	if e.mesh.listeners[address] != nil {
		return nil, fmt.Errorf("%s is in use", address)
	}
	l := &listener{mesh: e.mesh, address: address, incoming: make(chan net.Conn), closed: make(chan struct{})}
	e.mesh.listeners[address] = l
	return l, nil
}

// Dial implements peer.Network.
func (e endpoint) Dial(address string, timeout time.Duration) (net.Conn, error) {
	there, back := link{e.host, address}, link{address, e.host}
	e.mesh.mu.Lock()
	cut, l := e.mesh.isCut(there) || e.mesh.isCut(back), e.mesh.listeners[address]
	e.mesh.mu.Unlock()
	if cut {
		time.Sleep(timeout)
		return nil, os.ErrDeadlineExceeded
	}
	if l == nil {
		return nil, errors.New("connection refused")
	}
	forth, reply := newStream(e.mesh, there), newStream(e.mesh, back)
	near := &conn{read: reply, write: forth, local: hostAddress(e.host), remote: hostAddress(address)}
	far := &conn{read: forth, write: reply, local: hostAddress(address), remote: hostAddress(e.host)}
	select {
	case l.incoming <- far:
		return near, nil
	case <-l.closed:
	case <-time.After(timeout):
	}
	forth.close(errReset)
	reply.close(errReset)
	return nil, errors.New("connection refused")
}

// listener accepts connections to its address.
type listener struct {
	mesh     *mesh
	address  string
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.mesh.mu.Lock()
		delete(l.mesh.listeners, l.address)
		l.mesh.mu.Unlock()
		close(l.closed)
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return hostAddress(l.address) }

// hostAddress is a host's address.
type hostAddress string

// Network implements net.Addr.
func (hostAddress) Network() string { return "mesh" }

// String implements net.Addr.
func (a hostAddress) String() string { return string(a) }

// segment is some bytes and their time of arrival; a zero due means that they are held until the link is healed.
type segment struct {
	data []byte
	due  time.Time
}

// stream is one direction of a connection: ordered bytes with a delay.
type stream struct {
	mesh *mesh
	link link

	mu       sync.Mutex
	changed  *sync.Cond
	segments []segment
	err      error
	deadline time.Time
	timer    *time.Timer
}

func newStream(m *mesh, l link) *stream {
	s := &stream{mesh: m, link: l}
	s.changed = sync.NewCond(&s.mu)
	m.mu.Lock()
	m.streams[s] = true
	m.mu.Unlock()
	return s
}

func (s *stream) send(data []byte) (int, error) {
	s.mesh.mu.Lock() // so that a concurrent heal releases this segment too
	defer s.mesh.mu.Unlock()
	wait, held := s.mesh.delay(s.link)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	next := segment{data: append([]byte(nil), data...)}
	if last := len(s.segments) - 1; !held && (last < 0 || !s.segments[last].due.IsZero()) {
		next.due = time.Now().Add(wait)
		if last >= 0 && next.due.Before(s.segments[last].due) {
			next.due = s.segments[last].due
		}
	}
	s.segments = append(s.segments, next)
	s.changed.Broadcast()
	return len(data), nil
}

// release releases the segments that a cut held back. The caller holds the mesh's lock.
func (s *stream) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.segments {
		if s.segments[i].due.IsZero() {
			s.segments[i].due = time.Now()
		}
	}
	s.changed.Broadcast()
}

func (s *stream) receive(into []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case len(s.segments) > 0 && !s.segments[0].due.IsZero() && !s.segments[0].due.After(now):
			n := copy(into, s.segments[0].data)
			if s.segments[0].data = s.segments[0].data[n:]; len(s.segments[0].data) == 0 {
				s.segments = s.segments[1:]
			}
			return n, nil
		case s.err != nil && len(s.segments) == 0, errors.Is(s.err, errReset):
			return 0, s.err
		case !s.deadline.IsZero() && !now.Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		s.wakeAt(now)
		s.changed.Wait()
	}
}

// wakeAt arranges the next check, when a segment arrives or the deadline passes.
func (s *stream) wakeAt(now time.Time) {
	next := s.deadline
	if len(s.segments) > 0 && !s.segments[0].due.IsZero() && (next.IsZero() || s.segments[0].due.Before(next)) {
		next = s.segments[0].due
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if !next.IsZero() {
		s.timer = time.AfterFunc(next.Sub(now), s.changed.Broadcast)
	}
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	s.changed.Broadcast()
}

// close ends a stream. The end follows the segments that a cut holds back, except for a reset.
func (s *stream) close(err error) {
	s.mesh.mu.Lock()
	defer s.mesh.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.segments) == 0 || errors.Is(err, errReset) {
		delete(s.mesh.streams, s)
	}
	if s.err == nil || errors.Is(err, errReset) {
		s.err = err
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.changed.Broadcast()
}

// conn is one end of a connection.
type conn struct {
	read, write   *stream
	local, remote net.Addr
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) { return c.read.receive(b) }

// Write implements net.Conn. It never blocks, as with ample buffers.
func (c *conn) Write(b []byte) (int, error) { return c.write.send(b) }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.write.close(io.EOF)
	c.read.close(errReset)
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.setDeadline(t)
	return nil
}

// SetWriteDeadline implements net.Conn: writes do not block.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
