package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// A provider decodes a percent-encoded letter, so encoding must not free a call of its quotas.
func TestPath_IsGovernedInEachSpelling(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), rate("jira/searches", 100))
	p := startProvider(t, speak(200, `{}`))
	jira := upstreamOf(p, "generic")
	jira.Rules = []config.Rule{{Path: "/search/*", Use: map[string]int64{"jira/searches": 1}}}
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai"), "jira": jira}), gateway.Options{})
	for path, want := range map[string]string{
		"/openai/v1/chat/%63ompletions": "/v1/chat/%63ompletions",
		"/jira/s%65arch/a%2Fb":          "/s%65arch/a%2Fb",
		"/jira//x//%61?b=2&a=%2f&&b=1":  "//x//%61?b=2&a=%2f&&b=1",
	} {
		before := len(p.seen())
		if got := f.do(http.MethodPost, path, `{"model":"gpt-5","messages":[]}`); got.status != http.StatusOK {
			t.Fatalf("%s: got %d %s", path, got.status, got.body)
		}
		if sent := p.seen()[before].uri; sent != want {
			t.Errorf("%s was sent as %s", path, sent)
		}
	}
	c.consumed("openai/gpt-5/requests", 1)
	c.consumed("jira/searches", 1)
}

// TestPath_ThatGeneratesIsGoverned: a model without a quota is refused on each path that generates.
func TestPath_ThatGeneratesIsGoverned(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, `{}`))
	upstreams := map[string]config.Upstream{}
	for _, name := range []string{"openai", "azure", "bedrock", "gemini", "anthropic"} {
		upstreams[name] = upstreamOf(p, name)
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	for _, path := range []string{
		"/bedrock/openai/v1/chat/completions", "/bedrock/model/m/invoke-with-bidirectional-stream", "/bedrock/async-invoke",
		"/gemini/v1beta/tunedModels/t:generateContent", "/gemini/v1beta/interactions", "/gemini/v1beta/models/m:generateAnswer",
		"/azure/anthropic/v1/messages", "/azure/OpenAI/deployments/D/Chat/Completions", "/anthropic/v1/chat/completions",
		"/openai/v1/videos", "/openai/v1/threads/runs", "/openai/v1/threads/t/runs", "/openai/v1/chat/completions;x",
		"/openai/v1/chat/completions%20", "/openai//v1/CHAT/completions/", "/openai/v1/messages",
		"/openai/v1/realtime/client_secrets", "/openai/v1/rerank", "/openai/v1/ocr", "/gemini/v1alpha/auth_tokens",
	} {
		for _, method := range []string{http.MethodPost, http.MethodPut} {
			got := f.do(method, path, `{"model":"unknown","modelId":"unknown","messages":[]}`)
			if got.status != http.StatusForbidden || !strings.Contains(got.body, "quotad has no quota for") {
				t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
			}
		}
	}
	if n := len(p.seen()); n != 0 {
		t.Errorf("%d calls were sent", n)
	}
	for _, path := range []string{"/openai/v1/files", "/openai/v1/threads/t/messages", "/anthropic/v1/messages/count_tokens"} {
		if got := f.do(http.MethodPost, path, `{"model":"unknown"}`); got.status != http.StatusOK {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// TestRealtime_KeysOfSessionsAreGovernedByTheirModel: such a key opens a session at the provider itself, so creating it counts as a
// call to the session's model.
func TestRealtime_KeysOfSessionsAreGovernedByTheirModel(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-realtime/requests", 100))
	p := startProvider(t, speak(200, `{"value":"ek_made_up"}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	const path = "/openai/v1/realtime/client_secrets"
	for body, status := range map[string]int{
		`{"session":{"type":"realtime","model":"gpt-realtime-2025-08-28"}}`: 200,
		`{"session":{"type":"realtime","model":"gpt-6-realtime"}}`:          403,
		`{"session":{"type":"transcription"}}`:                              403,
	} {
		if got := f.do(http.MethodPost, path, body); got.status != status {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	if n := len(p.seen()); n != 1 {
		t.Errorf("%d calls were sent", n)
	}
	c.consumed("openai/gpt-realtime/requests", 1)
}

// TestRerank_IsGovernedByItsInput: it has no output.
func TestRerank_IsGovernedByItsInput(t *testing.T) {
	c := startCluster(t, rate("openai/ranks/requests", 100), tokens("openai/ranks/tokens", 100_000))
	p := startProvider(t, speak(200, `{"results":[{"index":0,"relevance_score":0.9}]}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	body := `{"model":"ranks","query":"` + strings.Repeat("four", 100) + `","documents":["` + strings.Repeat("four", 200) + `"]}`
	if got := f.do(http.MethodPost, "/openai/v1/rerank", body); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	c.consumed("openai/ranks/requests", 1)
	c.consumed("openai/ranks/tokens", 300)
}
