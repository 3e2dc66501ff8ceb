package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// saturated is a provider's signal that refuses calls for a while.
func saturated(after time.Duration) Signal {
	return Signal{Quota: "t/core", Cause: CauseSaturated, RetryAfter: &after}
}

// takeFromBatches makes n takes, at least one of them from a batch.
func takeFromBatches(t *testing.T, limiter *Limiter, n int) []*Taken {
	t.Helper()
	var all []*Taken
	for range n {
		taken, err := limiter.WaitTake(context.Background(), 1)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, taken)
	}
	if !slices.ContainsFunc(all, (*Taken).FromBatch) {
		t.Fatalf("no take of %d came out of a batch", n)
	}
	return all
}

// batchLeases returns how many leases of batches live. Leases of single takes never end in this cluster.
func batchLeases(cluster *fakequota.Cluster, limiter *Limiter) int {
	return cluster.Leases() - int(limiter.Stats().Single)
}

// TestLimiter_KeepLeasesLetsAnswersBeReported: even after the batch has ended and the lease's first deadline has passed.
func TestLimiter_KeepLeasesLetsAnswersBeReported(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1), KeepLeases())
		all := takeFromBatches(t, limiter, 40)
		pass(10 * time.Minute)
		if got := limiter.State(); got != Expired {
			t.Fatalf("state %v", got)
		}
		if got := taken(cluster); got != 40 {
			t.Errorf("taken %d, want the 40 that were spent: what was left does not wait for their answers", got)
		}
		for i, one := range all {
			if _, err := one.Lease().Operation().Report(context.Background(), saturated(time.Millisecond)); err != nil {
				t.Errorf("a report on take %d, from a batch: %v: %v", i, one.FromBatch(), err)
			}
			one.Done()
			one.Done() // idempotent
		}
		pass(time.Minute)
		synctest.Wait()
		if got := batchLeases(cluster, limiter); got != 0 {
			t.Errorf("%d leases of batches are left", got)
		}
		if stats := limiter.Stats(); stats.Spent != 40 || stats.Consumed != 40+stats.Returned || stats.Forfeited != 0 {
			t.Errorf("stats %+v", stats)
		}
	})
}

// TestLimiter_KeptLeaseEndsWithItsLastCall: not before its batch ends.
func TestLimiter_KeptLeaseEndsWithItsLastCall(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1), KeepLeases())
		all := takeFromBatches(t, limiter, 40)
		last := all[len(all)-1]
		for _, one := range all[:len(all)-1] {
			one.Done()
		}
		if !last.FromBatch() || last.Lease().Err() != nil {
			t.Fatalf("the last take: from a batch: %v, %v", last.FromBatch(), last.Lease().Err())
		}
		pass(time.Minute)
		if got := batchLeases(cluster, limiter); got != 1 || last.Lease().Err() != nil {
			t.Errorf("%d leases while one call runs (%v)", got, last.Lease().Err())
		}
		last.Cancel() // too late to return units, but it ends the lease
		synctest.Wait()
		if got := batchLeases(cluster, limiter); got != 0 || !errors.Is(last.Lease().Err(), ErrLeaseReleased) {
			t.Errorf("%d leases are left (%v)", got, last.Lease().Err())
		}
		if stats := limiter.Stats(); stats.Forfeited != 1 {
			t.Errorf("stats %+v", stats)
		}
	})
}

// TestLimiter_WithoutKeepLeasesBatchesEndTheirs: Done has no effect then.
func TestLimiter_WithoutKeepLeasesBatchesEndTheirs(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		all := takeFromBatches(t, limiter, 40)
		pass(time.Minute)
		synctest.Wait()
		if got := batchLeases(cluster, limiter); got != 0 {
			t.Errorf("%d leases are left", got)
		}
		for _, one := range all {
			one.Done()
		}
	})
}

// TestClient_LearnsCooldownOfOthers: the units at hand return at once, and none are taken before the quota opens.
func TestClient_LearnsCooldownOfOthers(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		takeFromBatches(t, limiter, 40)
		synctest.Wait()
		if limiter.Stats().Left == 0 || taken(cluster) == 40 {
			t.Fatalf("nothing is at hand: %+v", limiter.Stats())
		}
		c.LearnCooldown("t/other", time.Minute)
		if limiter.Stats().Left == 0 {
			t.Error("the cooldown of a different quota took what was at hand")
		}
		c.LearnCooldown("t/core", time.Minute)
		synctest.Wait()
		if got := taken(cluster); got != 40 || limiter.Allow() {
			t.Errorf("taken %d, want the 40 that were spent, and no more", got)
		}
		pass(time.Minute)
		if !limiter.Allow() {
			t.Error("nothing is allowed after the cooldown")
		}
	})
}
