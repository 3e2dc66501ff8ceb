package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestHeaders_OfOneHopEndHere: fields of a connection do not leave for the provider, all others do, and the gateway adds none of its own.
// An answer's encoding and trailers pass.
func TestHeaders_OfOneHopEndHere(t *testing.T) {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, _ = io.WriteString(zip, chatAnswer)
	_ = zip.Close()
	f := openAI(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Ratelimit-Unknown", "kept")
		_, _ = w.Write(packed.Bytes())
		w.Header().Set("X-Sum", "7")
	}, nil)
	connection, err := net.Dial("tcp", f.listen())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	_, _ = io.WriteString(connection, "GET /openai/v1/models?a=1&a=2 HTTP/1.1\r\nHost: localhost:7452\r\nConnection: keep-alive, X-Named\r\n"+
		"X-Named: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nTE: deflate, trailers\r\n"+
		"X-Forwarded-For: 10.0.0.1\r\nX-Unknown: a\r\nX-Unknown: b\r\nAnthropic-Later: c\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || !bytes.Equal(body, packed.Bytes()) || answer.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("the body is %q with %v, %v", body, answer.Header, err)
	}
	if answer.Header.Get("Ratelimit-Unknown") != "kept" || answer.Trailer.Get("X-Sum") != "7" {
		t.Errorf("the answer has %v and the trailers %v", answer.Header, answer.Trailer)
	}
	sent := f.provider.one(t)
	if sent.host != strings.TrimPrefix(f.provider.URL, "http://") || sent.uri != "/v1/models?a=1&a=2" {
		t.Errorf("the provider saw %s at %s", sent.uri, sent.host)
	}
	want := http.Header{"X-Unknown": {"a", "b"}, "Anthropic-Later": {"c"}, "Te": {"trailers"}}
	for name, values := range sent.header {
		if !slices.Equal(values, want[name]) {
			t.Errorf("the provider saw %s: %q", name, values)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("the provider did not see %s", name)
	}
}

// TestRedirect_IsTheClients: the gateway follows none, so a credential goes to no other host, and no other host's answer closes a quota.
func TestRedirect_IsTheClients(t *testing.T) {
	other := startProvider(t, speak(429, `{"message":"API rate limit exceeded"}`))
	c := startCluster(t, rate("github/core", 100))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/archive.zip", http.StatusFound)
	})
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"github": upstreamOf(p, "github")}), gateway.Options{})
	got := f.do(http.MethodGet, "/github/repos/o/r/zipball", "", "Authorization", "token ghp_made_up", "X-Quotad-Wait", "0")
	if got.status != http.StatusFound || got.header.Get("Location") != other.URL+"/archive.zip" {
		t.Errorf("got %d to %s", got.status, got.header.Get("Location"))
	}
	if n := len(other.seen()); n != 0 {
		t.Errorf("the other host saw %d requests", n)
	}
	c.consumed("github/core", 1)
	if q := c.quota("github/core"); q.CooldownLeft != 0 {
		t.Errorf("github/core is closed for %v", q.CooldownLeft)
	}
}

// TestLinks_OfHostRoutesStay: a client that sent the provider's host through the gateway does so with the next page as well.
func TestLinks_OfHostRoutesStay(t *testing.T) {
	c := startCluster(t, rate("github/core", 100))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", fmt.Sprintf(`<http://%s/user/repos?page=2>; rel="next"`, r.Host))
		speak(200, `[]`)(w, r)
	})
	github := upstreamOf(p, "github")
	github.Hosts = []string{"api.github.com"}
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"github": github}), gateway.Options{})
	for path, want := range map[string]string{
		"/user/repos": p.URL + "/user/repos?page=2", "/github/user/repos": f.url + "/github/user/repos?page=2",
	} {
		host := strings.TrimPrefix(f.url, "http://")
		if path == "/user/repos" {
			host = "api.github.com"
		}
		if got := f.do(http.MethodGet, path, "", "Host", host).header.Get("Link"); got != "<"+want+`>; rel="next"` {
			t.Errorf("%s at %s: Link is %s", path, host, got)
		}
	}
}

// TestGuard_KeepsWebPagesOut: only listed pages may call, and the gateway lets no browser show its answers to others.
func TestGuard_KeepsWebPagesOut(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), func(c *config.Config) { c.Origins = []string{"https://tools.example"} })
	for _, ask := range []struct {
		method, origin, site string
		status               int
	}{
		{http.MethodPost, "", "", 200},
		{http.MethodPost, "", "none", 200},
		{http.MethodPost, "", "same-origin", 200},
		{http.MethodPost, "https://tools.example", "cross-site", 200},
		{http.MethodPost, "", "same-site", 403},
		{http.MethodPost, "", "cross-site", 403},
		{http.MethodPost, "null", "", 403},
		{http.MethodPost, "https://tools.example.evil", "", 403},
		{http.MethodPost, "http://tools.example", "none", 403},
		{http.MethodOptions, "https://evil.example", "cross-site", 403},
	} {
		for _, path := range []string{forms["openai"].path, "/take?quota=openai/gpt-5/requests"} {
			if ask.method == http.MethodOptions && ask.status == 200 {
				continue
			}
			headers := []string{"Access-Control-Request-Method", "POST"}
			for name, value := range map[string]string{"Origin": ask.origin, "Sec-Fetch-Site": ask.site} {
				if value != "" {
					headers = append(headers, name, value)
				}
			}
			body := ""
			if path == forms["openai"].path {
				body = `{"model":"gpt-5","input":"x"}`
			}
			got := f.do(ask.method, path, body, headers...)
			if got.status != ask.status {
				t.Errorf("%s %s from %q, site %q: %d %s", ask.method, path, ask.origin, ask.site, got.status, got.body)
			}
			for name := range got.header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%s from %q: the answer has %s", path, ask.origin, name)
				}
			}
		}
	}
}

// TestFirstByte_BoundsTheWaitForAStatusLine: the provider may have read the call, so it is not repeated, and counts.
func TestFirstByte_BoundsTheWaitForAStatusLine(t *testing.T) {
	var calls atomic.Int64
	f := openAI(t, func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		select {
		case <-r.Context().Done(): // the gateway gave up
		case <-time.After(30 * time.Second):
		}
	}, func(c *config.Config) {
		u := c.Upstreams["openai"]
		u.FirstByte = 50 * time.Millisecond
		c.Upstreams["openai"] = u
	})
	got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`)
	if got.status != http.StatusBadGateway || !strings.Contains(got.body, `"type":"server_error"`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
	f.cluster.consumed("openai/gpt-5/requests", 1)
	if n := calls.Load(); n != 1 {
		t.Errorf("the provider saw %d calls", n)
	}
}

// TestMetrics_NameNoHolder: holders are many, and some are people.
func TestMetrics_NameNoHolder(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), ratePer("openai/spent/requests", 1, time.Hour), rate("t/core", 100))
	p := startProvider(t, speak(200, chatAnswer))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	for _, model := range []string{"gpt-5", "spent", "spent", "unknown"} {
		f.do(http.MethodPost, "/as/picard/openai/v1/responses", `{"model":"`+model+`","input":"x"}`, "X-Quotad-Wait", "0",
			"Session-Id", "session-made-up")
	}
	f.do(http.MethodGet, "/openai/v1/models", "", "X-Quotad-Holder", "picard")
	f.do(http.MethodPost, "/take?quota=t/core&holder=picard", "")
	f.logs(t, "msg=call", 5)
	shown := f.do(http.MethodGet, "/metrics", "").body
	if !strings.Contains(shown, `quotad_gateway_calls_total{class="",code="200",model="gpt-5"`) {
		t.Fatalf("the metrics are %s", shown)
	}
	known := []string{
		"upstream", "model", "class", "code", "reason", "outcome", "kind", "part", "rule", "action", "why", "key", "le", "quantile", "version",
	}
	for _, label := range regexp.MustCompile(`[{,]([a-z_]+)="`).FindAllStringSubmatch(shown, -1) {
		if !slices.Contains(known, label[1]) {
			t.Errorf("a metric has the label %s", label[1])
		}
	}
	for _, text := range []string{"picard", "node-7", "session-made-up"} {
		if strings.Contains(shown, text) {
			t.Errorf("the metrics name %s", text)
		}
	}
}

// TestKey_ThatTheProviderRejectsIsReadAgainAtOnce: before the next look at its file is due.
func TestKey_ThatTheProviderRejectsIsReadAgainAtOnce(t *testing.T) {
	path := secret(t, "key", "old")
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1000, time.Minute)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer new" {
				speak(401, `{"error":{"message":"Incorrect API key"}}`)(w, r)
				return
			}
			speak(200, chatAnswer)(w, r)
		},
		change: func(conf *config.Config) {
			u := conf.Upstreams["openai"]
			u.Auth, u.Keys = "inject", []config.Key{{Name: "prod", From: config.Source{File: path}}}
			conf.Upstreams["openai"], conf.Trust = u, true
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		b.after(11 * time.Second)
		replaced := time.Now()
		if err := os.Rename(secret(t, "key", "new"), path); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{401, 200} {
			if got := b.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`); got.status != want {
				t.Errorf("call %d: %d %s, want %d", i, got.status, got.body, want)
			}
		}
		if took := time.Since(replaced); took > time.Second {
			t.Errorf("both calls took %v", took)
		}
	})
}

// TestFallback_IsTakenByForecast: a model whose quota will be used up soon is spared before the cluster refuses it. If no other model is
// granted, it answers all the same.
func TestFallback_IsTakenByForecast(t *testing.T) {
	big := quotatest.Rate("openai/gpt-5/requests", 60, time.Minute)
	big.Policy = &quotav1.Policy{Prediction: &quotav1.Prediction{}}
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{big, quotatest.Rate("openai/gpt-5-mini/requests", 1, time.Hour)},
		answer: speak(200, chatAnswer),
		change: func(conf *config.Config) {
			conf.Models = []config.Model{{Match: "gpt-5", Fallback: []string{"gpt-5-mini"}}}
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ask := func(instead string) {
			t.Helper()
			got := b.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`, "X-Quotad-Wait", "0")
			if got.status != 200 || got.header.Get("X-Quotad-Instead-Of") != instead {
				t.Errorf("got %d %s, instead of %q, want %q", got.status, got.body, got.header.Get("X-Quotad-Instead-Of"), instead)
			}
		}
		ask("")
		if _, err := b.cluster.Client().Reserve(t.Context(), client.ReserveRequest{
			Items: []client.Item{{Quota: big.Name, Amount: 45}}, Consume: true,
		}); err != nil {
			t.Fatal(err)
		}
		ask("gpt-5")
		ask("")
		b.until("only sent calls are consumed", time.Second, func() bool {
			return b.cluster.Quota(big.Name).Consumed == 47 && b.cluster.Quota("openai/gpt-5-mini/requests").Consumed == 1
		})
	})
}
