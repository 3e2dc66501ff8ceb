// Package connpool sends requests to nodes over few connections, which all clients of the process share.
package connpool

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

const (
	// nodeConns is the most connections to one node; connCalls is how many calls share one at the most before the next is opened: a little
	// less than a node allows.
	nodeConns = 16
	connCalls = 900
	// probeWait bounds the first exchange with a node, secureWait that with TLS. oldLife is how long it is valid that a node speaks only
	// HTTP/1.1, or how many calls its connections carry.
	probeWait  = time.Second
	secureWait = 3 * time.Second
	oldLife    = time.Minute
	// quiet is after how much silence a shared connection is checked, and the bound of the check: a dead connection must not block all
	// calls until TCP times out.
	quiet = 2 * time.Second
)

// Pool sends requests to nodes over HTTP/2, so that waiting calls share connections. It is the default http.RoundTripper of clients.
// Without TLS there is no protocol negotiation, and a proxy on the path may speak only HTTP/1.1, so the first request to each host
// probes it.
type Pool struct {
	// plain are transports for HTTP/2 in clear text and secure those with TLS, each with one connection to each node. The pool chooses
	// one with room: by itself, http.Transport opens dozens of connections when many calls start at once. No transport has both: it finds
	// its HTTP/2 connections by host and port alone, so a request to an https URL could travel in clear text.
	plain, secure [nodeConns]*http.Transport
	// old speaks HTTP/1.1, over one connection for each call in flight. With TLS it takes what is negotiated.
	old *http.Transport

	ctx   context.Context
	close context.CancelFunc

	mu    sync.Mutex
	hosts map[host]*hostState
}

// host is where a node is reached.
type host struct{ scheme, address string }

// hostState is a host's protocol, and the use of the connections to it.
type hostState struct {
	// calls counts the calls in flight on each connection.
	calls [nodeConns]atomic.Int64
	// known is closed once the protocol is determined, or its probe has failed.
	known chan struct{}
	http2 bool
	// most is how many calls a connection carries: a balancer on the path may carry fewer than a node. A Transport must not learn it by more
	// calls: it counts those that wait for a place as if they had one, and then lets almost none through.
	most atomic.Int64
	err  error
	// until is when to probe again, or for HTTP/2 to ask for most again. The pool's mutex guards it once the probe has ended.
	until time.Time
}

// pools are shared by all clients of the process with the same TLS configuration: many clients, each with its own holder, need no more
// connections than one.
var pools = struct {
	mu  sync.Mutex
	all map[*tls.Config]*sharedPool
}{all: map[*tls.Config]*sharedPool{}}

// sharedPool is a Pool that some clients use.
type sharedPool struct {
	*Pool
	users int
}

// Acquire returns the process's Pool for a TLS configuration (nil: the default), and a function to call when the client
// closes.
func Acquire(settings *tls.Config) (p *Pool, release func()) {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	shared := pools.all[settings]
	if shared == nil {
		shared = &sharedPool{Pool: newPool(settings)}
		pools.all[settings] = shared
	}
	shared.users++
	return shared.Pool, func() {
		pools.mu.Lock()
		shared.users--
		last := shared.users == 0
		if last {
			delete(pools.all, settings)
		}
		pools.mu.Unlock() // closing connections takes a while
		if last {
			shared.Close()
		}
	}
}

// InUse returns the number of pools that clients use.
func InUse() int {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	return len(pools.all)
}

func newPool(settings *tls.Config) *Pool {
	transport := func(set func(*http.Protocols)) *http.Transport {
		t := &http.Transport{
			Protocols: new(http.Protocols), MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: secureWait,
			HTTP2: &http.HTTP2Config{StrictMaxConcurrentRequests: true, SendPingTimeout: quiet, PingTimeout: quiet},
			// A dial continues without its call and holds the place of the one connection.
			DialContext:     (&net.Dialer{Timeout: secureWait, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig: settings.Clone(), // to which a transport adds its protocols
		}
		set(t.Protocols)
		return t
	}
	shared := func(set func(*http.Protocols)) *http.Transport {
		t := transport(set)
		t.MaxConnsPerHost = 1
		return t
	}
	pool := &Pool{hosts: map[host]*hostState{}}
	pool.ctx, pool.close = context.WithCancel(context.Background())
	for i := range nodeConns {
		pool.plain[i] = shared(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
		pool.secure[i] = shared(func(p *http.Protocols) { p.SetHTTP2(true) })
	}
	pool.old = transport(func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	pool.old.HTTP2.StrictMaxConcurrentRequests = false
	return pool
}

// shared returns the transports for HTTP/2 of a scheme.
func (p *Pool) shared(scheme string) *[nodeConns]*http.Transport {
	if scheme == "https" {
		return &p.secure
	}
	return &p.plain
}

// RoundTrip implements http.RoundTripper.
func (p *Pool) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GetConn != nil {
		// A call that ends before there is a connection sent nothing.
		trace.GetConn(request.URL.Host)
	}
	at := host{request.URL.Scheme, request.URL.Host}
	s, err := p.detect(ctx, at)
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	if !s.http2 {
		return p.old.RoundTrip(request)
	}
	conn := s.pick(waiting[request.URL.Path])
	response, err := p.shared(at.scheme)[conn].RoundTrip(request)
	if refusedProtocol(err) || err == nil && response.ProtoMajor < 2 {
		p.forget(at, s)
	}
	if err != nil {
		s.calls[conn].Add(-1)
		return nil, err
	}
	response.Body = &callBody{ReadCloser: response.Body, calls: &s.calls[conn]}
	return response, nil
}

// refusedProtocol reports whether a handshake failed by an alert, such as that the server no longer speaks HTTP/2.
func refusedProtocol(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// forget makes the next request probe a host again.
func (p *Pool) forget(at host, s *hostState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hosts[at] == s {
		delete(p.hosts, at)
	}
}

// waiting are the calls that nodes may answer late. They leave the first connection to the others: a balancer on the path may carry fewer
// calls on a connection than a node, and a renewal must not wait for a call that waits for a quota.
var waiting = map[string]bool{quotav1connect.QuotaServiceReserveProcedure: true, quotav1connect.QuotaServiceWatchProcedure: true}

// pick counts a call on the first connection with room, or else on the one with the fewest calls, and returns its index.
func (s *hostState) pick(waits bool) int {
	first := 0
	if waits {
		first = 1
	}
	most := s.most.Load()
	for i := first; i < len(s.calls); i++ {
		for n := s.calls[i].Load(); n < most; n = s.calls[i].Load() {
			if s.calls[i].CompareAndSwap(n, n+1) {
				return i
			}
		}
	}
	fewest := first
	for i := first + 1; i < len(s.calls); i++ {
		if s.calls[i].Load() < s.calls[fewest].Load() {
			fewest = i
		}
	}
	s.calls[fewest].Add(1)
	return fewest
}

// callBody is the body of a call, which counts as in progress until the body is closed.
type callBody struct {
	io.ReadCloser
	calls *atomic.Int64
	once  sync.Once
}

// Close implements io.Closer.
func (b *callBody) Close() error {
	b.once.Do(func() { b.calls.Add(-1) })
	return b.ReadCloser.Close()
}

// Close closes idle connections.
func (p *Pool) Close() {
	p.close()
	for _, t := range slices.Concat(p.plain[:], p.secure[:], []*http.Transport{p.old}) {
		t.CloseIdleConnections()
	}
}

// detect returns a host's state once its protocol is known. The first caller starts the probe, and others wait for it.
func (p *Pool) detect(ctx context.Context, at host) (*hostState, error) {
	p.mu.Lock()
	s, ok := p.hosts[at]
	if !ok || s.stale() {
		s = &hostState{known: make(chan struct{})}
		p.hosts[at] = s
		go p.probe(at, s)
	} else if s.dated() {
		s.until = time.Now().Add(oldLife)
		go p.measure(at, s)
	}
	p.mu.Unlock()
	select {
	case <-s.known:
		return s, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// stale reports whether to probe again.
func (s *hostState) stale() bool {
	select {
	case <-s.known:
		return s.err != nil || !s.http2 && time.Now().After(s.until)
	default:
		return false
	}
}

// dated reports whether to ask again how many calls a connection carries: another balancer may be on the path by now.
func (s *hostState) dated() bool {
	select {
	case <-s.known:
		return s.err == nil && s.http2 && time.Now().After(s.until)
	default:
		return false
	}
}

// measure asks how many calls a connection to a host carries.
func (p *Pool) measure(at host, s *hostState) {
	ctx, cancel := context.WithTimeout(p.ctx, secureWait)
	defer cancel()
	if http2, most, err := p.ask(ctx, at); err == nil && http2 {
		s.most.Store(min(most, connCalls))
	}
}

// probe determines a host's protocol by a request that changes nothing. Any answer will do.
func (p *Pool) probe(at host, s *hostState) {
	defer close(s.known)
	wait := probeWait
	if at.scheme == "https" {
		wait = secureWait
	}
	ctx, cancel := context.WithTimeout(p.ctx, wait)
	defer cancel()
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
		if err == nil {
			connected.Store(true)
		}
	}})
	http2, most, err := p.ask(traced, at)
	_, dialed := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		s.http2, s.until = http2, time.Now().Add(oldLife)
		s.most.Store(min(most, connCalls))
	case ctx.Err() != nil:
		// Nothing but the probe was sent.
		s.err = &net.OpError{Op: "dial", Net: "tcp", Err: ErrNoAnswer}
	case dialed && !connected.Load(), errors.As(err, new(*tls.CertificateVerificationError)):
		s.err = err
	default:
		s.until = time.Now().Add(oldLife)
	}
}

// ask sends a request to a host on a connection of its own. It returns whether the answer came by HTTP/2, and how many calls a connection
// carries.
func (p *Pool) ask(ctx context.Context, at host) (http2 bool, most int64, err error) {
	request := (&http.Request{
		Method: http.MethodHead, URL: &url.URL{Scheme: at.scheme, Host: at.address, Path: "/livez"}, Host: at.address, Header: http.Header{},
	}).WithContext(ctx)
	address := at.address
	if request.URL.Port() == "" {
		address = net.JoinHostPort(request.URL.Hostname(), at.scheme) // a name of a port as well
	}
	// A Transport does not count connections that belong to nobody, but counts down where one in HTTP/1.1 ends, and panics below zero.
	transport := p.shared(at.scheme)[0].Clone()
	transport.MaxConnsPerHost = 0
	conn, err := transport.NewClientConn(ctx, at.scheme, address)
	if err != nil {
		return false, 0, err
	}
	defer func() { _ = conn.Close() }()
	response, err := conn.RoundTrip(request)
	if err != nil {
		return false, 0, err
	}
	// The answer came after the server's settings. The request may still count. A server that ends the connection carries nothing on this
	// one, which shows nothing about others.
	if most = int64(conn.Available() + conn.InFlight()); conn.Err() != nil || most < 1 {
		most = connCalls
	}
	// A TLS server that negotiates no protocol is asked in HTTP/1.1, whatever was offered.
	return response.ProtoMajor == 2, most, response.Body.Close()
}

// ErrNoAnswer is why a probe failed that a silent host did not answer.
var ErrNoAnswer = errors.New("no answer")
