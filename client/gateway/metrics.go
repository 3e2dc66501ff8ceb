package gateway

import (
	"io"
	"log"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// discardLog takes what net/http's proxy says of broken connections: each call's line in the log says it already.
var discardLog = log.New(io.Discard, "", 0)

// metrics are the gateway's counters. Holders are never a label.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.CounterVec
	wait     *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	limits   *prometheus.CounterVec
	free     *prometheus.CounterVec
	first    *prometheus.HistogramVec
	duration *prometheus.HistogramVec
}

const namespace = "quotad_gateway"

var secondsBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}

func newMetrics(g *Gateway) *metrics {
	m := &metrics{registry: g.options.Registerer}
	if m.registry == nil {
		m.registry = prometheus.NewRegistry()
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: secondsBuckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	gauge := func(name, help string, value func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
	}
	m.calls = counter("calls_total", "Calls that were answered, by the status that the client saw.", "upstream", "model", "class", "code")
	m.wait = histogram("wait_seconds", "Time in the cluster's queue.", "upstream", "class", "outcome")
	m.refused = counter("refused_total", "Calls that the gateway refused.", "upstream", "class", "reason")
	m.limits = counter("upstream_limited_total", "Answers by which a provider refused a call for its limits.", "upstream", "rule", "action")
	m.free = counter("ungoverned_total", "Calls that drew on no quota.", "upstream", "why")
	m.first = histogram("first_byte_seconds", "Time from sending a call to the provider's status line.", "upstream", "model")
	m.duration = histogram("duration_seconds", "Time from a call's arrival to its end.", "upstream", "model")
	gauge("waiting", "Calls that wait for the cluster.", func() float64 { return float64(g.waiting.len()) })
	gauge("open_streams", "Calls under way.", func() float64 { return float64(g.calls.Load()) })
	gauge("buffered_bytes", "Bytes of request bodies in memory.", func() float64 { return float64(g.buffered.Load()) })
	gauge("seats_used", "Seats that sessions of tools have taken.", func() float64 { return float64(len(g.seats.List(time.Now()))) })
	return m
}

// limited counts an answer by which a provider refused a call.
func (m *metrics) limited(c *call, rule, action string) {
	m.limits.WithLabelValues(c.upstream.name, rule, action).Inc()
}

// modelLabel is the model of a call if it has a quota, so that callers cannot make labels.
func (c *call) modelLabel() string {
	if c.target.Has() {
		return c.target.Model
	}
	return "other"
}

// codeLabel writes a status.
func codeLabel(code int) string {
	if code >= 200 && code < 300 {
		return "200"
	}
	return strconv.Itoa(code)
}

// finished counts a call that is over and writes its line.
func (g *Gateway) finished(c *call) {
	c.mu.Lock()
	o := c.outcome
	c.mu.Unlock()
	took := time.Since(c.began)
	class := c.caller.Class.String()
	g.metrics.calls.WithLabelValues(c.upstream.name, c.modelLabel(), class, codeLabel(o.code)).Inc()
	g.metrics.duration.WithLabelValues(c.upstream.name, c.modelLabel()).Observe(took.Seconds())
	how := "granted"
	switch {
	case o.refusal == "CLUSTER_AWAY":
		how = "away"
	case o.refusal != "":
		how = "refused"
	case o.code == 499:
		how = "gone"
	}
	if o.refusal != "" {
		g.metrics.refused.WithLabelValues(c.upstream.name, class, o.refusal).Inc()
	}
	if o.first > 0 {
		g.metrics.first.WithLabelValues(c.upstream.name, c.modelLabel()).Observe(o.first.Seconds())
	}
	if c.ungoverned != "" {
		g.metrics.free.WithLabelValues(c.upstream.name, c.ungoverned).Inc()
	} else {
		g.metrics.wait.WithLabelValues(c.upstream.name, class, how).Observe(o.waited.Seconds())
	}
	g.logger.Info("call", slog.String("upstream", c.upstream.name), slog.String("model", c.target.Model), slog.String("holder", c.caller.Holder),
		slog.String("session", cut(c.caller.Session)), slog.String("agent", cut(c.caller.Agent)), slog.String("class", class),
		slog.Duration("wait", o.waited.Round(time.Millisecond)), slog.Duration("first", o.first.Round(time.Millisecond)),
		slog.Duration("took", took.Round(time.Millisecond)), slog.Int("code", o.code), slog.Int("retries", o.retries),
		slog.String("end", o.end), slog.String("id", c.id))
}

// cut shortens what a caller said, for the log.
func cut(text string) string {
	if len(text) > 128 {
		return text[:128]
	}
	return text
}
