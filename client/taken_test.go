package client

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// TestTaken_Left: a take may be used as long as its batch or its own lease; a take of 0 units has no bound.
func TestTaken_Left(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		if taken := limiter.TryTake(); taken.OK() || taken.Left() != 0 {
			t.Errorf("nothing was taken, and %v are left", taken.Left())
		}
		if taken := limiter.AllowTake(-1); taken != nil {
			t.Error("fewer than 0 are allowed")
		}
		if taken := limiter.AllowTake(0); taken == nil || taken.Left() != math.MaxInt64 {
			t.Errorf("0 units: %v", taken)
		}
		for range 30 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		first, second := limiter.AllowTake(1), limiter.TryTake()
		if first == nil || !second.OK() {
			t.Fatal("there is no batch")
		}
		left := first.Left()
		if left <= 0 || second.Left() != left {
			t.Errorf("one batch can be spent for %v and for %v", left, second.Left())
		}
		pass(left / 4)
		if after := first.Left(); after != left-left/4 {
			t.Errorf("%v are left after a quarter of %v", after, left)
		}
		if pass(left); first.Left() != 0 {
			t.Errorf("%v are left of a batch that is over", first.Left())
		}
	})
}

// TestTakeAtHand_AsksNobody: it takes what was consumed ahead, all or nothing, and otherwise leaves everything as it was.
func TestTakeAtHand_AsksNobody(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		if taken := limiter.TakeAtHand(1); taken != nil {
			t.Errorf("took %v of nothing", taken)
		}
		if synctest.Wait(); cluster.Asked(0) != 0 || limiter.Stats().Batches != 0 {
			t.Error("it asked the cluster")
		}
		for range 30 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		left := limiter.Stats().Left
		if left < 3 {
			t.Fatalf("%d units are at hand", left)
		}
		for _, n := range []int{0, -1, int(left) + 1} {
			if taken := limiter.TakeAtHand(n); taken != nil || limiter.Stats().Left != left {
				t.Errorf("%d: took %v", n, taken)
			}
		}
		taken := limiter.TakeAtHand(2)
		if taken == nil || !taken.OK() || taken.Left() <= 0 || limiter.Stats().Left != left-2 {
			t.Fatalf("2 of %d: %v, %d are left", left, taken, limiter.Stats().Left)
		}
		if taken.Cancel(); limiter.Stats().Left != left {
			t.Errorf("%d are left after the return of 2", limiter.Stats().Left)
		}
	})
}

// TestTaken_ConfirmedAt: each answer about the lease counts from when its request was sent; a take of 0 units has no lease.
func TestTaken_ConfirmedAt(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", MaxBatch(1))
		if at := limiter.AllowTake(0).ConfirmedAt(); !at.IsZero() {
			t.Errorf("a take that is not counted was confirmed at %v", at)
		}
		began := time.Now()
		taken, err := limiter.WaitTake(context.Background(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if at := taken.ConfirmedAt(); at.Before(began) || at.After(time.Now()) {
			t.Errorf("confirmed at %v, want at least %v", at, began)
		}
		pass(time.Second)
		if at, now := taken.ConfirmedAt(), time.Now(); now.Sub(at) < time.Second {
			t.Errorf("confirmed at %v without an answer since %v", at, began)
		}
		began = time.Now()
		if err := taken.Lease().Renew(context.Background(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if at := taken.ConfirmedAt(); at.Before(began) {
			t.Errorf("confirmed at %v, before the renewal at %v", at, began)
		}
	})
}
