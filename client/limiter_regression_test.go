package client

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// atWork returns a limiter of t/core that has a batch at hand.
func atWork(t *testing.T, c *Client, options ...LimiterOption) *Limiter {
	t.Helper()
	limiter := c.Limiter("t/core", append([]LimiterOption{Holders(1)}, options...)...)
	for range 40 {
		if err := limiter.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	if limiter.Stats().Left == 0 {
		t.Fatal("there is no batch to test with")
	}
	return limiter
}

// Regression: a take that lost its batch between its look at the deadline and its subtraction was undone in the batch
// after it, so that units were spent that nobody had consumed.
func TestABatchNeverGrowsByASwap(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := atWork(t, c)
		// The take has seen the deadline of a batch that ends now.
		limiter.giveBack()
		n := int64(7)
		word := limiter.word.Add(-uint64(n))
		for limiter.State() != Live {
			limiter.Reserve().Cancel()
			synctest.Wait()
		}
		limiter.mu.Lock()
		limiter.closed = true // no further batch
		before := limiter.left()
		limiter.mu.Unlock()
		spent := int64(0)
		if limiter.takeLow(n, word) {
			spent = n
		}
		if after := limiter.left() + spent; after > before {
			t.Errorf("%d units were there, %d can be spent", before, after)
		}
	})
}
