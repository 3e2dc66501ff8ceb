package gateway_test

import (
	"net/http"
	"testing"

	"go.opentelemetry.io/otel/codes"
	nometric "go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/genai"
)

// textOf returns the attributes of a span as text.
func textOf(span sdktrace.ReadOnlySpan) map[string]string {
	out := map[string]string{}
	for _, a := range span.Attributes() {
		out[string(a.Key)] = a.Value.String()
	}
	return out
}

// TestTelemetry_SpansOfCalls: a call to a model is a span in its caller's trace, and its wait is a child of that span. Other calls have the
// wait alone. The traceparent header reaches the provider unchanged.
func TestTelemetry_SpansOfCalls(t *testing.T) {
	const (
		traced = "4bf92f3577b34da6a3ce929d0e0e4736"
		header = "00-" + traced + "-00f067aa0ba902b7-01"
	)
	c := startCluster(t, rate("openai/gpt-5/requests", 2), rate("openai/gpt-5/input-tokens", 100_000), rate("github/core", 10))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Traceparent"); got != header {
			t.Errorf("the provider received the trace %q", got)
		}
		if r.URL.Path == "/gh/user" {
			speak(200, `{}`)(w, r)
			return
		}
		if r.Header.Get("X-Stream") != "" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: {\"id\":\"chatcmpl-1\",\"choices\":[]}\n\ndata: [DONE]\n\n"))
			return
		}
		speak(200, chatAnswer)(w, r)
	})
	spans := tracetest.NewSpanRecorder()
	recorder, err := genai.New(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)), nometric.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{
		"openai": upstreamOf(p, "openai"), "github": {Dialect: "github", Base: p.URL + "/gh", Plain: true},
	}), gateway.Options{Recorder: recorder})

	const chat = `{"model":"gpt-5","messages":[{"role":"user","content":"engage"}]}`
	ended := 0
	for _, request := range []struct {
		method, path, body string
		header             []string
		spans              int
	}{
		{http.MethodPost, "/openai/v1/chat/completions", chat, []string{"X-Quotad-Holder", "picard"}, 2},
		{http.MethodPost, "/openai/v1/chat/completions", chat, []string{"X-Stream", "1"}, 2},
		{http.MethodPost, "/openai/v1/chat/completions", chat, []string{"X-Quotad-Wait", "0"}, 2},
		{http.MethodGet, "/github/user", "", nil, 1},
	} {
		f.do(request.method, request.path, request.body, append(request.header, "Traceparent", header)...)
		ended += request.spans
		eventually(t, "the call is recorded", func() bool { return len(spans.Ended()) >= ended })
	}
	var calls, waits []sdktrace.ReadOnlySpan
	for _, span := range spans.Ended() {
		if span.SpanContext().TraceID().String() != traced {
			t.Errorf("%s is in the trace %s", span.Name(), span.SpanContext().TraceID())
		}
		if span.Name() == "quotad.wait" {
			waits = append(waits, span)
			continue
		}
		calls = append(calls, span)
	}
	if len(calls) != 3 || len(waits) != 4 {
		t.Fatalf("%d calls and %d waits", len(calls), len(waits))
	}
	for i, want := range []map[string]string{
		{"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5", "http.response.status_code": "200"},
		{"gen_ai.response.id": "chatcmpl-1"},
		{"error.type": "EXHAUSTED", "http.response.status_code": "429"},
	} {
		got := textOf(calls[i])
		for key, value := range want {
			if got[key] != value {
				t.Errorf("call %d: %s is %q, want %q", i, key, got[key], value)
			}
		}
		if calls[i].Name() != "chat gpt-5" || (calls[i].Status().Code == codes.Error) != (i == 2) {
			t.Errorf("call %d: %s, %v", i, calls[i].Name(), calls[i].Status())
		}
		if waits[i].Parent().SpanID() != calls[i].SpanContext().SpanID() {
			t.Errorf("call %d: its wait is no child of it", i)
		}
		_, first := got["gen_ai.response.time_to_first_chunk"]
		_, used := got["gen_ai.usage.output_tokens"]
		if first != (i == 1) || used != (i == 0) {
			t.Errorf("call %d: a first chunk %v, usage %v", i, first, used)
		}
	}
	if got := textOf(waits[2]); got["quotad.reason"] != "EXHAUSTED" || got["quotad.quota"] != "openai/gpt-5/requests" {
		t.Errorf("the refused wait says %v", got)
	}
	if got := textOf(waits[0]); got["quotad.holder"] != "picard@node-7" {
		t.Errorf("the holder is %q", got["quotad.holder"])
	}
	if got := textOf(waits[3]); got["quotad.quota"] != "github/core" {
		t.Errorf("the call of GitHub waited for %q", got["quotad.quota"])
	}
}
