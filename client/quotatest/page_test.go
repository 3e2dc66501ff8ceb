package quotatest_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
)

func TestSummarize_ComesBackLater(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Rate("openai/requests", 60, time.Minute))
	c := cluster.Client(client.WithHolder("picard"))

	cluster.Exhaust("openai/requests")
	if got, err := summarize(t.Context(), c); err != nil || !strings.HasPrefix(got, "come back in") {
		t.Errorf("%q, %v", got, err)
	}
	cluster.Clock().Advance(2 * time.Minute)
	if got, err := summarize(t.Context(), c); err != nil || got != "a summary" {
		t.Errorf("%q, %v", got, err)
	}
}

// In a bubble the client's timers and the cluster share one virtual clock.
func TestSummarize_KeepsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quotatest.New(t, quotatest.Rate("openai/requests", 60, time.Minute))
		cluster.Clock().Run()
		requests := cluster.Client().Limiter("openai/requests")
		began := time.Now()
		for range 150 {
			if err := requests.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 2*time.Minute {
			t.Errorf("150 requests took %v: 60 a minute are allowed", took)
		}
	})
}
