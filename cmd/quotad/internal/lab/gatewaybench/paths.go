package gatewaybench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/rpc/quotav1"
)

// paths are the running paths of a call.
type paths struct {
	nursery *local.Nursery
	cluster *local.Cluster
	gateway *gateway.Gateway
	// child is a gateway in a process of its own; nil: none.
	child   *local.Child
	servers []*http.Server
	through *http.Client
	events  *events
	rates   Rates
	// provider, proxy and door are URLs.
	provider, proxy, door string
}

func start(ctx context.Context, binary, dir string) (_ *paths, err error) {
	p := &paths{
		nursery: local.NewNursery(binary, dir), events: newEvents(),
		through: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1_000}},
	}
	defer func() {
		if err != nil {
			p.Stop()
		}
	}()
	if p.cluster, err = startCluster(ctx, p.nursery, dir); err != nil {
		return nil, err
	}
	if p.provider, err = p.serve(ctx, http.HandlerFunc(p.answer)); err != nil {
		return nil, err
	}
	to, err := url.Parse(p.provider)
	if err != nil {
		return nil, err
	}
	plain := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, Transport: &http.Transport{MaxIdleConnsPerHost: 1_000, DisableCompression: true},
		ErrorLog: log.New(io.Discard, "", 0), // streams break off when everything stops
	}
	if p.proxy, err = p.serve(ctx, plain); err != nil {
		return nil, err
	}
	counts := []config.Rule{{Path: "/*", Use: map[string]int64{batched: 1}}}
	p.gateway, err = gateway.New(config.Config{
		Machine: "bench", Cluster: config.Cluster{Nodes: p.cluster.Servers()},
		Listen: config.Listen{TCP: []string{"127.0.0.1:0"}},
		Upstreams: map[string]config.Upstream{
			"free":   {Dialect: "generic", Base: p.provider, Plain: true},
			"ahead":  {Dialect: "generic", Base: p.provider, Plain: true, Batch: true, Rules: counts},
			"openai": {Base: p.provider, Plain: true},
			"seen":   {Dialect: "openai", Base: p.provider, Plain: true, Unknown: "observe"},
		},
	}, gateway.Options{})
	if err != nil {
		return nil, err
	}
	if p.door, err = p.serve(ctx, p.gateway.Handler()); err != nil {
		return nil, err
	}
	return p, bench.Retry(ctx, func(ctx context.Context) error { return p.call(ctx, http.MethodGet, p.door+"/readyz", nil) })
}

// startCluster starts three nodes with the quotas. The nursery stops them.
func startCluster(ctx context.Context, nursery *local.Nursery, dir string) (*local.Cluster, error) {
	c, err := local.NewCluster(nursery, dir)
	if err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		if err := c.Start(n); err != nil {
			return c, err
		}
	}
	return c, c.Ready(ctx, quotas())
}

// The quotas other than those of models: one of calls and one of takes from a batch. The limit is far above any rate here,
// so nothing is refused.
const (
	batched = "bench/calls"
	taken   = "bench/take"
	limit   = 1_000_000_000_000
)

func quotas() *quotav1.ApplyQuotasRequest {
	out := &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{{
		Name: "openai/" + narrow + "/streams", Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: 1}},
	}}}
	for _, name := range []string{"openai/m/requests", "openai/m/tokens", batched, taken} {
		quota := &quotav1.Quota{
			Name: name, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(time.Minute)}},
			Settle: quotav1.SettleMode_SETTLE_MODE_MAX, // batches do not serve quotas that answers settle
		}
		if strings.HasSuffix(name, "/tokens") {
			quota.Settle, quota.DefaultEstimate = quotav1.SettleMode_SETTLE_MODE_ACTUAL, 1
		}
		out.Quotas = append(out.Quotas, quota)
	}
	return out
}

// serve serves on a port of loopback, and returns the URL.
func (p *paths) serve(ctx context.Context, handler http.Handler) (string, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	p.servers = append(p.servers, server)
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), nil
}

// prompt returns the body of a call of about size bytes.
func prompt(size int) []byte {
	return []byte(`{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}]}`)
}

var (
	body = prompt(requestSize)
	long = prompt(longSize)
	said = []byte(`{"object":"chat.completion","model":"m","choices":[{"index":0,"message":{"content":"` + strings.Repeat("word ",
		answerSize/5) +
		`"}}],"usage":{"prompt_tokens":1024,"completion_tokens":100,"total_tokens":1124}}`)
)

// answer is the provider's handler: it reads the call and answers, or sends the events of a stream.
func (p *paths) answer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if id := r.URL.Query().Get(streamID); id != "" {
		p.events.serve(w, r, id)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(said)
}

// call makes a call and reads its answer.
func (p *paths) call(ctx context.Context, method, at string, body []byte) error {
	r, err := newCall(ctx, method, at, body)
	if err != nil {
		return err
	}
	response, err := p.through.Do(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", at, response.Status, text)
	}
	return nil
}

func newCall(ctx context.Context, method, at string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer made-up")
	return r, nil
}

const chat = "/v1/chat/completions"

// Works implements bench.Running.
func (p *paths) Works() []bench.Work {
	work := func(name string, rate float64, at string, body []byte) bench.Work {
		return bench.Work{
			Name: name, Callers: callers, Rates: []float64{rate}, Quick: true,
			Do: func(ctx context.Context, _, _ int) error { return p.call(ctx, http.MethodPost, at, body) },
		}
	}
	event := func(name, at string) bench.Work {
		streams := newStreams(p.events, p.through, at, asking("m"))
		return bench.Work{
			Name: name, Callers: callers, Rates: []float64{p.rates.Calls}, Quick: true,
			Do: func(ctx context.Context, _, _ int) error { return streams.event(ctx) },
		}
	}
	calls := p.rates.Calls
	return []bench.Work{
		work(Direct, calls, p.provider+chat, body),
		work(Proxy, calls, p.proxy+chat, body),
		work(Ungoverned, calls, p.door+"/free"+chat, body),
		work(Batched, calls, p.door+"/ahead"+chat, body),
		work(Committed, calls, p.door+"/openai"+chat, body),
		work(Taken, p.rates.Takes, p.door+"/take?quota="+taken, nil),
		work(LongProxy, min(calls, longRate), p.proxy+chat, long),
		work(LongScanned, min(calls, longRate), p.door+"/seen"+chat, long),
		event(EventDirect, p.provider+chat),
		event(EventProxy, p.proxy+chat),
		event(EventPassed, p.door+"/openai"+chat),
	}
}

// longRate bounds the arrivals of calls with long prompts, which are 50 times as long to copy.
const longRate = 100

// reached returns the calls per second of a path in a closed loop of the given length.
func (p *paths) reached(ctx context.Context, name string, length time.Duration) (float64, error) {
	for _, w := range p.Works() {
		if w.Name != name {
			continue
		}
		var served atomic.Int64
		var failed atomic.Pointer[error]
		var wg sync.WaitGroup
		began := time.Now()
		for caller := range w.Callers {
			wg.Go(func() {
				for n := 0; time.Since(began) < length && failed.Load() == nil; n++ {
					if err := w.Do(ctx, caller, n); err != nil {
						failed.Store(&err)
						return
					}
					served.Add(1)
				}
			})
		}
		wg.Wait()
		if err := failed.Load(); err != nil {
			return 0, fmt.Errorf("%s: %w", name, *err)
		}
		return float64(served.Load()) / time.Since(began).Seconds(), nil
	}
	return 0, fmt.Errorf("unknown work %q", name)
}

// PIDs implements bench.Running: it returns those of the nodes.
func (p *paths) PIDs() []int { return p.cluster.PIDs() }

// Stop implements bench.Running.
func (p *paths) Stop() {
	p.events.stop()
	for _, server := range p.servers {
		_ = server.Close()
	}
	if p.gateway != nil {
		_ = p.gateway.Close()
	}
	p.through.CloseIdleConnections()
	if p.child != nil {
		local.Stop(5*time.Second, p.child) // before the nodes, because it settles calls there
	}
	if p.cluster != nil {
		p.cluster.Stop()
	}
	p.nursery.Close(5 * time.Second)
}
