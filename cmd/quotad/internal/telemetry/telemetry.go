// Package telemetry sends spans and measurements by OTLP, configured by the environment. It is off until OTEL_EXPORTER_OTLP_ENDPOINT is
// set, or its form for traces or metrics alone. The exporters read the other variables of OpenTelemetry: headers, certificates, timeouts,
// sampling, intervals (https://opentelemetry.io/docs/specs/otel/protocol/exporter/).
package telemetry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	nometric "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	notrace "go.opentelemetry.io/otel/trace/noop"
)

// Environment looks up a variable of the environment.
type Environment func(name string) (value string, ok bool)

// Providers are where spans and measurements go.
type Providers struct {
	Traces trace.TracerProvider
	Meters metric.MeterProvider

	stop []func(context.Context) error
}

// stopWithin bounds how long Stop sends what is left: a collector that is away must not hold up the end of a process.
const stopWithin = 5 * time.Second

// Stop sends what is left, and ends.
func (p *Providers) Stop() error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	failed := make([]error, len(p.stop))
	var stopping sync.WaitGroup
	for i, stop := range p.stop {
		stopping.Go(func() { failed[i] = stop(ctx) })
	}
	stopping.Wait()
	return errors.Join(failed...)
}

// failures logs what OpenTelemetry could not do, one line a minute: a collector that is away fails each batch.
type failures struct {
	logger *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	logged time.Time
	others int
}

const (
	failuresEvery = time.Minute
	mostFailure   = 512 // bytes: a collector's answer is part of the error
)

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); f.logged.IsZero() || now.Sub(f.logged) >= failuresEvery {
		text := err.Error()
		f.logger.Warn("could not send telemetry", "error", text[:min(len(text), mostFailure)], "not_logged", f.others)
		f.logged, f.others = now, 0
		return
	}
	f.others++
}

// A signal is one kind of telemetry, by the name that variables have for it.
type signal string

const (
	traces  signal = "TRACES"
	metrics signal = "METRICS"
)

// Start starts exporters of a service, by what the environment says; nil without an error: it is off. The error names the variable that is
// wrong. Failures to send go to the logger, since nobody else sees them.
func Start(ctx context.Context, env Environment, service, version string, logger *slog.Logger) (*Providers, error) {
	if disabled, _ := env("OTEL_SDK_DISABLED"); strings.EqualFold(disabled, "true") {
		return nil, nil //nolint:nilnil // switched off is no error
	}
	withTraces, err := traces.on(env)
	if err != nil {
		return nil, err
	}
	withMetrics, err := metrics.on(env)
	if err != nil || !withTraces && !withMetrics {
		return nil, err
	}
	from, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.version", version),
		attribute.String("service.instance.id", rand.Text()), // tells apart what several processes of a host measure
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("cannot describe this process (OTEL_RESOURCE_ATTRIBUTES): %w", err)
	}
	otel.SetLogger(logr.Discard()) // it would print malformed headers, which may be secrets
	otel.SetErrorHandler(&failures{logger: logger, now: time.Now})
	p := &Providers{Traces: notrace.NewTracerProvider(), Meters: nometric.NewMeterProvider()}
	if withTraces {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
		}
		provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(from))
		p.Traces, p.stop = provider, append(p.stop, provider.Shutdown)
	}
	if withMetrics {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err), p.Stop())
		}
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)), sdkmetric.WithResource(from))
		p.Meters, p.stop = provider, append(p.stop, provider.Shutdown)
	}
	return p, nil
}

// on reports whether a signal is to be sent, and refuses what these exporters cannot do: they would do something else in silence.
func (s signal) on(env Environment) (bool, error) {
	first := func(names ...string) (name, value string) {
		for _, name := range names {
			if value, _ := env(name); value != "" {
				return name, value
			}
		}
		return "", ""
	}
	if name, exporter := first("OTEL_" + string(s) + "_EXPORTER"); exporter == "none" {
		return false, nil
	} else if exporter != "" && exporter != "otlp" {
		return false, fmt.Errorf("%s is %q; only otlp and none are supported", name, exporter)
	}
	name, endpoint := first("OTEL_EXPORTER_OTLP_"+string(s)+"_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	if endpoint == "" {
		return false, nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return false, fmt.Errorf("%s is not an http or https URL, such as http://127.0.0.1:4318", name) // its value may have credentials
	}
	name, protocol := first("OTEL_EXPORTER_OTLP_"+string(s)+"_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
	if !slices.Contains([]string{"", "http/protobuf"}, protocol) {
		return false, fmt.Errorf("%s is %q; only http/protobuf is supported (port 4318 of a collector)", name, protocol)
	}
	return true, nil
}
