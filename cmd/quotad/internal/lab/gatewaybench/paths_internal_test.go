package gatewaybench

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestPaths_BatchServesCalls: calls from a batch send no requests of their own to the cluster, and reached measures a path.
func TestPaths_BatchServesCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := start(t.Context(), binary, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	for _, w := range p.Works() {
		for n := range 10 {
			if w.Name != Batched {
				continue
			}
			if err := w.Do(t.Context(), 0, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	text, err := p.read(t.Context(), p.door+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, `quotad_gateway_batched_total{upstream="ahead"}`) {
		t.Error("no call came out of a batch")
	}
	if perSecond, err := p.reached(t.Context(), Proxy, 50*time.Millisecond); err != nil || perSecond <= 0 {
		t.Errorf("the reverse proxy serves %v calls a second, %v", perSecond, err)
	}
}
