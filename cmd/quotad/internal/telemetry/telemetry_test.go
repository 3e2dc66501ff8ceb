package telemetry_test

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/cmd/quotad/internal/telemetry"
)

// collector takes OTLP over HTTP.
type collector struct {
	*httptest.Server

	mu      sync.Mutex
	spans   []string
	metrics []string
	// resource is what the last request said of its sender.
	resource map[string]string
	headers  http.Header
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.headers = r.Header
		switch r.URL.Path {
		case "/v1/traces":
			var sent tracev1.ExportTraceServiceRequest
			if err := proto.Unmarshal(body, &sent); err != nil {
				t.Error(err)
			}
			for _, resource := range sent.ResourceSpans {
				c.resource = texts(resource.Resource.Attributes)
				for _, scope := range resource.ScopeSpans {
					for _, span := range scope.Spans {
						c.spans = append(c.spans, span.Name)
					}
				}
			}
		case "/v1/metrics":
			var sent metricsv1.ExportMetricsServiceRequest
			if err := proto.Unmarshal(body, &sent); err != nil {
				t.Error(err)
			}
			for _, resource := range sent.ResourceMetrics {
				for _, scope := range resource.ScopeMetrics {
					for _, measured := range scope.Metrics {
						c.metrics = append(c.metrics, measured.Name)
					}
				}
			}
		default:
			t.Errorf("a request for %s", r.URL.Path)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func texts(attributes []*commonv1.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range attributes {
		out[a.Key] = a.Value.GetStringValue()
	}
	return out
}

// record makes a span and a measurement.
func record(t *testing.T, p *telemetry.Providers) {
	t.Helper()
	_, span := p.Traces.Tracer("test").Start(t.Context(), "a span", trace.WithAttributes(attribute.String("a", "b")))
	span.End()
	counter, err := p.Meters.Meter("test").Int64Counter("a.count")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 1, metric.WithAttributes(attribute.String("a", "b")))
}

// TestStart_SendsToTheCollectorOfTheEnvironment: both signals, or one of them, with who sends it.
func TestStart_SendsToTheCollectorOfTheEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env            map[string]string
		spans, metrics int
	}{
		"both":         {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_EXPORTER_OTLP_HEADERS": "x-team=bridge"}, 1, 1},
		"traces alone": {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "URL/v1/traces"}, 1, 0},
		"metrics alone": {map[string]string{
			"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
		}, 0, 1},
		"not sampled": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_TRACES_SAMPLER": "always_off"}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			sink := startCollector(t)
			for key, value := range c.env {
				t.Setenv(key, strings.ReplaceAll(value, "URL", sink.URL))
			}
			p, err := telemetry.Start(t.Context(), os.LookupEnv, "quotad-gateway", "1.2.3", slog.New(slog.DiscardHandler))
			if err != nil || p == nil {
				t.Fatal(p, err)
			}
			record(t, p)
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			if len(sink.spans) != c.spans || len(sink.metrics) != c.metrics {
				t.Errorf("the collector has the spans %v and the metrics %v", sink.spans, sink.metrics)
			}
			if c.spans == 0 {
				return
			}
			from := sink.resource
			if from["service.name"] != "quotad-gateway" || from["service.version"] != "1.2.3" || from["service.instance.id"] == "" {
				t.Errorf("they come from %v", from)
			}
			if c.env["OTEL_EXPORTER_OTLP_HEADERS"] != "" && sink.headers.Get("X-Team") != "bridge" {
				t.Errorf("sent with %v", sink.headers)
			}
		})
	}
}

// TestStart_IsOffUnlessSwitchedOn: nothing is made where no endpoint is named, or everything is switched off.
func TestStart_IsOffUnlessSwitchedOn(t *testing.T) {
	on := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
	for name, also := range map[string]map[string]string{
		"no endpoint":     {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
		"disabled":        {"OTEL_SDK_DISABLED": "TRUE"},
		"no exporters":    {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
		"no endpoint set": {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_TRACES_EXPORTER": "otlp"},
	} {
		p, err := telemetry.Start(t.Context(), environment(on, also), "s", "v", slog.New(slog.DiscardHandler))
		if p != nil || err != nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestStart_NamesVariableThatIsWrong: what these exporters cannot do is refused, not ignored.
func TestStart_NamesVariableThatIsWrong(t *testing.T) {
	on := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
	for variable, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL":         "grpc",
		"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json",
		"OTEL_TRACES_EXPORTER":                "zipkin",
		"OTEL_METRICS_EXPORTER":               "prometheus",
	} {
		p, err := telemetry.Start(t.Context(), environment(on, map[string]string{variable: value}), "s", "v", slog.New(slog.DiscardHandler))
		if p != nil || err == nil || !strings.Contains(err.Error(), variable) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s: %v, %v", variable, value, p, err)
		}
	}
	for _, endpoint := range []string{"127.0.0.1:4318", "localhost:4318", "grpc://127.0.0.1:4317", "http://"} {
		const variable = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
		p, err := telemetry.Start(t.Context(), environment(map[string]string{variable: endpoint}), "s", "v", slog.New(slog.DiscardHandler))
		if p != nil || err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%s: %v, %v", endpoint, p, err)
		}
	}
}

func environment(all ...map[string]string) telemetry.Environment {
	merged := map[string]string{}
	for _, some := range all {
		maps.Copy(merged, some)
	}
	return func(name string) (string, bool) {
		value, ok := merged[name]
		return value, ok
	}
}
