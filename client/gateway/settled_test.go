package gateway_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/price"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// madeUpPrices are prices in dollars per million tokens, so that input costs one micro-dollar.
func madeUpPrices(t *testing.T) []price.Line {
	t.Helper()
	cached, write, hour := rateOf(t, "0.1"), rateOf(t, "2"), rateOf(t, "4")
	return []price.Line{{
		Model: "*", Input: rateOf(t, "1"), Cached: &cached, CacheWrite: &write, CacheWrite1h: &hour, Output: rateOf(t, "10"), Source: "made up",
	}}
}

// counted answers with token counts in Bedrock's headers.
func counted(input, output int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Amzn-Bedrock-Input-Token-Count", strconv.Itoa(input))
		w.Header().Set("X-Amzn-Bedrock-Output-Token-Count", strconv.Itoa(output))
		speak(200, `{"generation":"x"}`)(w, r)
	}
}

// frames answers with an Amazon event stream.
func frames(all string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
		_, _ = fmt.Fprint(w, all)
	}
}

// TestSettle_CountsAsTheProviderDoes: of each form of answer, its limits have what the provider counts against them, and a quota of money
// has the price. A call that its answer says nothing of keeps its estimate: 1 token of input, and its bound or 4,000.
func TestSettle_CountsAsTheProviderDoes(t *testing.T) {
	const (
		chat       = `{"model":"m","messages":[],"max_tokens":700}`
		claude     = "anthropic.claude-opus-4-1-20250805-v1:0"
		lastChunk  = `{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":13,"outputTokenCount":178,`
		form       = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n"
		formType   = "multipart/form-data; boundary=b"
		incomplete = "event: response.incomplete\n" +
			"data: {\"type\":\"response.incomplete\",\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":75,\"output_tokens\":1186}}}\n\n"
		converse = `{"usage":{"inputTokens":30,"outputTokens":9,"totalTokens":39,"cacheReadInputTokens":2,"cacheWriteInputTokens":5}}`
	)
	chunk := base64.StdEncoding.EncodeToString([]byte(lastChunk + `"cacheReadInputTokenCount":21408,"cacheWriteInputTokenCount":4384}}`))
	chatUsage := speak(200, `{"object":"chat.completion","usage":{"prompt_tokens":1200,"completion_tokens":300,`+
		`"prompt_tokens_details":{"cached_tokens":1024}}}`)
	prices := madeUpPrices(t)
	for name, c := range map[string]struct {
		dialect, path, kind, body, model string
		answer                           http.HandlerFunc
		used                             map[string]int64
	}{
		"chat": {"openai", "/v1/chat/completions", "", chat, "m", chatUsage, map[string]int64{"tokens": 1500, "cost": 3279}},
		"azure chat": {"azure", "/openai/deployments/m/chat/completions", "", chat, "m", chatUsage, map[string]int64{
			"tokens": 1500, "cost": 3279,
		}},
		"chat with a written cache": {"openai", "/v1/chat/completions", "", chat, "m", speak(200, `{"usage":{"prompt_tokens":100,`+
			`"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":10,"cache_write_tokens":20}}}`), map[string]int64{
			"tokens": 105, "cost": 70 + 1 + 40 + 50,
		}},
		"chat stream without usage": {
			"openai", "/v1/chat/completions", "", `{"model":"m","stream":true,"messages":[],"max_tokens":700}`, "m",
			events(nil, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n", "data: [DONE]\n\n"),
			map[string]int64{"tokens": 701, "cost": 7001},
		},
		"responses": {"openai", "/v1/responses", "", chat, "m", speak(200, `{"object":"response","usage":{"input_tokens":75,`+
			`"input_tokens_details":{"cached_tokens":64},"output_tokens":1186,"total_tokens":1261}}`), map[string]int64{
			"tokens": 1261, "cost": 11878,
		}},
		"responses stream": {"chatgpt", "/codex/responses", "", chat, "m", events(nil, incomplete), map[string]int64{
			"tokens": 1261, "cost": 75 + 11860,
		}},
		"embeddings": {"openai", "/v1/embeddings", "", `{"model":"m","input":"x"}`, "m", speak(200,
			`{"object":"list","usage":{"prompt_tokens":8,"total_tokens":8}}`), map[string]int64{"tokens": 8, "cost": 8}},
		"images": {"openai", "/v1/images/generations", "", `{"model":"m","prompt":"x"}`, "m", speak(200,
			`{"created":1,"usage":{"input_tokens":50,"output_tokens":1000,"total_tokens":1050}}`), map[string]int64{"tokens": 1050, "cost": 10050}},
		"transcription": {"openai", "/v1/audio/transcriptions", formType, form, "m", speak(200,
			`{"text":"x","usage":{"type":"tokens","input_tokens":14,"output_tokens":45}}`), map[string]int64{"tokens": 59, "cost": 464}},
		"transcription by its length": {"openai", "/v1/audio/transcriptions", formType, form, "m", speak(200,
			`{"text":"x","usage":{"type":"duration","seconds":9}}`), map[string]int64{"tokens": 4000, "cost": 40_000}},
		"messages": {"anthropic", "/v1/messages", "", chat, "m", speak(200, messageAnswer), map[string]int64{
			"input-tokens": 4397, "output-tokens": 178, "cost": 12702,
		}},
		"messages with caches of two lives": {"anthropic", "/v1/messages", "", chat, "m", speak(200, `{"type":"message","usage":{`+
			`"input_tokens":10,"cache_creation_input_tokens":30,"output_tokens":1,`+
			`"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20}}}`), map[string]int64{
			"input-tokens": 40, "output-tokens": 1, "cost": 10 + 20 + 80 + 10,
		}},
		"gemini": {"gemini", "/v1beta/models/m:generateContent", "", `{"contents":[]}`, "m", speak(200, `{"usageMetadata":{`+
			`"promptTokenCount":100,"toolUsePromptTokenCount":50,"cachedContentTokenCount":20,"candidatesTokenCount":12,`+
			`"thoughtsTokenCount":40}}`), map[string]int64{"tokens": 150, "cost": 130 + 2 + 520}},
		"converse": {"bedrock", "/model/m/converse", "", `{"messages":[]}`, "m", speak(200, converse), map[string]int64{
			"tokens": 30 + 5 + 9, "cost": 131,
		}},
		"converse of Claude 4": {
			"bedrock", "/model/" + claude + "/converse", "", `{"messages":[]}`, "claude-opus-4-1", speak(200, converse),
			map[string]int64{"tokens": 30 + 5 + 5*9, "cost": 131},
		},
		"invoke": {"bedrock", "/model/m/invoke", "", `{"prompt":"x"}`, "m", counted(13, 178), map[string]int64{"tokens": 191, "cost": 1793}},
		"invoke stream of Claude 4": {
			"bedrock", "/model/" + claude + "/invoke-with-response-stream", "", `{"messages":[]}`, "claude-opus-4-1",
			frames(frame("chunk", `{"bytes":"`+chunk+`"}`)),
			map[string]int64{"tokens": 4397 + 5*178, "cost": 12702},
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := c.dialect + "/" + c.model + "/"
			quotas := []*quotav1.Quota{quotatest.Window(base+"requests-per-day", 100)}
			for part := range c.used {
				quotas = append(quotas, settledByUse(base+part, 1_000_000))
			}
			with := setting{quotas: quotas, answer: c.answer, change: func(conf *config.Config) {
				u := config.Upstream{Base: "http://provider.example", Plain: true}
				if c.dialect == "chatgpt" {
					u.Dialect = "codex"
				}
				conf.Upstreams[c.dialect], conf.Prices = u, prices
			}}
			inBubble(t, with, func(t *testing.T, b *bubble) {
				kind := "application/json"
				if c.kind != "" {
					kind = c.kind
				}
				if got := b.do(http.MethodPost, "/"+c.dialect+c.path, c.body, "Content-Type", kind); got.status != http.StatusOK {
					t.Fatalf("got %d %s", got.status, got.body)
				}
				b.consumed(base+"requests-per-day", 1)
				for part, want := range c.used {
					b.consumed(base+part, want)
				}
			})
		})
	}
}

// TestSettle_RefusedCallsUsedNoTokens: but a request. A limit that counts the estimate when a call arrives keeps it, and so does a call
// that failed at the provider, which may have generated before.
func TestSettle_RefusedCallsUsedNoTokens(t *testing.T) {
	const estimated = 1 + 700
	for _, c := range []struct {
		status       int
		actual, most int64
	}{
		{400, 0, estimated},
		{401, 0, estimated},
		{403, 0, estimated},
		{404, 0, estimated},
		{429, 0, estimated},
		{500, estimated, estimated},
		{503, estimated, estimated},
		{529, estimated, estimated},
	} {
		t.Run(strconv.Itoa(c.status), func(t *testing.T) {
			quotas := []*quotav1.Quota{
				quotatest.Rate("openai/actual/requests", 100, time.Minute), settledByUse("openai/actual/tokens", 100_000),
				quotatest.Rate("openai/most/requests", 100, time.Minute), settledByEstimate("openai/most/tokens", 100_000),
			}
			with := setting{dialects: []string{"openai"}, quotas: quotas, answer: speak(c.status, `{"error":{"message":"no"}}`)}
			inBubble(t, with, func(t *testing.T, b *bubble) {
				for model, want := range map[string]int64{"actual": c.actual, "most": c.most} {
					got := b.do(http.MethodPost, "/openai/v1/responses", `{"model":"`+model+`","max_output_tokens":700}`, "X-Quotad-Wait", "0")
					if got.status != c.status {
						t.Errorf("%s: got %d %s", model, got.status, got.body)
					}
					b.consumed("openai/"+model+"/requests", 1)
					b.consumed("openai/"+model+"/tokens", want)
				}
			})
		})
	}
}
