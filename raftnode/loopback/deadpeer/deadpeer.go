// Package deadpeer connects clients with an in-memory server that can vanish silently, as on a power loss: connections stay open, and
// nothing arrives any more. It works in virtual time.
package deadpeer

import (
	"context"
	"net"
	"sync"
)

// Network holds all connections to one server. It is the server's net.Listener.
type Network struct {
	conns        chan net.Conn
	gone, closed chan struct{}
	vanish, end  sync.Once
}

// New makes a network whose server is reachable.
func New() *Network {
	return &Network{conns: make(chan net.Conn), gone: make(chan struct{}), closed: make(chan struct{})}
}

// Dial connects to the server at any address. Its signature is that of http.Transport.DialContext.
func (n *Network) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case n.conns <- there:
		return &conn{Conn: here, network: n, closed: make(chan struct{})}, nil
	case <-n.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Vanish makes the server vanish from all existing and future connections.
func (n *Network) Vanish() { n.vanish.Do(func() { close(n.gone) }) }

// Accept implements net.Listener.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case conn := <-n.conns:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It also ends the connections to a vanished server.
func (n *Network) Close() error {
	n.end.Do(func() { close(n.closed) })
	return nil
}

// Addr implements net.Listener.
func (n *Network) Addr() net.Addr { return &net.IPAddr{} }

// conn is a client's end.
type conn struct {
	net.Conn
	network *Network
	closed  chan struct{}
	end     sync.Once
}

func (c *conn) vanished() bool {
	select {
	case <-c.network.gone:
		return true
	default:
		return false
	}
}

// Read implements net.Conn. After the server vanished, it ignores deadlines and returns once this end or the network is closed.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.vanished() {
		return n, err
	}
	select {
	case <-c.closed:
	case <-c.network.closed:
	}
	return 0, net.ErrClosed
}

// Write implements net.Conn. Data written to a vanished server is lost.
func (c *conn) Write(p []byte) (int, error) {
	if c.vanished() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.end.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
