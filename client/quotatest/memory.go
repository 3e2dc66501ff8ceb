package quotatest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// listener accepts in-memory connections, which also work in a bubble of testing/synctest.
type listener struct {
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newListener() *listener {
	return &listener{incoming: make(chan net.Conn), closed: make(chan struct{})}
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
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address }

// dial connects to the listener.
func (l *listener) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.incoming <- conn{far}:
		return conn{near}, nil
	case <-l.closed:
		return nil, errors.New("quotatest: the cluster is closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// address is the address of both ends: to the API, the caller is on this machine.
var address = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7450}

// conn is one end of a connection, with an address like that of a network caller.
type conn struct{ net.Conn }

// LocalAddr implements net.Conn.
func (conn) LocalAddr() net.Addr { return address }

// RemoteAddr implements net.Conn.
func (conn) RemoteAddr() net.Addr { return address }

// alone is the network of a node without peers.
type alone struct{}

// Listen implements peer.Network.
func (alone) Listen(string) (net.Listener, error) { return newListener(), nil }

// Dial implements peer.Network.
func (alone) Dial(string, time.Duration) (net.Conn, error) {
	return nil, errors.New("quotatest: there is one node only")
}
