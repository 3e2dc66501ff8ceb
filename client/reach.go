package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// nodeConns is the most connections to one node; connCalls is how many calls share one before the next is opened: a little less
	// than a node allows.
	nodeConns = 4
	connCalls = 900
	// probeWait bounds the first exchange with a node; oldLife is how long the result that a node speaks only HTTP/1.1 is valid.
	probeWait = time.Second
	oldLife   = time.Minute
	// quiet is after how much silence a shared connection is checked, and the bound of the check: a dead connection must not block all
	// calls until TCP times out.
	quiet = 2 * time.Second
)

// reacher sends requests to nodes over HTTP/2, so that waiting calls share connections. It is the default http.RoundTripper of a
// client. Without TLS there is no protocol negotiation, and a proxy on the path may speak only HTTP/1.1, so the first request to each
// host probes it.
type reacher struct {
	// plain are transports for HTTP/2 without TLS, each with one connection to each node. The reacher chooses one with room: by itself,
	// http.Transport opens dozens of connections when many calls start at once.
	plain [nodeConns]*http.Transport
	// old speaks HTTP/1.1; secure, the protocol that TLS negotiates.
	old, secure *http.Transport

	// ctx ends with the client.
	ctx   context.Context
	close context.CancelFunc

	mu    sync.Mutex
	hosts map[string]*spoken
}

// spoken is a host's protocol. known is closed once it is determined.
type spoken struct {
	// calls counts the calls in progress on each connection.
	calls [nodeConns]atomic.Int64
	known chan struct{}
	http2 bool
	err   error
	until time.Time
}

func newReacher() *reacher {
	transport := func(set func(*http.Protocols)) *http.Transport {
		protocols := new(http.Protocols)
		set(protocols)
		return &http.Transport{
			Protocols: protocols, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
		}
	}
	r := &reacher{hosts: map[string]*spoken{}}
	r.ctx, r.close = context.WithCancel(context.Background())
	for i := range r.plain {
		r.plain[i] = transport(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
		r.plain[i].MaxConnsPerHost = 1
		r.plain[i].HTTP2 = &http.HTTP2Config{StrictMaxConcurrentRequests: true, SendPingTimeout: quiet, PingTimeout: quiet}
	}
	r.old = transport(func(p *http.Protocols) { p.SetHTTP1(true) })
	// A host that negotiated HTTP/1.1 needs a connection for each waiting call.
	r.secure = transport(func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	r.secure.HTTP2 = &http.HTTP2Config{SendPingTimeout: quiet, PingTimeout: quiet}
	return r
}

// RoundTrip implements http.RoundTripper.
func (r *reacher) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "http" {
		return r.secure.RoundTrip(request)
	}
	ctx := request.Context()
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GetConn != nil {
		// A call that ends before there is a connection sent nothing.
		trace.GetConn(request.URL.Host)
	}
	s, err := r.speaks(ctx, request.URL.Host)
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
	response, err := r.plain[way].RoundTrip(request)
	if err != nil {
		s.calls[way].Add(-1)
		return nil, err
	}
	response.Body = &callBody{ReadCloser: response.Body, calls: &s.calls[way]}
	return response, nil
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
	for _, t := range append(r.plain[:], r.old, r.secure) {
		t.CloseIdleConnections()
	}
}

// speaks returns a host's protocol. The first caller starts the probe, and others wait for it.
func (r *reacher) speaks(ctx context.Context, host string) (*spoken, error) {
	r.mu.Lock()
	s, ok := r.hosts[host]
	if !ok || s.over() {
		s = &spoken{known: make(chan struct{})}
		r.hosts[host] = s
		go r.probe(host, s)
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
func (r *reacher) probe(host string, s *spoken) {
	defer close(s.known)
	ctx, cancel := context.WithTimeout(r.ctx, probeWait)
	defer cancel()
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
		if err == nil {
			connected.Store(true)
		}
	}})
	request, err := http.NewRequestWithContext(traced, http.MethodHead, "http://"+host+"/livez", http.NoBody)
	if err != nil {
		s.err = err
		return
	}
	response, err := r.plain[0].RoundTrip(request)
	_, dialed := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		_ = response.Body.Close()
		s.http2 = true
	case ctx.Err() != nil:
		// Nothing but the probe was sent.
		s.err = &net.OpError{Op: "dial", Net: "tcp", Err: errNoAnswer}
	case dialed && !connected.Load():
		s.err = err
	default:
		s.until = time.Now().Add(oldLife)
	}
}

var errNoAnswer = errors.New("no answer")
