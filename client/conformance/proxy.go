package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"path"
	"sync/atomic"
	"time"
)

// proxy is in front of one node's API. It records exchanges, and loses or delays answers as a case requires.
type proxy struct {
	member  int
	seen    *recorder
	backend atomic.Pointer[string]
	out     *http.Transport
}

func newProxy(member int, seen *recorder) *proxy {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &proxy{member: member, seen: seen, out: &http.Transport{Protocols: protocols, DisableCompression: true}}
}

// forwardTo sets where the node listens; empty: nowhere.
func (p *proxy) forwardTo(address string) { p.backend.Store(&address) }

func (p *proxy) serve(listener net.Listener) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: p, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: log.New(io.Discard, "", 0), // connections are broken on purpose here
	}
	go func() { _ = server.Serve(listener) }() // ends with the cluster
	return server
}

// maxBody bounds how much of a request or an answer is read.
const maxBody = 64 << 20

// forwardedBy marks a call that one node forwards to another. The client did not make these calls.
const forwardedBy = "Quotad-Forwarded-By"

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var e *exchange
	if r.Method == http.MethodPost && r.Header.Get(forwardedBy) == "" {
		e = p.seen.request(p.member, path.Base(r.URL.Path), r.Header, body)
	}
	response, data := p.forward(r, body, e) //nolint:bodyclose // forward has read and closed it
	if e != nil && !p.seen.answer(e, response, data).deliver(r.Context()) {
		panic(http.ErrAbortHandler)
	}
	p.seen.deliver(e)
	maps.Copy(w.Header(), response.Header)
	for name, values := range response.Trailer {
		w.Header()[http.TrailerPrefix+name] = values
	}
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(data) // fails if the client has gone
}

// forward forwards a request. If its answer is to be lost, the request reaches its node even if its caller leaves.
func (p *proxy) forward(r *http.Request, body []byte, e *exchange) (*http.Response, []byte) {
	backend := p.backend.Load()
	if backend == nil || *backend == "" {
		panic(http.ErrAbortHandler)
	}
	ctx := r.Context()
	if e != nil && e.fate.lost {
		ctx = context.WithoutCancel(ctx)
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, "http://"+*backend+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	request.Header = r.Header.Clone()
	for _, hop := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Accept-Encoding"} {
		request.Header.Del(hop)
	}
	response, err := p.out.RoundTrip(request)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return response, data
}

// fate is the treatment of an answer.
type fate struct {
	// lost: it does not arrive. silent: nor does the connection close.
	lost, silent bool
	// late is the delay of its arrival.
	late time.Duration
}

// deliver waits while an answer is delayed, and reports whether it arrives.
func (f fate) deliver(ctx context.Context) bool {
	switch {
	case f.silent:
		<-ctx.Done()
		return false
	case f.lost:
		return false
	case f.late > 0:
		timer := time.NewTimer(f.late)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
