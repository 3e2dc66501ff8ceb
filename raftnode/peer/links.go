package peer

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/raftnode/chain"
)

// link is an open connection of the port for peers.
type link struct {
	raw net.Conn
	// in: the remote side dialled. protocol is what the connection serves, node the remote node; both are empty until known.
	in             bool
	protocol, node string
	// secured has the certificate that the remote side showed; nil without TLS.
	secured *tls.Conn
	// since is when that certificate was verified.
	since time.Time
}

// links are the open connections of the port. The conditions for admitting a connection can cease to hold while it is open.
type links struct {
	mu     sync.Mutex
	closed bool
	open   map[net.Conn]*link
}

func newLinks() *links { return &links{open: map[net.Conn]*link{}} }

// enter registers a connection whose remote node is not known yet; false: the port is closed.
func (l *links) enter(raw net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.open[raw] = &link{raw: raw}
	}
	return !l.closed
}

// identify records the remote node of an open connection. From then on every change of the conditions is checked against it.
func (l *links) identify(known link) *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.open[known.raw]; open {
		l.open[known.raw] = &known
	}
	return &known
}

func (l *links) leave(raw net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, raw)
}

// identified returns the connections whose remote node is known.
func (l *links) identified() (all []*link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.open { // in any order
		if one.node != "" {
			all = append(all, one)
		}
	}
	return all
}

// end closes all connections; enter refuses new ones afterwards.
func (l *links) end() {
	l.mu.Lock()
	l.closed = true
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, raw := range open {
		_ = raw.Close()
	}
}

// CheckTLS closes the open connections whose peer certificates are not valid under the present settings (Config.TLS), as after a CA was
// removed. Other connections stay open.
func (p *Port) CheckTLS() { p.judge(p.trusted) }

// CheckCallers closes incoming raft connections from nodes that passes rejects. Questions need no check here: each is judged when it
// arrives. Outgoing connections need none either: this node chose the peer.
func (p *Port) CheckCallers(passes func(node string) error) {
	p.judge(func(l *link) error {
		if !l.in || l.protocol != ProtocolRaft {
			return nil
		}
		return passes(l.node)
	})
}

// judge closes the identified links that passes rejects.
func (p *Port) judge(passes func(*link) error) {
	for _, l := range p.links.identified() {
		err := passes(l)
		if err == nil {
			continue
		}
		p.config.Logger.Warn("closing a peer's connection", "node", l.node, "address", l.raw.RemoteAddr(), "reason", err)
		p.links.leave(l.raw)
		_ = l.raw.Close() // its handler then ends; raft dials again if it needs to
	}
}

// trusted verifies a link's peer certificates against the present settings, as the handshake did against the earlier ones. A certificate
// that has expired since does not end the link: otherwise a reload would stop nodes with forgotten certificates.
func (p *Port) trusted(l *link) error {
	if l.secured == nil {
		return nil
	}
	settings, shown := p.config.TLS(), l.secured.ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return nil // the settings at that time required none
	}
	roots, usage := settings.RootCAs, x509.ExtKeyUsageServerAuth
	if l.in {
		roots, usage = settings.ClientCAs, x509.ExtKeyUsageClientAuth
	}
	if err := chain.Verify(shown, roots, usage, "", l.since); err != nil {
		return err
	}
	return p.config.Local.Identifies(l.secured, l.node)
}
