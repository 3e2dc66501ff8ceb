package rpc

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Bounds of the API port.
const (
	maxMessage      = 4 << 20   // a Batch; see longMessages
	maxAnswer       = 128 << 20 // twice the largest that a request can ask for: a Batch whose results name 64 long quotas each
	defaultReadBody = 10 * time.Second
	defaultWrite    = 30 * time.Second
	maxHeader       = 16 << 10
	maxFields       = 100   // of a header, repeated ones too; clients and proxies send thirty. A short field takes many times its bytes
	maxStreams      = 1_000 // calls on one connection: a client has hundreds of waiting ones, and its budget bounds them
	idleTimeout     = 120 * time.Second
	readHeaderIn    = 5 * time.Second
	keepAlive       = 15 * time.Second
)

// Bytes that an HTTP/2 connection buffers of unread bodies. No budget covers them: a call that waits for its turn has not read its body,
// and a node has thousands of connections. Two whole streams fill the buffer, so that one stalled body leaves room for the others. A
// frame is read into a buffer of its length before anything is known of it.
const (
	receivePerConnection = 128 << 10
	receivePerStream     = 64 << 10
	receivePerFrame      = 16 << 10
)

// NewHTTPServer makes a server for HTTP/1.1 and HTTP/2, with or without TLS, that bounds slow and idle clients. Reading a body and
// writing each piece of an answer have deadlines of their own (Server.Handler): the server's deadlines would end streams and waits.
func NewHTTPServer(handler http.Handler, conf *tls.Config, logger hclog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(conf != nil)
	protocols.SetUnencryptedHTTP2(conf == nil)
	return &http.Server{
		Handler: handler, Protocols: protocols, TLSConfig: conf, ReadHeaderTimeout: readHeaderIn, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ConnContext: withConnection,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: receivePerFrame,
			MaxReceiveBufferPerConnection: receivePerConnection, MaxReceiveBufferPerStream: receivePerStream,
		},
		ErrorLog: newServerLog(logger),
	}
}

// boundedBody returns typed errors for a faulty body. It removes the deadline once the body is read, because the server still reads from
// the connection while the call is in flight.
type boundedBody struct {
	io.ReadCloser
	control *http.ResponseController
	within  time.Duration
	// rolling gives each read a deadline of its own.
	rolling bool
	lifted  bool
	// room, if set, is the body's part of the budget of request bytes. declared is how many bytes are still to come; below 0: unknown.
	room     *requestBytes
	declared int64
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
	n, err := b.read(p)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.lift()
		b.room.trim()
		return n, err
	case errors.As(err, &tooLarge):
		return n, tooLargeError(fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, newError(fmt.Sprintf("the body did not arrive within %v", b.within), &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_CANCELED, Hint: "send the body immediately after the header", NotAccepted: true,
		})
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, invalid("body", "ended too early", "send the request again")
	}
	return n, err
}

// read takes room for the next bytes and reads them.
func (b *boundedBody) read(p []byte) (int, error) {
	if b.room == nil {
		return b.ReadCloser.Read(p)
	}
	p = p[:min(len(p), readStep)]
	needs := int64(len(p))
	if b.declared >= 0 {
		needs = min(needs, b.declared)
	}
	if err := b.room.require(needs); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	b.room.use(n)
	b.declared -= int64(n)
	return n, err
}

// statusHeader carries an HTTP status from an error to answerWriter, where Connect's code alone does not give it.
const statusHeader = "Quotad-Status"

// answerWriter gives each piece of an answer a deadline: a caller that does not read ends its call. It answers too large requests with
// status 413 instead of Connect's 429, because a retry is useless. It explains errors in JSON (explain). On HTTP/1 it closes the
// connection after an answer that was sent before the whole body was read. Otherwise the rest of the body could be taken for a request.
type answerWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	within  time.Duration
	// body is the body of an HTTP/1 request; nil if it has none.
	body  *watchedBody
	begun bool
	// share, if set, is charged for what is written.
	share *processor.Call
	// gathering buffers writes until a later Flush.
	gathering bool
	// contentType is the request's. failed says that the next write is the body of an error in JSON.
	contentType string
	failed      bool
}

// watchedBody records whether it was read to its end.
type watchedBody struct {
	io.ReadCloser
	ended bool
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// begin runs before each piece of an answer is written.
func (w *answerWriter) begin() {
	if !w.begun && w.body != nil && !w.body.ended {
		w.Header().Set("Connection", "close")
	}
	w.begun = true
	_ = w.control.SetWriteDeadline(time.Now().Add(w.within))
}

// Write implements http.ResponseWriter.
func (w *answerWriter) Write(b []byte) (int, error) {
	w.begin()
	n := len(b)
	if w.failed {
		w.failed = false
		b = explain(b)
	}
	if w.share != nil {
		w.share.ChargeWritten(len(b))
	}
	if _, err := w.ResponseWriter.Write(b); err != nil {
		return 0, err
	}
	return n, nil
}

// WriteHeader implements http.ResponseWriter.
func (w *answerWriter) WriteHeader(status int) {
	if w.Header().Get(statusHeader) != "" {
		w.Header().Del(statusHeader)
		status = http.StatusRequestEntityTooLarge
	}
	if unfit := w.unfit(status); unfit != nil {
		w.Header().Set("Content-Type", jsonType)
		w.begin()
		w.ResponseWriter.WriteHeader(status)
		_, _ = w.Write(unfit)
		return
	}
	w.failed = status >= http.StatusBadRequest && w.Header().Get("Content-Type") == jsonType
	w.begin()
	w.ResponseWriter.WriteHeader(status)
}

// Flush implements http.Flusher, which streams need. Between pieces a stream has no deadline.
func (w *answerWriter) Flush() {
	if w.gathering {
		return
	}
	w.begin()
	if w.control.Flush() == nil {
		_ = w.control.SetWriteDeadline(time.Time{})
	}
}

// Unwrap is for http.ResponseController.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
