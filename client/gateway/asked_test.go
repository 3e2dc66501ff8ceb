package gateway_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// explain returns how the gateway would treat a call; headers are name, value, name, value.
func (b *bubble) explain(path, body string, headers ...string) gateway.Explanation {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	explained, err := b.gateway.Explain(b.t.Context(), request)
	if err != nil {
		b.t.Fatal(err)
	}
	return explained
}

// TestAmounts_AreThoseThatTheProviderCounts: OpenAI, Azure and Bedrock count a call by its bound when it arrives, Anthropic by its output,
// Gemini by its input. Each prompt has 100 tokens. Without a bound the quota's default estimate counts, or else 4,000.
func TestAmounts_AreThoseThatTheProviderCounts(t *testing.T) {
	prompt := `"` + strings.Repeat("word", 100) + `"`
	estimated := settledByUse("openai/d/tokens", 100_000)
	estimated.DefaultEstimate = 900
	output := settledByUse("anthropic/d/output-tokens", 100_000)
	output.DefaultEstimate = 900
	with := setting{
		dialects: []string{"openai", "azure", "bedrock", "codex", "gemini", "anthropic"}, answer: speak(200, `{}`),
		quotas: []*quotav1.Quota{
			estimated, output, settledByUse("openai/small/tokens", 500), settledByUse("anthropic/both/tokens", 100_000),
			settledByUse("openai/once/tokens", 100_000), quotatest.Window("openai/once/requests-per-day", 100),
			quotatest.Slots("openai/once/streams", 10), settledByUse("team/red/tokens", 100_000),
			quotatest.Rate("org/requests", 100, time.Minute),
		},
		change: func(conf *config.Config) {
			u := conf.Upstreams["openai"]
			u.Also = []config.Also{
				{Use: map[string]string{"org/requests": "requests"}}, {Holder: "red-*", Use: map[string]string{"team/red/tokens": "tokens"}},
			}
			conf.Upstreams["openai"] = u
		},
	}
	for _, name := range []string{"openai", "azure", "bedrock", "codex", "gemini"} {
		with.quotas = append(with.quotas, settledByUse(name+"/m/tokens", 100_000))
	}
	for _, part := range []string{"input-tokens", "output-tokens"} {
		with.quotas = append(with.quotas, settledByUse("anthropic/m/"+part, 100_000))
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for _, c := range []struct {
			path, body, holder string
			draws              []string
		}{
			{"/openai/v1/responses", `{"model":"m","input":` + prompt + `,"max_output_tokens":700}`, "", []string{"openai/m/tokens 800"}},
			{"/openai/v1/responses", `{"model":"m","input":` + prompt + `}`, "", []string{"openai/m/tokens 4100"}},
			{"/openai/v1/responses", `{"model":"d","input":` + prompt + `}`, "", []string{"openai/d/tokens 1000"}},
			{
				"/openai/v1/completions", `{"model":"m","prompt":` + prompt + `,"n":3,"max_tokens":10,"max_completion_tokens":20}`, "",
				[]string{"openai/m/tokens 160"},
			},
			{"/openai/v1/embeddings", `{"model":"m","input":` + prompt + `}`, "", []string{"openai/m/tokens 100"}},
			{
				"/openai/v1/responses", `{"model":"small","input":` + prompt + `,"max_output_tokens":700}`, "",
				[]string{"openai/small/tokens 500 cut"},
			},
			{
				"/openai/v1/responses", `{"model":"once","input":` + prompt + `,"max_output_tokens":700}`, "red-7",
				[]string{"openai/once/requests-per-day 1", "openai/once/streams 1", "openai/once/tokens 800", "team/red/tokens 800"},
			},
			{"/codex/responses", `{"model":"m","input":` + prompt + `,"max_output_tokens":700}`, "", []string{"codex/m/tokens 800"}},
			{"/azure/openai/deployments/m/completions", `{"prompt":` + prompt + `,"max_tokens":700}`, "", []string{"azure/m/tokens 800"}},
			{"/azure/openai/v1/responses", `{"model":"m","input":` + prompt + `,"max_output_tokens":700}`, "", []string{"azure/m/tokens 800"}},
			{
				"/bedrock/model/m/converse", `{"system":` + prompt + `,"inferenceConfig":{"maxTokens":700}}`, "",
				[]string{"bedrock/m/tokens 800"},
			},
			{
				"/gemini/v1beta/models/m:generateContent", `{"contents":` + prompt + `,"generationConfig":{"maxOutputTokens":700}}`, "",
				[]string{"gemini/m/tokens 100"},
			},
			{
				"/anthropic/v1/messages", `{"model":"m","system":` + prompt + `,"max_tokens":32000}`, "",
				[]string{"anthropic/m/input-tokens 100", "anthropic/m/output-tokens 4000"},
			},
			{
				"/anthropic/v1/messages", `{"model":"m","system":` + prompt + `,"max_tokens":700}`, "",
				[]string{"anthropic/m/input-tokens 100", "anthropic/m/output-tokens 700"},
			},
			{"/anthropic/v1/messages", `{"model":"d","system":` + prompt + `,"max_tokens":32000}`, "", []string{"anthropic/d/output-tokens 900"}},
			{"/anthropic/v1/messages", `{"model":"both","system":` + prompt + `,"max_tokens":32000}`, "", []string{"anthropic/both/tokens 4100"}},
		} {
			explained := b.explain(c.path, c.body, "X-Quotad-Holder", cmp.Or(c.holder, "data"))
			var got []string
			for _, d := range explained.Draws {
				said := fmt.Sprintf("%s %d", d.Quota, d.Amount)
				if d.Cut {
					said += " cut"
				}
				got = append(got, said)
			}
			want := slices.Clone(c.draws)
			if explained.Upstream == "openai" {
				want = append(want, "org/requests 1")
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s %.40s draws on %q, want %q; %s", c.path, c.body, got, want, explained.Refusal)
			}
		}
	})
}

// TestWait_IsTheClassesOrAsAskedAndWithinTheClients: never above the cluster's 10 min. A call without a class waits like a standard one.
func TestWait_IsTheClassesOrAsAskedAndWithinTheClients(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, answer: speak(200, `{}`),
		quotas: []*quotav1.Quota{quotatest.Rate("openai/m/requests", 100, time.Minute)},
	}
	const claude, gemini = "claude-cli/2.1.0 (external, cli)", "GeminiCLI/0.30.0 (linux; x64)"
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for _, c := range []struct {
			class, agent, asked string
			want                time.Duration
		}{
			{"", "", "", 2 * time.Minute},
			{"critical", "", "", 30 * time.Second},
			{"standard", "", "", 2 * time.Minute},
			{"background", "", "", 4 * time.Minute},
			{"background", "curl/8", "", 4 * time.Minute},
			{"background", claude, "", 4 * time.Minute},
			{"background", "copilot/1.0", "", 2 * time.Minute},
			{"background", gemini, "", 40 * time.Second},
			{"critical", gemini, "", 30 * time.Second},
			{"critical", "", "5m", 5 * time.Minute},
			{"critical", "", "90", 90 * time.Second},
			{"background", "", "0", 0},
			{"", "", "1h", 10 * time.Minute},
			{"critical", claude, "5m", 4 * time.Minute},
			{"critical", gemini, "5m", 40 * time.Second},
			{"critical", "", "soon", 30 * time.Second},
			{"critical", "", "-1s", 30 * time.Second},
		} {
			got := b.explain("/openai/v1/responses", `{"model":"m","input":"x"}`, "X-Quotad-Class", c.class, "User-Agent", c.agent,
				"X-Quotad-Wait", c.asked)
			if time.Duration(got.Wait) != c.want {
				t.Errorf("%+v: %v", c, got.Wait)
			}
		}
	})
}

// TestStreamUsage_IsAskedForWhereItSettlesSomething: of chat streams at OpenAI itself, unless nothing returns by it. "on" asks everywhere,
// "off" nowhere.
func TestStreamUsage_IsAskedForWhereItSettlesSomething(t *testing.T) {
	with := setting{
		answer: events(nil, chatEvents...),
		quotas: []*quotav1.Quota{
			settledByUse("q/actual/tokens", 100_000), quotatest.Rate("q/default/tokens", 100_000, time.Minute),
			settledByEstimate("q/most/tokens", 100_000), quotatest.Rate("q/requests/requests", 100, time.Minute),
		},
		change: func(conf *config.Config) {
			for _, dialect := range []string{"openai", "azure"} {
				for _, mode := range []string{"auto", "on", "off"} {
					conf.Upstreams[dialect+"-"+mode] = config.Upstream{
						Dialect: dialect, Base: "http://provider.example", Plain: true, Quotas: "q", StreamUsage: mode,
					}
				}
			}
		},
	}
	models := []string{"actual", "default", "most", "requests"}
	asked := map[string]bool{"openai-auto actual": true, "openai-auto default": true}
	for _, upstream := range []string{"openai-on", "azure-on"} {
		for _, model := range models {
			asked[upstream+" "+model] = true
		}
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		got := map[string]bool{}
		for _, dialect := range []string{"openai", "azure"} {
			for _, mode := range []string{"auto", "on", "off"} {
				for _, model := range models {
					for _, call := range []string{
						`/v1/chat/completions {"model":"` + model + `","stream":true,"messages":[]}`,
						`/v1/chat/completions {"model":"` + model + `","messages":[]}`, `/v1/responses {"model":"` + model + `","stream":true,"input":"x"}`,
					} {
						path, body, _ := strings.Cut(call, " ")
						before := len(b.provider.seen())
						if got := b.do(http.MethodPost, "/"+dialect+"-"+mode+path, body, "Content-Type", "application/json"); got.status != 200 {
							t.Fatalf("%s: got %d %s", call, got.status, got.body)
						}
						if sent := b.provider.seen()[before].body; sent != body {
							got[dialect+"-"+mode+" "+model] = true
							if strings.Replace(sent, `"stream_options":{"include_usage":true},`, "", 1) != body || path != "/v1/chat/completions" ||
								!strings.Contains(body, `"stream"`) {
								t.Errorf("%s was sent as %s", call, sent)
							}
						}
					}
				}
			}
		}
		if !maps.Equal(got, asked) {
			t.Errorf("usage was asked for in %v, want %v", got, asked)
		}
	})
}
