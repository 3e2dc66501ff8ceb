package rpc

import (
	"context"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// maxQuotaGauges bounds the quotas that have gauges: the first ones by name.
const maxQuotaGauges = 200

// maxWorkflowGauges bounds the workflows that have gauges: the first ones by name.
const maxWorkflowGauges = 200

// maxUsageLabels bounds how many pairs of holder and quota have series of their own. The rest are summed by quota, with an empty holder:
// no holder can have that name.
const maxUsageLabels = 500

// usageCollector exports the state of quotas, and what holders do with metered ones. It reads the replicated state, so every node shows
// the same numbers: take the maximum over nodes, not their sum.
type usageCollector struct {
	node *raftnode.Node

	usable, held, consumed, waiting, classUsed, longestWait *prometheus.Desc
	// For programs that start and stop agents by them.
	available, zone, cooldown, forecast, limit, observedLimit *prometheus.Desc

	sequential, limitedSteps, keptBack *prometheus.Desc

	answers, refusals, waits, waited, spent, returned, overrun *prometheus.Desc

	others *prometheus.Desc
}

func newUsageCollector(node *raftnode.Node) *usageCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("quotad_holder_"+name, help+" The same at every node: take the maximum.",
			append([]string{"holder", "quota"}, labels...), nil)
	}
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("quotad_"+name, help+" The same at every node: take the maximum.", labels, nil)
	}
	return &usageCollector{
		node: node,

		usable:   gauge("quota_usable", "The most that a quota grants: its limit without the headroom.", "quota"),
		held:     gauge("quota_held", "Amount that is reserved and not spendable yet.", "quota"),
		consumed: gauge("quota_consumed", "Amount that is consumed and still counts against the limit.", "quota"),
		waiting:  gauge("quota_waiting", "Reserves that wait for the quota.", "quota"),
		classUsed: gauge("class_used",
			"Held and consumed amount of a class, in a window with shares; of a rate, the critical class only.", "quota", "class"),
		longestWait: gauge("longest_wait_seconds", "Age of the oldest waiting Reserve of a class.", "class"),

		available: gauge("quota_available",
			"Amount that a Reserve could get now, parents included: below 0 after an overrun, 0 during a cooldown of the quota or a parent.",
			"quota"),
		zone:     gauge("quota_zone", "Zone of a window, or of a rate with shares: 1 green, 2 amber, 3 red, 0 without zones.", "quota"),
		cooldown: gauge("quota_cooldown_seconds", "Time until the quota's cooldown ends; 0 without a cooldown.", "quota"),
		forecast: gauge("quota_forecast_seconds", "Predicted time until the quota is used up; absent without a prediction.", "quota"),
		limit:    gauge("quota_limit", "The configured limit, or the limit of an override; absent for a pool.", "quota"),
		observedLimit: gauge("quota_observed_limit",
			"The limit that the provider named last, lower or higher than the configured one; absent if it named none.", "quota"),

		sequential:   gauge("workflow_sequential", "1 while a workflow runs one step at a time, else 0.", "workflow"),
		limitedSteps: gauge("workflow_limited_steps", "Steps of a workflow that are limited now.", "workflow"),
		keptBack: gauge("workflow_paused_steps", "Steps of a workflow that are paused because a step downstream of them is limited.",
			"workflow"),

		answers:  desc("answers_total", "Reported answers of the provider, by outcome (ok, limited).", "outcome"),
		refusals: desc("refusals_total", "Requests that quotad refused, by reason.", "reason"),
		waits:    desc("waits_total", "Reserves granted after a wait."),
		waited:   desc("waited_seconds_total", "Total wait of the Reserves granted after a wait."),
		spent:    desc("consumed_total", "Amounts consumed."),
		returned: desc("returned_total", "Consumed amounts that were returned."),
		overrun:  desc("overrun_total", "Amounts used beyond the estimates."),

		others: gauge("quota_others", "Use of a rate's key by others in one period, from the provider's answers.", "quota"),
	}
}

// Describe implements prometheus.Collector.
func (c *usageCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.usable, c.held, c.consumed, c.waiting, c.classUsed, c.longestWait,
		c.available, c.zone, c.cooldown, c.forecast, c.limit, c.observedLimit, c.sequential, c.limitedSteps, c.keptBack,
		c.answers, c.refusals, c.waits, c.waited, c.spent, c.returned, c.overrun,
		c.others,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *usageCollector) Collect(to chan<- prometheus.Metric) {
	state, clock, _, err := c.node.Frozen(context.Background(), raftnode.Stale)
	if err != nil {
		return
	}
	c.quotas(state, clock, to)
	c.workflows(state, clock, to)
	for class, waited := range state.LongestWaits(clock) {
		to <- prometheus.MustNewConstMetric(c.longestWait, prometheus.GaugeValue, float64(waited)/1e9, classLabel(int32(class)))
	}
	rest := map[string]*fsm.MeterCounts{}
	shown := 0
	state.EachMeter(func(holder, quota string, counts *fsm.MeterCounts) {
		if shown++; shown <= maxUsageLabels {
			c.emit(holder, quota, counts, to)
			return
		}
		if rest[quota] == nil {
			rest[quota] = &fsm.MeterCounts{}
		}
		addCounts(rest[quota], counts)
	})
	for quota, counts := range rest { // the order of metrics does not matter
		c.emit("", quota, counts, to)
	}
}

// quotas exports the state of quotas.
func (c *usageCollector) quotas(state *fsm.State, clock fsm.Clock, to chan<- prometheus.Metric) {
	views := state.Quotas("", "", maxQuotaGauges, clock)
	for i := range views {
		v := &views[i]
		for _, gauge := range []struct {
			desc  *prometheus.Desc
			value int64
		}{{c.usable, v.Usable}, {c.held, v.Held}, {c.consumed, v.Consumed}, {c.waiting, v.Waiting}} {
			to <- prometheus.MustNewConstMetric(gauge.desc, prometheus.GaugeValue, float64(gauge.value), v.Definition.Name)
		}
		c.outlook(v, clock, to)
		for _, use := range v.Classes {
			if v.Pacer != nil && use.Class != 0 {
				continue // a rate does not know it
			}
			to <- prometheus.MustNewConstMetric(c.classUsed, prometheus.GaugeValue, float64(use.Used), v.Definition.Name, classLabel(use.Class))
		}
		if v.Definition.GetRate() != nil && (v.ObservedLimit >= 0 || v.Others > 0) {
			to <- prometheus.MustNewConstMetric(c.others, prometheus.GaugeValue, float64(v.Others), v.Definition.Name)
		}
	}
}

// outlook exports whether it is worth starting agents for a quota.
func (c *usageCollector) outlook(v *fsm.QuotaView, clock fsm.Clock, to chan<- prometheus.Metric) {
	put := func(desc *prometheus.Desc, value float64) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, v.Definition.Name)
	}
	available := v.AvailableWithParents
	if max(v.CooldownLeft, v.ClosedFor) > 0 {
		available = min(available, 0)
	}
	put(c.available, float64(available))
	zone := v.Zone
	if v.Pacer != nil {
		zone = v.Pacer.Zone
	}
	put(c.zone, float64(zone))
	put(c.cooldown, float64(v.CooldownLeft)/1e9)
	if v.Forecast != nil {
		put(c.forecast, float64(max(v.Forecast.ExhaustedAtNs-clock.Now, 0))/1e9)
	}
	if limit, ok := limitOf(v); ok {
		put(c.limit, float64(limit))
	}
	if v.ObservedLimit >= 0 {
		put(c.observedLimit, float64(v.ObservedLimit))
	}
}

// limitOf returns the limit that a quota has now.
func limitOf(v *fsm.QuotaView) (limit int64, ok bool) {
	switch rule := v.Definition.GetRule().(type) {
	case *logpb.Quota_Rate:
		limit = rule.Rate.Limit
	case *logpb.Quota_Window:
		limit = rule.Window.Limit
	case *logpb.Quota_Slots:
		limit = rule.Slots.Limit
	default:
		return 0, false
	}
	if v.Override != nil {
		limit = v.Override.Limit
	}
	return limit, true
}

// workflows exports which workflows are slowed down.
func (c *usageCollector) workflows(state *fsm.State, clock fsm.Clock, to chan<- prometheus.Metric) {
	views := state.Workflows("", "", maxWorkflowGauges, clock)
	for i := range views {
		v := &views[i]
		var sequential, limited, paused float64
		if v.Sequential {
			sequential = 1
		}
		for _, step := range v.Steps {
			if step.LimitedFor > 0 {
				limited++
			}
			if step.PausedFor > 0 {
				paused++
			}
		}
		// in any order
		for desc, value := range map[*prometheus.Desc]float64{c.sequential: sequential, c.limitedSteps: limited, c.keptBack: paused} {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, v.Definition.Name)
		}
	}
}

func classLabel(class int32) string {
	return strings.ToLower(strings.TrimPrefix(quotav1.Class(class+1).String(), "CLASS_"))
}

// addCounts adds the counts of one holder to the sum of others with the same quota.
func addCounts(sum, counts *fsm.MeterCounts) {
	sum.Answered += counts.Answered
	sum.Limited += counts.Limited
	sum.Waits += counts.Waits
	sum.WaitedNs += counts.WaitedNs
	sum.Consumed += counts.Consumed
	sum.Returned += counts.Returned
	sum.Overrun += counts.Overrun
	for _, d := range counts.Denials {
		i := slices.IndexFunc(sum.Denials, func(known fsm.Denial) bool { return known.Reason == d.Reason })
		if i < 0 {
			sum.Denials = append(sum.Denials, d)
			continue
		}
		sum.Denials[i].Times += d.Times
	}
}

func (c *usageCollector) emit(holder, quota string, counts *fsm.MeterCounts, to chan<- prometheus.Metric) {
	put := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, append([]string{holder, quota}, labels...)...)
	}
	put(c.answers, float64(counts.Answered), "ok")
	put(c.answers, float64(counts.Limited), "limited")
	put(c.waits, float64(counts.Waits))
	put(c.waited, float64(counts.WaitedNs)/1e9)
	put(c.spent, float64(counts.Consumed))
	put(c.returned, float64(counts.Returned))
	put(c.overrun, float64(counts.Overrun))
	for _, d := range counts.Denials {
		put(c.refusals, float64(d.Times), strings.ToLower(strings.TrimPrefix(d.Reason.String(), "REASON_")))
	}
}
