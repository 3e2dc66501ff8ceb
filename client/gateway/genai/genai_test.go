package genai_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/genai"
	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// recorded is a recorder, and what it records.
type recorded struct {
	*genai.Recorder
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func newRecorded(t *testing.T) recorded {
	t.Helper()
	r := recorded{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	var err error
	r.Recorder, err = genai.New(traces, meters)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// attributes returns the attributes of the only span, as text.
func (r recorded) attributes(t *testing.T) (span sdktrace.ReadOnlySpan, attributes map[string]string) {
	t.Helper()
	spans := r.spans.Ended()
	if len(spans) != 1 {
		t.Fatalf("%d spans, want 1", len(spans))
	}
	attributes = map[string]string{}
	for _, a := range spans[0].Attributes() {
		attributes[string(a.Key)] = a.Value.String()
	}
	return spans[0], attributes
}

// sums returns the sum of each histogram, by its name and the attributes that follow it.
func (r recorded) sums(t *testing.T) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[int64]:
				for _, point := range data.DataPoints {
					out[m.Name+" "+labels(point.Attributes)] = float64(point.Sum)
				}
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					out[m.Name+" "+labels(point.Attributes)] = point.Sum
				}
			}
		}
	}
	return out
}

// labels writes attributes, which are in the order of their names.
func labels(set attribute.Set) string {
	var all []string
	for _, a := range set.ToSlice() {
		all = append(all, string(a.Key)+"="+a.Value.String())
	}
	return strings.Join(all, " ")
}

func known(n int64) signals.Count { return signals.Count{N: n, Known: true} }

func request() genai.Request {
	return genai.Request{
		Operation: genai.OperationChat, Provider: genai.ProviderOf(dialect.Anthropic), Model: "claude-opus-4", Label: "claude-opus-4",
		Server: &url.URL{Scheme: "https", Host: "api.anthropic.com"}, Arrived: time.Now().Add(-2 * time.Second),
	}
}

// TestSpan_SaysWhatConventionsName: a call of a model, in the trace of its caller.
func TestSpan_SaysWhatConventionsName(t *testing.T) {
	r := newRecorded(t)
	const parent = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx := r.Continue(t.Context(), http.Header{"Traceparent": {"00-" + parent + "-00f067aa0ba902b7-01"}})
	asked := request()
	ctx, span := r.Begin(ctx, asked)
	span.End(genai.Outcome{Code: 200, First: 250 * time.Millisecond, Said: usage.Said{
		Usage: usage.Usage{Input: known(300), Cached: known(200), Output: known(40)}, ID: "msg_1", Model: "claude-opus-4-20250514",
	}})
	ended, got := r.attributes(t)
	if trace.SpanContextFromContext(ctx).SpanID() != ended.SpanContext().SpanID() {
		t.Error("the span is not the parent of the call's waits")
	}
	if ended.Name() != "chat claude-opus-4" || ended.SpanKind() != trace.SpanKindClient || ended.Status().Code != codes.Unset {
		t.Errorf("%s, %v, %v", ended.Name(), ended.SpanKind(), ended.Status())
	}
	if ended.SpanContext().TraceID().String() != parent || !ended.StartTime().Equal(asked.Arrived) {
		t.Errorf("trace %v, began %v", ended.SpanContext().TraceID(), ended.StartTime())
	}
	want := map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude-opus-4",
		"gen_ai.response.model": "claude-opus-4-20250514", "gen_ai.response.id": "msg_1", "gen_ai.usage.input_tokens": "300",
		"gen_ai.usage.cache_read.input_tokens": "200", "gen_ai.usage.output_tokens": "40", "gen_ai.response.time_to_first_chunk": "0.25",
		"http.response.status_code": "200", "server.address": "api.anthropic.com", "server.port": "443",
	}
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s is %q, want %q", key, got[key], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("attributes %v", got)
	}
	const of = "gen_ai.operation.name=chat gen_ai.provider.name=anthropic gen_ai.request.model=claude-opus-4"
	sums := r.sums(t)
	for name, sum := range map[string]float64{
		"gen_ai.client.token.usage " + of + " gen_ai.token.type=input":  300,
		"gen_ai.client.token.usage " + of + " gen_ai.token.type=output": 40,
		"gen_ai.client.operation.time_to_first_chunk " + of:             0.25,
	} {
		if sums[name] != sum {
			t.Errorf("%s is %v, want %v; there are %v", name, sums[name], sum, sums)
		}
	}
	if took := sums["gen_ai.client.operation.duration "+of]; took < 2 {
		t.Errorf("the duration is %v s: it begins when the call arrives", took)
	}
}

// TestSpan_ClaimsNothingThatIsUnknown: an answer that says nothing of its use has no zeros, and one that is no stream no first chunk.
func TestSpan_ClaimsNothingThatIsUnknown(t *testing.T) {
	r := newRecorded(t)
	_, span := r.Begin(t.Context(), genai.Request{Operation: genai.OperationEmbeddings, Provider: "openai", Arrived: time.Now()})
	span.End(genai.Outcome{Error: "EXHAUSTED"})
	ended, got := r.attributes(t)
	if ended.Name() != "embeddings" || ended.Status().Code != codes.Error || len(got) != 3 || got["error.type"] != "EXHAUSTED" {
		t.Errorf("%s, %v, %v", ended.Name(), ended.Status(), got)
	}
	sums := r.sums(t)
	const name = "gen_ai.client.operation.duration error.type=EXHAUSTED gen_ai.operation.name=embeddings gen_ai.provider.name=openai"
	if _, ok := sums[name]; !ok || len(sums) != 1 {
		t.Errorf("measured %v", sums)
	}
}

// TestSpan_SurvivesAnyText: callers name models as they like; an exporter loses a whole batch to a span that is not UTF-8.
func TestSpan_SurvivesAnyText(t *testing.T) {
	r := newRecorded(t)
	asked := request()
	asked.Model = "gpt\xff\x00"
	_, span := r.Begin(t.Context(), asked)
	span.End(genai.Outcome{Error: "bad\xfe", Said: usage.Said{ID: "\xf0\x28", Model: "\xc3"}})
	ended, got := r.attributes(t)
	if ended.Name() != "chat gpt\uFFFD\x00" || got["error.type"] != "bad\uFFFD" || got["gen_ai.response.model"] != "\uFFFD" {
		t.Errorf("%q, %q", ended.Name(), got)
	}
}

// TestRecorder_NilRecordsNothing: most gateways have none.
func TestRecorder_NilRecordsNothing(t *testing.T) {
	var r *genai.Recorder
	ctx := t.Context()
	if r.Continue(ctx, http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}) != ctx || r.Tracer() != nil {
		t.Error("it has a trace")
	}
	after, span := r.Begin(ctx, request())
	if after != ctx || span != nil {
		t.Error("it has a span")
	}
	span.End(genai.Outcome{Code: 200})
}

// TestProviderOf_NamesEachDialect: the conventions' names of providers, and the dialect's where they have none.
func TestProviderOf_NamesEachDialect(t *testing.T) {
	for of, want := range map[dialect.Name]string{
		dialect.Anthropic: "anthropic", dialect.Azure: "azure.ai.openai", dialect.Bedrock: "aws.bedrock", dialect.Codex: "openai",
		dialect.Gemini: "gcp.gemini", dialect.Generic: "generic", dialect.GitHub: "github", dialect.OpenAI: "openai",
	} {
		if got := genai.ProviderOf(of); got != want {
			t.Errorf("%s is %s, want %s", of, got, want)
		}
	}
}
