// Package gatewaybench measures what the gateway adds to a call: next to the provider alone and a plain reverse proxy, in one run, with
// the same load generator and the same fake provider. `quotad bench gateway` runs it.
package gatewaybench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/cmd/quotad/internal/usage"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The names of what is measured.
const (
	Direct     = "provider alone"
	Proxy      = "httputil.ReverseProxy"
	Ungoverned = "gateway, ungoverned"
	Committed  = "gateway, by a commit"
	Taken      = "take from a batch"
)

// Sizes of a call, in bytes, and the callers of the closed loop.
const (
	requestSize = 4 << 10
	answerSize  = 1 << 10
	callers     = 32
)

// Command returns quotad bench gateway.
func Command() *cobra.Command {
	var plan bench.Plan
	var results string
	var rate float64
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Measure what the gateway adds to a call, next to a plain reverse proxy",
		Long: `Measure calls of 4 KiB with answers of 1 KiB: to a fake provider alone, through a plain reverse proxy, through the gateway
without quotas, through the gateway with a commit of three nodes for each call, and takes from a batch of the gateway. Each is
measured with 32 callers that wait, and at a fixed rate of arrivals; the medians of the rounds are printed. Provider, proxy,
gateway and callers share one process, and the nodes are processes of their own.

Choose a rate of at most 30 % of what the reverse proxy reaches with callers that wait.`,
		Example: `  quotad bench gateway --rate 500
  quotad bench gateway --rounds 7 --duration 10s --results gateway.json`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			binary, err := os.Executable()
			if err != nil {
				return err
			}
			plan.Systems = []bench.System{System(binary, rate)}
			measured, err := plan.Run(cmd.Context())
			if err != nil {
				return err
			}
			if results != "" {
				if err := bench.WriteResults(results, measured); err != nil {
					return err
				}
			}
			return measured.Table(cmd.OutOrStdout())
		},
	}
	plan.Flags(cmd.Flags())
	cmd.Flags().Float64Var(&rate, "rate", 500, "arrivals per second of the open loop")
	cmd.Flags().StringVar(&results, "results", "", "file for the measurements, as JSON")
	return cmd
}

// System is what is measured, with nodes of a binary, at a rate of arrivals.
func System(binary string, rate float64) bench.System {
	return bench.System{
		Name:    "gateway",
		Version: func(ctx context.Context) (string, error) { return bench.VersionOf(ctx, binary, "version") },
		Start:   func(ctx context.Context, dir string) (bench.Running, error) { return start(ctx, binary, dir, rate) },
	}
}

// paths are the ways that serve.
type paths struct {
	nursery *local.Nursery
	cluster *local.Cluster
	gateway *gateway.Gateway
	servers []*http.Server
	through *http.Client
	rate    float64
	// provider, proxy and door are URLs.
	provider, proxy, door string
}

func start(ctx context.Context, binary, dir string, rate float64) (_ *paths, err error) {
	p := &paths{
		nursery: local.NewNursery(binary, dir), rate: rate,
		through: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1_000}},
	}
	defer func() {
		if err != nil {
			p.Stop()
		}
	}()
	if p.cluster, err = local.NewCluster(p.nursery, dir); err != nil {
		return nil, err
	}
	for _, n := range p.cluster.Nodes {
		if err := p.cluster.Start(n); err != nil {
			return nil, err
		}
	}
	if err := p.cluster.Ready(ctx, quotas()); err != nil {
		return nil, err
	}
	if p.provider, err = p.serve(ctx, http.HandlerFunc(answer)); err != nil {
		return nil, err
	}
	to, err := url.Parse(p.provider)
	if err != nil {
		return nil, err
	}
	plain := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, Transport: &http.Transport{MaxIdleConnsPerHost: 1_000, DisableCompression: true},
	}
	if p.proxy, err = p.serve(ctx, plain); err != nil {
		return nil, err
	}
	p.gateway, err = gateway.New(config.Config{
		Machine: "bench", Cluster: config.Cluster{Nodes: p.cluster.Servers()},
		Listen: config.Listen{TCP: []string{"127.0.0.1:0"}},
		Upstreams: map[string]config.Upstream{
			"free":   {Dialect: "generic", Base: p.provider, Plain: true},
			"openai": {Base: p.provider, Plain: true},
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

// limit is far above what can be asked for here: nothing is refused.
const limit = 1_000_000_000_000

func quotas() *quotav1.ApplyQuotasRequest {
	out := &quotav1.ApplyQuotasRequest{}
	for _, name := range []string{"openai/m/requests", "openai/m/tokens", "bench/take"} {
		out.Quotas = append(out.Quotas, &quotav1.Quota{
			Name: name, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(time.Minute)}},
			Settle: quotav1.SettleMode_SETTLE_MODE_ACTUAL, DefaultEstimate: 1,
		})
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

var (
	body = []byte(`{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"` + strings.Repeat("word ", requestSize/5) + `"}]}`)
	said = []byte(`{"object":"chat.completion","model":"m","choices":[{"index":0,"message":{"content":"` + strings.Repeat("word ",
		answerSize/5) +
		`"}}],"usage":{"prompt_tokens":1024,"completion_tokens":100,"total_tokens":1124}}`)
)

// answer is the provider: it reads the call and answers.
func answer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(said)
}

// call makes a call and reads its answer.
func (p *paths) call(ctx context.Context, method, at string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer made-up")
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

// Works implements bench.Running.
func (p *paths) Works() []bench.Work {
	work := func(name, at string, body []byte) bench.Work {
		return bench.Work{
			Name: name, Callers: callers, Rates: []float64{p.rate}, Quick: true,
			Do: func(ctx context.Context, _, _ int) error { return p.call(ctx, http.MethodPost, at, body) },
		}
	}
	const chat = "/v1/chat/completions"
	return []bench.Work{
		work(Direct, p.provider+chat, body),
		work(Proxy, p.proxy+chat, body),
		work(Ungoverned, p.door+"/free"+chat, body),
		work(Committed, p.door+"/openai"+chat, body),
		work(Taken, p.door+"/take?quota=bench/take", nil),
	}
}

// PIDs implements bench.Running: those of the nodes.
func (p *paths) PIDs() []int { return p.cluster.PIDs() }

// Stop implements bench.Running.
func (p *paths) Stop() {
	for _, server := range p.servers {
		_ = server.Close()
	}
	if p.gateway != nil {
		_ = p.gateway.Close()
	}
	p.through.CloseIdleConnections()
	if p.cluster != nil {
		p.cluster.Stop()
	}
	p.nursery.Close(5 * time.Second)
}
