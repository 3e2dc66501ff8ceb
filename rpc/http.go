package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Bounds of the API port.
const (
	maxMessage       = 4 << 20 // a Batch; other requests are far below maxBody
	maxBody          = 1 << 20
	maxAnswer        = 16 << 20
	readBodyIn       = 10 * time.Second
	maxHeader        = 16 << 10
	maxStreams       = 250
	idleTimeout      = 120 * time.Second
	readHeaderIn     = 5 * time.Second
	keepAlive        = 15 * time.Second
	restoreProcedure = "/quota.v1.AdminService/Restore"
	batchProcedure   = "/quota.v1.QuotaService/Batch"
	applyProcedure   = "/quota.v1.AdminService/ApplyQuotas"
)

// NewHTTPServer makes a server for HTTP/1.1 and HTTP/2, without TLS as well, whose slow and idle clients are bounded.
// Unary bodies have a deadline of their own (Server.Handler); a write timeout would end streams and waits.
func NewHTTPServer(handler http.Handler, conf *tls.Config, logger hclog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(conf != nil)
	protocols.SetUnencryptedHTTP2(conf == nil)
	return &http.Server{
		Handler: handler, Protocols: protocols, TLSConfig: conf, ReadHeaderTimeout: readHeaderIn, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: logger.StandardLogger(&hclog.StandardLoggerOptions{InferLevels: true}),
	}
}

// DefaultMaxConnections is how many connections the API port takes at once.
const DefaultMaxConnections = 10_000

// Listen listens for at most so many connections at once.
func Listen(address string, most int) (net.Listener, error) {
	listener, err := (&net.ListenConfig{KeepAlive: keepAlive}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	return &boundedListener{Listener: listener, slots: make(chan struct{}, most)}, nil
}

// limited bounds the body of a call in size and time, and counts what is under way.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.running.enter()
		defer s.running.leave()
		if strings.HasPrefix(r.URL.Path, "/quota.v1.") && r.URL.Path != restoreProcedure {
			limit := int64(maxBody)
			if r.URL.Path == batchProcedure || r.URL.Path == applyProcedure {
				limit = maxMessage
			}
			control := http.NewResponseController(w)
			_ = control.SetReadDeadline(time.Now().Add(readBodyIn))
			r.Body = &timedBody{
				ReadCloser: http.MaxBytesReader(w, r.Body, limit),
				done:       func() { _ = control.SetReadDeadline(time.Time{}) },
			}
		}
		next.ServeHTTP(w, r)
	})
}

// timedBody lifts the deadline of a body when it was read: the connection is watched on while the call is under way.
type timedBody struct {
	io.ReadCloser
	once sync.Once
	done func()
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.once.Do(b.done)
	}
	return n, err
}

// boundedListener takes no more connections than it has slots.
type boundedListener struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &boundedConn{Conn: conn, release: func() { <-l.slots }}, nil
}

type boundedConn struct {
	net.Conn
	once    sync.Once
	release func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}
