package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
)

// protocolHTTP2 is the ALPN name of HTTP/2.
const protocolHTTP2 = "h2"

// secureListener makes TLS connections of the accepted ones. It completes their handshakes itself. An HTTP/1 connection records the raw
// heads of its requests, so net/http must not know that it uses TLS. An HTTP/2 connection, whose frames are not ambiguous, is left to
// net/http.
type secureListener struct {
	net.Listener
	config   *tls.Config
	accepted chan acceptance
	done     chan struct{}
	start    sync.Once
	end      sync.Once
}

type acceptance struct {
	connection net.Conn
	err        error
}

func newSecureListener(listener net.Listener, config *tls.Config) *secureListener {
	return &secureListener{Listener: listener, config: config, accepted: make(chan acceptance), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *secureListener) Accept() (net.Conn, error) {
	l.start.Do(func() { go l.acceptAll() })
	select {
	case a := <-l.accepted:
		return a.connection, a.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *secureListener) Close() error {
	l.end.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// acceptAll accepts connections until the listener is closed. It blocks on an error until Accept returns it, so a server that pauses
// after an error pauses acceptAll as well.
func (l *secureListener) acceptAll() {
	for {
		connection, err := l.Listener.Accept()
		switch {
		case err == nil:
			go l.shake(connection)
		case errors.Is(err, net.ErrClosed) || !l.hand(nil, err):
			return
		}
	}
}

// hand delivers a result to Accept; false: the listener is closed.
func (l *secureListener) hand(connection net.Conn, err error) bool {
	select {
	case l.accepted <- acceptance{connection, err}:
		return true
	case <-l.done:
		return false
	}
}

// shake completes a handshake and delivers the connection.
func (l *secureListener) shake(raw net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), headerWithin)
	defer cancel()
	secured := tls.Server(raw, l.config)
	if err := secured.HandshakeContext(ctx); err != nil {
		if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil {
			_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nquotad: this port speaks TLS: use https\n")
		}
		_ = raw.Close()
		return
	}
	var connection net.Conn = secured
	if secured.ConnectionState().NegotiatedProtocol != protocolHTTP2 {
		connection = &headConn{Conn: secured}
	}
	if !l.hand(connection, nil) {
		_ = connection.Close()
	}
}
