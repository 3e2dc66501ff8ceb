// Package genai records calls of models with OpenTelemetry, by its conventions for generative AI: a span for each call, and histograms of
// tokens, durations and first chunks. Prompts, answers and credentials are in none of them.
//
// The conventions are in development (https://github.com/open-telemetry/semantic-conventions-genai): all names and buckets that come from
// them are in names.go.
package genai

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// Recorder records calls. A nil one records nothing. It is safe for concurrent use.
type Recorder struct {
	tracer   trace.Tracer
	tokens   metric.Int64Histogram
	duration metric.Float64Histogram
	first    metric.Float64Histogram
}

// New returns a recorder whose spans and measurements go to these providers.
func New(traces trace.TracerProvider, meters metric.MeterProvider) (*Recorder, error) {
	r := &Recorder{tracer: traces.Tracer(scope)}
	meter := meters.Meter(scope)
	var err error
	if r.tokens, err = meter.Int64Histogram(metricTokens, metric.WithUnit("{token}"),
		metric.WithDescription("Number of input and output tokens used."), metric.WithExplicitBucketBoundaries(tokenBuckets...)); err != nil {
		return nil, err
	}
	seconds := func(name, description string) (metric.Float64Histogram, error) {
		return meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(secondBuckets...))
	}
	if r.duration, err = seconds(metricDuration, "Time from the arrival of a call until its end, the wait for quota included."); err != nil {
		return nil, err
	}
	if r.first, err = seconds(metricFirst, "Time from sending a call until the first chunk of its stream."); err != nil {
		return nil, err
	}
	return r, nil
}

// Tracer returns the tracer of the spans; nil: nothing is recorded.
func (r *Recorder) Tracer() trace.Tracer {
	if r == nil {
		return nil
	}
	return r.tracer
}

// Continue returns a context in the trace that a request's traceparent header names.
func (r *Recorder) Continue(ctx context.Context, header http.Header) context.Context {
	if r == nil {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
}

// Request is what a call asks of a model.
type Request struct {
	// Operation is one of the conventions' names, such as OperationChat. Provider is that of ProviderOf.
	Operation, Provider string
	// Model is as the caller wrote it. Label is the model in measurements: callers must not be able to make any number of them.
	Model, Label string
	// Server is the provider's address.
	Server *url.URL
	// Arrived is when the call arrived.
	Arrived time.Time
}

// Span is a call that is being recorded. A nil one records nothing.
type Span struct {
	recorder *Recorder
	span     trace.Span
	request  Request
}

// Begin begins the span of a call, in the trace of the context, and returns a context for what the call waits for.
func (r *Recorder) Begin(ctx context.Context, request Request) (context.Context, *Span) {
	if r == nil {
		return ctx, nil
	}
	request.Model = clean(request.Model) // callers write it
	name := request.Operation
	attributes := []attribute.KeyValue{keyOperation.String(request.Operation), keyProvider.String(request.Provider)}
	if request.Model != "" {
		name += " " + request.Model
		attributes = append(attributes, keyRequestModel.String(request.Model))
	}
	if request.Server != nil {
		attributes = append(attributes, keyAddress.String(request.Server.Hostname()))
		if port, err := strconv.Atoi(cmp.Or(request.Server.Port(), schemePort[request.Server.Scheme])); err == nil {
			attributes = append(attributes, keyPort.Int(port))
		}
	}
	ctx, span := r.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(request.Arrived),
		trace.WithAttributes(attributes...))
	return ctx, &Span{recorder: r, span: span, request: request}
}

var schemePort = map[string]string{"http": "80", "https": "443"}

// Outcome is what became of a call.
type Outcome struct {
	// Code is the status that the client received; 0: none.
	Code int
	// Error names what went wrong, for error.type; empty: nothing did.
	Error string
	// First is the time from sending the call until the first chunk of a stream; 0: its answer was no stream.
	First time.Duration
	// Said is what the answer said was used.
	Said usage.Said
}

// End ends the span of a call, and records what it took.
func (s *Span) End(outcome Outcome) {
	if s == nil {
		return
	}
	outcome.Error = clean(outcome.Error)
	ended := time.Now()
	s.describe(outcome)
	s.span.End(trace.WithTimestamp(ended))
	s.measure(outcome, ended.Sub(s.request.Arrived))
}

func (s *Span) describe(outcome Outcome) {
	said := outcome.Said
	for key, text := range map[attribute.Key]string{keyResponseModel: said.Model, keyResponseID: said.ID} {
		if text != "" {
			s.span.SetAttributes(key.String(clean(text)))
		}
	}
	for _, of := range usageKeys(said.Usage) {
		if of.count.Known {
			s.span.SetAttributes(of.key.Int64(of.count.N))
		}
	}
	if outcome.First > 0 {
		s.span.SetAttributes(keyFirstChunk.Float64(outcome.First.Seconds()))
	}
	if outcome.Code > 0 {
		s.span.SetAttributes(keyStatus.Int(outcome.Code))
	}
	if outcome.Error != "" {
		s.span.SetAttributes(keyError.String(outcome.Error))
		s.span.SetStatus(codes.Error, "")
	}
}

func (s *Span) measure(outcome Outcome, took time.Duration) {
	// The context is that of the span alone, for exemplars: the request's own may have ended.
	ctx := trace.ContextWithSpan(context.Background(), s.span)
	common := []attribute.KeyValue{keyOperation.String(s.request.Operation), keyProvider.String(s.request.Provider)}
	if s.request.Label != "" {
		common = append(common, keyRequestModel.String(s.request.Label))
	}
	ended := slices.Clip(common)
	if outcome.Error != "" {
		ended = append(ended, keyError.String(outcome.Error))
	}
	s.recorder.duration.Record(ctx, took.Seconds(), metric.WithAttributes(ended...))
	if outcome.First > 0 {
		s.recorder.first.Record(ctx, outcome.First.Seconds(), metric.WithAttributes(common...))
	}
	for kind, count := range map[string]signals.Count{tokenInput: outcome.Said.Input, tokenOutput: outcome.Said.Output} {
		if count.Known {
			s.recorder.tokens.Record(ctx, count.N, metric.WithAttributes(common...), metric.WithAttributes(keyTokenType.String(kind)))
		}
	}
}

// mostText is the most bytes of a text in a span.
const mostText = 256

// clean makes text of callers and providers fit for a span: exporters drop a whole batch for text that is not UTF-8.
func clean(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), mostText)], "\uFFFD")
}
