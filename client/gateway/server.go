package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
)

// Bounds of client connections.
const (
	headerWithin = 10 * time.Second
	maxHeader    = 64 << 10
	idleFor      = 3 * time.Minute
)

// Server serves a gateway at the addresses of its configuration.
type Server struct {
	gateway   *Gateway
	servers   []*http.Server
	listeners []net.Listener
	// certificate may be replaced by Reload; nil: plain HTTP.
	certificate atomic.Pointer[tls.Certificate]
}

// Listen opens the addresses of the configuration.
func (g *Gateway) Listen(ctx context.Context) (*Server, error) {
	s := &Server{gateway: g}
	conf := g.state.Load().config.Listen
	if err := s.loadCertificate(conf); err != nil {
		return nil, err
	}
	var open net.ListenConfig
	for _, address := range conf.TCP {
		listener, err := open.Listen(ctx, "tcp", address)
		if err != nil {
			if host, _, _ := net.SplitHostPort(address); host == "::1" && len(s.listeners) > 0 && !errors.Is(err, os.ErrPermission) && !inUse(err) {
				g.logger.Info("cannot listen on the IPv6 loopback", "address", address, "error", err)
				continue // a machine without IPv6
			}
			s.close()
			return nil, err
		}
		s.add(listener, false)
	}
	if conf.Unix != "" {
		listener, err := listenUnix(ctx, conf.Unix)
		if err != nil {
			s.close()
			return nil, err
		}
		s.add(listener, true)
	}
	return s, nil
}

// listenUnix opens a unix socket, and replaces one that a dead process left.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
			_ = connection.Close()
			return nil, fmt.Errorf("listen unix %s: another process listens there", path)
		}
		_ = os.Remove(path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	var open net.ListenConfig
	listener, err := open.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := protectSocket(path); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// add prepares a server for a listener.
func (s *Server) add(listener net.Listener, unix bool) {
	conf := s.gateway.state.Load().config.Listen
	secure := !unix && conf.Cert != ""
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(secure)
	// Plaintext HTTP/2 is for the local machine, or a trusted network.
	protocols.SetUnencryptedHTTP2(!secure && (unix || conf.Insecure || loopbackOnly(listener)))
	server := &http.Server{
		Handler: s.gateway.Handler(), Protocols: protocols, ReadHeaderTimeout: headerWithin, IdleTimeout: idleFor,
		MaxHeaderBytes: maxHeader, ErrorLog: discardLog,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return withConnection(ctx, c, unix) },
	}
	// Raw request heads are checked: net/http hides what proxies interpret differently.
	server.ConnState = headState
	if secure {
		server.TLSConfig = &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{protocolHTTP2, "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate.Load(), nil },
		}
		listener = newSecureListener(listener, server.TLSConfig)
	} else {
		listener = headListener{listener}
	}
	s.servers = append(s.servers, server)
	s.listeners = append(s.listeners, listener)
}

func loopbackOnly(listener net.Listener) bool {
	address, ok := listener.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

func (s *Server) loadCertificate(conf config.Listen) error {
	pair, err := readCertificate(conf)
	if pair != nil {
		s.certificate.Store(pair)
	}
	return err
}

// readCertificate returns the certificate of a configuration; nil if it names none.
func readCertificate(conf config.Listen) (*tls.Certificate, error) {
	if conf.Cert == "" {
		return nil, nil //nolint:nilnil // no certificate is no error
	}
	pair, err := tls.LoadX509KeyPair(conf.Cert, conf.Key)
	if err != nil {
		return nil, fmt.Errorf("listen.tls: %w", err)
	}
	return &pair, nil
}

// Reload adopts a new configuration, like Gateway.Reload, together with the server's certificate: both or neither.
func (s *Server) Reload(conf config.Config) error {
	pair, err := readCertificate(conf.Listen)
	if err != nil {
		return err
	}
	if err := s.gateway.Reload(conf); err != nil {
		return err
	}
	if pair != nil && s.certificate.Load() != nil {
		s.certificate.Store(pair)
	}
	return nil
}

// Addresses returns the addresses of the listeners.
func (s *Server) Addresses() []string {
	var out []string
	for _, listener := range s.listeners {
		out = append(out, listener.Addr().String())
	}
	return out
}

// Serve serves until ctx ends. Then it refuses new and waiting calls with 503, lets running ones continue for at most limits.drain, and
// returns nil. The addresses stay open as long, so that callers read a refusal instead of failing to connect.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, len(s.servers))
	for i, server := range s.servers {
		go func() { failed <- server.Serve(s.listeners[i]) }()
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.gateway.Stop()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.gateway.state.Load().config.Limits.Drain)
	defer cancel()
	_ = s.gateway.Drained(drain) // Shutdown reports calls in flight
	for _, server := range s.servers {
		if late := server.Shutdown(drain); late != nil {
			s.gateway.logger.Warn("aborted calls in flight", "error", late)
			_ = server.Close()
		}
	}
	ending, end := context.WithTimeout(context.WithoutCancel(ctx), abortedWithin)
	defer end()
	_ = s.gateway.Drained(ending) // aborted calls settle what they hold
	return err
}

// abortedWithin is how long calls may take to end after their connections were closed.
const abortedWithin = 5 * time.Second

func (s *Server) close() {
	for _, listener := range s.listeners {
		_ = listener.Close()
	}
}

// withConnection adds a description of the connection to its calls' context.
func withConnection(ctx context.Context, c net.Conn, unix bool) context.Context {
	known := connection{unix: unix}
	if head, ok := c.(*headConn); ok {
		known.head = head
		c = head.Conn
	}
	_, known.secure = c.(*tls.Conn)
	if unix {
		known.peer = peerOf(c)
	}
	return context.WithValue(ctx, connectionKey{}, known)
}
