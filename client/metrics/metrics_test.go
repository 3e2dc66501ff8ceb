package metrics_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/metrics"
	"github.com/quotad/quotad/client/quotatest"
)

func TestCollector(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Rate("t/core", 1, time.Minute))
	collector := metrics.New()
	c := cluster.Client(client.WithHooks(collector.Hooks()))
	transport := client.NewTransport(c, nil, client.Match(func(*http.Request) client.Call { return client.Call{} }))
	collector.Watch(c, transport)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(collector); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, _ = c.Reserve(context.Background(), client.ReserveRequest{Items: []client.Item{{Quota: "t/core", Amount: 1}}})
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() { // by name
				name += " " + label.GetValue()
			}
			got[name] = metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		"quotad_client_wait_seconds granted": 1, "quotad_client_wait_seconds refused": 2,
		"quotad_client_refusals_total t/core EXHAUSTED": 2,
		"quotad_client_commands_total":                  3, "quotad_client_transport_calls_total": 0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v (%v), want %v", name, value, ok, want)
		}
	}
}
