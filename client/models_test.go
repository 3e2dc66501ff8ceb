package client

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/signals"
)

func TestMatchersOfModels(t *testing.T) {
	const ask = `{"model":"m","max_tokens":100,"messages":["` + "0123456789012345678901234567890123456789" + `"]}` // 10 tokens
	for _, tt := range []struct {
		name, path, body string
		match            func(*http.Request, ...ProviderOption) Call
		want             []Item
	}{
		{
			"azure", "/openai/deployments/gpt-5/chat/completions", ask, MatchAzure,
			[]Item{{"azure/gpt-5/requests", 1}, {"azure/gpt-5/tokens", 110}},
		},
		{"azure without a path", "/openai/v1/responses", ask, MatchAzure, []Item{{"azure/m/requests", 1}, {"azure/m/tokens", 110}}},
		{"azure without a model", "/openai/v1/responses", `{}`, MatchAzure, []Item{{"azure/requests", 1}}},
		{"azure without a body", "/openai/v1/models", ``, MatchAzure, nil},
		{
			"anthropic", "/v1/messages", ask, MatchAnthropic,
			[]Item{{"anthropic/m/requests", 1}, {"anthropic/m/input-tokens", 10}, {"anthropic/m/output-tokens", 100}},
		},
		{
			"anthropic without a bound", "/v1/messages", `{"model":"m"}`, MatchAnthropic,
			[]Item{{"anthropic/m/requests", 1}, {"anthropic/m/input-tokens", 1}, {"anthropic/m/output-tokens", 4000}},
		},
		{"anthropic without a model", "/v1/messages", `{}`, MatchAnthropic, []Item{{"anthropic/requests", 1}}},
		{"anthropic counting", "/v1/messages/count_tokens", ask, MatchAnthropic, nil},
		{"gemini", "/v1beta/models/gemini-2.5-pro:streamGenerateContent", ask, MatchGemini, []Item{
			{"gemini/gemini-2.5-pro/requests", 1}, {"gemini/gemini-2.5-pro/tokens", 10}, {"gemini/gemini-2.5-pro/requests-per-day", 1},
		}},
		{"gemini counting", "/v1beta/models/gemini-2.5-pro:countTokens", ask, MatchGemini, nil},
		{"bedrock", "/model/anthropic.claude-x%3A0/converse", `{"messages":[],"inferenceConfig":{"maxTokens":50}}`, MatchBedrock, []Item{
			{"bedrock/anthropic.claude-x:0/requests", 1}, {"bedrock/anthropic.claude-x:0/tokens", 51},
		}},
		{
			"bedrock without a bound", "/model/m/converse", `{"inferenceConfig":{"maxTokens":"x"}}`, MatchBedrock,
			[]Item{{"bedrock/m/requests", 1}, {"bedrock/m/tokens", 4001}},
		},
		{"bedrock elsewhere", "/guardrail/x/apply", ask, MatchBedrock, nil},
	} {
		request, err := http.NewRequest(http.MethodPost, "https://host.example"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := tt.match(request).Items; fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

const claudeStream = `event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":30,"cache_creation_input_tokens":12,` +
	`"cache_read_input_tokens":5000,"output_tokens":1}}}

event: message_delta
data: {"type":"message_delta","usage":{"output_tokens":77}}

`

// Anthropic states the output so far at the start of a stream. A stream that breaks off must not be settled by it.
func TestAnthropic_SettlesOnlyByWholeStream(t *testing.T) {
	for _, whole := range []bool{true, false} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			for _, name := range []string{"requests", "input-tokens", "output-tokens"} {
				cluster.Set("anthropic/m/"+name, fakequota.Quota{Usable: 10_000, Available: 10_000})
			}
			base, _ := answers(func(*http.Request) *http.Response { return respond(200, nil, claudeStream) })
			client := &http.Client{Transport: NewTransport(c, base, Anthropic())}
			response, err := client.Post("https://api.anthropic.com/v1/messages", "application/json",
				strings.NewReader(`{"model":"m","max_tokens":500}`))
			if err != nil {
				t.Fatal(err)
			}
			wantIn, wantOut := int64(42), int64(77)
			if whole {
				_, _ = io.Copy(io.Discard, response.Body)
			} else {
				_, _ = io.ReadFull(response.Body, make([]byte, strings.Index(claudeStream, "event: message_delta")))
				wantIn, wantOut = 42, 500
			}
			_ = response.Body.Close()
			synctest.Wait()
			if got := 10_000 - cluster.Available("anthropic/m/input-tokens"); got != wantIn {
				t.Errorf("whole %v: %d input tokens, want %d", whole, got, wantIn)
			}
			if got := 10_000 - cluster.Available("anthropic/m/output-tokens"); got != wantOut {
				t.Errorf("whole %v: %d output tokens, want %d", whole, got, wantOut)
			}
		})
	}
}

// Bedrock counts an output token of Claude 4 as five, of other models as one, even if the answer is not read to its end.
func TestBedrock_SettlesTheOutputOfClaude4Fivefold(t *testing.T) {
	const answer = `{"output":{},"usage":{"inputTokens":30,"outputTokens":100,"totalTokens":130}}`
	for _, tt := range []struct {
		model string
		whole bool
		want  int64
	}{
		{"us.anthropic.claude-sonnet-4-20250514-v1:0", true, 530},
		{"us.anthropic.claude-sonnet-4-20250514-v1:0", false, 530},
		{"anthropic.claude-3-5-sonnet-20241022-v2:0", true, 130},
		{"amazon.nova-pro-v1:0", true, 130},
	} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			for _, name := range []string{"requests", "tokens"} {
				cluster.Set("bedrock/"+tt.model+"/"+name, fakequota.Quota{Usable: 10_000, Available: 10_000})
			}
			header := http.Header{"Content-Type": {"application/json"}}
			base, _ := answers(func(*http.Request) *http.Response { return respond(200, header, answer+strings.Repeat(" ", 100)) })
			client := &http.Client{Transport: NewTransport(c, base, Bedrock())}
			response, err := client.Post("https://bedrock-runtime.eu-west-1.amazonaws.com/model/"+tt.model+"/converse", "application/json",
				strings.NewReader(`{"messages":[],"inferenceConfig":{"maxTokens":100}}`))
			if err != nil {
				t.Fatal(err)
			}
			if tt.whole {
				_, _ = io.Copy(io.Discard, response.Body)
			} else {
				_, _ = io.ReadFull(response.Body, make([]byte, len(answer)+1))
			}
			_ = response.Body.Close()
			synctest.Wait()
			if got := 10_000 - cluster.Available("bedrock/"+tt.model+"/tokens"); got != tt.want {
				t.Errorf("%s, whole %v: %d tokens, want %d", tt.model, tt.whole, got, tt.want)
			}
		})
	}
}

// Without an option a Transport detects the dialect, and each kind of refusal becomes its cause.
func TestTransport_RefusalsBecomeCauses(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		header http.Header
		body   string
		cause  quotav1.Cause
		wait   time.Duration
	}{
		"too fast": {
			429, http.Header{"Anthropic-Organization-Id": {"x"}, "Retry-After": {"120"}}, `{}`, quotav1.Cause_CAUSE_SATURATED, 2 * time.Minute,
		},
		"a plan's window": {
			429,
			http.Header{"Anthropic-Ratelimit-Unified-Status": {"rejected"}, "Retry-After": {"200000"}},
			`{}`, quotav1.Cause_CAUSE_EXHAUSTED,
			200000 * time.Second,
		},
		"the whole account": {
			429,
			http.Header{"Openai-Version": {"x"}, "Retry-After": {"120"}},
			`{"error":{"code":"slow_down"}}`, quotav1.Cause_CAUSE_ACCOUNT,
			2 * time.Minute,
		},
		"not paid": {429, nil, `{"error":{"type":"insufficient_quota"}}`, quotav1.Cause_CAUSE_PLAN, 0},
		"no quota": {429, nil, `{"error":{"status":"RESOURCE_EXHAUSTED","message":"limit: 0, model: x"}}`, quotav1.Cause_CAUSE_PLAN, 0},
		"overloaded": {
			529, http.Header{"Anthropic-Organization-Id": {"x"}, "Retry-After": {"9"}}, `{}`, quotav1.Cause_CAUSE_OVERLOADED, 9 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
				base, _ := answers(func(*http.Request) *http.Response { return respond(tt.status, tt.header, tt.body) })
				response, err := NewTransport(c, base, Match(core),
					Retries(0)).RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				synctest.Wait()
				reports := cluster.Reports()
				if len(reports) != 1 {
					t.Fatalf("reports %v", reports)
				}
				if got := reports[0].GetSignals()[0]; got.GetCause() != tt.cause || got.GetRetryAfter().AsDuration() != tt.wait {
					t.Errorf("reported %v", got)
				}
			})
		})
	}
}

func TestTransport_CountsMalformedValues(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(200, http.Header{"X-Ratelimit-Remaining": {"soon", "-5"}}, "")
		})
		transport := NewTransport(c, base, Match(core), Speak(signals.Generic))
		response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := transport.Stats().Malformed; got != 2 {
			t.Errorf("%d malformed values, want 2", got)
		}
	})
}
