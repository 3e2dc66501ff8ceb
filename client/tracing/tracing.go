// Package tracing records waits for quotas as spans of OpenTelemetry.
//
// It is a separate package, so that importing the client does not import OpenTelemetry:
//
//	c, err := client.New(addresses, client.WithHooks(tracing.Hooks(otel.GetTracerProvider())))
//
// Each Reserve is a span quotad.wait, a child of the span in the caller's context. A call through a Transport has its request's
// context, so its wait is a sibling of the call in the trace. Spans never contain prompts or bodies.
package tracing

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/quotad/quotad/client"
)

// The names of the span and its attributes.
const (
	SpanName    = "quotad.wait"
	KeyHolder   = attribute.Key("quotad.holder")
	KeyClass    = attribute.Key("quotad.class")
	KeyQuota    = attribute.Key("quotad.quota")
	KeyReason   = attribute.Key("quotad.reason")
	KeyZone     = attribute.Key("quotad.zone")
	instruments = "github.com/quotad/quotad/client/tracing"
)

// Hooks returns hooks that record a client's waits as spans of a provider. A span's class is the lease's, or else the requested one;
// its quota is a refusal's binding quota, or else all requested ones.
func Hooks(provider trace.TracerProvider) client.Hooks {
	tracer := provider.Tracer(instruments)
	return client.Hooks{Wait: func(ctx context.Context, request client.ReserveRequest) func(*client.Lease, error) {
		return Wait(ctx, tracer, request)
	}}
}

// Wait begins the span of a wait for quota and returns the function that ends it, with the lease or the error that ended the wait. Hooks
// calls it for each Reserve of a client; programs that wait in other ways can call it too.
func Wait(ctx context.Context, tracer trace.Tracer, request client.ReserveRequest) func(*client.Lease, error) {
	var quotas []string
	for _, item := range request.Items {
		quotas = append(quotas, item.Quota)
	}
	_, span := tracer.Start(ctx, SpanName, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		KeyHolder.String(clean(request.Holder)), KeyQuota.String(clean(strings.Join(quotas, " "))),
	))
	if request.Class != client.ClassDefault {
		span.SetAttributes(KeyClass.String(request.Class.String()))
	}
	return func(lease *client.Lease, err error) {
		defer span.End()
		if lease != nil {
			span.SetAttributes(KeyClass.String(lease.Class().String()))
			return
		}
		if refusal, ok := errors.AsType[*client.RefusalError](err); ok {
			span.SetAttributes(KeyReason.String(refusal.Reason.String()), KeyQuota.String(clean(refusal.Quota)),
				KeyZone.String(refusal.Zone.String()))
		}
		if err != nil {
			span.SetStatus(codes.Error, clean(err.Error()))
		}
	}
}

// mostText is the most bytes of a text in a span.
const mostText = 1024

// clean makes text fit for a span: exporters drop a whole batch for text that is not UTF-8.
func clean(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), mostText)], "\uFFFD")
}
