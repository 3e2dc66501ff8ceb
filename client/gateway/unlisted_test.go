package gateway_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

const responseBody = `{"model":"gpt-5-2025-08-07","max_output_tokens":500,"input":"Hello"}`

// startAway starts a gateway for a fake OpenAI while its cluster is away.
func startAway(t *testing.T, open *config.FailOpen, answer http.HandlerFunc) *fixture {
	t.Helper()
	c := startCluster(t, rate("openai/gpt-5/requests", 100), tokens("openai/gpt-5/tokens", 100_000))
	c.stop()
	p := startProvider(t, answer)
	u := upstreamOf(p, "openai")
	u.FailOpen = open
	return startUnready(t, c, p, configOf(c, map[string]config.Upstream{"openai": u}), gateway.Options{})
}

// governedAgain waits until calls ask the cluster again.
func (f *fixture) governedAgain(tb testing.TB) {
	tb.Helper()
	eventually(tb, "calls are governed again", func() bool {
		got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`)
		return got.status == http.StatusOK && got.header.Get("X-Quotad") == ""
	})
}

func TestA14_FailOpenHelpsAGatewayThatStartsWhileTheClusterIsAway(t *testing.T) {
	t.Parallel() // mostly waiting
	f := startAway(t, &config.FailOpen{Count: 2, Per: time.Hour, For: time.Hour}, speak(200,
		`{"object":"response","status":"completed","usage":{"input_tokens":7000,"output_tokens":1186}}`))
	results := make(chan answer, 4)
	for range 4 {
		go func() { results <- f.do(http.MethodPost, "/openai/v1/responses", responseBody) }()
	}
	passed := 0
	for range 4 {
		switch got := <-results; true {
		case got.status == http.StatusOK && got.header.Get("X-Quotad") == "open":
			passed++
		case got.status == http.StatusServiceUnavailable && got.header.Get("Retry-After") == "5":
		default:
			t.Errorf("got %d %s, %v", got.status, got.body, got.header)
		}
	}
	if sent := len(f.provider.seen()); passed != 2 || sent != 2 {
		t.Fatalf("%d calls passed, the provider saw %d; want 2", passed, sent)
	}
	f.cluster.start()
	f.governedAgain(t)
	// Passed calls are charged to the model's quotas, by the use in their answers, although the quotas were unknown then. The governed
	// call used 8186 as well.
	eventually(t, "what passed is charged", func() bool { return f.cluster.quota("openai/gpt-5/requests").Consumed >= 3 })
	eventually(t, "its tokens are charged", func() bool {
		calls := f.cluster.quota("openai/gpt-5/requests").Consumed
		q := f.cluster.quota("openai/gpt-5/tokens")
		return q.Leases == 0 && q.Consumed == calls*8186
	})
}

func TestA13_AGatewayThatStartsWhileTheClusterIsAwayRefusesUntilItIsBack(t *testing.T) {
	t.Parallel() // mostly waiting
	f := startAway(t, nil, speak(200, chatAnswer))
	if got := f.do(http.MethodGet, "/readyz", ""); got.status != http.StatusServiceUnavailable {
		t.Errorf("/readyz says %d while the quotas are not known", got.status)
	}
	got := f.do(http.MethodPost, "/openai/v1/responses", responseBody)
	if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "5" || len(f.provider.seen()) != 0 {
		t.Fatalf("got %d %s, %v", got.status, got.body, got.header)
	}
	// A waiting call is served once the quotas are known.
	waits := make(chan answer, 1)
	go func() { waits <- f.do(http.MethodPost, "/openai/v1/responses", responseBody) }()
	f.cluster.start()
	eventually(t, "calls pass", func() bool {
		return f.do(http.MethodPost, "/openai/v1/responses", responseBody).status == http.StatusOK
	})
	if got := <-waits; got.status != http.StatusOK && got.status != http.StatusServiceUnavailable {
		t.Errorf("a call that waited got %d %s", got.status, got.body)
	}
}

// sluice forwards connections, and while shut delays all writes, like a network that drops packets.
type sluice struct {
	address string
	mu      sync.Mutex
	changed *sync.Cond
	shut    bool
}

func startSluice(tb testing.TB, to string) *sluice {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &sluice{address: listener.Addr().String()}
	s.changed = sync.NewCond(&s.mu)
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			passing.Go(func() {
				defer func() { _ = near.Close() }()
				s.wait()
				far, err := new(net.Dialer).DialContext(context.Background(), "tcp", to)
				if err != nil {
					return
				}
				defer func() { _ = far.Close() }()
				back := make(chan struct{})
				go func() { _, _ = io.Copy(held{s, near}, far); _ = near.Close(); close(back) }()
				_, _ = io.Copy(held{s, far}, near)
				_ = far.Close()
				<-back
			})
		}
	})
	tb.Cleanup(func() { _ = listener.Close(); s.set(false); passing.Wait() })
	return s
}

func (s *sluice) set(shut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = shut
	s.changed.Broadcast()
}

func (s *sluice) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.shut {
		s.changed.Wait()
	}
}

// held writes to a connection while the sluice is open.
type held struct {
	sluice *sluice
	net.Conn
}

// Write implements io.Writer.
func (h held) Write(p []byte) (int, error) {
	h.sluice.wait()
	return h.Conn.Write(p)
}

// TestA13_SilentNodesAreAwayToo: silent nodes count as away like nodes that refuse connections, on every path to them, and calls pass
// again once the nodes answer.
func TestA13_SilentNodesAreAwayToo(t *testing.T) {
	t.Parallel() // mostly waiting
	c := startCluster(t, rate("openai/gpt-5/requests", 1000), rate("t/core", 1000))
	p := startProvider(t, speak(200, chatAnswer))
	way := startSluice(t, c.config.APIAddress)
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Cluster.Nodes = []string{way.address}
	f := startGateway(t, c, p, conf, gateway.Options{})
	calls := map[string]struct{ path, body, says string }{
		"a call":           {"/openai/v1/responses", `{"model":"gpt-5","input":"x"}`, `"type":"server_error"`},
		"a take":           {"/take?quota=t/core", "", "no quotad node answer"},
		"a take by name":   {"/take?quota=t/core&holder=picard", "", "no quotad node answer"},
		"a read":           {"/quota.v1.QuotaService/GetQuota", `{"name":"t/core"}`, "no quotad node answer"},
		"a listing by GET": {"", "", "no quotad node answer"},
	}
	ask := func(name string) answer {
		if call := calls[name]; call.path != "" {
			return f.do(http.MethodPost, call.path, call.body, "X-Quotad-Class", "critical")
		}
		return f.do(http.MethodGet, "/quota.v1.QuotaService/GetQuota?connect=v1&encoding=json&message=%7B%22name%22%3A%22t%2Fcore%22%7D", "")
	}
	for name := range calls {
		if got := ask(name); got.status != 200 {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
	}
	sent := len(p.seen())
	way.set(true)
	type result struct {
		name string
		answer
	}
	results := make(chan result, len(calls))
	for name := range calls {
		go func() { results <- result{name, ask(name)} }()
	}
	late := time.NewTimer(20 * time.Second) // less than a critical call may wait for quota
	defer late.Stop()
	for range calls {
		var got result
		select {
		case got = <-results:
		case <-late.C:
			t.Fatal("somebody waits for the cluster as if for quota")
		}
		if got.name == "a take" && got.status == 200 {
			continue // units consumed ahead need no node
		}
		if got.status != 503 || !strings.Contains(got.body, calls[got.name].says) || got.header.Get("Retry-After") != "5" {
			t.Errorf("%s: %d %s, %v", got.name, got.status, got.body, got.header)
		}
	}
	if n := len(p.seen()); n != sent {
		t.Errorf("%d calls were sent while no node answered", n-sent)
	}
	way.set(false)
	for name := range calls {
		eventually(t, name+" passes again", func() bool { return ask(name).status == 200 })
	}
}
