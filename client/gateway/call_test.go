package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

const chatAnswer = `{"object":"chat.completion","model":"gpt-5","choices":[{"index":0,"message":{"content":"Hi"}}],` +
	`"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`

// speak answers every request with a JSON body.
func speak(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, body)
	}
}

// openAI starts a gateway for a fake OpenAI, with quotas for gpt-5.
func openAI(t *testing.T, answer http.HandlerFunc, change func(*config.Config)) *fixture {
	t.Helper()
	c := startCluster(t, rate("openai/gpt-5/requests", 100), tokens("openai/gpt-5/tokens", 100_000))
	p := startProvider(t, answer)
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	if change != nil {
		change(&conf)
	}
	return startGateway(t, c, p, conf, gateway.Options{})
}

func TestA1_ChatPassesUnchangedAndDraws(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	body := `{"model":"gpt-5", "messages":[{"role":"user","content":"Hello"}]  }`
	got := f.do(http.MethodPost, "/openai/v1/chat/completions?x=1&a=%2F", body, "Authorization", "Bearer sk-made-up", "X-Quotad-Holder",
		"picard")
	if got.status != 200 || got.body != chatAnswer {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	sent := f.provider.one(t)
	if sent.uri != "/v1/chat/completions?x=1&a=%2F" || sent.body != body || sent.header.Get("Authorization") != "Bearer sk-made-up" {
		t.Errorf("the provider saw %+v", sent)
	}
	for name := range sent.header {
		if strings.HasPrefix(name, "X-Quotad") || strings.HasPrefix(name, "X-Forwarded") || name == "Via" {
			t.Errorf("the provider saw the header %s", name)
		}
	}
	f.cluster.consumed("openai/gpt-5/requests", 1)
	f.logs(t, "holder=picard@node-7", 1)
}

func TestA15_UnknownModelIsRefusedUntilItHasAQuota(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	body := `{"model":"gpt-6","messages":[]}`
	got := f.do(http.MethodPost, "/openai/v1/chat/completions", body)
	if got.status != http.StatusForbidden || !strings.Contains(got.body,
		"quotad quota apply --preset openai:tier1 --set model=gpt-6 --set rpm=RPM --set tpm=TPM;") {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	if n := len(f.provider.seen()); n != 0 {
		t.Fatalf("%d requests were sent", n)
	}
	f.cluster.apply(rate("openai/gpt-6/requests", 10))
	eventually(t, "the model is known", func() bool {
		return f.do(http.MethodPost, "/openai/v1/chat/completions", body).status == 200
	})
}

// TestCluster_BehindAProxyForHTTP1: a proxy on the path to the nodes may speak only HTTP/1.1.
func TestCluster_BehindAProxyForHTTP1(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), tokens("openai/gpt-5/tokens", 100_000))
	p := startProvider(t, speak(200, chatAnswer))
	front := httptest.NewServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.config.APIAddress}))
	t.Cleanup(front.Close)
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Cluster.Nodes = []string{strings.TrimPrefix(front.URL, "http://")}
	f := startGateway(t, c, p, conf, gateway.Options{})
	got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`)
	if ready := f.do(http.MethodGet, "/readyz", ""); got.status != 200 || got.body != chatAnswer || ready.status != 200 {
		t.Fatalf("got %d %s; /readyz answers %d %s", got.status, got.body, ready.status, ready.body)
	}
	eventually(t, "the call is settled", func() bool { return c.quota("openai/gpt-5/requests").Consumed == 1 })
}
