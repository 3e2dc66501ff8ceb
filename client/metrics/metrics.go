// Package metrics exports the events of a quotad client to Prometheus.
//
// It is a separate package, so that importing the client does not import Prometheus. Create the [Collector] first, since the
// client needs its hooks:
//
//	collector := metrics.New()
//	c, err := client.New(addresses, client.WithHooks(collector.Hooks()))
//	collector.Watch(c, transport)
//	prometheus.MustRegister(collector)
//
// Holders are not labels. Quotas are: a process uses few, and those of models contain the model's name.
package metrics

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/client"
)

const prefix = "quotad_client_"

// Collector counts events of clients and their transports. It is safe for concurrent use.
type Collector struct {
	wait      *prometheus.HistogramVec
	refusals  *prometheus.CounterVec
	retries   prometheus.Counter
	cooldowns *prometheus.CounterVec
	batches   *prometheus.CounterVec

	mu         sync.Mutex
	clients    []*client.Client
	transports []*client.Transport
}

// New returns a Collector without clients to watch.
func New() *Collector {
	return &Collector{
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "wait_seconds", Help: "Time that callers waited for a lease, by outcome: granted, refused, failed.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
		}, []string{"outcome"}),
		refusals: counterVec("refusals_total", "Requests that the cluster refused, by reason and quota.", "reason", "quota"),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "retries_total", Help: "Calls sent again after a provider's limit refused them.",
		}),
		cooldowns: counterVec("cooldowns_total", "Reports that closed a quota or found it closed, by quota.", "quota"),
		batches:   counterVec("batch_units_total", "Units that limiters fetched in advance, by the first quota.", "quota"),
	}
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

// Hooks returns the hooks by which a client reports its events.
func (c *Collector) Hooks() client.Hooks {
	return client.Hooks{
		Wait: func(context.Context, client.ReserveRequest) func(*client.Lease, error) {
			began := time.Now()
			return func(_ *client.Lease, err error) {
				c.wait.WithLabelValues(outcome(err)).Observe(time.Since(began).Seconds())
			}
		},
		Refusal:  func(r *client.RefusalError) { c.refusals.WithLabelValues(r.Reason.String(), r.Quota).Inc() },
		Retry:    func(*http.Request, time.Duration) { c.retries.Inc() },
		Cooldown: func(r client.Reported) { c.cooldowns.WithLabelValues(r.Quota).Inc() },
		Batch: func(unit []client.Item, units int64) {
			if len(unit) > 0 {
				c.batches.WithLabelValues(unit[0].Quota).Add(float64(units))
			}
		},
	}
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "granted"
	case errors.As(err, new(*client.RefusalError)):
		return "refused"
	}
	return "failed"
}

// Watch adds the counters of a client and its transports.
func (c *Collector) Watch(of *client.Client, transports ...*client.Transport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, of)
	c.transports = append(c.transports, transports...)
}

// stat is a counter kept by clients or transports.
type stat struct {
	desc  *prometheus.Desc
	value func([]client.Stats, []client.TransportStats) uint64
}

func clientStat(name, help string, of func(client.Stats) uint64) stat {
	return stat{prometheus.NewDesc(prefix+name, help, nil, nil), func(all []client.Stats, _ []client.TransportStats) (sum uint64) {
		for _, s := range all {
			sum += of(s)
		}
		return sum
	}}
}

func transportStat(name, help string, of func(client.TransportStats) uint64) stat {
	desc := prometheus.NewDesc(prefix+"transport_"+name, help, nil, nil)
	return stat{desc, func(_ []client.Stats, all []client.TransportStats) (sum uint64) {
		for _, s := range all {
			sum += of(s)
		}
		return sum
	}}
}

var stats = []stat{
	clientStat("requests_total", "Batches of commands sent to the cluster.", func(s client.Stats) uint64 { return s.Batches }),
	clientStat("commands_total", "Commands sent to the cluster, repeats included.", func(s client.Stats) uint64 { return s.Commands }),
	clientStat("resends_total", "Batches sent again.", func(s client.Stats) uint64 { return s.Retries }),
	clientStat("redirects_total", "Answers of a node that named another node as the leader.",
		func(s client.Stats) uint64 { return s.Redirects }),
	clientStat("unknown_outcomes_total", "Commands whose outcome is unknown.", func(s client.Stats) uint64 { return s.UnknownOutcomes }),
	transportStat("calls_total", "Calls that drew on quotas.", func(s client.TransportStats) uint64 { return s.Calls }),
	transportStat("ungoverned_total", "Calls that were sent without a quota.", func(s client.TransportStats) uint64 { return s.Ungoverned }),
	transportStat("written_total", "Attempts written to a provider.", func(s client.TransportStats) uint64 { return s.Written }),
	transportStat("limited_total", "Answers of a provider that refused a call because of a limit.",
		func(s client.TransportStats) uint64 { return s.Limited }),
	transportStat("passed_total", "Answers that refused a call because of a limit and were passed to the caller.",
		func(s client.TransportStats) uint64 { return s.Passed }),
	transportStat("overrun_total", "Attempts written to a provider beyond what was granted.",
		func(s client.TransportStats) uint64 { return s.Overrun }),
	transportStat("malformed_total", "Values in a provider's answers that could not be parsed.",
		func(s client.TransportStats) uint64 { return s.Malformed }),
	transportStat("estimates_cut_total", "Estimates cut to the most that a quota can grant.",
		func(s client.TransportStats) uint64 { return s.Cut }),
}

func (c *Collector) vectors() []prometheus.Collector {
	return []prometheus.Collector{c.wait, c.refusals, c.retries, c.cooldowns, c.batches}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, v := range c.vectors() {
		v.Describe(to)
	}
	for _, s := range stats {
		to <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, v := range c.vectors() {
		v.Collect(to)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var ofClients []client.Stats
	for _, of := range c.clients {
		ofClients = append(ofClients, of.Stats())
	}
	var ofTransports []client.TransportStats
	for _, of := range c.transports {
		ofTransports = append(ofTransports, of.Stats())
	}
	for _, s := range stats {
		to <- prometheus.MustNewConstMetric(s.desc, prometheus.CounterValue, float64(s.value(ofClients, ofTransports)))
	}
}
