package connpool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/raftnode/loopback/deadpeer"
)

// TestPool_EndsWhereTheNodeVanishes: a call at a node that vanishes, without closing its connections, fails by a ping timeout, with
// and without TLS. A call at a slow node that answers pings continues.
func TestPool_EndsWhereTheNodeVanishes(t *testing.T) {
	pki := httptest.NewUnstartedServer(nil)
	pki.EnableHTTP2 = true
	pki.StartTLS()
	pair, pool := pki.TLS.Certificates[0], x509.NewCertPool()
	pool.AddCert(pki.Certificate())
	pki.Close()
	for name, c := range map[string]struct{ secure, vanishes bool }{
		"it vanishes": {vanishes: true}, "it vanishes, with TLS": {secure: true, vanishes: true},
		"it is slow": {}, "it is slow, with TLS": {secure: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, received := deadpeer.New(), make(chan struct{})
				server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodHead { // the probe of the protocol
						return
					}
					close(received)
					<-r.Context().Done()
				})}
				server.Protocols.SetHTTP2(true)
				server.Protocols.SetUnencryptedHTTP2(true)
				url, serve := "http://node/", server.Serve
				conns := newPool(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool})
				for _, shared := range slices.Concat(conns.plain[:], conns.secure[:]) {
					shared.DialContext = network.Dial
				}
				if c.secure {
					server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
					url, serve = "https://example.com/", func(l net.Listener) error { return server.ServeTLS(l, "", "") }
				}
				go func() { _ = serve(network) }()
				defer func() { _ = server.Close() }()
				defer conns.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error)
				go func() {
					response, err := conns.RoundTrip(request)
					if err == nil {
						_ = response.Body.Close()
					}
					ended <- err
				}()
				<-received
				began := time.Now()
				if c.vanishes {
					network.Vanish()
				}
				err = <-ended
				switch took := time.Since(began); {
				case err == nil:
					t.Error("it was answered")
				case c.vanishes && (ctx.Err() != nil || took > 2*quiet):
					t.Errorf("it ended after %v: %v", took, err)
				case !c.vanishes && !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("it ended after %v, before it had to: %v", took, err)
				}
			})
		})
	}
}
