package rpc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/links"
)

// Bounds of connections to another node's API.
const (
	connectWithin = 5 * time.Second
	// reachFor is how long the outcome of the last attempt to reach the leader counts as current.
	reachFor = time.Second
	// reachAgain is how long calls fail with a known lasting failure, without another attempt; reachLogEvery is how often it is logged.
	reachAgain    = 250 * time.Millisecond
	reachLogEvery = 10 * time.Second
)

// unreachableError says that no connection to another node's API could be made, so nothing was sent.
type unreachableError struct {
	message, hint string
	// lasting: it fails again until somebody changes a certificate or a setting.
	lasting bool
	err     error
}

// Error implements error.
func (e *unreachableError) Error() string { return e.message }

// Unwrap returns the cause.
func (e *unreachableError) Unwrap() error { return e.err }

// apiDialer connects to other nodes' APIs. A connection is ready once the other side has answered in HTTP/2. With TLS 1.3 a client's
// handshake ends before the server has judged the client's certificate. Without that wait, a call would be sent into a connection that
// the server refuses.
type apiDialer struct {
	// tls returns the settings of the next connection; nil: clear text. trust names the setting of the CAs that verify certificates.
	tls   func() *tls.Config
	trust string
	// open are the connections with TLS.
	open links.Set
}

const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// dial implements http.Transport.DialContext. All its errors are *unreachableError.
func (d *apiDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	raw, err := (&net.Dialer{KeepAlive: keepAlive}).DialContext(ctx, network, address)
	if err != nil {
		return nil, d.explain(address, err)
	}
	conn, closed := raw, func() {}
	if d.tls != nil {
		secured := tls.Client(raw, d.settings(address))
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(d.explain(address, err), raw.Close())
		}
		d.open.Add(secured)
		conn, closed = secured, func() { d.open.Remove(secured) }
	}
	greeted := &greetedConn{Conn: conn, reader: bufio.NewReader(conn), skip: len(http2Preface), closed: closed}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	if err := greeted.greet(); err != nil {
		closed()
		return nil, errors.Join(d.explain(address, err), raw.Close())
	}
	_ = conn.SetDeadline(time.Time{})
	return greeted, nil
}

func (d *apiDialer) settings(address string) *tls.Config {
	conf := d.tls().Clone()
	conf.NextProtos = []string{"h2"}
	if conf.ServerName == "" {
		conf.ServerName, _, _ = net.SplitHostPort(address)
	}
	return conf
}

// errNoHTTP2 means that something other than the API answers.
var errNoHTTP2 = errors.New("no answer in HTTP/2")

// explain converts the error of a failed connection to its meaning and a remedy.
func (d *apiDialer) explain(address string, err error) error {
	e := &unreachableError{
		message: fmt.Sprintf("%s does not answer: %v", address, err), hint: "start the node, or correct its api.advertise",
		err: err,
	}
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var op *net.OpError
	remote := errors.As(err, &op) && op.Op == "remote error"
	e.lasting = true
	switch {
	case errors.As(err, &unknown):
		e.message = fmt.Sprintf("certificate of %s is not signed by %s", address, d.trust)
		e.hint = "set api.tls_ca to the CAs that sign the nodes' API certificates"
	case errors.As(err, &host):
		e.message = fmt.Sprintf("certificate of %s does not name that host", address)
		e.hint = "give that node a certificate for the host of its api.advertise"
	case errors.As(err, &invalid):
		e.message, e.hint = fmt.Sprintf("certificate of %s is not valid: %v", address, err), "renew the certificate"
	case errors.As(err, &record), d.tls != nil && errors.Is(err, errNoHTTP2):
		e.message, e.hint = address+" does not speak TLS with HTTP/2", "configure TLS for the API the same on every node"
	case errors.Is(err, errNoHTTP2):
		e.message, e.hint = address+" does not speak HTTP/2 in clear text", "configure TLS for the API the same on every node"
	case remote:
		e.message = fmt.Sprintf("%s rejects the certificate of this node: %v", address, op.Err)
		e.hint = "api.tls_client_ca of that node must have signed api.tls_cert of this one, and the certificate must allow client authentication"
	default:
		e.lasting = false
	}
	return e
}

// greetedConn is a connection on which greet has sent the client's preface: the next skip bytes written are that preface again, and are
// dropped.
type greetedConn struct {
	net.Conn
	reader *bufio.Reader
	skip   int
	closed func()
}

// Close implements net.Conn.
func (c *greetedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// greet sends the client's preface of HTTP/2 and waits for the first frame of the server, its settings.
func (c *greetedConn) greet() error {
	if _, err := io.WriteString(c.Conn, http2Preface); err != nil {
		return err
	}
	const settings = 4
	frame, err := c.reader.Peek(9) // length, type, flags, stream
	switch {
	case err == nil && frame[3] == settings && bytes.Equal(frame[5:9], make([]byte, 4)):
		return nil
	case err == nil, errors.Is(err, io.EOF):
		return errNoHTTP2
	}
	return err
}

// Read implements net.Conn.
func (c *greetedConn) Read(b []byte) (int, error) { return c.reader.Read(b) }

// Write implements net.Conn. It is called by one goroutine at a time.
func (c *greetedConn) Write(b []byte) (int, error) {
	skipped := min(c.skip, len(b))
	c.skip -= skipped
	if skipped == len(b) {
		return skipped, nil
	}
	n, err := c.Conn.Write(b[skipped:])
	return skipped + n, err
}

// peerTransport carries calls to the leader: many streams on few connections. It always uses HTTP/2 with prior knowledge, also inside
// TLS, which the dialer adds.
func peerTransport(dialer *apiDialer) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: protocols, DialContext: dialer.dial, MaxIdleConnsPerHost: 8, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWithin},
	}
}

// CheckPeerTLS closes open connections to other nodes' APIs whose certificates are not valid under the current settings (Config.PeerTLS).
// Calls on them end with an unknown outcome.
func (s *Server) CheckPeerTLS() {
	if s.config.PeerTLS == nil {
		return
	}
	s.leaders.dialer.open.Judge(s.config.PeerTLS().RootCAs, x509.ExtKeyUsageServerAuth, func(address net.Addr, reason error) {
		s.logger.Warn("closing a connection to a node's API", "address", address, "reason", reason)
	})
}

// tracked makes a context for one call to another node. sent is set once the call has a connection: before that, nothing was sent.
func tracked(ctx context.Context) (_ context.Context, sent *atomic.Bool) {
	sent = new(atomic.Bool)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}), sent
}

// reach records whether this node can call the leader's API: from calls that it forwarded, and from its own probes.
type reach struct {
	// probing is held during a probe, so that one runs at a time.
	probing sync.Mutex

	mu      sync.Mutex
	address string
	at      time.Time
	failure *unreachableError

	logged  time.Time
	dropped int
}

// lately returns the outcome of the last attempt to reach an address, if it is no older than within.
func (r *reach) lately(address string, within time.Duration) (failure *unreachableError, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.address != address || time.Since(r.at) > within {
		return nil, false
	}
	return r.failure, true
}

// record stores an outcome. It returns whether to log it, and how many failures were not logged since the last line.
func (r *reach) record(address string, failure *unreachableError) (dropped int, log bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	same, failed := r.address == address, r.failure != nil
	r.address, r.at, r.failure = address, time.Now(), failure
	if !same || failure == nil {
		r.dropped = 0 // they were of a different outage
	}
	switch {
	case failure == nil:
		return 0, same && failed
	case same && !r.logged.IsZero() && time.Since(r.logged) < reachLogEvery:
		r.dropped++
		return 0, false
	}
	dropped, r.dropped, r.logged = r.dropped, 0, time.Now()
	return dropped, true
}

// reached records that the leader's API answered.
func (s *Server) reached(id, address string) {
	if _, log := s.reach.record(address, nil); log {
		s.logger.Info("calls can be forwarded to the leader again", "leader", id, "address", address)
	}
}

// notReached records that nothing could be sent to the leader, and why.
func (s *Server) notReached(id, address string, err error) *unreachableError {
	failure, ok := errors.AsType[*unreachableError](err)
	if !ok {
		failure = &unreachableError{message: address + " did not answer in time", hint: "start the node, or correct its api.advertise", err: err}
	}
	if dropped, log := s.reach.record(address, failure); log {
		s.logger.Warn("calls cannot be forwarded to the leader", "leader", id, "reason", failure.message, "do", failure.hint, "not_logged",
			dropped)
	}
	return failure
}

// forwardingCheck tells whether this node could forward a call now. It connects to the leader's API at most once in reachFor, and only if
// no forwarded call has shown it.
func (s *Server) forwardingCheck() raftnode.Check {
	check := raftnode.Check{Name: "forwarding", OK: true}
	id, address, self := s.node.Leader()
	if self || address == "" || id == s.node.ID() || s.isDraining() {
		return check
	}
	failure, known := s.reach.lately(address, reachFor)
	if !known {
		failure = s.probeLeader(id, address)
	}
	if failure != nil {
		check.OK, check.Message = false, fmt.Sprintf("calls cannot be forwarded to the leader %s: %s; %s", id, failure.message, failure.hint)
	}
	return check
}

// probeLeader checks whether the leader's API is alive.
func (s *Server) probeLeader(id, address string) *unreachableError {
	s.reach.probing.Lock()
	defer s.reach.probing.Unlock()
	if failure, known := s.reach.lately(address, reachFor); known {
		return failure
	}
	ctx, cancel := context.WithTimeout(s.drain, reachFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/livez", nil)
	if err != nil {
		return s.notReached(id, address, err)
	}
	res, err := s.leaders.http.Do(req)
	if err != nil {
		return s.notReached(id, address, err)
	}
	_ = res.Body.Close()
	s.reached(id, address)
	return nil
}
