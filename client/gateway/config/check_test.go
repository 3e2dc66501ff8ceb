package config_test

import (
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway/config"
)

// TestCheck_Nodes: an address that the cluster's client rejects is found before the start.
func TestCheck_Nodes(t *testing.T) {
	for node, wrong := range map[string]bool{
		"10.0.0.5:7450": false, "quotad-headless.quotad.svc:7450": false, "https://10.0.0.5:7450": false, "[::1]:7450": false,
		"10.0.0.5": true, "dns:///quotad.svc:7450": true, "https://": true, "": true,
	} {
		conf := config.Config{
			Cluster: config.Cluster{Nodes: []string{"10.0.0.4:7450", node}}, Upstreams: map[string]config.Upstream{"openai": {}},
		}.Complete()
		var found []string
		for _, problem := range conf.Check() {
			found = append(found, problem.Error())
		}
		if said := strings.Join(found, "\n"); strings.Contains(said, "cluster.nodes") != wrong || !wrong && said != "" {
			t.Errorf("%q: %s", node, said)
		}
	}
}
