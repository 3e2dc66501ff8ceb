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
	// nodeConns is the most connections to one node, connCalls how many calls share one before the next is opened: a little less than
	// a node allows.
	nodeConns = 4
	connCalls = 900
	// probeWait bounds the first exchange with a node, oldLife is how long a node is believed to speak HTTP/1.1 only.
	probeWait = time.Second
	oldLife   = time.Minute
	// quiet is after how long without a word a shared connection is checked, and how long the check may take: what is dead must not hold
	// up all calls until TCP gives up.
	quiet = 2 * time.Second
)

// reacher sends requests to nodes over HTTP/2, so that calls that wait share connections. It is the default http.RoundTripper of a
// client. Without TLS nothing negotiates the protocol, and a proxy on the way may speak HTTP/1.1 only; so the first request to each
// host finds out.
type reacher struct {
	// plain speak HTTP/2 without TLS, each over one connection to each node. Which of them has room is for the reacher to say: left to
	// itself, http.Transport opens connections by the dozen when many calls come at once.
	plain [nodeConns]*http.Transport
	// old speaks HTTP/1.1, and secure what TLS agrees on.
	old, secure *http.Transport

	// ctx ends with the client.
	ctx   context.Context
	close context.CancelFunc

	mu    sync.Mutex
	hosts map[string]*spoken
}

// spoken is what a host speaks. known is closed when that is found out.
type spoken struct {
	// calls are those in progress on each connection.
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
	// What has agreed on HTTP/1.1 needs a connection for each call that waits.
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
		// What ends before there is a connection sent nothing.
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

// way takes the first connection that has room, or else the one with the fewest calls.
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

// callBody is the body of a call that counts until it is closed.
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

// Close closes what is not in use.
func (r *reacher) Close() {
	r.close()
	for _, t := range append(r.plain[:], r.old, r.secure) {
		t.CloseIdleConnections()
	}
}

// speaks finds out what a host speaks. The first to ask does, and others wait for that.
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

// over reports whether what was found out is to be found out again.
func (s *spoken) over() bool {
	select {
	case <-s.known:
		return s.err != nil || !s.http2 && time.Now().After(s.until)
	default:
		return false
	}
}

// probe finds out what a host speaks, by a request that changes nothing. Any answer will do.
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
		// Nothing was sent but the question.
		s.err = &net.OpError{Op: "dial", Net: "tcp", Err: errNoAnswer}
	case dialed && !connected.Load():
		s.err = err
	default:
		s.until = time.Now().Add(oldLife)
	}
}

var errNoAnswer = errors.New("no answer")
