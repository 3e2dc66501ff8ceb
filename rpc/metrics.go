package rpc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/budget"
)

// maxQuotaLabels bounds how many quotas have a label of their own; the rest share "other".
const maxQuotaLabels = 200

type metrics struct {
	calls     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	refusals  *prometheus.CounterVec
	inFlight  prometheus.Gauge
	waiting   prometheus.Gauge
	forwarded prometheus.Counter
	// forwardFailures counts calls that found no connection to the leader.
	forwardFailures prometheus.Counter
	panics          prometheus.Counter
	overspent       *prometheus.CounterVec

	mu     sync.Mutex
	quotas map[string]bool
}

func newMetrics(registerer prometheus.Registerer, usage prometheus.Collector) *metrics {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "quotad", Name: "api_calls_total", Help: "Calls that ended, by procedure and code.",
		}, []string{"procedure", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "quotad", Name: "api_call_seconds", Help: "Duration of calls, including waits in the queue.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18),
		}, []string{"procedure"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "quotad", Name: "refusals_total", Help: "Refusals, by quota and reason.",
		}, []string{"quota", "reason"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "quotad", Name: "api_calls_in_flight", Help: "Calls in flight."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "quotad", Name: "api_waiting",
			Help: "Calls that wait for a grant in the queue.",
		}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "quotad", Name: "api_forwarded_total",
			Help: "Calls forwarded to the leader.",
		}),
		forwardFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "quotad", Name: "api_forward_failures_total",
			Help: "Failed connections to the leader when forwarding a call; nothing was sent.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "quotad", Name: "api_panics_total",
			Help: "Panics in handlers of calls; each one is in the log.",
		}),
		overspent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "quotad", Name: "api_over_budget_total",
			Help: "Requests refused because a budget of this node was used up, by budget and room (caller: its part; full: all of it).",
		}, []string{"budget", "room"}),
		quotas: map[string]bool{},
	}
	registerer.MustRegister(m.overspent, usage, m.calls, m.seconds, m.refusals, m.inFlight, m.waiting, m.forwarded, m.forwardFailures,
		m.panics)
	return m
}

var tasksDesc = prometheus.NewDesc("quotad_tasks",
	"Tasks by phase: in_flight (an attempt runs), shelved, or resting (all others). The same at every node: take the maximum.",
	[]string{"phase"}, nil)

var recordsDesc = prometheus.NewDesc("quotad_records",
	"Records in the replicated state, by kind. The same at every node: take the maximum.", []string{"kind"}, nil)

var (
	budgetUsedDesc = prometheus.NewDesc("quotad_budget_used",
		"Used part of a budget of the replicated state. The same at every node: take the maximum.", []string{"budget"}, nil)
	budgetCapacityDesc = prometheus.NewDesc("quotad_budget_capacity",
		"Capacity of a budget of the replicated state, without the part that is kept for operators.", []string{"budget"}, nil)
	budgetCallersDesc = prometheus.NewDesc("quotad_budget_callers", "Callers that use some of a budget of the replicated state.",
		[]string{"budget"}, nil)
	budgetAtDesc = prometheus.NewDesc("quotad_budget_callers_at_budget",
		"Callers that have used up their part of a budget of the replicated state.", []string{"budget"}, nil)
	budgetRefusedDesc = prometheus.NewDesc("quotad_budget_refusals_total",
		"Requests refused because the caller's part of a budget, or all of it, was used up. The same at every node: take the maximum.",
		[]string{"budget"}, nil)
)

// stateCounts exports how many records the state holds, and its tasks by phase. Only shelved tasks need an operator's attention.
type stateCounts struct{ node *raftnode.Node }

// Describe implements prometheus.Collector.
func (stateCounts) Describe(to chan<- *prometheus.Desc) {
	to <- tasksDesc
	to <- recordsDesc
	for _, desc := range []*prometheus.Desc{budgetUsedDesc, budgetCapacityDesc, budgetCallersDesc, budgetAtDesc, budgetRefusedDesc} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c stateCounts) Collect(to chan<- prometheus.Metric) {
	state, _, _, err := c.node.Frozen(context.Background(), raftnode.Stale) // reads all accounts, without the state's lock
	if err != nil {
		return
	}
	counts := state.Counts()
	for phase, n := range map[string]int64{
		"in_flight": counts.TasksUnderWay, "shelved": counts.TasksShelved, "resting": counts.Tasks - counts.TasksUnderWay - counts.TasksShelved,
	} { // in any order
		to <- prometheus.MustNewConstMetric(tasksDesc, prometheus.GaugeValue, float64(n), phase)
	}
	for kind, n := range map[string]int64{
		"quotas": counts.Quotas, "leases": counts.Leases, "operations": counts.Operations, "holders": counts.Holders,
		"waiting": counts.Waiting, "sessions": counts.Sessions, "tasks": counts.Tasks,
	} { // in any order
		to <- prometheus.MustNewConstMetric(recordsDesc, prometheus.GaugeValue, float64(n), kind)
	}
	for _, b := range state.Budgets(0) {
		to <- prometheus.MustNewConstMetric(budgetUsedDesc, prometheus.GaugeValue, float64(b.Used), b.Name)
		to <- prometheus.MustNewConstMetric(budgetCapacityDesc, prometheus.GaugeValue, float64(b.Capacity-b.OperatorsPart), b.Name)
		to <- prometheus.MustNewConstMetric(budgetCallersDesc, prometheus.GaugeValue, float64(b.Callers), b.Name)
		to <- prometheus.MustNewConstMetric(budgetAtDesc, prometheus.GaugeValue, float64(b.AtBudget), b.Name)
		to <- prometheus.MustNewConstMetric(budgetRefusedDesc, prometheus.CounterValue, float64(b.Refused), b.Name)
	}
}

var checkDesc = prometheus.NewDesc("quotad_check", "Health checks of this node, as of /readyz: 1 ok, 0 failed.", []string{"check"}, nil)

// checkResults exports the health checks, so that an alert covers them all. Like /readyz it shares one check a second, which may ask the
// leader for up to a second.
type checkResults struct{ s *Server }

// Describe implements prometheus.Collector.
func (checkResults) Describe(to chan<- *prometheus.Desc) { to <- checkDesc }

// Collect implements prometheus.Collector.
func (c checkResults) Collect(to chan<- prometheus.Metric) {
	for _, check := range c.s.checks() {
		ok := 0.0
		if check.OK {
			ok = 1
		}
		to <- prometheus.MustNewConstMetric(checkDesc, prometheus.GaugeValue, ok, check.Name)
	}
}

var (
	portBudgetUsedDesc = prometheus.NewDesc("quotad_api_budget_used",
		"Used part of a budget of this node.", []string{"budget"}, nil)
	portBudgetCallersDesc = prometheus.NewDesc("quotad_api_budget_callers",
		"Callers that use some of a budget of this node.", []string{"budget"}, nil)
)

// budgetCounts exports how far budgets are used.
type budgetCounts []shared

// Describe implements prometheus.Collector.
func (budgetCounts) Describe(to chan<- *prometheus.Desc) {
	to <- portBudgetUsedDesc
	to <- portBudgetCallersDesc
}

// Collect implements prometheus.Collector.
func (c budgetCounts) Collect(to chan<- prometheus.Metric) {
	for _, b := range c {
		used, callers := b.InUse()
		to <- prometheus.MustNewConstMetric(portBudgetUsedDesc, prometheus.GaugeValue, float64(used), b.Name())
		to <- prometheus.MustNewConstMetric(portBudgetCallersDesc, prometheus.GaugeValue, float64(callers), b.Name())
	}
}

func (m *metrics) call(procedure string, err error, took time.Duration) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	name := procedure[strings.LastIndexByte(procedure, '/')+1:]
	m.calls.WithLabelValues(name, code).Inc()
	m.seconds.WithLabelValues(name).Observe(took.Seconds())
}

// overBudget counts a request that a budget of this node refused.
func (m *metrics) overBudget(e *budget.FullError) {
	room := "full"
	if e.Own {
		room = "caller"
	}
	m.overspent.WithLabelValues(e.Budget, room).Inc()
}

// queueFull counts commands that the proposer's queue refused.
func (m *metrics) queueFull(err error) {
	if refused, ok := errors.AsType[*raftnode.NotAcceptedError](err); ok && refused.Full != nil {
		m.overBudget(refused.Full)
	}
}

func (m *metrics) refused(r *logpb.Refusal) {
	m.mu.Lock()
	quota := r.Quota
	if !m.quotas[quota] {
		if len(m.quotas) < maxQuotaLabels {
			m.quotas[quota] = true
		} else {
			quota = "other"
		}
	}
	m.mu.Unlock()
	m.refusals.WithLabelValues(quota, strings.ToLower(strings.TrimPrefix(r.Reason.String(), "REASON_"))).Inc()
}
