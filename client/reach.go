package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// nodeConns is the most connections to one node; connCalls is how many calls share one before the next is opened: a little less
	// than a node allows.
	nodeConns = 16
	connCalls = 900
	// probeWait bounds the first exchange with a node, secureWait that with TLS. oldLife is how long the result that a node speaks only
	// HTTP/1.1 is valid.
	probeWait  = time.Second
	secureWait = 3 * time.Second
	oldLife    = time.Minute
	// quiet is after how much silence a shared connection is checked, and the bound of the check: a dead connection must not block all
	// calls until TCP times out.
	quiet = 2 * time.Second
)

// reacher sends requests to nodes over HTTP/2, so that waiting calls share connections. It is the default http.RoundTripper of clients.
// Without TLS there is no protocol negotiation, and a proxy on the path may speak only HTTP/1.1, so the first request to each host
// probes it.
type reacher struct {
	// plain are transports for HTTP/2 in clear text and secure those with TLS, each with one connection to each node. The reacher chooses
	// one with room: by itself, http.Transport opens dozens of connections when many calls start at once. No transport has both: it finds
	// its HTTP/2 connections by host and port alone, so a request to an https URL could travel in clear text.
	plain, secure [nodeConns]*http.Transport
	// old speaks HTTP/1.1, over one connection for each call in flight. With TLS it takes what is negotiated.
	old *http.Transport

	ctx   context.Context
	close context.CancelFunc

	mu    sync.Mutex
	hosts map[host]*spoken
}

// host is where a node is reached.
type host struct{ scheme, address string }

// spoken is a host's protocol. known is closed once it is determined.
type spoken struct {
	// calls counts the calls in flight on each connection.
	calls [nodeConns]atomic.Int64
	known chan struct{}
	http2 bool
	err   error
	until time.Time
}

// reachers are shared by all clients of the process with the same TLS configuration: many clients, each with its own holder, need no more
// connections than one.
var reachers = struct {
	mu  sync.Mutex
	all map[*tls.Config]*sharedReacher
}{all: map[*tls.Config]*sharedReacher{}}

// sharedReacher is a reacher that some clients use.
type sharedReacher struct {
	*reacher
	users int
}

// useReacher returns the process's reacher for a TLS configuration (nil: the default), and a function to call when the client closes.
func useReacher(settings *tls.Config) (r *reacher, done func()) {
	reachers.mu.Lock()
	defer reachers.mu.Unlock()
	shared := reachers.all[settings]
	if shared == nil {
		shared = &sharedReacher{reacher: newReacher(settings)}
		reachers.all[settings] = shared
	}
	shared.users++
	return shared.reacher, func() {
		reachers.mu.Lock()
		shared.users--
		last := shared.users == 0
		if last {
			delete(reachers.all, settings)
		}
		reachers.mu.Unlock() // closing connections takes a while
		if last {
			shared.Close()
		}
	}
}

func newReacher(settings *tls.Config) *reacher {
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
	r := &reacher{hosts: map[host]*spoken{}}
	r.ctx, r.close = context.WithCancel(context.Background())
	for i := range nodeConns {
		r.plain[i] = shared(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
		r.secure[i] = shared(func(p *http.Protocols) { p.SetHTTP2(true) })
	}
	r.old = transport(func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	r.old.HTTP2.StrictMaxConcurrentRequests = false
	return r
}

// shared returns the transports for HTTP/2 of a scheme.
func (r *reacher) shared(scheme string) *[nodeConns]*http.Transport {
	if scheme == "https" {
		return &r.secure
	}
	return &r.plain
}

// RoundTrip implements http.RoundTripper.
func (r *reacher) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GetConn != nil {
		// A call that ends before there is a connection sent nothing.
		trace.GetConn(request.URL.Host)
	}
	at := host{request.URL.Scheme, request.URL.Host}
	s, err := r.speaks(ctx, at)
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	if !s.http2 {
		return r.old.RoundTrip(request)
	}
	way := s.way()
	response, err := r.shared(at.scheme)[way].RoundTrip(request)
	if refusedProtocol(err) || err == nil && response.ProtoMajor < 2 {
		r.forget(at, s)
	}
	if err != nil {
		s.calls[way].Add(-1)
		return nil, err
	}
	response.Body = &callBody{ReadCloser: response.Body, calls: &s.calls[way]}
	return response, nil
}

// refusedProtocol reports whether a handshake failed by an alert, such as that the server no longer speaks HTTP/2.
func refusedProtocol(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// forget has the next request probe a host again.
func (r *reacher) forget(at host, s *spoken) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts[at] == s {
		delete(r.hosts, at)
	}
}

// way returns the first connection with room, or else the one with the fewest calls.
func (s *spoken) way() int {
	best := 0
	for i := range s.calls {
		if n := s.calls[i].Load(); n < connCalls {
			best = i
			break
		} else if n < s.calls[best].Load() {
			best = i
		}
	}
	s.calls[best].Add(1)
	return best
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
func (r *reacher) Close() {
	r.close()
	for _, t := range slices.Concat(r.plain[:], r.secure[:], []*http.Transport{r.old}) {
		t.CloseIdleConnections()
	}
}

// speaks returns a host's protocol. The first caller starts the probe, and others wait for it.
func (r *reacher) speaks(ctx context.Context, at host) (*spoken, error) {
	r.mu.Lock()
	s, ok := r.hosts[at]
	if !ok || s.over() {
		s = &spoken{known: make(chan struct{})}
		r.hosts[at] = s
		go r.probe(at, s)
	}
	r.mu.Unlock()
	select {
	case <-s.known:
		return s, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// over reports whether to probe again.
func (s *spoken) over() bool {
	select {
	case <-s.known:
		return s.err != nil || !s.http2 && time.Now().After(s.until)
	default:
		return false
	}
}

// probe determines a host's protocol by a request that changes nothing. Any answer will do.
func (r *reacher) probe(at host, s *spoken) {
	defer close(s.known)
	most := probeWait
	if at.scheme == "https" {
		most = secureWait
	}
	ctx, cancel := context.WithTimeout(r.ctx, most)
	defer cancel()
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
		if err == nil {
			connected.Store(true)
		}
	}})
	request, err := http.NewRequestWithContext(traced, http.MethodHead, at.scheme+"://"+at.address+"/livez", http.NoBody)
	if err != nil {
		s.err = err
		return
	}
	response, err := r.shared(at.scheme)[0].RoundTrip(request)
	_, dialed := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		_ = response.Body.Close()
		// A TLS server that negotiates no protocol is asked in HTTP/1.1, whatever was offered.
		s.http2, s.until = response.ProtoMajor == 2, time.Now().Add(oldLife)
	case ctx.Err() != nil:
		// Nothing but the probe was sent.
		s.err = &net.OpError{Op: "dial", Net: "tcp", Err: errNoAnswer}
	case dialed && !connected.Load(), errors.As(err, new(*tls.CertificateVerificationError)):
		s.err = err
	default:
		s.until = time.Now().Add(oldLife)
	}
}

var errNoAnswer = errors.New("no answer")
