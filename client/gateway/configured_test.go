package gateway_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/identity"
)

// metric waits until the metrics have a line. A call is counted when it ends, after its caller has the whole answer.
func (f *fixture) metric(tb testing.TB, line string) {
	tb.Helper()
	eventually(tb, line, func() bool { return strings.Contains(f.do(http.MethodGet, "/metrics", "").body, line+"\n") })
}

func TestPaths_RefuseTakesGovernedCallsAlone(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	closed := upstreamOf(p, "openai")
	closed.Paths, closed.Quotas = "refuse", "openai"
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"closed": closed, "open": upstreamOf(p, "openai")}), gateway.Options{})
	for _, ask := range []struct{ method, path, body string }{
		{http.MethodGet, "/v1/models", ""},
		{http.MethodPost, "/v1/files", `{"model":"gpt-5"}`},
		{http.MethodGet, "/v1/chat/completions", ""},
		{http.MethodPost, "/anything", ""},
	} {
		got := f.do(ask.method, "/closed"+ask.path, ask.body)
		if got.status != http.StatusForbidden || !strings.Contains(got.body, "paths: refuse") || !strings.Contains(got.body, ask.path) {
			t.Errorf("closed, %s %s: %d %s", ask.method, ask.path, got.status, got.body)
		}
	}
	if n := len(p.seen()); n != 0 {
		t.Fatalf("%d calls were sent", n)
	}
	if got := f.do(http.MethodPost, "/closed/v1/responses", `{"model":"gpt-5","input":"x"}`); got.status != http.StatusOK {
		t.Errorf("a governed call: %d %s", got.status, got.body)
	}
	c.consumed("openai/gpt-5/requests", 1)
	if got := f.do(http.MethodGet, "/open/v1/models", ""); got.status != http.StatusOK {
		t.Errorf("open: %d %s", got.status, got.body)
	}
	f.metric(t, `quotad_gateway_ungoverned_total{upstream="open",why="path"} 1`)
}

// TestRules_OfPathsAndMethods: the first matching rule determines the draws of a call.
func TestRules_OfPathsAndMethods(t *testing.T) {
	c := startCluster(t, rate("billing/requests", 100), rate("billing/writes", 100))
	p := startProvider(t, speak(200, `{}`))
	billing := upstreamOf(p, "generic")
	billing.Paths = "refuse"
	billing.Rules = []config.Rule{
		{Method: http.MethodGet, Path: "/v2/status", Use: nil},
		{Method: http.MethodPost, Path: "/v2/*/invoices", Use: map[string]int64{"billing/requests": 1, "billing/writes": 5}},
		{Path: "/v2/*", Use: map[string]int64{"billing/requests": 1}},
	}
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"billing": billing}), gateway.Options{})
	requests, writes := int64(0), int64(0)
	for _, ask := range []struct {
		method, path     string
		status           int
		requests, writes int64
	}{
		{http.MethodPost, "/v2/a/invoices", 200, 1, 5},
		{http.MethodPost, "/v2/a/b/invoices?x=1", 200, 1, 5},
		{http.MethodGet, "/v2/a/invoices", 200, 1, 0},
		{http.MethodPost, "/v2/a/invoices/1", 200, 1, 0},
		{http.MethodPost, "/v2/status", 200, 1, 0},
		{http.MethodGet, "/v2/status", 403, 0, 0}, // it draws on nothing
		{http.MethodGet, "/v2", 403, 0, 0},
		{http.MethodGet, "/v3/v2/a", 403, 0, 0},
	} {
		if got := f.do(ask.method, "/billing"+ask.path, ""); got.status != ask.status {
			t.Errorf("%s %s: %d %s", ask.method, ask.path, got.status, got.body)
		}
		requests, writes = requests+ask.requests, writes+ask.writes
		c.consumed("billing/requests", requests)
		c.consumed("billing/writes", writes)
	}
}

func TestParts_ThatAreRequiredMustExist(t *testing.T) {
	c := startCluster(t, rate("openai/half/requests", 100), rate("openai/whole/requests", 100), tokens("openai/whole/tokens", 100_000))
	p := startProvider(t, speak(200, chatAnswer))
	u := upstreamOf(p, "openai")
	u.Parts = []string{"requests", "tokens"}
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": u}), gateway.Options{})
	got := f.do(http.MethodPost, forms["openai"].path, `{"model":"half","input":"x"}`)
	if got.status != http.StatusForbidden || !strings.Contains(got.body, "openai/half/tokens") || len(p.seen()) != 0 {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if got := f.do(http.MethodPost, forms["openai"].path, `{"model":"whole","input":"x"}`); got.status != http.StatusOK {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestUnknown_ObservedModelsPassAndAreCounted(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), func(conf *config.Config) {
		u := conf.Upstreams["openai"]
		u.Unknown = "observe"
		conf.Upstreams["openai"] = u
	})
	ask := func(body string, headers ...string) answer {
		return f.do(http.MethodPost, forms["openai"].path, body, headers...)
	}
	for _, ask := range []answer{
		ask(`{"model":"gpt-6","input":"x"}`), ask(`{"input":"x"}`), ask("packed", "Content-Encoding", "zstd"),
	} {
		if ask.status != http.StatusOK {
			t.Errorf("got %d %s", ask.status, ask.body)
		}
	}
	f.metric(t, `quotad_gateway_ungoverned_total{upstream="openai",why="observe"} 3`)
	f.metric(t, `quotad_gateway_calls_total{class="",code="200",model="other",upstream="openai"} 3`)
	if got := ask(`{"model":"gpt-5","input":"x"}`); got.status != http.StatusOK {
		t.Errorf("a model with quotas: %d %s", got.status, got.body)
	}
	f.cluster.consumed("openai/gpt-5/requests", 1)
}

// TestUnknown_ObservedModelsDrawOnTheQuotaForThem: the quota of unmapped models bounds all of them together.
func TestUnknown_ObservedModelsDrawOnTheQuotaForThem(t *testing.T) {
	c := startCluster(t, ratePer("openai/unmapped/requests", 2, time.Hour), rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	u := upstreamOf(p, "openai")
	u.Unknown = "observe"
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": u}), gateway.Options{})
	for i, want := range []int{200, 200, 429} {
		got := f.do(http.MethodPost, forms["openai"].path, fmt.Sprintf(`{"model":"new-%d","input":"x"}`, i), "X-Quotad-Wait", "0")
		if got.status != want || want == 429 && !strings.Contains(got.header.Get("X-Quotad-Refusal"), "openai/unmapped/requests") {
			t.Errorf("call %d: %d %s", i, got.status, got.body)
		}
	}
	c.consumed("openai/unmapped/requests", 2)
	c.consumed("openai/gpt-5/requests", 0)
}

// TestModels_AreMappedByTheirUpstreamsRules: the first rule that matches a model and its upstream names its quotas.
func TestModels_AreMappedByTheirUpstreamsRules(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), rate("openai/o/requests", 100), rate("other/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	other := upstreamOf(p, "openai")
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai"), "other": other})
	conf.Models = []config.Model{
		{Upstream: "openai", Match: "o*", As: "o"}, {Upstream: "openai", Match: "*codex*", As: "gpt-5"}, {Match: "gpt-5*", As: "gpt-5"},
	}
	f := startGateway(t, c, p, conf, gateway.Options{})
	for _, ask := range []struct {
		upstream, model string
		status          int
	}{
		{"openai", "o3-mini-2025-01-31", 200},
		{"openai", "gpt-5.1-codex-max", 200},
		{"openai", "gpt-5.1", 200},
		{"openai", "codex-mini", 200},
		{"other", "gpt-5.1", 200},
		{"other", "o3-mini", 403},
		{"other", "codex-mini", 403},
	} {
		got := f.do(http.MethodPost, "/"+ask.upstream+"/v1/responses", `{"model":"`+ask.model+`","input":"x"}`)
		if got.status != ask.status {
			t.Errorf("%s of %s: %d %s", ask.model, ask.upstream, got.status, got.body)
		}
	}
	c.consumed("openai/o/requests", 1)
	c.consumed("openai/gpt-5/requests", 3)
	c.consumed("other/gpt-5/requests", 1)
}

// TestOverloaded_IsSentAgainAsOftenAsConfigured: an overload answer passes through unless the configuration allows retries.
func TestOverloaded_IsSentAgainAsOftenAsConfigured(t *testing.T) {
	t.Parallel() // mostly waiting
	const busy = `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`
	for _, of := range []struct {
		name            string
		failures, calls int
		wait            string
		status          int
	}{
		{"once is enough", 1, 2, "1m", 200},
		{"no more than once", 5, 2, "1m", 529},
		{"no time for it", 5, 1, "0s", 529},
	} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			f := messages(t, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) <= int64(of.failures) {
					speak(529, busy)(w, r)
					return
				}
				events(nil, messageEvents...)(w, r)
			}, func(conf *config.Config) {
				u := conf.Upstreams["anthropic"]
				u.Overloaded = 1
				conf.Upstreams["anthropic"] = u
			})
			got := f.do(http.MethodPost, "/anthropic/v1/messages", messageBody, "X-Quotad-Wait", of.wait)
			if got.status != of.status || calls.Load() != int64(of.calls) || of.status != 200 && got.body != busy {
				t.Errorf("got %d after %d calls: %s", got.status, calls.Load(), got.body)
			}
			f.cluster.consumed("anthropic/claude-opus-4/requests", int64(of.calls))
			if q := f.cluster.quota("anthropic/claude-opus-4/requests"); q.CooldownLeft != 0 {
				t.Errorf("a cooldown of %v: a busy provider is no limit", q.CooldownLeft)
			}
		})
	}
}

// TestRoot_ServesOneUpstreamWithoutItsName: the gateway's own paths and the other upstreams have precedence.
func TestRoot_ServesOneUpstreamWithoutItsName(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), rate("github/core", 100))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "http://"+r.Host+"/v1/next")
		speak(200, chatAnswer)(w, r)
	})
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai"), "github": upstreamOf(p, "github")})
	conf.Root = "openai"
	f := startGateway(t, c, p, conf, gateway.Options{})
	for path, next := range map[string]string{
		"/v1/responses": "/v1/next", "/as/picard/v1/responses": "/as/picard/v1/next", "/openai/v1/responses": "/openai/v1/next",
	} {
		before := len(p.seen())
		got := f.do(http.MethodPost, path, `{"model":"gpt-5","input":"x"}`)
		if got.status != http.StatusOK || got.header.Get("Location") != f.url+next {
			t.Errorf("%s: %d %s, %s", path, got.status, got.body, got.header.Get("Location"))
		}
		if sent := p.seen()[before:]; len(sent) != 1 || sent[0].uri != "/v1/responses" {
			t.Errorf("%s was sent as %+v", path, sent)
		}
	}
	c.consumed("openai/gpt-5/requests", 3)
	f.logs(t, "holder=picard@node-7", 1)
	before := len(p.seen())
	if got := f.do(http.MethodGet, "/readyz", ""); got.body != "ok\n" {
		t.Errorf("/readyz: %d %s", got.status, got.body)
	}
	if got := f.do(http.MethodPost, "/take?quota=github/core", ""); got.status != http.StatusOK {
		t.Errorf("/take: %d %s", got.status, got.body)
	}
	if n := len(p.seen()); n != before {
		t.Error("the root's provider saw a call of the gateway itself")
	}
	got := f.do(http.MethodGet, "/github/user", "")
	if sent := p.seen()[before:]; got.status != http.StatusOK || len(sent) != 1 || sent[0].uri != "/user" {
		t.Errorf("/github: %d, sent as %+v", got.status, sent)
	}
}

// TestSecondary_LimitsOfGitHub: calls draw on the limits beyond the hourly ones if configured.
func TestSecondary_LimitsOfGitHub(t *testing.T) {
	secondary := []string{"points", "graphql-points", "content"}
	c := startCluster(t, rate("github/core", 100), rate("github/graphql", 100), slots("github/concurrent", 2))
	for _, name := range secondary {
		c.apply(rate("github/"+name, 100))
	}
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo() // also if the test fails: the servers wait for their handlers
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-release
		}
		speak(200, `{}`)(w, r)
	})
	with := upstreamOf(p, "github")
	with.Secondary, with.Quotas = true, "github"
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"with": with, "github": upstreamOf(p, "github")}), gateway.Options{})
	want := map[string]int64{}
	for _, ask := range []struct {
		method, path, body string
		draws              map[string]int64
	}{
		{http.MethodGet, "/with/user", "", map[string]int64{"core": 1, "points": 1}},
		{http.MethodPost, "/with/repos/a/b/issues", `{}`, map[string]int64{"core": 1, "points": 5, "content": 1}},
		{http.MethodDelete, "/with/repos/a/b", "", map[string]int64{"core": 1, "points": 5}},
		{http.MethodPost, "/with/graphql", `{"query":"query { a }"}`, map[string]int64{"graphql": 1, "graphql-points": 1}},
		{http.MethodPost, "/with/graphql", `{"query":"mutation { a }"}`, map[string]int64{"graphql": 1, "graphql-points": 5, "content": 1}},
		{http.MethodGet, "/with/rate_limit", "", nil},
		{http.MethodPost, "/github/repos/a/b/issues", `{}`, map[string]int64{"core": 1}},
	} {
		if got := f.do(ask.method, ask.path, ask.body); got.status != http.StatusOK {
			t.Fatalf("%s %s: %d %s", ask.method, ask.path, got.status, got.body)
		}
		for name, n := range ask.draws {
			want[name] += n
		}
		for _, name := range append(slices.Clone(secondary), "core", "graphql") {
			c.consumed("github/"+name, want[name])
		}
	}
	done := make(chan int, 2)
	for range 2 {
		go func() { done <- f.do(http.MethodGet, "/with/slow", "").status }()
	}
	eventually(t, "two calls are in flight", func() bool { return c.quota("github/concurrent").Available == 0 })
	got := f.do(http.MethodGet, "/with/user", "", "X-Quotad-Wait", "0")
	if got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "secondary rate limit") {
		t.Errorf("a third call at once: %d %s", got.status, got.body)
	}
	letGo()
	for range 2 {
		if status := <-done; status != http.StatusOK {
			t.Errorf("got %d", status)
		}
	}
	eventually(t, "both places are free", func() bool { return c.quota("github/concurrent").Available == 2 })
}

// TestExplain_HeaderIsForCallersThatAsk: only their answers have it.
func TestExplain_HeaderIsForCallersThatAsk(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	ask := func(headers ...string) answer {
		return f.do(http.MethodPost, "/as/picard~background/openai/v1/responses", `{"model":"gpt-5","input":"x"}`, headers...)
	}
	for _, value := range []string{"", "0"} {
		if got := ask("X-Quotad-Explain", value); got.status != 200 || got.header.Values("X-Quotad") != nil {
			t.Errorf("%q: %d, X-Quotad %v", value, got.status, got.header.Values("X-Quotad"))
		}
	}
	got := ask("X-Quotad-Explain", "1")
	said := got.header.Get("X-Quotad")
	if !strings.HasPrefix(said, "holder=picard%40node-7;class=background;wait=") || !strings.HasSuffix(said, "ms;retries=0") {
		t.Errorf("X-Quotad is %q", said)
	}
	for _, sent := range f.provider.seen() {
		if sent.header.Get("X-Quotad-Explain") != "" {
			t.Error("the provider saw the question")
		}
	}
}

// TestListen_BeyondLoopbackTakesTokensOverTLS: only clients that trust the certificate and present a token are served.
func TestListen_BeyondLoopbackTakesTokensOverTLS(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Listen = certificate(t, "gateway.example")
	conf.Listen.TCP, conf.Tokens, conf.Hosts = []string{"0.0.0.0:0"}, "tokens.yaml", []string{"gateway.example"}
	tokens := someTokens{"qtd_red_x": {ID: "red", Pattern: "red*", MaxClass: config.Standard, Verbs: []identity.Verb{identity.Use}}}
	f := startGateway(t, c, p, conf, gateway.Options{Tokens: tokens})
	_, port, _ := strings.Cut(f.listen(), "]:")
	pem, err := os.ReadFile(conf.Listen.Cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	trusting := &tls.Config{RootCAs: roots, ServerName: "gateway.example", MinVersion: tls.VersionTLS12}
	ask := func(config *tls.Config, host, token string) (int, error) {
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequest(http.MethodPost, "https://127.0.0.1:"+port+forms["openai"].path,
			strings.NewReader(`{"model":"gpt-5","input":"x"}`))
		if err != nil {
			return 0, err
		}
		request.Host = host
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := transport.RoundTrip(request)
		if err != nil {
			return 0, err
		}
		defer func() { _ = response.Body.Close() }()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, err
	}
	for _, of := range []struct {
		host, token string
		status      int
	}{
		{"gateway.example", "qtd_red_x", 200}, {"gateway.example", "sk-made-up", 401}, {"evil.example", "qtd_red_x", 403},
	} {
		if status, err := ask(trusting, of.host, of.token); status != of.status || err != nil {
			t.Errorf("%s with %s: %d, %v", of.host, of.token, status, err)
		}
	}
	if n := len(p.seen()); n != 1 {
		t.Errorf("the provider saw %d calls, want 1", n)
	}
	unknownCaller := trusting.Clone()
	unknownCaller.RootCAs = x509.NewCertPool()
	old := trusting.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for name, config := range map[string]*tls.Config{"another authority": unknownCaller, "TLS 1.1": old} {
		if status, err := ask(config, "gateway.example", "qtd_red_x"); err == nil {
			t.Errorf("%s: got %d", name, status)
		}
	}
}
