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

// TestA11_FleetIsNeverRefusedByItsProvider: nine clients on one key want more than the provider allows. The provider counts
// independently, over any period; the clients use at least 95 % of what it allows. A period is shorter than in production, and the node
// restarts midway (A12), which costs only time.
func TestA11_FleetIsNeverRefusedByItsProvider(t *testing.T) {
	if testing.Short() {
		t.Skip("several periods")
	}
	const scale, limit, periods = 4, 60, 4
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
	var passed, failed, inTime, last atomic.Int64
	var clients sync.WaitGroup
	began := time.Now()
	end := began.Add(periods * period)
	for i := range 9 {
		clients.Go(func() {
			for time.Now().Before(end) {
				got := f.do(http.MethodPost, "/as/client-"+string(rune('a'+i))+"/openai/v1/chat/completions",
					`{"model":"gpt-5","messages":[{"role":"user","content":"x"}]}`, "Authorization", "Bearer sk-made-up")
				switch {
				case got.status == 200:
					passed.Add(1)
					if now := time.Now(); now.Before(end) {
						inTime.Add(1)
						last.Store(now.UnixNano())
					}
				case got.status == 503 && strings.Contains(got.body, "nothing was sent"):
				default:
					failed.Add(1)
				}
			}
		})
	}
	eventually(t, "the fleet is running", func() bool { return passed.Load() > limit/2 })
	left := time.Now()
	c.stop()
	c.start()
	away := time.Since(left)
	clients.Wait()
	ideal := limit * (end.Sub(began) - away).Seconds() / period.Seconds()
	for _, total := range counted.Totals() {
		t.Logf("the provider admitted %d of %.0f possible, refused %d; the node was away for %v", total.Admitted, ideal, total.Limited, away)
		if total.Limited > 0 || total.Admitted != passed.Load() || failed.Load() > 0 {
			t.Errorf("got %+v; %d calls passed, %d failed", total, passed.Load(), failed.Load())
		}
	}
	// Calls pass in a burst per period, so the first burst is ahead of the pace; only the calls after it show the pace.
	pace := limit * (time.Unix(0, last.Load()).Sub(began) - away).Seconds() / period.Seconds()
	n := float64(inTime.Load())
	t.Logf("%.0f calls passed in time: %.1f %% of what could, at %.1f %% of the pace", n, 100*n/ideal, 100*(n-limit)/pace)
	if n < 0.95*ideal || n-limit < 0.95*pace {
		t.Errorf("want at least 95 %% of %.0f calls, and of the %.0f that could pass after the first %d", ideal, pace, limit)
	}
}
