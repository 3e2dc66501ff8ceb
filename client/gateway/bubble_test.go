package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// bubble is a gateway with its cluster, provider and clients in one bubble of testing/synctest. They share a virtual clock and
// in-memory connections, so that durations are exact on any machine, and half a minute takes a moment.
type bubble struct {
	t       *testing.T
	cluster *quotatest.Cluster
	nodes   *links
	// reaches are the connections to the provider.
	reaches  *links
	provider *provider
	gateway  *gateway.Gateway
	clients  *pipes
	log      lines
}

// setting is the initial state of a test in a bubble.
type setting struct {
	// dialects are the dialects and the names of the upstreams.
	dialects []string
	quotas   []*quotav1.Quota
	// answer is the provider's handler.
	answer http.HandlerFunc
	// change changes the configuration; nil: no change.
	change func(*config.Config)
}

// inBubble runs a test in a bubble. Create the test's channels inside: waiting on a channel from outside stops the bubble's clock.
func inBubble(t *testing.T, with setting, test func(*testing.T, *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, cluster: quotatest.New(t, with.quotas...), provider: &provider{}, clients: newPipes()}
		b.cluster.Clock().Run()
		reached, ok := b.cluster.HTTPClient().Transport.(*http.Transport)
		if !ok {
			t.Fatal("the cluster is reached in another way")
		}
		b.nodes = &links{dial: reached.DialContext}
		providers := newPipes()
		serve(t, providers, b.provider.records(with.answer))
		conf := config.Config{
			Machine: "node-7", Cluster: config.Cluster{Nodes: []string{"quotatest:7450"}}, Upstreams: map[string]config.Upstream{},
			Listen: config.Listen{TCP: []string{"127.0.0.1:0"}},
			Lease:  time.Hour, // so that no lease's end frees a slot
		}
		for _, name := range with.dialects {
			conf.Upstreams[name] = config.Upstream{Dialect: name, Base: "http://provider.example", Plain: true}
		}
		if with.change != nil {
			with.change(&conf)
		}
		b.reaches = &links{dial: providers.dial}
		transport := &http.Transport{DialContext: b.reaches.connect}
		options := gateway.Options{Transport: transport, Logger: slog.New(slog.NewTextHandler(&b.log, nil))}
		options.ReachNodesBy(b.nodes.connect)
		g, err := gateway.New(conf, options)
		if err != nil {
			t.Fatal(err)
		}
		b.gateway = g
		t.Cleanup(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			transport.CloseIdleConnections()
		})
		serve(t, b.clients, g.Handler())
		b.until("the gateway is ready", time.Second, func() bool { return b.do(http.MethodGet, "/readyz", "").status == http.StatusOK })
		test(t, b)
	})
}

// serve serves until the test ends.
func serve(t *testing.T, on net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() { _ = server.Serve(on); close(ended) }()
	t.Cleanup(func() { _ = server.Close(); _ = on.Close(); <-ended })
}

// until waits for a condition, and fails if that takes too long.
func (b *bubble) until(what string, within time.Duration, holds func() bool) {
	b.t.Helper()
	began := time.Now()
	for !holds() {
		time.Sleep(time.Millisecond) //nolint:forbidigo // of the bubble's clock
		if took := time.Since(began); took > within {
			b.t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// after advances the clock.
func (b *bubble) after(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // of the bubble's clock

// do makes a call on a new connection, and returns the complete answer.
func (b *bubble) do(method, path, body string, headers ...string) answer {
	b.t.Helper()
	connection := b.send(method, path, body, headers...)
	defer func() { _ = connection.Close() }()
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		b.t.Error(err)
		return answer{}
	}
	data, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Error(err)
	}
	return answer{response.StatusCode, response.Header, string(data)}
}

// send starts a call; close the connection to leave it.
func (b *bubble) send(method, path, body string, headers ...string) net.Conn {
	b.t.Helper()
	connection, err := b.clients.dial(context.Background(), "tcp", "gateway")
	if err != nil {
		b.t.Fatal(err)
	}
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", method, path, len(body))
	for i := 0; i+1 < len(headers); i += 2 {
		_, _ = fmt.Fprintf(&text, "%s: %s\r\n", headers[i], headers[i+1])
	}
	_, _ = io.WriteString(connection, text.String()+"\r\n"+body)
	return connection
}

// consumed waits until want units of a quota are consumed and none are held.
func (b *bubble) consumed(name string, want int64) {
	b.t.Helper()
	b.until(fmt.Sprintf("%d of %s consumed", want, name), time.Second, func() bool {
		q := b.cluster.Quota(name)
		return q.Consumed == want && q.Leases == 0
	})
}

// pipes is an in-memory listener.
type pipes struct {
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newPipes() *pipes { return &pipes{incoming: make(chan net.Conn), closed: make(chan struct{})} }

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.incoming:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7452} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.incoming <- pipe{far, p.Addr()}:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pipe is the server's end of a connection, with an address like that of a local caller.
type pipe struct {
	net.Conn
	from net.Addr
}

// RemoteAddr implements net.Conn.
func (p pipe) RemoteAddr() net.Addr { return p.from }

// links are connections to the nodes, or to the provider.
type links struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu   sync.Mutex
	down bool
	open []net.Conn
	late time.Duration
}

// delay delays each write.
func (l *links) delay(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = by
}

// slowed is a connection whose writes may be delayed.
type slowed struct {
	net.Conn
	links *links
}

// Write implements io.Writer.
func (s slowed) Write(p []byte) (int, error) {
	s.links.mu.Lock()
	late := s.links.late
	s.links.mu.Unlock()
	time.Sleep(late) //nolint:forbidigo // of the bubble's clock
	return s.Conn.Write(p)
}

func (l *links) connect(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New(syscall.ECONNREFUSED.Error())}
	}
	made, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, made)
	return slowed{made, l}, nil
}

// cut closes all connections and refuses new ones, until it is called with false.
func (l *links) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	for _, c := range l.open {
		_ = c.Close()
	}
	l.open = nil
}
