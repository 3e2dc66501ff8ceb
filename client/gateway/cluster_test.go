package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// cluster is a real node on loopback addresses.
type cluster struct {
	tb     testing.TB
	config raftnode.Config
	node   *raftnode.Node
	api    *rpc.Server
	server *http.Server
	// closing counts reports of refusals and overloads, as opposed to ordinary counts; overloads counts those of overloads.
	closing, overloads atomic.Int64
	// tokens are required of callers; nil: none are.
	tokens *rpc.Tokens
	// loses selects calls whose answers are lost after they were carried out; nil: none.
	loses atomic.Pointer[func(path, body string) bool]
}

// observed counts clients' commands to the node, which travel in batches.
func (c *cluster) observed(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == quotav1connect.QuotaServiceBatchProcedure && r.Header.Get("Content-Type") == "application/proto" {
			var batch quotav1.BatchRequest
			body, err := io.ReadAll(r.Body)
			if err == nil && proto.Unmarshal(body, &batch) == nil {
				for _, command := range batch.Commands {
					said := command.GetReport().GetSignals()
					if slices.ContainsFunc(said, func(s *quotav1.Signal) bool { return s.Cause > quotav1.Cause_CAUSE_OK }) {
						c.closing.Add(1)
					}
					if slices.ContainsFunc(said, func(s *quotav1.Signal) bool { return s.Cause == quotav1.Cause_CAUSE_OVERLOADED }) {
						c.overloads.Add(1)
					}
				}
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		loses := c.loses.Load()
		if loses == nil {
			api.ServeHTTP(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if (*loses)(r.URL.Path, string(body)) {
			api.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		api.ServeHTTP(w, r)
	})
}

// startCluster starts a node and applies quotas.
func startCluster(tb testing.TB, quotas ...*quotav1.Quota) *cluster {
	tb.Helper()
	addresses, err := loopback.Free(2)
	if err != nil {
		tb.Fatal(err)
	}
	peer := raftnode.Peer{ID: "n0", RaftAddress: addresses[0], APIAddress: addresses[1]}
	c := &cluster{tb: tb, config: raftnode.DefaultConfig()}
	// A node alone loses an election to nobody: it need not wait for others.
	c.config.HeartbeatTimeout, c.config.ElectionTimeout, c.config.LeaderLease = 20*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	c.config.ID, c.config.RaftAddress, c.config.APIAddress = peer.ID, peer.RaftAddress, peer.APIAddress
	c.config.DataDir, c.config.Peers = tb.TempDir(), []raftnode.Peer{peer}
	c.start()
	tb.Cleanup(c.stop)
	c.apply(quotas...)
	return c
}

func (c *cluster) start() {
	c.tb.Helper()
	node, err := raftnode.Open(c.config)
	if err != nil {
		c.tb.Fatal(err)
	}
	api, err := rpc.New(rpc.Config{Node: node, Tokens: c.tokens})
	if err != nil {
		c.tb.Fatal(err)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(context.Background(), "tcp", c.config.APIAddress)
	if err != nil {
		c.tb.Fatal(err)
	}
	c.node, c.api, c.server = node, api, rpc.NewHTTPServer(c.observed(api.Handler()), nil, hclog.NewNullLogger())
	server := c.server
	go func() { _ = server.Serve(listener) }()
	eventually(c.tb, "a leader", func() bool { _, _, self := node.Leader(); return self })
}

// stop stops the node: its API at once, and then the rest.
func (c *cluster) stop() {
	if c.node == nil {
		return
	}
	_ = c.server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = c.api.Drain(ctx)
	if err := c.node.Close(ctx); err != nil {
		c.tb.Error(err)
	}
	c.node = nil
}

func (c *cluster) apply(quotas ...*quotav1.Quota) {
	c.tb.Helper()
	if len(quotas) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin := quotav1connect.NewAdminServiceClient(http.DefaultClient, "http://"+c.config.APIAddress)
	if _, err := admin.ApplyQuotas(ctx, &quotav1.ApplyQuotasRequest{Quotas: quotas}); err != nil {
		c.tb.Fatal(err)
	}
}

// quota returns a quota's current state.
func (c *cluster) quota(name string) client.Quota {
	c.tb.Helper()
	asks, err := client.New([]string{c.config.APIAddress})
	if err != nil {
		c.tb.Fatal(err)
	}
	defer func() { _ = asks.Close() }()
	q, err := asks.Quota(context.Background(), name)
	if err != nil {
		c.tb.Fatal(err)
	}
	return q
}

// consumed waits until want units of a quota are consumed and none are held.
func (c *cluster) consumed(name string, want int64) {
	c.tb.Helper()
	eventually(c.tb, fmt.Sprintf("%d of %s consumed", want, name), func() bool {
		q := c.quota(name)
		return q.Consumed == want && q.Leases == 0
	})
}

func rate(name string, limit int64) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(time.Minute)}}}
}

func ratePer(name string, limit int64, per time.Duration) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(per)}}}
}

func tokens(name string, limit int64) *quotav1.Quota {
	q := rate(name, limit)
	q.Settle, q.DefaultEstimate = quotav1.SettleMode_SETTLE_MODE_ACTUAL, 4_000
	return q
}

func slots(name string, limit int64) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: limit}}}
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-deadline.C:
			tb.Fatalf("never: %s", what)
		}
	}
}

// provider is a fake provider: it records requests and answers with the test's handler.
type provider struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
}

// received is a request as the provider received it.
type received struct {
	method, uri, host string
	header            http.Header
	body              string
}

func startProvider(tb testing.TB, answer http.HandlerFunc) *provider {
	tb.Helper()
	p := &provider{}
	p.Server = httptest.NewServer(p.records(answer))
	tb.Cleanup(p.Close)
	return p
}

// records keeps each request before it is answered.
func (p *provider) records(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.requests = append(p.requests, received{r.Method, r.RequestURI, r.Host, r.Header.Clone(), string(body)})
		p.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
	})
}

func (p *provider) seen() []received {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]received(nil), p.requests...)
}

// one returns the only request that the provider received.
func (p *provider) one(tb testing.TB) received {
	tb.Helper()
	seen := p.seen()
	if len(seen) != 1 {
		tb.Fatalf("the provider saw %d requests, want 1", len(seen))
	}
	return seen[0]
}

// lines is a log for a test to read.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// fixture is a gateway in front of a provider.
type fixture struct {
	tb       testing.TB
	cluster  *cluster
	provider *provider
	gateway  *gateway.Gateway
	server   *httptest.Server
	log      *lines
	url      string
}

// upstreamOf returns an upstream at a provider.
func upstreamOf(p *provider, dialect string) config.Upstream {
	return config.Upstream{Dialect: dialect, Base: p.URL, Plain: true}
}

// configOf returns a configuration with upstreams.
func configOf(c *cluster, upstreams map[string]config.Upstream) config.Config {
	return config.Config{
		Machine: "node-7", Cluster: config.Cluster{Nodes: []string{c.config.APIAddress}}, Upstreams: upstreams,
		Listen: config.Listen{TCP: []string{"127.0.0.1:0"}},
	}
}

// startGateway starts a gateway, and waits until it is ready.
func startGateway(tb testing.TB, c *cluster, p *provider, conf config.Config, options gateway.Options) *fixture {
	tb.Helper()
	f := startUnready(tb, c, p, conf, options)
	f.ready()
	return f
}

// startUnready starts a gateway whose cluster may be away.
func startUnready(tb testing.TB, c *cluster, p *provider, conf config.Config, options gateway.Options) *fixture {
	tb.Helper()
	f := &fixture{tb: tb, cluster: c, provider: p, log: &lines{}}
	options.Logger = slog.New(slog.NewTextHandler(f.log, nil))
	g, err := gateway.New(conf, options)
	if err != nil {
		tb.Fatal(err)
	}
	f.gateway = g
	f.server = httptest.NewUnstartedServer(g.Handler())
	f.server.Start()
	f.url = f.server.URL
	tb.Cleanup(func() {
		f.server.Close()
		if err := g.Close(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

func (f *fixture) ready() {
	f.tb.Helper()
	eventually(f.tb, "the gateway is ready", func() bool {
		response, err := http.Get(f.url + "/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// logs waits until the log contains a text at least so many times. A call's line is written when the call ends, after its caller has
// the whole answer.
func (f *fixture) logs(tb testing.TB, text string, times int) {
	tb.Helper()
	eventually(tb, fmt.Sprintf("%q is logged %d times", text, times), func() bool { return strings.Count(f.log.String(), text) >= times })
}

// answer is a complete answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are name, value, name, value.
func (f *fixture) do(method, path, body string, headers ...string) answer {
	f.tb.Helper()
	request, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.tb.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "" {
			continue
		}
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		f.tb.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		f.tb.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(data)}
}
