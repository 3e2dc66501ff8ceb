package peer

import (
	"context"
	"net"
	"time"
)

// userTimeout bounds how long sent data may stay unacknowledged.
const userTimeout = 5 * time.Second

// tcp dials from the address that the node listens on.
type tcp struct{ from net.IP }

// NewTCP returns the network of a real node that listens on an address, host:port. Outgoing connections use that address as their source
// too, so that a firewall, or a tool that watches the links, can tell nodes apart.
func NewTCP(listen string) Network {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return tcp{}
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.IsUnspecified() {
		return tcp{}
	}
	return tcp{ip}
}

// Listen implements Network.
func (tcp) Listen(address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	return timedListener{listener}, nil
}

// Dial implements Network.
func (t tcp) Dial(address string, timeout time.Duration) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Second}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	// The target may be of the other address family, or a name that resolves to it: t.from cannot connect there.
	if to := net.ParseIP(host); to != nil && t.from != nil && (to.To4() != nil) == (t.from.To4() != nil) {
		dialer.LocalAddr = &net.TCPAddr{IP: t.from}
	}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	setUserTimeout(conn)
	return conn, nil
}

// timedListener sets userTimeout on its connections.
type timedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l timedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	setUserTimeout(conn)
	return conn, nil
}
