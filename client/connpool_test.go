package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/internal/connpool"
	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Through a tunnel or a load balancer only one node can be reached, and it does not lead.
func TestClient_ReachesTheLeaderThroughAnotherNode(t *testing.T) {
	for name, fault := range map[string]fakequota.Fault{
		"nobody listens there": fakequota.Refusing, "what is sent there gets lost": fakequota.Silent,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, _ *Client) {
				cluster.Lead(2)
				cluster.Break(2, fault)
				cluster.Break(1, fault)
				c, err := New(cluster.Addresses()[:1], WithHTTPClient(cluster), WithHolder("picard"))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				for i, most := range []time.Duration{time.Second, 10 * time.Millisecond} {
					began := time.Now()
					lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1), Consume: true})
					if err != nil {
						t.Fatalf("call %d: %v", i+1, err)
					}
					if took := time.Since(began); took > most {
						t.Errorf("call %d took %v, want at most %v", i+1, took, most)
					}
					if _, err := lease.Release(context.Background()); err != nil {
						t.Errorf("call %d: %v", i+1, err)
					}
				}
				// Once the leader can be reached, calls go there again.
				cluster.Break(2, fakequota.Healthy)
				pass(relayLife + time.Second)
				before := cluster.Asked(2)
				if _, err := c.Quota(context.Background(), "t/core"); err != nil || cluster.Asked(2) == before {
					t.Errorf("%v, the leader was asked %d times", err, cluster.Asked(2)-before)
				}
			})
		})
	}
}

// listen serves a cluster's first node on a local port, and counts its connections.
func listen(t *testing.T, cluster *fakequota.Cluster, set func(*http.Protocols)) (server *httptest.Server, most *atomic.Int64) {
	t.Helper()
	server, most = prepare(t, cluster, set)
	server.Start()
	return server, most
}

// listenSecure is listen with TLS. It returns the option with which a client trusts the server as well.
func listenSecure(t *testing.T, cluster *fakequota.Cluster, set func(*http.Protocols)) (
	server *httptest.Server, most *atomic.Int64, trust Option,
) {
	t.Helper()
	server, most = prepare(t, cluster, set)
	return server, most, startSecure(server)
}

// startSecure starts a server with TLS, and returns the option with which a client trusts it.
func startSecure(server *httptest.Server) Option {
	server.EnableHTTP2 = server.Config.Protocols.HTTP2()
	server.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return WithTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
}

// prepare returns a server of a cluster's first node that counts its connections, to be started.
func prepare(t *testing.T, cluster *fakequota.Cluster, set func(*http.Protocols)) (server *httptest.Server, most *atomic.Int64) {
	t.Helper()
	var conns atomic.Int64
	most = &atomic.Int64{}
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.URL.Host = cluster.Addresses()[0]
		response, err := cluster.Do(r)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), response.Header)
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that determine the protocol
	server.Config.Protocols = new(http.Protocols)
	set(server.Config.Protocols)
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1_000}
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			most.Store(max(most.Load(), conns.Add(1)))
		case http.StateClosed, http.StateHijacked:
			conns.Add(-1)
		default:
		}
	}
	t.Cleanup(server.Close)
	return server, most
}

// TestClient_SharesConnections: calls that wait share connections, also those of several clients, and with TLS. So many calls at once find
// no connection yet, and are too many for one.
func TestClient_SharesConnections(t *testing.T) {
	waiters, streams := 1_500, 1_000
	if testing.Short() {
		waiters, streams = 300, 200
	}
	for name, c := range map[string]struct {
		clients int
		secure  bool
	}{
		"one client": {clients: 1}, "one with TLS": {clients: 1, secure: true},
		"several": {clients: 5}, "several with TLS": {clients: 5, secure: true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := fakequota.New(1)
			cluster.Set("t/core", fakequota.Quota{Usable: int64(waiters)})
			both := func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(c.secure); p.SetUnencryptedHTTP2(!c.secure) }
			options := []Option{WithHolder("picard")}
			server, most := prepare(t, cluster, both)
			server.Config.HTTP2.MaxConcurrentStreams = streams
			if c.secure {
				options = append(options, startSecure(server))
			} else {
				server.Start()
			}
			clients := make([]*Client, c.clients)
			for i := range clients {
				made, err := New([]string{server.Listener.Addr().String()}, options...)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = made.Close() }()
				clients[i] = made
			}
			var calls sync.WaitGroup
			var failed atomic.Int64
			for i := range waiters {
				calls.Go(func() {
					lease, err := clients[i%len(clients)].Reserve(within(t, time.Minute), ReserveRequest{Items: one("t/core", 1), Wait: time.Minute})
					if err != nil {
						failed.Add(1)
						t.Log(err)
						return
					}
					_, _ = lease.Release(within(t, time.Minute))
				})
			}
			eventually(t, "all wait", func() bool { return cluster.Waiting() == waiters })
			cluster.Add("t/core", int64(waiters))
			calls.Wait()
			if failed.Load() > 0 || most.Load() > 4 {
				t.Errorf("%d of %d calls failed, over %d connections, want 0 over at most 4", failed.Load(), waiters, most.Load())
			}
		})
	}
}

// TestClient_ClosesSharedConnectionsWithItsLastUser: a client that closes takes no connection away from others. The last one closes them.
func TestClient_ClosesSharedConnectionsWithItsLastUser(t *testing.T) {
	cluster := full()
	server, _ := prepare(t, cluster, func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	var opened atomic.Int64
	count := server.Config.ConnState
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
		count(conn, state)
	}
	trust := startSecure(server)
	inUse := connpool.InUse
	before := inUse()
	made := func() *Client {
		c, err := New([]string{server.Listener.Addr().String()}, WithHolder("picard"), trust)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second := made(), made()
	for _, c := range []*Client{first, second} {
		if err := c.Limiter("t/core").Wait(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n != 2 { // the first one asked how many calls a connection carries
		t.Errorf("two clients opened %d connections, want 2", n)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := second.Limiter("t/core", MaxBatch(1)).Wait(within(t, 10*time.Second)); err != nil || opened.Load() != 2 || inUse() != before+1 {
		t.Errorf("after the first client closed: %v, %d connections were opened, %d pools", err, opened.Load(), inUse()-before)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if n := inUse(); n != before {
		t.Errorf("%d pools are left", n-before)
	}
}

// TestClient_SendsNothingInClearTextToASecureNode: a connection in clear text is not used for an https URL of the same host and port, by
// any client of the process.
func TestClient_SendsNothingInClearTextToASecureNode(t *testing.T) {
	cluster := full()
	server, _ := listen(t, cluster, func(p *http.Protocols) { p.SetHTTP1(true); p.SetUnencryptedHTTP2(true) })
	address := server.Listener.Addr().String()
	plain, err := New([]string{address}, WithHolder("picard"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	if _, err := plain.Quota(within(t, 10*time.Second), "t/core"); err != nil {
		t.Fatal(err)
	}
	before := cluster.Asked(0)
	secure, err := New([]string{"https://" + address}, WithHolder("picard"), WithToken("made-up"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = secure.Close() }()
	if _, err := secure.Quota(within(t, 5*time.Second), "t/core"); err == nil || cluster.Asked(0) != before {
		t.Errorf("%v, and the node was asked %d times", err, cluster.Asked(0)-before)
	}
}

// TestClient_FollowsAChangeOfProtocol: a node or a load balancer comes back without HTTP/2.
func TestClient_FollowsAChangeOfProtocol(t *testing.T) {
	cluster := full()
	first, _, trust := listenSecure(t, cluster, func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	address := first.Listener.Addr().String()
	c, err := New([]string{address}, WithHolder("picard"), trust)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Quota(within(t, 10*time.Second), "t/core"); err != nil {
		t.Fatal(err)
	}
	certificates := first.TLS.Certificates
	first.Close()
	second, _ := prepare(t, cluster, func(p *http.Protocols) { p.SetHTTP1(true) })
	_ = second.Listener.Close()
	if second.Listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	second.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: certificates}
	second.StartTLS()
	if _, err := c.Quota(within(t, 10*time.Second), "t/core"); err != nil {
		t.Error(err)
	}
}

func TestClient_FallsBackToHTTP1(t *testing.T) {
	for name, c := range map[string]struct{ secure, silent bool }{
		"in clear text": {}, "with TLS": {secure: true}, "with TLS, without a word on protocols": {secure: true, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := full()
			options := []Option{WithHolder("picard")}
			var server *httptest.Server
			if c.secure {
				var trust Option
				server, _, trust = listenSecure(t, cluster, func(p *http.Protocols) { p.SetHTTP1(true) })
				options = append(options, trust)
			} else {
				server, _ = listen(t, cluster, func(p *http.Protocols) { p.SetHTTP1(true) })
			}
			if c.silent {
				server.TLS.NextProtos = nil
			}
			client, err := New([]string{server.Listener.Addr().String()}, options...)
			if err != nil {
				t.Fatal(err)
			}
			if err := client.Limiter("t/core").Wait(within(t, 10*time.Second)); err != nil {
				t.Error(err)
			}
			_ = client.Close()
		})
	}
}

// TestClient_NamesACertificateThatItDoesNotTrust: nothing was sent, and the error says what is wrong, not that nobody answers.
func TestClient_NamesACertificateThatItDoesNotTrust(t *testing.T) {
	server, _, _ := listenSecure(t, full(), func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	c, err := New([]string{"https://" + server.Listener.Addr().String()}, WithHolder("picard"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.Reserve(within(t, 5*time.Second), ReserveRequest{Items: one("t/core", 1)})
	if _, ok := errors.AsType[*NotAcceptedError](err); !ok || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v, want that it was not accepted for a certificate", err)
	}
}

// TestNew_TakesOneWayOfTLS: two would contradict each other.
func TestNew_TakesOneWayOfTLS(t *testing.T) {
	for name, options := range map[string][]Option{
		"nil":  {WithTLS(nil)},
		"both": {WithTLS(&tls.Config{MinVersion: tls.VersionTLS12}), WithHTTPClient(http.DefaultClient)},
	} {
		if c, err := New([]string{"127.0.0.1:7450"}, options...); err == nil || c != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClient_KnowsThatNothingWasSent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	// The connection is established, but nobody answers on it.
	c, err := New([]string{listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.Reserve(within(t, 300*time.Millisecond), ReserveRequest{Items: one("t/core", 1)})
	if _, ok := errors.AsType[*NotAcceptedError](err); !ok {
		t.Errorf("%v, want that it was not accepted", err)
	}
}

func TestClient_ConnectsAgain(t *testing.T) {
	cluster := full()
	server, _ := listen(t, cluster, func(p *http.Protocols) { p.SetHTTP1(true); p.SetUnencryptedHTTP2(true) })
	c, err := New([]string{server.Listener.Addr().String()}, WithHolder("picard"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for i := range 10 {
		if err := c.Limiter("t/core", MaxBatch(1)).Wait(within(t, 10*time.Second)); err != nil {
			t.Fatalf("take %d: %v", i+1, err)
		}
		server.CloseClientConnections()
	}
}

// A request sent over a shared connection without an answer may have been carried out, in any protocol.
func TestClient_SentCallMayHaveRun(t *testing.T) {
	for name, set := range map[string]func(*http.Protocols){
		"HTTP/2":   func(p *http.Protocols) { p.SetHTTP1(true); p.SetUnencryptedHTTP2(true) },
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
	} {
		t.Run(name, func(t *testing.T) {
			cluster := full()
			server, _ := listen(t, cluster, set)
			c, err := New([]string{server.Listener.Addr().String()}, WithHolder("picard"), WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if _, err := c.Reserve(within(t, 10*time.Second), ReserveRequest{Items: one("t/core", 1)}); err != nil {
				t.Fatal(err)
			}
			cluster.Break(0, fakequota.Mute)
			ask := func(ctx context.Context, to *node) (*quotav1.GetQuotaResponse, error) {
				return to.api.GetQuota(ctx, &quotav1.GetQuotaRequest{Name: "t/core"})
			}
			if a := try(within(t, 10*time.Second), c.nodes.all[0], 200*time.Millisecond, ask); a.outcome != unknown {
				t.Errorf("an attempt without an answer: outcome %v, %v", a.outcome, a.err)
			}
			_, err = c.Reserve(within(t, time.Second), ReserveRequest{Items: one("t/core", 1)})
			if !errors.As(err, new(*UnknownOutcomeError)) || taken(cluster) != 2 {
				t.Errorf("%v, taken %d; want an unknown outcome of what was taken", err, taken(cluster))
			}
			cluster.Break(0, fakequota.Healthy)
			_, err = c.Quota(within(t, 10*time.Second), "t/core")
			if err != nil {
				t.Error(err)
			}
		})
	}
}
