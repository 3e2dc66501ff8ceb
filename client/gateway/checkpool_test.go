package gateway_test

import (
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/internal/connpool"
)

// TestCheck_LeavesNoConnections: a check uses no connections, so it must not keep the process's.
func TestCheck_LeavesNoConnections(t *testing.T) {
	before := connpool.InUse()
	conf := config.Config{
		Machine: "node-7", Cluster: config.Cluster{Nodes: []string{"https://127.0.0.1:1"}},
		Upstreams: map[string]config.Upstream{"openai": {}},
	}
	if err := gateway.Check(conf, gateway.Options{}); err != nil {
		t.Fatal(err)
	}
	if now := connpool.InUse(); now > before {
		t.Errorf("%d pools of connections are in use, %d before", now, before)
	}
}
