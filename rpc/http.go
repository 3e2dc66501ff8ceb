package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Bounds of the API port.
const (
	maxMessage       = 4 << 20 // a Batch; other requests are far below maxBody
	maxBody          = 1 << 20
	maxAnswer        = 128 << 20 // twice the largest that a request can ask for: a Batch whose results name 64 long quotas each
	defaultReadBody  = 10 * time.Second
	defaultWrite     = 30 * time.Second
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
// Reading a body and writing each piece of an answer have deadlines of their own (Server.Handler); those of the server
// would end streams and waits.
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
	return &boundedListener{Listener: listener, slots: make(chan struct{}, most), closed: make(chan struct{})}, nil
}

// limited bounds the body of a call in size and time, and counts what is under way.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.running.enter()
		defer s.running.leave()
		if strings.HasPrefix(r.URL.Path, "/quota.v1.") {
			body := &boundedBody{ReadCloser: r.Body, control: http.NewResponseController(w), within: s.config.ReadBody}
			switch r.URL.Path {
			case restoreProcedure: // as long as it goes on coming
				body.rolling = true
			case batchProcedure, applyProcedure:
				body.ReadCloser = http.MaxBytesReader(w, r.Body, maxMessage)
			default:
				body.ReadCloser = http.MaxBytesReader(w, r.Body, maxBody)
			}
			body.begin()
			r.Body, w = body, answerWriter{w, body.control, s.config.WriteAnswer}
		}
		next.ServeHTTP(w, r)
	})
}

// boundedBody says in typed errors what is wrong with a body, and lifts its deadline when it was read: the connection is
// watched on while the call is under way.
type boundedBody struct {
	io.ReadCloser
	control *http.ResponseController
	within  time.Duration
	// rolling gives each read a deadline of its own.
	rolling bool
	lifted  bool
}

func (b *boundedBody) begin() { _ = b.control.SetReadDeadline(time.Now().Add(b.within)) }

func (b *boundedBody) lift() {
	if !b.lifted {
		b.lifted = true
		_ = b.control.SetReadDeadline(time.Time{})
	}
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.rolling && !b.lifted {
		b.begin()
	}
	n, err := b.ReadCloser.Read(p)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.lift()
		return n, err
	case errors.As(err, &tooLarge):
		return n, tooLargeError(fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, newError(fmt.Sprintf("the body did not come within %v", b.within), &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_CANCELED, Hint: "send it at once", NotAccepted: true,
		})
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, invalid("body", "it was cut off", "send it again")
	}
	return n, err
}

// statusHeader carries a status of HTTP that Connect's code alone does not give from an error to answerWriter.
const statusHeader = "Quotad-Status"

// answerWriter gives each piece of an answer a deadline: a caller that does not read ends its call. And it answers with
// status 413 what Connect would with 429: what is too large is not to be sent again.
type answerWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	within  time.Duration
}

// Write implements http.ResponseWriter.
func (w answerWriter) Write(b []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.within))
	return w.ResponseWriter.Write(b)
}

// WriteHeader implements http.ResponseWriter.
func (w answerWriter) WriteHeader(status int) {
	if w.Header().Get(statusHeader) != "" {
		w.Header().Del(statusHeader)
		status = http.StatusRequestEntityTooLarge
	}
	w.ResponseWriter.WriteHeader(status)
}

// Flush implements http.Flusher, which streams need. Between pieces a stream has no deadline.
func (w answerWriter) Flush() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.within))
	if w.control.Flush() == nil {
		_ = w.control.SetWriteDeadline(time.Time{})
	}
}

// Unwrap is for http.ResponseController.
func (w answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// boundedListener takes no more connections than it has slots.
type boundedListener struct {
	net.Listener
	slots     chan struct{}
	closed    chan struct{}
	closeOnce sync.Once
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &boundedConn{Conn: conn, release: func() { <-l.slots }}, nil
}

// Close implements net.Listener. An Accept that waits for a slot ends too.
func (l *boundedListener) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return l.Listener.Close()
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
