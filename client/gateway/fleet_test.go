package gateway_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/providertest"
)

// TestA11_FleetIsNeverRefusedByItsProvider: nine clients on one key want more than the provider allows, which counts apart, over
// any period. A period is shorter than in life, and the node restarts in the middle (A12): what is lost then is time alone.
func TestA11_FleetIsNeverRefusedByItsProvider(t *testing.T) {
	if testing.Short() {
		t.Skip("several periods")
	}
	const scale, limit, periods = 10, 60, 4
	period := time.Minute / scale
	counted, err := providertest.NewServer(providertest.Config{
		Scale: scale, OpenAI: providertest.OpenAI{Requests: limit, Tokens: providertest.Unlimited, Per: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = counted.Close() })
	c := startCluster(t, ratePer("openai/gpt-5/requests", limit, period))
	conf := configOf(c, map[string]config.Upstream{"openai": {Base: counted.URL, Plain: true}})
	f := startGateway(t, c, nil, conf, gateway.Options{})
	var passed, failed atomic.Int64
	var clients sync.WaitGroup
	end := time.Now().Add(periods * period)
	for i := range 9 {
		clients.Go(func() {
			for time.Now().Before(end) {
				got := f.do(http.MethodPost, "/as/client-"+string(rune('a'+i))+"/openai/v1/chat/completions",
					`{"model":"gpt-5","messages":[{"role":"user","content":"x"}]}`, "Authorization", "Bearer sk-made-up")
				switch {
				case got.status == 200:
					passed.Add(1)
				case got.status == 503 && strings.Contains(got.body, "nothing was sent"):
				default:
					failed.Add(1)
				}
			}
		})
	}
	eventually(t, "the fleet is under way", func() bool { return passed.Load() > limit/2 })
	c.stop()
	c.start()
	clients.Wait()
	for _, total := range counted.Totals() {
		t.Logf("the provider admitted %d of %d possible, refused %d", total.Admitted, limit*periods, total.Limited)
		if total.Limited > 0 || total.Admitted != passed.Load() || failed.Load() > 0 {
			t.Errorf("got %+v; %d calls passed, %d failed", total, passed.Load(), failed.Load())
		}
	}
	if passed.Load() < limit {
		t.Errorf("only %d calls passed in %d periods of %d", passed.Load(), periods, limit)
	}
}
