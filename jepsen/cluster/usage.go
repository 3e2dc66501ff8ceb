package cluster

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/quotad/quotad/jepsen/history"
)

// Usage reads the resources of a node's process from its metrics.
func (n *Node) Usage(ctx context.Context) (history.Usage, error) {
	usage := history.Usage{Node: n.ID}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.URL()+"/metrics", nil)
	if err != nil {
		return usage, err
	}
	response, err := n.cluster.http.Do(request)
	if err != nil {
		return usage, err
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return usage, err
	}
	for name, value := range map[string]*float64{
		"go_goroutines": &usage.Goroutines, "process_open_fds": &usage.Descriptors, "go_memstats_heap_alloc_bytes": &usage.Heap,
	} {
		family := families[name]
		if family == nil || len(family.Metric) == 0 {
			return usage, fmt.Errorf("%s has no metric %s", n.ID, name)
		}
		*value = family.Metric[0].GetGauge().GetValue()
	}
	return usage, nil
}
