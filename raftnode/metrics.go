package raftnode

import (
	"sync"
	"time"

	armon "github.com/armon/go-metrics"
	hashi "github.com/hashicorp/go-metrics"
	hashiprom "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are a node's own metrics; raft's come through bridgeRaft.
type metrics struct {
	queued               prometheus.Gauge
	skew, viewAhead      prometheus.Gauge
	memory, memoryMark   prometheus.Gauge
	batch, commit, fsync prometheus.Histogram
	probes               prometheus.Counter
	unreadable           prometheus.Gauge
	unreadableTotal      prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	histogram := func(name, help string, start, factor float64, count int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "quotad", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(start, factor, count),
		})
	}
	m := &metrics{
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "quotad", Name: "proposer_queued_commands", Help: "Commands in the leader's queue that are not in a log entry yet.",
		}),
		skew: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "quotad", Name: "clock_skew_seconds",
			Help: "Difference of this node's wall clock from the median of the other voters' clocks.",
		}),
		viewAhead: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "quotad", Name: "clock_view_ahead_seconds",
			Help: "How far the cluster's view of the time of day is ahead of the members' clocks: calendar windows are late by as much.",
		}),
		memory: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "quotad", Name: "memory_in_use_bytes",
			Help: "Memory of the process that the system cannot reclaim; measured only with a memory limit.",
		}),
		memoryMark: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "quotad", Name: "memory_mark_bytes", Help: "Memory in use above which new grants are refused; 0 without a limit.",
		}),
		batch:  histogram("proposer_entry_commands", "Commands in one log entry.", 1, 2, 12),
		commit: histogram("proposer_commit_seconds", "Time from proposing a log entry until this node has applied it.", 0.0002, 2, 16),
		fsync:  histogram("disk_write_seconds", "Duration of one durable write of the log, a vote or a term.", 0.0001, 2, 16),
		probes: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "quotad", Name: "read_probe_rounds_total", Help: "Rounds of the term probe that make reads linearizable.",
		}),
	}
	m.unreadable = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "quotad", Name: "snapshot_unreadable",
		Help: "1 if this node's last snapshot could not be read back: the log is kept and grows.",
	})
	m.unreadableTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "quotad", Name: "snapshot_unreadable_total", Help: "Snapshots that could not be read back.",
	})
	if registerer != nil {
		registerer.MustRegister(m.queued, m.skew, m.viewAhead, m.memory, m.memoryMark, m.batch, m.commit, m.fsync, m.probes, m.unreadable,
			m.unreadableTotal)
		bridgeRaft(registerer)
	}
	return m
}

var peerContactDesc = prometheus.NewDesc("quotad_raft_peer_last_contact_seconds",
	"Time since each other member last answered a heartbeat; only on the leader.", []string{"peer"}, nil)

// peerContact reports, on the leader, members that do not answer. The cluster works without them, and no other metric shows that the next
// loss would stop it.
type peerContact struct{ n *Node }

// Describe implements prometheus.Collector.
func (peerContact) Describe(to chan<- *prometheus.Desc) { to <- peerContactDesc }

// Collect implements prometheus.Collector.
func (c peerContact) Collect(to chan<- prometheus.Metric) {
	lead := c.n.leading.Load()
	configuration := c.n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil || lead == nil {
		return
	}
	for _, s := range configuration.Configuration().Servers {
		if string(s.ID) != c.n.config.ID {
			silent := c.n.transport.heartbeats.silentFor(s.ID, lead.clock.since)
			to <- prometheus.MustNewConstMetric(peerContactDesc, prometheus.GaugeValue, silent.Seconds(), string(s.ID))
		}
	}
}

var bridgeOnce sync.Once

// bridgeRaft feeds raft's own metrics into a registry. raft and raft-boltdb use one of two process-wide sinks, depending on a build tag.
// Here both lead to the same registry, so that no tag is needed.
func bridgeRaft(registerer prometheus.Registerer) {
	bridgeOnce.Do(func() {
		sink, err := hashiprom.NewPrometheusSinkFrom(hashiprom.PrometheusOpts{Expiration: time.Hour, Registerer: registerer})
		if err != nil {
			return
		}
		conf := hashi.DefaultConfig("")
		conf.EnableHostname, conf.EnableRuntimeMetrics, conf.BlockedPrefixes = false, false, unwanted
		_, _ = hashi.NewGlobal(conf, sink)
		armonConf := armon.DefaultConfig("")
		armonConf.EnableHostname, armonConf.EnableRuntimeMetrics, armonConf.BlockedPrefixes = false, false, unwanted
		_, _ = armon.NewGlobal(armonConf, armonSink{sink})
	})
}

// unwanted are raft's metrics of the steps of a call, which disk_write_seconds covers. With one caller raft's metrics took 6 % of the
// processors, a third of it for these.
var unwanted = []string{"raft.net", "raft.rpc.appendEntries", "raft.fsm.enqueue"}

// armonSink forwards the older package's metrics to the newer one's sink.
type armonSink struct{ to *hashiprom.PrometheusSink }

func labels(all []armon.Label) []hashi.Label {
	converted := make([]hashi.Label, len(all))
	for i, l := range all {
		converted[i] = hashi.Label{Name: l.Name, Value: l.Value}
	}
	return converted
}

func (s armonSink) SetGauge(key []string, v float32) { s.to.SetGauge(key, v) }
func (s armonSink) SetGaugeWithLabels(key []string, v float32, l []armon.Label) {
	s.to.SetGaugeWithLabels(key, v, labels(l))
}
func (s armonSink) EmitKey(key []string, v float32)     { s.to.EmitKey(key, v) }
func (s armonSink) IncrCounter(key []string, v float32) { s.to.IncrCounter(key, v) }
func (s armonSink) IncrCounterWithLabels(key []string, v float32, l []armon.Label) {
	s.to.IncrCounterWithLabels(key, v, labels(l))
}
func (s armonSink) AddSample(key []string, v float32) { s.to.AddSample(key, v) }
func (s armonSink) AddSampleWithLabels(key []string, v float32, l []armon.Label) {
	s.to.AddSampleWithLabels(key, v, labels(l))
}
