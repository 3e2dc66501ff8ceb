package peer

import (
	"context"
	"net"
	"time"
)

// userTimeout is how long sent data may go unacknowledged.
const userTimeout = 5 * time.Second

// tcp speaks from the address that the node listens on.
type tcp struct{ from net.IP }

// NewTCP returns the network of a real node that listens on an address, host:port. Calls come from that address too, so that a
// firewall, or a tool that watches the links, can tell nodes apart.
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
	// A name may stand for an address of the other family, which this one cannot be spoken to from.
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

// timedListener bounds how long its connections live when nothing comes back.
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
