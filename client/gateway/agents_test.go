package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// The agents' requests follow their published documentation and source, 2026-08 to 2026-11: Claude Code: code.claude.com/docs
// llm-gateway-protocol and env-vars. Codex: openai/codex codex-rs/model-provider-info. Copilot CLI: github/copilot-cli issue 3679.
// gemini-cli: google-gemini/gemini-cli utils/fetch.ts.

func TestA7_CodexIsServedByItsCustomProvider(t *testing.T) {
	const said = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\"," +
		"\"usage\":{\"input_tokens\":75,\"output_tokens\":1186}}}\n\n"
	f := openAI(t, events(nil, said), nil)
	got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","stream":true,"input":[{"role":"user","content":"x"}]}`,
		"User-Agent", "codex_cli_rs/0.144.6", "Session_id", "0199", "Authorization", "Bearer sk-made-up", "Accept", "text/event-stream")
	if got.status != 200 || got.body != said {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	f.cluster.consumed("openai/gpt-5/tokens", 75+1186)
	f.logs(t, "holder=codex-1@node-7", 1)
}

func TestA8_ClaudeCodeSessionsHaveSeatsAndSubagentsShareThem(t *testing.T) {
	f := messages(t, events(nil, messageEvents...), nil)
	for _, call := range [][2]string{{"session-a", "main"}, {"session-b", "main"}, {"session-a", "sub-1"}, {"session-a", "sub-2"}} {
		got := f.do(http.MethodPost, "/anthropic/v1/messages?beta=true", messageBody, "User-Agent", "claude-cli/2.1.0 (external, cli)",
			"X-Claude-Code-Session-Id", call[0], "X-Claude-Code-Agent-Id", call[1], "Authorization", "Bearer sk-ant-oat-made-up",
			"Anthropic-Beta", "oauth-2025-04-20,new-feature", "X-New-Header", "kept")
		if got.status != 200 || got.body != strings.Join(messageEvents, "") {
			t.Fatalf("got %d %q", got.status, got.body)
		}
	}
	f.logs(t, "holder=claude-1@node-7", 3)
	f.logs(t, "holder=claude-2@node-7", 1)
	for _, sent := range f.provider.seen() {
		if sent.header.Get("Authorization") != "Bearer sk-ant-oat-made-up" ||
			sent.header.Get("Anthropic-Beta") != "oauth-2025-04-20,new-feature" ||
			sent.header.Get("X-New-Header") != "kept" {
			t.Errorf("the provider saw %v", sent.header)
		}
	}
	if got := f.do(http.MethodHead, "/anthropic/api/hello", ""); got.status != 200 {
		t.Errorf("HEAD /api/hello: %d", got.status)
	}
}

func TestA9_GeminiIsAnsweredBeforeItsClientTimesOut(t *testing.T) {
	form := forms["gemini"]
	c := startCluster(t, ratePer(form.quota, 1, 90*time.Second))
	p := startProvider(t, speak(200, `{"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":3}}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"gemini": upstreamOf(p, "gemini")}), gateway.Options{})
	ask := func() answer {
		return f.do(http.MethodPost, form.path, form.body, "User-Agent", "GeminiCLI/0.30.0 (linux; x64)", "X-Goog-Api-Key", "made-up")
	}
	if got := ask(); got.status != 200 || p.one(t).header.Get("X-Goog-Api-Key") != "made-up" {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	c.consumed(form.quota, 1) // the settlement: before it, the amount could return
	// The wait would be 90 s, but its client stays for 60 s: the cluster knows at once that it cannot serve the call in time.
	if got := ask(); got.status != 429 || !strings.Contains(got.body, "RetryInfo") ||
		!strings.HasPrefix(got.header.Get("X-Quotad-Refusal"), "CANNOT_SERVE_IN_TIME;") {
		t.Errorf("got %d %s %v", got.status, got.body, got.header)
	}
}

func TestA16_SpellingsOfAModelAreOneQuota(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), rate("bedrock/claude-sonnet-4-5/requests", 100), rate("azure/@any/requests",
		100))
	p := startProvider(t, speak(200, `{}`))
	upstreams := map[string]config.Upstream{}
	for _, name := range []string{"openai", "bedrock", "azure"} {
		upstreams[name] = upstreamOf(p, name)
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	for _, model := range []string{"gpt-5", "gpt-5-2025-08-07", "gpt-5-latest"} {
		if got := f.do(http.MethodPost, forms["openai"].path, `{"model":"`+model+`","input":"x"}`); got.status != 200 {
			t.Errorf("%s: %d %s", model, got.status, got.body)
		}
	}
	for _, model := range []string{
		"us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic.claude-sonnet-4-5-20250929-v1%3A0",
		"arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.anthropic.claude-sonnet-4-5-20250929-v1%3A0",
	} {
		if got := f.do(http.MethodPost, "/bedrock/model/"+model+"/converse", `{}`); got.status != 200 {
			t.Errorf("%s: %d %s", model, got.status, got.body)
		}
	}
	if got := f.do(http.MethodPost, forms["azure"].path, forms["azure"].body); got.status != 200 {
		t.Errorf("any model: %d %s", got.status, got.body)
	}
	c.consumed("openai/gpt-5/requests", 3)
	c.consumed("bedrock/claude-sonnet-4-5/requests", 3)
	c.consumed("azure/@any/requests", 1)
}

func TestA17_PromptsWithoutABoundStayBelowTheProvidersLimit(t *testing.T) {
	const limit, prompt = 500_000, 80_000
	var used, refused atomic.Int64
	c := startCluster(t, rate("openai/gpt-5/requests", 1000), rate("openai/gpt-5/tokens", limit))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if used.Add(int64(len(body)/4)+16) > limit {
			refused.Add(1)
			speak(429, `{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}`)(w, r)
			return
		}
		speak(200, fmt.Sprintf(`{"usage":{"prompt_tokens":%d,"completion_tokens":16}}`, prompt))(w, r)
	})
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	body := `{"model":"gpt-5","messages":[{"role":"user","content":"` + strings.Repeat("word", prompt) + `"}]}`
	ask := func() int {
		return f.do(http.MethodPost, "/openai/v1/chat/completions", body, "X-Quotad-Wait", "0").status
	}
	statuses := make(chan int, 20)
	for range 20 {
		go func() { statuses <- ask() }()
	}
	passed := 0
	count := func(status int) bool {
		if status == 200 {
			passed++
		}
		return passed >= 5
	}
	for range 20 {
		count(<-statuses)
	}
	// How many of those pass depends on how soon the first are settled. The rest of the limit serves further calls.
	eventually(t, "five calls pass", func() bool { return passed >= 5 || count(ask()) })
	if refused.Load() > 0 {
		t.Errorf("the provider refused %d calls, %d passed", refused.Load(), passed)
	}
}

func TestA19_PicturesCountAsPicturesAndTextAsText(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	picture := `{"model":"gpt-5","max_tokens":100,"messages":[{"role":"user","content":[` +
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		strings.Repeat("A", 930_000) + `"}}]}]}`
	text := `{"model":"gpt-5","messages":[{"role":"user","content":"` + strings.Repeat("word", 300_000) + `"}],"max_tokens":500}`
	for _, want := range []struct {
		body        string
		least, most int64
	}{{picture, 1_000, 5_000}, {text, 300_500, 400_000}} {
		request, err := http.NewRequest(http.MethodPost, "http://localhost/openai/v1/chat/completions", strings.NewReader(want.body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		f.cluster.apply(tokens("openai/gpt-5/tokens", 10_000_000))
		explained, err := f.gateway.Explain(t.Context(), request)
		if err != nil || len(explained.Draws) != 2 {
			t.Fatalf("got %+v, %v", explained, err)
		}
		if n := explained.Draws[1].Amount; n < want.least || n > want.most {
			t.Errorf("%d bytes count %d tokens, want %d to %d", len(want.body), n, want.least, want.most)
		}
	}
}

func TestA30_NothingSecretIsShown(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	secrets := []string{"sk-made-up-key", "the-secret-prompt", "made-up-query-key", "made-up-login"}
	const query = "key=made-up-query-key&access_token=made-up-login"
	for _, path := range []string{"/openai/v1/chat/completions", "/openai/v1/nothing", "/nowhere", "/take"} {
		for _, model := range []string{"gpt-5", "gpt-6"} {
			body := `{"model":"` + model + `","messages":[{"role":"user","content":"the-secret-prompt"}]}`
			f.do(http.MethodPost, path+"?quota=t/none&"+query, body, "Authorization", "Bearer sk-made-up-key")
		}
	}
	f.provider.Close()
	f.do(http.MethodPost, "/openai/v1/chat/completions?"+query, `{"model":"gpt-5"}`, "Authorization", "Bearer sk-made-up-key")
	f.logs(t, "holder=key-", 1)
	shown := f.log.String() + f.do(http.MethodGet, "/metrics", "").body + f.do(http.MethodGet, "/status", "").body +
		f.do(http.MethodGet, "/status?format=json", "").body
	for _, secret := range secrets {
		if at := strings.Index(shown, secret); at >= 0 {
			t.Errorf("%s is shown: ...%s...", secret, shown[max(0, at-100):min(len(shown), at+100)])
		}
	}
}

func TestUpstreamAway_AnswersInItsForm(t *testing.T) {
	f := messages(t, events(nil, messageEvents...), nil)
	f.provider.Close()
	got := f.do(http.MethodPost, "/anthropic/v1/messages", messageBody)
	if got.status != http.StatusBadGateway || got.header.Get("X-Quotad") != "upstream" || !strings.Contains(got.body,
		`"type":"api_error"`) ||
		!strings.Contains(got.body, "nothing was sent") {
		t.Errorf("got %d %s %v", got.status, got.body, got.header)
	}
	f.cluster.consumed("anthropic/claude-opus-4/requests", 0)
}
