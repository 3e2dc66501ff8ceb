package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// serveForDial serves on loopback, with or without TLS, and returns the address.
func serveForDial(t *testing.T, conf *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), conf,
		hclog.NewNullLogger())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conf != nil {
			_ = server.ServeTLS(listener, "", "")
			return
		}
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return listener.Addr().String()
}

// TestDial_NothingIsSentIntoARefusedConnection: any refusal of a connection is known before a request is written. That includes a
// server's refusal of the client's certificate, which TLS 1.3 reports after the client's handshake has ended.
func TestDial_NothingIsSentIntoARefusedConnection(t *testing.T) {
	pki := httptest.NewUnstartedServer(nil)
	pki.StartTLS()
	pair, pool := pki.TLS.Certificates[0], x509.NewCertPool()
	pool.AddCert(pki.Certificate())
	pki.Close()
	server := func(change func(*tls.Config)) *tls.Config {
		conf := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
		change(conf)
		return conf
	}
	client := func(change func(*tls.Config)) func() *tls.Config {
		return func() *tls.Config {
			conf := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
			change(conf)
			return conf
		}
	}
	nothing := func(*tls.Config) {}
	for name, c := range map[string]struct {
		server *tls.Config
		client func() *tls.Config
		want   string // part of the reason; "": it connects
	}{
		"clear text":       {nil, nil, ""},
		"TLS":              {server(nothing), client(nothing), ""},
		"unknown CA":       {server(nothing), client(func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }), "is not signed by the bundle"},
		"another host":     {server(nothing), client(func(c *tls.Config) { c.ServerName = "elsewhere.test" }), "does not name that host"},
		"TLS on one side":  {nil, client(nothing), "does not speak TLS"},
		"TLS on the other": {server(nothing), nil, "does not speak HTTP/2 in clear text"},
		"no client's cert": {
			server(func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert }), client(nothing),
			"rejects the certificate of this node",
		},
		"another client's CA": {
			server(func(c *tls.Config) { c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool() }),
			client(func(c *tls.Config) { c.Certificates = []tls.Certificate{pair} }), "rejects the certificate of this node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := serveForDial(t, c.server)
			transport := peerTransport(&apiDialer{tls: c.client, trust: "the bundle"})
			defer transport.CloseIdleConnections()
			ctx, sent := tracked(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := transport.RoundTrip(req)
			if err == nil {
				_ = res.Body.Close()
			}
			var failure *unreachableError
			switch {
			case c.want == "" && (err != nil || !sent.Load() || res.ProtoMajor != 2):
				t.Errorf("%v, sent %v", err, sent.Load())
			case c.want == "":
			case !errors.As(err, &failure) || !failure.lasting || !strings.Contains(failure.Error(), c.want):
				t.Errorf("got %v, want %q", err, c.want)
			case sent.Load():
				t.Error("the request got a connection")
			}
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&apiDialer{}).dial(gone, "tcp", "127.0.0.1:1"); unreachable(err) == nil || unreachable(err).lasting {
		t.Errorf("a dial whose caller has left: %v", err)
	}
}

// TestDial_ConnectionsAreJudgedAgain: an open connection to another node is closed if the present CAs do not sign its certificate.
func TestDial_ConnectionsAreJudgedAgain(t *testing.T) {
	pki := httptest.NewUnstartedServer(nil)
	pki.StartTLS()
	defer pki.Close()
	pool := x509.NewCertPool()
	pool.AddCert(pki.Certificate())
	address := serveForDial(t, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: pki.TLS.Certificates, NextProtos: []string{"h2"}})
	dialer := &apiDialer{tls: func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool} }}
	transport := peerTransport(dialer)
	defer transport.CloseIdleConnections()
	usesAnother := func() bool {
		t.Helper()
		another := false
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { another = !info.Reused }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, "http://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return another
	}
	closed := 0
	judge := func(roots *x509.CertPool) {
		dialer.open.Judge(roots, x509.ExtKeyUsageServerAuth, func(net.Addr, error) { closed++ })
	}
	usesAnother()
	judge(pool)
	if closed != 0 || usesAnother() {
		t.Errorf("a connection whose CA is still trusted was closed: %d", closed)
	}
	judge(x509.NewCertPool())
	if closed != 1 {
		t.Fatalf("%d connections were closed", closed)
	}
	// The transport notices the end after a moment; until then it may use the connection, and the call fails.
	for another := false; !another; {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := transport.RoundTrip(req); err == nil {
			_ = res.Body.Close()
			another = true
		}
	}
	judge(x509.NewCertPool())
	if closed != 2 {
		t.Errorf("%d connections were closed, of two", closed)
	}
	transport.CloseIdleConnections()
	judge(x509.NewCertPool())
	if closed != 2 {
		t.Error("a connection that is closed already was judged")
	}
}
