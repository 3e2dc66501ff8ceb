package gateway

import (
	"io"
	"log"
	"log/slog"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// discardLog drops messages of net/http's proxy about broken connections: each call's log line has them already.
var discardLog = log.New(io.Discard, "", 0)

// maxModelLabels bounds the models with their own label.
const maxModelLabels = 200

// modelLabels are the models with their own label: the first ones called.
type modelLabels struct {
	mu   sync.Mutex
	seen map[string]bool
}

// label returns the label of a model.
func (l *modelLabels) label(model string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.seen[model]:
	case len(l.seen) >= maxModelLabels:
		return otherModel
	case l.seen == nil:
		l.seen = map[string]bool{model: true}
	default:
		l.seen[model] = true
	}
	return model
}

// otherModel is the label of all other models.
const otherModel = "other"

// metrics are the gateway's counters. Holders are never a label.
type metrics struct {
	registry *prometheus.Registry
	models   modelLabels
	calls    *prometheus.CounterVec
	wait     *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	limits   *prometheus.CounterVec
	free     *prometheus.CounterVec
	first    *prometheus.HistogramVec
	duration *prometheus.HistogramVec
	overhead *prometheus.HistogramVec
	tokens   *prometheus.CounterVec
	ratio    *prometheus.HistogramVec
	cost     *prometheus.CounterVec
	unsaid   *prometheus.CounterVec
	cuts     *prometheus.CounterVec
	gone     *prometheus.CounterVec
	repeats  *prometheus.CounterVec
	batched  *prometheus.CounterVec
}

const namespace = "quotad_gateway"

// overheadBuckets are for the time that a gateway adds, which is below a millisecond.
var overheadBuckets = []float64{2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1, 0.5, 2.5}

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
	m.calls = counter("calls_total", "Answered calls, by the status that the client received.", "upstream", "model", "class", "code")
	m.wait = histogram("wait_seconds", "Time that calls waited for a grant, by outcome.", "upstream", "class", "outcome")
	m.refused = counter("refused_total", "Refused requests, by reason. The upstream is empty for the gateway's own routes.", "upstream",
		"class", "reason")
	m.limits = counter("upstream_limited_total", "Answers of a provider that refused a call because of a limit.", "upstream", "rule", "action")
	m.free = counter("ungoverned_total", "Calls that were sent without a quota, by reason.", "upstream", "why")
	m.first = histogram("first_byte_seconds", "Time from sending a call until the provider's status line.", "upstream", "model")
	m.duration = histogram("duration_seconds", "Time from the arrival of a call until its end.", "upstream", "model")
	m.tokens = counter("tokens_total", "Tokens used, as reported in answers.", "upstream", "model", "kind")
	m.cost = counter("cost_microdollars_total", "Cost of calls by the table of prices, in micro-dollars.", "upstream", "model")
	m.unsaid = counter("usage_unknown_total", "Answers of models that did not report usage.", "upstream", "model")
	m.cuts = counter("estimates_cut_total", "Estimates cut to the most that can be granted.", "upstream", "model")
	m.gone = counter("disconnects_total", "Clients that disconnected before the end of the answer.", "upstream")
	m.repeats = counter("client_retries_total", "Calls that an SDK marked as a retry.", "upstream")
	m.batched = counter("batched_total", "Attempts granted out of a batch that was consumed ahead.", "upstream")
	m.ratio = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "estimate_ratio", Help: "Usage of a call divided by its estimate.",
		Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 4},
	}, []string{"upstream", "model", "part"})
	m.registry.MustRegister(m.ratio)
	m.overhead = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "overhead_seconds", Buckets: overheadBuckets,
		Help: "Time of answered calls in the gateway, without the queue and the provider, from the end of the request to the status line.",
	}, []string{"upstream"})
	m.registry.MustRegister(m.overhead, keyAges{g, prometheus.NewDesc(namespace+"_key_age_seconds",
		"Time since an injected key was read.", []string{"upstream", "key"}, nil)})
	gauge("cluster_away", "1 if the cluster did not answer the last request, else 0.", func() float64 {
		if g.away.Load() {
			return 1
		}
		return 0
	})
	gauge("waiting", "Calls that wait for a grant of the cluster.", func() float64 { return float64(g.waiting.len()) })
	gauge("open_streams", "Calls in flight.", func() float64 { return float64(g.calls.Load()) })
	gauge("buffered_bytes", "Bytes of request bodies in memory.", func() float64 { return float64(g.buffered.Load()) })
	gauge("seats_used", "Seats in use by sessions of tools.", func() float64 { return float64(len(g.seats.List(time.Now()))) })
	return m
}

// keyAges collects the ages of the injected keys on each scrape: a reload may change the keys.
type keyAges struct {
	gateway *Gateway
	age     *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (k keyAges) Describe(to chan<- *prometheus.Desc) { to <- k.age }

// Collect implements prometheus.Collector.
func (k keyAges) Collect(to chan<- prometheus.Metric) {
	now := time.Now()
	for name, u := range k.gateway.state.Load().upstreams {
		if u.keys == nil {
			continue
		}
		for _, key := range u.keys.Keys() {
			to <- prometheus.MustNewConstMetric(k.age, prometheus.GaugeValue, key.Age(now).Seconds(), name, key.Name)
		}
	}
}

// limited counts an answer by which a provider refused a call.
func (m *metrics) limited(c *call, rule, action string) {
	m.limits.WithLabelValues(c.upstream.name, rule, action).Inc()
}

// modelLabel returns the label of a call's model if it has a quota, so that callers cannot create labels.
func (c *call) modelLabel() string {
	if c.target.Has() {
		return c.gateway.metrics.models.label(c.target.Model)
	}
	return otherModel
}

// codeLabel returns the label of a status.
func codeLabel(code int) string {
	if code >= 200 && code < 300 {
		return "200"
	}
	return strconv.Itoa(code)
}

// finished counts a finished call and logs it, once its handler has returned and its answer is drained.
func (g *Gateway) finished(c *call) {
	if c.open.Add(-1) >= 0 {
		return
	}
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
	case o.refusal != "" && o.refusal != slotLost:
		how = "refused"
	case o.code == statusGone:
		how = "gone"
	}
	if o.first > 0 {
		g.metrics.first.WithLabelValues(c.upstream.name, c.modelLabel()).Observe(o.first.Seconds())
	}
	if o.overhead > 0 {
		g.metrics.overhead.WithLabelValues(c.upstream.name).Observe(o.overhead.Seconds())
	}
	if c.ungoverned != "" {
		g.metrics.free.WithLabelValues(c.upstream.name, c.ungoverned).Inc()
	} else {
		g.metrics.wait.WithLabelValues(c.upstream.name, class, how).Observe(o.waited.Seconds())
	}
	asked := int64(0)
	for _, d := range c.draws {
		if isTokens(d.part) {
			asked += d.amount
		}
		if d.cut {
			g.metrics.cuts.WithLabelValues(c.upstream.name, c.modelLabel()).Inc()
		}
	}
	if o.end == endGone {
		g.metrics.gone.WithLabelValues(c.upstream.name).Inc()
	}
	if c.caller.Retry {
		g.metrics.repeats.WithLabelValues(c.upstream.name).Inc()
	}
	c.span.End(o.recorded())
	said := counts(o.said, asked)
	if o.cost > 0 {
		said = append(said, slog.String("cost", dollars(o.cost)))
	}
	if o.batch != "" {
		said = append(said, slog.String("batch", o.batch))
	}
	if c.insteadOf != "" {
		said = append(said, slog.String("instead_of", cut(c.insteadOf)))
	}
	g.logger.With(said...).Info("call", slog.String("key", o.key), slog.String("upstream", c.upstream.name),
		slog.String("model", cut(c.target.Model)), slog.String("holder", c.caller.Holder),
		slog.String("session", cut(c.caller.Session)), slog.String("agent", cut(c.caller.Agent)), slog.String("class", class),
		slog.Duration("wait", o.waited.Round(time.Millisecond)), slog.Duration("first", o.first.Round(time.Millisecond)),
		slog.Duration("took", took.Round(time.Millisecond)), slog.Int("code", o.code), slog.Int("retries", o.retries),
		slog.String("end", o.end), slog.String("id", c.id))
}

// used counts the use that an answer stated.
func (m *metrics) used(c *call, said usage.Said, actual map[string]int64) {
	name, model := c.upstream.name, c.modelLabel()
	if !said.Known() {
		m.unsaid.WithLabelValues(name, model).Inc()
		return
	}
	for kind, n := range map[string]signals.Count{
		"input": said.Input, "cached": said.Cached, "cache_write": said.Written, "output": said.Output, "reasoning": said.Reasoning,
	} {
		if n.Known {
			m.tokens.WithLabelValues(name, model, kind).Add(float64(n.N))
		}
	}
	for _, d := range c.draws {
		if n, ok := actual[d.quota.Name]; ok && settles(d.part) && d.amount > 0 {
			m.ratio.WithLabelValues(name, model, d.part).Observe(float64(n) / float64(d.amount))
		}
	}
}

// counts returns the known counts for the log.
func counts(said usage.Said, asked int64) []any {
	var out []any
	for _, n := range []struct {
		name  string
		count signals.Count
	}{{"in", said.Input}, {"cached", said.Cached}, {"out", said.Output}} {
		if n.count.Known {
			out = append(out, slog.Int64(n.name, n.count.N))
		}
	}
	if asked > 0 {
		out = append(out, slog.Int64("asked", asked))
	}
	return out
}

// cut truncates a caller's text for the log and for messages, at the end of a character.
func cut(text string) string {
	if len(text) <= maxShown {
		return text
	}
	end := maxShown
	for end > maxShown-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// maxShown is the most bytes of a caller's text that are shown.
const maxShown = 128
