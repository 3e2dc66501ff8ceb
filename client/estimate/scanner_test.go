package estimate_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

func parse(t *testing.T, path string) *url.URL {
	t.Helper()
	u, err := url.Parse(path)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestScanner_Counts(t *testing.T) {
	generate := estimate.Route{Operation: estimate.Generate}
	picture := strings.Repeat("A", 930_000)
	for _, c := range []struct {
		name    string
		dialect signals.Dialect
		body    string
		counted int64
		bound   int64
	}{
		{"text", signals.OpenAI, `{"messages":[{"role":"user","content":"` + strings.Repeat("abcd", 1000) + `"}],"model":"gpt-5"}`, 1001, 0},
		{
			"bound behind a long prompt", signals.OpenAI, `{"input":"` + strings.Repeat("abcd", 300_000) + `","max_output_tokens":500}`, 300_000,
			500,
		},
		{"non-ASCII text", signals.OpenAI, `{"input":"` + strings.Repeat("ü", 100) + `"}`, 100, 0},
		{"escaped non-ASCII text", signals.OpenAI, `{"input":"` + strings.Repeat(`\u00fc`, 100) + `"}`, 100, 0},
		{"bounds and choices", signals.OpenAI, `{"n":3,"max_tokens":10,"max_completion_tokens":20,"prompt":"abcdefgh"}`, 2, 60},
		{"picture in a URL", signals.OpenAI, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
			picture + `"}}]}]}`, 1202, 0},
		{"picture of Responses", signals.OpenAI, `{"input":[{"content":[{"image_url":"data:image/png;base64,` + picture +
			`","type":"input_image"}]}]}`, 1202, 0},
		{
			"picture of Anthropic, data first", signals.Anthropic,
			`{"messages":[{"content":[{"source":{"data":"` + picture + `","media_type":"image/png","type":"base64"},"type":"image"}]}]}`, 1605, 0,
		},
		{
			"picture of a later Claude", signals.Anthropic,
			`{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://example.org/a.png"}}]}],"model":"claude-opus-4-7"}`,
			4786, 0,
		},
		{"picture of Gemini", signals.Gemini, `{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"` + picture +
			`"}}]}],"generationConfig":{"maxOutputTokens":7,"candidateCount":2}}`, 1102, 14},
		{"picture of Converse", signals.Bedrock, `{"messages":[{"content":[{"image":{"format":"png","source":{"bytes":"` + picture +
			`"}}}]}],"inferenceConfig":{"maxTokens":9}}`, 1600, 9},
		{
			"PDF", signals.Anthropic,
			`{"messages":[{"content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"` + strings.Repeat("A",
				160_000) + `"}}]}]}`, 7207, 0,
		},
		{
			"text document", signals.Anthropic,
			`{"messages":[{"content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"` + strings.Repeat("A",
				4000) + `"}}]}]}`, 1005, 0,
		},
		{"sound", signals.OpenAI, `{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"` + strings.Repeat("A", 40_000) +
			`","format":"wav"}}]}]}`, 63, 0},
		{"file by id", signals.OpenAI, `{"input":[{"content":[{"type":"input_file","file_id":"file-1"}]}]}`, 2402, 0},
		{"a tool's own JSON", signals.Anthropic, `{"messages":[{"content":[{"type":"tool_use","input":{"url":"` + strings.Repeat("A", 400) +
			`","format":"png"}}]}]}`, 102, 0},
		{"tools", signals.OpenAI, `{"tools":[{"type":"function"}],"input":""}`, 5, 0},
		{"metadata does not count", signals.OpenAI, `{"metadata":{"a":"` + picture + `"},"input":"abcd"}`, 1, 0},
		{"tokens", signals.OpenAI, `{"input":[1,2,3,4]}`, 4, 0},
		{"not JSON", signals.OpenAI, strings.Repeat("x", 400), 100, 0},
		{"broken off", signals.OpenAI, `{"input":"` + strings.Repeat("x", 400), 100, 0},
		{"broken in the middle", signals.OpenAI, `{"input":"` + strings.Repeat("x", 400) + `"` + strings.Repeat("!", 400), 200, 0},
		{"an array", signals.OpenAI, `["` + strings.Repeat("x", 396) + `"]`, 100, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := estimate.Read(c.dialect, generate, strings.NewReader(c.body))
			if got.Counted() != c.counted || got.Bound != c.bound || got.Size != int64(len(c.body)) {
				t.Errorf("counted %d, bound %d, size %d; want %d, %d, %d; %+v", got.Counted(), got.Bound, got.Size, c.counted, c.bound, len(c.body),
					got.Content)
			}
			small := estimate.NewScanner(c.dialect, generate)
			for i := range len(c.body) {
				_, _ = small.Write([]byte{c.body[i]})
			}
			if cut := small.Request(); cut.Content != got.Content || cut.Counted() != got.Counted() || cut.Bound != got.Bound {
				t.Errorf("in single bytes: %+v, want %+v", cut, got)
			}
		})
	}
}

// TestModel_IsReadWhereTheProviderReadsIt: another member must not name a different model than the one that answers.
func TestModel_IsReadWhereTheProviderReadsIt(t *testing.T) {
	for name, want := range map[string]string{"bedrock": "b", "openai": "a", "anthropic": "a"} {
		dialect, err := signals.DialectNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		got := estimate.Read(dialect, estimate.Route{Operation: estimate.Generate}, strings.NewReader(`{"model":"a","modelId":"b"}`))
		if got.Model != want {
			t.Errorf("%s: %q, want %q", name, got.Model, want)
		}
	}
}

// TestModel_OfASessionIsReadWhereNoneStandsAtTheTop: a request for a realtime session's key names the model in the session.
func TestModel_OfASessionIsReadWhereNoneStandsAtTheTop(t *testing.T) {
	for body, want := range map[string]estimate.Request{
		`{"session":{"type":"realtime","model":"a","audio":{"output":{"voice":"b"}}}}`: {Route: estimate.Route{Model: "a"}},
		`{"session":{"tools":[{"model":"b"}],"x":{"model":"c"},"model":"a"}}`:          {Route: estimate.Route{Model: "a"}},
		`{"session":{"model":"a"},"model":"b"}`:                                        {Route: estimate.Route{Model: "b"}},
		`{"session":{"x":{"model":"a"}}}`:                                              {},
		`{"session":"a","other":{"model":"a"}}`:                                        {},
		`{"session":{"model":"a","mod\u0065l":"b"}}`:                                   {Route: estimate.Route{Model: "b"}, Repeated: "session"},
	} {
		got := estimate.Read(signals.OpenAI, estimate.Route{Operation: estimate.Generate}, strings.NewReader(body))
		if got.Model != want.Model || got.Repeated != want.Repeated {
			t.Errorf("%s: the model %q, repeated %q", body, got.Model, got.Repeated)
		}
	}
}

// TestScanner_SeesStreamOptionsOfAnyKind: adding the member to a body that has it, even as null, would repeat it.
func TestScanner_SeesStreamOptionsOfAnyKind(t *testing.T) {
	for body, want := range map[string]bool{
		`{"stream_options":{"include_usage":false}}`: true, `{"stream_options":null,"stream":true}`: true, `{"stream_options":[]}`: true,
		`{"stream_options":"x"}`: true, `{"stream_options":true}`: true, `{"stream_\u006fptions":null}`: true, `{"stream":true}`: false,
		`{"metadata":{"stream_options":null},"input":{"stream_options":{}}}`: false,
	} {
		got := estimate.Read(signals.OpenAI, estimate.Route{Operation: estimate.Generate}, strings.NewReader(body)).StreamOptions
		if got != want {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}

func TestRequest_CountsOutputOfClaude4AsFiveOnBedrock(t *testing.T) {
	for model, want := range map[string]int64{
		"us.anthropic.claude-opus-4-1-20250805-v1:0": 5, "anthropic.claude-sonnet-4-20250514-v1:0": 5, "claude-opus-4": 5, "claude-10": 5,
		"arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-haiku-4-5-20251001-v1:0": 5,
		"anthropic.claude-3-7-sonnet-20250219-v1:0":                                                 1, "anthropic.claude-v2:1": 1,
		"anthropic.claude-instant-v1": 1, "amazon.nova-pro-v1:0": 1, "": 1, "claude-opus-20250514": 1,
	} {
		r := estimate.Request{Dialect: signals.Bedrock, Route: estimate.Route{Model: model}}
		if got := r.Burndown(); got != want {
			t.Errorf("%q: %d, want %d", model, got, want)
		}
		if r.Dialect = signals.Anthropic; r.Burndown() != 1 {
			t.Errorf("%q at Anthropic itself: %d, want 1", model, r.Burndown())
		}
	}
}

func TestRouteOf(t *testing.T) {
	for _, c := range []struct {
		dialect signals.Dialect
		path    string
		want    estimate.Route
	}{
		{signals.OpenAI, "/v1/chat/completions", estimate.Route{Operation: estimate.Generate}},
		{signals.OpenAI, "/v1/responses", estimate.Route{Operation: estimate.Generate}},
		{signals.OpenAI, "/v1/embeddings", estimate.Route{Operation: estimate.Embed}},
		{signals.OpenAI, "/v1/models", estimate.Route{}},
		{signals.Codex, "/backend-api/codex/responses", estimate.Route{Operation: estimate.Generate}},
		{signals.Azure, "/openai/deployments/my%2Dgpt/chat/completions?api-version=1", estimate.Route{
			Operation: estimate.Generate,
			Model:     "my-gpt",
		}},
		{signals.Anthropic, "/v1/messages?beta=true", estimate.Route{Operation: estimate.Generate}},
		{signals.Anthropic, "/v1/messages/count_tokens", estimate.Route{}},
		{signals.Anthropic, "/v1/messages/batches", estimate.Route{}},
		{signals.Gemini, "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse", estimate.Route{
			Operation: estimate.Generate,
			Model:     "gemini-3-pro",
		}},
		{signals.Gemini, "/v1beta/models/gemini-3-pro:countTokens", estimate.Route{Model: "gemini-3-pro"}},
		{signals.Gemini, "/v1beta/openai/chat/completions", estimate.Route{Operation: estimate.Generate}},
		{signals.Bedrock, "/model/us.anthropic.claude-opus-4%3A0/converse-stream", estimate.Route{
			Operation: estimate.Generate,
			Model:     "us.anthropic.claude-opus-4:0",
		}},
		{signals.Bedrock, "/model/amazon.titan-embed-text-v2:0/invoke", estimate.Route{
			Operation: estimate.Embed,
			Model:     "amazon.titan-embed-text-v2:0",
		}},
	} {
		if got := estimate.RouteOf(c.dialect, parse(t, c.path)); got != c.want {
			t.Errorf("%s %s: %+v, want %+v", c.dialect.Name(), c.path, got, c.want)
		}
	}
}
