package gateway_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// falling starts a gateway whose background calls of gpt-5 fall back to gpt-5-mini. An hour allows one call of gpt-5.
func falling(t *testing.T) *fixture {
	t.Helper()
	c := startCluster(t, ratePer("openai/gpt-5/requests", 1, time.Hour), rate("openai/gpt-5-mini/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Models = []config.Model{{
		Upstream: "openai", Match: "gpt-5", As: "gpt-5", Fallback: []string{"gpt-none", "gpt-5-mini"},
		For: config.Selector{Class: config.Background},
	}}
	return startGateway(t, c, p, conf, gateway.Options{})
}

func TestFallback_AnotherModelAnswersWhileTheClusterRefuses(t *testing.T) {
	f := falling(t)
	body := `{ "messages":[{"role":"user","content":"as \"model\":\"gpt-5\" said"}],  "model":"gpt-5"}`
	for i, want := range []struct{ body, instead string }{
		{body, ""},
		{strings.TrimSuffix(body, `"gpt-5"}`) + `"gpt-5-mini"}`, "gpt-5"},
	} {
		got := f.do(http.MethodPost, "/openai/v1/chat/completions", body, "X-Quotad-Class", "background")
		if got.status != http.StatusOK || got.body != chatAnswer || got.header.Get("X-Quotad-Instead-Of") != want.instead {
			t.Fatalf("call %d: %d %s, %v", i, got.status, got.body, got.header)
		}
		if sent := f.provider.seen()[i].body; sent != want.body {
			t.Errorf("call %d sent %s, want %s", i, sent, want.body)
		}
	}
	f.cluster.consumed("openai/gpt-5/requests", 1)
	f.cluster.consumed("openai/gpt-5-mini/requests", 1)
	f.logs(t, "instead_of=gpt-5", 1)
}

func TestFallback_IsForTheCallsThatItNames(t *testing.T) {
	f := falling(t)
	if got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	for name, c := range map[string]struct{ class, body string }{
		"another class":                 {"standard", `{"model":"gpt-5","input":"x"}`},
		"a call that continues another": {"background", `{"model":"gpt-5","previous_response_id":"resp_1","input":"x"}`},
		"signed thoughts":               {"background", `{"model":"gpt-5","input":[{"type":"reasoning","encrypted_content":"gAAA"}]}`},
	} {
		got := f.do(http.MethodPost, "/openai/v1/responses", c.body, "X-Quotad-Class", c.class, "X-Quotad-Wait", "0")
		if got.status != http.StatusTooManyRequests || got.header.Get("X-Quotad-Instead-Of") != "" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	f.cluster.consumed("openai/gpt-5-mini/requests", 0)
}

func TestState_SurvivesRestart(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 1000), tokens("openai/gpt-5/tokens", 10_000_000))
	p := startProvider(t, speak(200, `{"object":"response","usage":{"input_tokens":10,"output_tokens":777}}`))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.State = filepath.Join(t.TempDir(), "learnt.json")
	body := `{"model":"gpt-5","input":"` + strings.Repeat("four", 10) + `"}`
	asks := func(f *fixture) int64 {
		request, err := http.NewRequest(http.MethodPost, "http://localhost/openai/v1/responses", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		explained, err := f.gateway.Explain(t.Context(), request)
		if err != nil || len(explained.Draws) != 2 {
			t.Fatalf("got %+v, %v", explained, err)
		}
		return explained.Draws[1].Amount
	}
	t.Run("before", func(t *testing.T) {
		f := startGateway(t, c, p, conf, gateway.Options{})
		for range 20 {
			f.do(http.MethodPost, "/openai/v1/responses", body)
		}
		f.logs(t, "msg=call", 20)
		if n := asks(f); n != 787 {
			t.Errorf("20 calls teach %d tokens, want 787", n)
		}
	})
	t.Run("after", func(t *testing.T) {
		f := startGateway(t, c, p, conf, gateway.Options{})
		if n := asks(f); n != 787 {
			t.Errorf("after a restart a call asks %d tokens, want 787", n)
		}
	})
}
