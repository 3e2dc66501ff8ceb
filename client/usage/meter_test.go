package usage_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// find returns the result of the vector with a name.
func find(t *testing.T, name string) usage.Said {
	t.Helper()
	for _, v := range vectors {
		if v.name == name {
			m := meter(t, v, len(v.body))
			m.End()
			return m.Said()
		}
	}
	t.Fatalf("there is no vector %q", name)
	return usage.Said{}
}

func TestMeter_RemembersIDs(t *testing.T) {
	if got := find(t, "Responses stream"); got.ID != "resp_1" || !got.Last {
		t.Errorf("%+v, want id resp_1, last", got)
	}
	if got := find(t, "Messages stream"); got.ID != "msg_1" || got.Last {
		t.Errorf("%+v, want id msg_1, not last", got)
	}
	if got := find(t, "chat"); got.Model != "gpt-5-2025-08-07" || got.Reasoning.N != 128 {
		t.Errorf("%+v, want model gpt-5-2025-08-07 and 128 of reasoning", got)
	}
}

func TestMeter_CountsTextOfStreamsCutOff(t *testing.T) {
	if got := find(t, "Messages cut off"); got.Text != 400 || got.OutputFloor() != 100 {
		t.Errorf("text %d, floor %d; want 400, 100", got.Text, got.OutputFloor())
	}
	for _, c := range []struct {
		name, body string
		header     http.Header
		want       int64
	}{
		{"chat", `data: {"choices":[{"delta":{"content":"abcd","tool_calls":[{"function":{"arguments":"{}"}}]}}]}` + "\n\n", asEvents, 6},
		{"Responses", `data: {"type":"response.output_text.delta","delta":"abcd"}` + "\n\n" +
			`data: {"type":"response.output_text.done","text":"abcd"}` + "\n\n", asEvents, 4},
		{"Messages", `{"content":[{"type":"text","text":"abcd"}]}`, asJSON, 4},
		{"Gemini", `[{"candidates":[{"content":{"parts":[{"text":"abcd"}]}}]}]`, asJSON, 4},
		{"Converse stream", frame("contentBlockDelta", `{"delta":{"text":"abcd"}}`), asFrames, 4},
	} {
		m := meter(t, vector{c.name, c.header, c.body, ""}, 3)
		if got := m.Said().Text; got != c.want {
			t.Errorf("%s: %d bytes of text, want %d", c.name, got, c.want)
		}
	}
}

// TestFailure_StatusOfEachKind: only errors that name a limit or an overload count as one; others say nothing about a quota.
func TestFailure_StatusOfEachKind(t *testing.T) {
	for status, failures := range map[int][]usage.Failure{
		429: {
			{Code: "rate_limit_exceeded"},
			{Type: "tokens", Code: "rate_limit_exceeded"},
			{Type: "insufficient_quota"},
			{Type: "rate_limit_error"},
			{Type: "RESOURCE_EXHAUSTED", Code: "429"},
			{Type: "throttlingException"},
			{Code: "429"},
		},
		503: {
			{Type: "overloaded_error"}, {Code: "server_is_overloaded"}, {Type: "UNAVAILABLE", Code: "503"}, {Type: "serviceUnavailableException"},
		},
		500: {
			{Type: "api_error"},
			{Code: "server_error"},
			{Type: "server_error"},
			{Type: "invalid_request_error", Code: "invalid_prompt"},
			{Code: "502"},
			{Type: "modelStreamErrorException"},
			{Type: "validationException"},
			{Type: "internalServerException"},
			{},
		},
	} {
		for _, f := range failures {
			if got := f.Status(); got != status {
				t.Errorf("%+v: status %d, want %d", f, got, status)
			}
		}
	}
}

func TestMeter_FindsFailures(t *testing.T) {
	got := find(t, "Messages overloaded").Failure
	if got == nil || got.Type != "overloaded_error" || got.Message != "Overloaded" {
		t.Errorf("%+v, want an overloaded_error", got)
	}
	got = find(t, "Responses failed").Failure
	if got == nil || got.Code != "rate_limit_exceeded" {
		t.Fatalf("%+v, want rate_limit_exceeded", got)
	}
	verdict, refused := signals.Verdict(signals.OpenAI.Observe(time.Unix(1_800_000_000, 0), http.StatusTooManyRequests, nil, got.Body))
	if !refused || verdict.Class != signals.Throttled || verdict.RetryAfter.D != 11_054*time.Millisecond {
		t.Errorf("the body of the failure means %+v, want throttled for 11.054 s: %s", verdict, got.Body)
	}
	if find(t, "chat stream").Failure != nil {
		t.Error("a failure of a stream that has none")
	}
	exception := eventstream.Message{Payload: []byte(`{"message":"Too many tokens"}`)}
	exception.Headers.Set(":message-type", eventstream.StringValue("exception"))
	exception.Headers.Set(":exception-type", eventstream.StringValue("throttlingException"))
	m := meter(t, vector{"exception", asFrames, encoded(exception), ""}, 5)
	if got := m.Said().Failure; got == nil || got.Type != "throttlingException" || got.Message != "Too many tokens" {
		t.Errorf("%+v, want a throttlingException", got)
	}
	m = meter(t, vector{"Responses error", asEvents, `data: {"type":"error","code":"server_error","message":"no"}` + "\n\n", ""}, 100)
	if got := m.Said().Failure; got == nil || got.Code != "server_error" || got.Message != "no" || !strings.Contains(string(got.Body),
		"server_error") {
		t.Errorf("%+v, want a server_error", got)
	}
}

func TestMeter_PassesLargeEvents(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		name   string
		header http.Header
		body   string
	}{
		{"server-sent", asEvents, `data: {"usage":{"prompt_tokens":1},"a":"` + large + "\"}\n\n" + chatStream},
		{"in lines", asEvents, "data: {\ndata: \"a\":\"" + large[:1<<19] + "\",\ndata: \"b\":\"" + large[:1<<19] + "\"}\n\n" + chatStream},
		{"frame", asFrames, frame("metadata", `{"usage":{"inputTokens":1},"a":"`+large+`"}`) + frame("metadata",
			`{"usage":{"inputTokens":9,"outputTokens":2}}`)},
	} {
		m := meter(t, vector{c.name, c.header, c.body, ""}, 4096)
		if got := m.Said(); said(got.Usage) != "9 - - 2" || got.Skipped != 1 {
			t.Errorf("%s: %s with %d skipped, want 9 - - 2 with 1", c.name, said(got.Usage), got.Skipped)
		}
	}
	// JSON may be larger: it is not an event.
	m := meter(t, vector{"json", asJSON, `{"a":"` + large + `","usage":{"prompt_tokens":9,"completion_tokens":2}}`, ""}, 4096)
	if got := said(m.Said().Usage); got != "9 - - 2" {
		t.Errorf("%s, want 9 - - 2", got)
	}
}

func TestMeter_BoundsCounts(t *testing.T) {
	for _, c := range []struct{ number, want string }{
		{"99999999999999999999999999", "1099511627776 - - -"},
		{"-5", "- - - -"},
		{"1.5", "- - - -"},
		{`"7"`, "- - - -"},
		{"[7]", "- - - -"},
		{"{}", "- - - -"},
	} {
		m := meter(t, vector{"", asJSON, `{"usage":{"input_tokens":` + c.number + `}}`, ""}, 100)
		if got := said(m.Said().Usage); got != c.want {
			t.Errorf("%s: %s, want %s", c.number, got, c.want)
		}
	}
}

func TestMeter_ReadsHeaders(t *testing.T) {
	m := usage.NewMeter(http.Header{"X-Amzn-Bedrock-Input-Token-Count": {"13"}, "X-Amzn-Bedrock-Output-Token-Count": {"178"}})
	defer m.End()
	if got := said(m.Said().Usage); got != "13 - - 178" {
		t.Errorf("%s, want 13 - - 178", got)
	}
}

func TestMeter_CountsWhatAnthropicCounts(t *testing.T) {
	if got := find(t, "Messages").Uncached(); got.N != 4397 || !got.Known {
		t.Errorf("input that was not read from a cache: %+v, want 4397", got)
	}
}

func TestMeter_ReadsGzipOfSeveralMembers(t *testing.T) {
	body := zipped(chatStream[:50]) + zipped(chatStream[50:])
	v := vector{"", http.Header{"Content-Encoding": {"gzip"}, "Content-Type": {"text/event-stream"}}, body, ""}
	if got := said(meter(t, v, 3).Said().Usage); got != "9 - - 2" {
		t.Errorf("%s, want 9 - - 2", got)
	}
	v.body = "not gzip at all"
	if got := said(meter(t, v, 3).Said().Usage); got != "- - - -" {
		t.Errorf("%s of what is not gzip", got)
	}
}

// An answer states the same in any pieces.
func TestMeter_DoesNotDependOnPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := vectors[rapid.IntRange(0, len(vectors)-1).Draw(t, "vector")]
		m := usage.NewMeter(v.header)
		defer m.End()
		for body := []byte(v.body); len(body) > 0; {
			n := rapid.IntRange(1, len(body)).Draw(t, "piece")
			_, _ = m.Write(body[:n])
			body = body[n:]
		}
		if got := said(m.Said().Usage); got != v.want {
			t.Fatalf("%s: %s, want %s", v.name, got, v.want)
		}
	})
}

func FuzzMeter(f *testing.F) {
	for _, v := range vectors {
		f.Add(v.header.Get("Content-Type"), v.header.Get("Content-Encoding"), []byte(v.body), 7)
	}
	f.Fuzz(func(t *testing.T, kind, encoding string, body []byte, size int) {
		header := http.Header{"Content-Type": {kind}, "Content-Encoding": {encoding}}
		whole, cut := usage.NewMeter(header), usage.NewMeter(header)
		_, _ = whole.Write(body)
		size = max(size, 1)
		for rest := body; len(rest) > 0; {
			n := min(size, len(rest))
			_, _ = cut.Write(rest[:n])
			rest = rest[n:]
		}
		whole.End()
		cut.End()
		a, b := whole.Said(), cut.Said()
		if said(a.Usage) != said(b.Usage) || a.Text != b.Text || a.ID != b.ID || a.Skipped != b.Skipped {
			t.Fatalf("whole %+v, in pieces of %d %+v", a, size, b)
		}
		for _, n := range []int64{a.Input.N, a.Cached.N, a.Written.N, a.Output.N, a.Reasoning.N} {
			if n < 0 || n > usage.MaxCount {
				t.Fatalf("a count of %d", n)
			}
		}
		if (a.Failure == nil) != (b.Failure == nil) || a.Failure != nil && !bytes.Equal(a.Failure.Body, b.Failure.Body) {
			t.Fatalf("whole %+v, in pieces of %d %+v", a.Failure, size, b.Failure)
		}
	})
}
