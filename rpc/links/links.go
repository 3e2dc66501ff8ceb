// Package links keeps the open TLS connections of a port or of a client. When the CAs change, it closes those whose other side is not
// trusted any more.
package links

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quotad/quotad/raftnode/chain"
)

// Set holds open connections whose handshake is complete. Its zero value is empty.
type Set struct {
	mu   sync.Mutex
	open map[*tls.Conn]time.Time
}

// Add adds a connection, with the present time. A connection that is already in the set keeps its time.
func (s *Set) Add(conn *tls.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.open[conn]; known {
		return
	}
	if s.open == nil {
		s.open = map[*tls.Conn]time.Time{}
	}
	s.open[conn] = time.Now()
}

// Remove removes a connection.
func (s *Set) Remove(conn *tls.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
}

// Watch keeps the open connections of a server in the set. It replaces the server's ConnState.
func (s *Set) Watch(server *http.Server) {
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		secured, ok := conn.(*tls.Conn)
		switch {
		case !ok:
		case state == http.StateActive: // its handshake is over
			s.Add(secured)
		case state == http.StateClosed, state == http.StateHijacked:
			s.Remove(secured)
		}
	}
}

// Judge closes the connections whose other side showed a certificate that roots (nil: the system's) do not sign for a usage, and calls
// closing for each. A certificate that expired after the handshake is no reason: otherwise nodes whose certificates were forgotten would
// stop at the next reload.
func (s *Set) Judge(roots *x509.CertPool, usage x509.ExtKeyUsage, closing func(address net.Addr, reason error)) {
	for conn, since := range s.all() {
		shown := conn.ConnectionState().PeerCertificates
		if len(shown) == 0 {
			continue // the handshake did not ask for one
		}
		if err := chain.Verify(shown, roots, usage, "", since); err != nil {
			closing(conn.RemoteAddr(), err)
			s.Remove(conn)
			_ = conn.NetConn().Close() // not conn's own Close, which waits for writers
		}
	}
}

func (s *Set) all() map[*tls.Conn]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.open)
}
