package tracing_test

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/client/tracing"
)

func TestHooks(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Rate("t/core", 1, time.Minute))
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	hooks := client.WithHooks(tracing.Hooks(provider))
	c := cluster.Client(client.WithHolder("picard"), hooks)
	ctx, parent := provider.Tracer("test").Start(context.Background(), "call")
	for range 2 {
		_, _ = c.Reserve(ctx, client.ReserveRequest{Items: []client.Item{{Quota: "t/core", Amount: 1}}, Class: client.Background})
	}
	spans := recorder.Ended()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2", len(spans))
	}
	for i, want := range []map[attribute.Key]string{
		{tracing.KeyHolder: "picard", tracing.KeyQuota: "t/core", tracing.KeyClass: "background"},
		{tracing.KeyHolder: "picard", tracing.KeyQuota: "t/core", tracing.KeyClass: "background", tracing.KeyReason: "EXHAUSTED"},
	} {
		span := spans[i]
		child := span.Parent().SpanID() == parent.SpanContext().SpanID()
		if span.Name() != "quotad.wait" || !child || (span.Status().Code == codes.Error) != (i == 1) {
			t.Errorf("span %d: %s, parent %v, status %v", i, span.Name(), span.Parent().SpanID(), span.Status())
		}
		got := map[attribute.Key]string{}
		for _, a := range span.Attributes() {
			got[a.Key] = a.Value.AsString()
		}
		for key, value := range want {
			if got[key] != value {
				t.Errorf("span %d: %s is %q, want %q", i, key, got[key], value)
			}
		}
	}
}

// TestWait_SurvivesAnyText: callers of a gateway name quotas as they like. An exporter loses a whole batch for text that is not UTF-8.
func TestWait_SurvivesAnyText(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)).Tracer("test")
	bad := strings.Repeat("\xff", 1<<16)
	end := tracing.Wait(t.Context(), tracer, client.ReserveRequest{Holder: bad, Items: []client.Item{{Quota: bad, Amount: 1}}})
	end(nil, &client.RefusalError{Reason: client.ReasonExhausted, Quota: bad})
	span := recorder.Ended()[0]
	texts := []string{span.Status().Description}
	for _, a := range span.Attributes() {
		texts = append(texts, a.Value.AsString())
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || len(text) > 4<<10 {
			t.Errorf("%d bytes, valid %v", len(text), utf8.ValidString(text))
		}
	}
}
