package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/client/pacing/pacingtest"
)

// The simulation of fleets replays the same traces.
func TestLimiter_ConsumesAheadAsTheSimulationDoes(t *testing.T) {
	for _, trace := range pacingtest.Traces {
		t.Run(trace.Name, func(t *testing.T) {
			virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
				cluster.Set(pacingtest.Quota, fakequota.Quota{Usable: trace.Usable, Available: trace.Usable})
				limiter, began := c.Limiter(pacingtest.Quota), time.Now()
				pacingtest.Replay(t, trace, func(at time.Duration) (int, int64) {
					pass(time.Until(began.Add(at)))
					if err := limiter.Wait(context.Background()); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					return cluster.Executed("reserve"), limiter.Stats().Left
				})
			})
		})
	}
}

// A take that reads the clocks first, as all do at a slow pace, fetches the next batch as early as any other.
func TestLimiter_RefillsAtASlowPaceToo(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		for range 30 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		for limiter.Stats().Left > 1 {
			pass(2 * time.Duration(checkEvery))
			before := limiter.Stats()
			if !limiter.Allow() {
				t.Fatal("refused")
			}
			synctest.Wait()
			if after := limiter.Stats(); after.Batches > before.Batches {
				return // the next batch arrived before the last unit was spent
			}
		}
		t.Errorf("a batch was spent to its last unit without the next: %+v", limiter.Stats())
	})
}
