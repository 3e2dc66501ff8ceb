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
	// in: the other side made it. protocol and node are what it is for and with whom; empty before that is known.
	in             bool
	protocol, node string
	// secured has the certificate that the other side showed; nil without TLS.
	secured *tls.Conn
	// since is when that was verified.
	since time.Time
}

// links are the open connections of the port for peers: what lets a connection in may end while it is open.
type links struct {
	mu     sync.Mutex
	closed bool
	open   map[net.Conn]*link
}

func newLinks() *links { return &links{open: map[net.Conn]*link{}} }

// enter takes in a connection of which nothing is known yet; false: the port is closed.
func (l *links) enter(raw net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.open[raw] = &link{raw: raw}
	}
	return !l.closed
}

// identify records with whom an open connection is. From then on it is judged: what passed before may not pass any more.
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

// identified returns those of which is known with whom they are.
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

// end closes all; no more come in.
func (l *links) end() {
	l.mu.Lock()
	l.closed = true
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, raw := range open {
		_ = raw.Close()
	}
}

// CheckTLS closes the open connections to and from peers whose certificates are not good by the present settings (Config.TLS), as after
// a CA was taken out of them. Others stay open.
func (p *Port) CheckTLS() { p.judge(p.trusted) }

// CheckCallers closes the open connections on which a node speaks raft that does not pass any more. A question is judged by itself, and who
// is called is known.
func (p *Port) CheckCallers(passes func(node string) error) {
	p.judge(func(l *link) error {
		if !l.in || l.protocol != ProtocolRaft {
			return nil
		}
		return passes(l.node)
	})
}

// judge closes the links that do not pass any more.
func (p *Port) judge(passes func(*link) error) {
	for _, l := range p.links.identified() {
		err := passes(l)
		if err == nil {
			continue
		}
		p.config.Logger.Warn("closing a peer's connection", "node", l.node, "address", l.raw.RemoteAddr(), "reason", err)
		p.links.leave(l.raw)
		_ = l.raw.Close() // its handler ends with that, or raft makes another one
	}
}

// trusted checks what a link's other side showed by the settings of now, as the handshake did by those of then. A certificate that has
// ended meanwhile is no reason to end the link: nodes whose certificates were forgotten would stop at the next reload.
func (p *Port) trusted(l *link) error {
	if l.secured == nil {
		return nil
	}
	settings, shown := p.config.TLS(), l.secured.ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return nil // the settings of then asked for none
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
