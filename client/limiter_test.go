package client

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// taken returns how many of t/core's 1,000 units are taken.
func taken(cluster *fakequota.Cluster) int64 { return 1_000 - cluster.Available("t/core") }

func TestLimiter_SingleTakeFetchesNoBatch(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		if got := limiter.State(); got != NoLease {
			t.Errorf("state %v", got)
		}
		for i := range int64(5) {
			if err := limiter.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
			if got := taken(cluster); got != i+1 {
				t.Errorf("taken %d after %d", got, i+1)
			}
			pass(time.Minute)
		}
		if stats := limiter.Stats(); stats.Single != 5 || stats.Batches != 0 || stats.Spent != 5 {
			t.Errorf("stats %+v", stats)
		}
	})
}

func TestLimiter_SpendsBatchLocallyAndReturnsRest(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		for range 100 {
			if err := limiter.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := limiter.State(); got != Live {
			t.Errorf("state %v", got)
		}
		stats := limiter.Stats()
		if asked := cluster.Executed("reserve"); asked > 20 || stats.Batches < 3 {
			t.Errorf("100 takes asked %d times: %+v", asked, stats)
		}
		pass(3 * time.Second)
		synctest.Wait()
		if got := limiter.State(); got != Expired {
			t.Errorf("state %v", got)
		}
		if got := taken(cluster); got != 100 {
			t.Errorf("taken %d, want the 100 that were spent", got)
		}
		if stats := limiter.Stats(); stats.Spent != 100 || stats.Consumed != 100+stats.Returned || stats.Forfeited != 0 {
			t.Errorf("stats %+v", stats)
		}
		if cluster.Leases() > int(limiter.Stats().Single) {
			t.Errorf("%d leases are left", cluster.Leases())
		}
	})
}

func TestLimiter_RenewsNoBatchBeforeHalfSpent(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		for range 20 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		before := cluster.Executed("reserve")
		pass(time.Minute)
		if got := cluster.Executed("reserve"); got != before {
			t.Errorf("%d more batches without demand", got-before)
		}
	})
}

func TestLimiter_BatchIsWithinItsShare(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 1_000, Available: 1_000})
		limiter := c.Limiter("t/core", Holders(50))
		for range 200 {
			if err := limiter.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
			if ahead := taken(cluster) - int64(200); ahead > 10 {
				t.Fatalf("%d ahead", ahead)
			}
			limiter.mu.Lock()
			for _, b := range []*batch{limiter.current, limiter.next} {
				if b != nil && b.size > 10 {
					t.Errorf("a batch of %d, the share is 10", b.size)
				}
			}
			limiter.mu.Unlock()
		}
	})
}

func TestClose_ReturnsUnspentAmounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := fakequota.New(1)
		cluster.Set("t/core", fakequota.Quota{Usable: 1_000, Available: 1_000})
		c := connected(t, cluster)
		limiter := c.Limiter("t/core", Holders(1))
		for range 30 {
			_ = limiter.Wait(context.Background())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if got := taken(cluster); got != 30 {
			t.Errorf("taken %d, want 30", got)
		}
		if cluster.Sessions() != 0 {
			t.Error("a session is left")
		}
		if limiter.Allow() || !errors.Is(limiter.Wait(context.Background()), ErrClosed) {
			t.Error("a closed limiter allows")
		}
	})
}

func TestLimiter_CooldownStopsSpendingAndReturns(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		for range 40 {
			_ = limiter.Wait(context.Background())
		}
		lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1), Consume: true})
		if err != nil {
			t.Fatal(err)
		}
		wait := 10 * time.Second
		reported, err := lease.Operation().Report(context.Background(), Signal{Quota: "t/core", Cause: CauseSaturated, RetryAfter: &wait})
		if err != nil || len(reported) != 1 || reported[0].CooldownLeft != wait {
			t.Fatalf("reported %+v, %v", reported, err)
		}
		synctest.Wait()
		if limiter.Allow() {
			t.Error("allowed in the cooldown")
		}
		if got := taken(cluster); got != 41 {
			t.Errorf("taken %d, want 41", got)
		}
		asked := cluster.Executed("reserve")
		for range 100 {
			limiter.Allow()
		}
		if got := cluster.Executed("reserve"); got != asked {
			t.Errorf("asked %d times in the cooldown", got-asked)
		}
		pass(wait)
		if !limiter.Allow() {
			t.Error("not allowed after the cooldown")
		}
	})
}

func TestLimiter_EdgeValues(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		for range 30 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		before := limiter.Stats().Left
		if !limiter.AllowN(0) || limiter.AllowN(-1) || limiter.AllowN(math.MinInt) {
			t.Error("0 units are always there, fewer never")
		}
		for range 300 {
			if limiter.AllowN(math.MaxInt) || limiter.AllowN(mostUnits) || limiter.AllowN(mostUnits+1) || limiter.AllowN(2_000) {
				t.Fatal("more than there is was allowed")
			}
		}
		if !limiter.Allow() {
			t.Error("what there is was refused after more was")
		}
		synctest.Wait()
		if after := limiter.Stats().Left; after > before+30 {
			t.Errorf("%d left, before %d: absurd takes made demand", after, before)
		}
		if err := limiter.WaitN(context.Background(), -1); !errors.Is(err, ReasonInvalid) {
			t.Errorf("WaitN(-1): %v", err)
		}
		if err := limiter.WaitN(context.Background(), 0); err != nil {
			t.Errorf("WaitN(0): %v", err)
		}
		if err := limiter.WaitN(context.Background(), math.MaxInt); !errors.Is(err, ReasonNeverFits) {
			t.Errorf("WaitN(MaxInt): %v", err)
		}
		if r := limiter.TryTakeN(-1); r.OK() {
			t.Error("ReserveN(-1) is OK")
		}
		if r := limiter.TryTakeN(0); !r.OK() || r.Delay() != 0 {
			t.Error("ReserveN(0) is not OK")
		}
	})
}

func TestReservation(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		if r := limiter.TryTake(); r.OK() || r.Delay() <= 0 {
			t.Error("OK without a batch")
		}
		for range 30 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		left := limiter.Stats().Left
		r := limiter.TryTakeN(2)
		if !r.OK() || r.Delay() != 0 || limiter.Stats().Left != left-2 {
			t.Errorf("OK %v, delay %v, left %d of %d", r.OK(), r.Delay(), limiter.Stats().Left, left)
		}
		r.Cancel()
		r.Cancel()
		if got := limiter.Stats().Left; got != left {
			t.Errorf("left %d after Cancel, want %d", got, left)
		}
		late := limiter.TryTake()
		pass(3 * time.Second)
		late.Cancel()
		synctest.Wait()
		if stats := limiter.Stats(); stats.Forfeited != 1 || taken(cluster) != 31 {
			t.Errorf("a late Cancel: %+v, taken %d", stats, taken(cluster))
		}
	})
}

// TestReservation_CancelAddsToNoOtherBatch: units return to their own batch. Once it has ended, no other batch may grow by them: they
// were never consumed as part of it.
func TestReservation_CancelAddsToNoOtherBatch(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		batch := func() {
			for range 30 {
				_ = limiter.Wait(context.Background())
			}
			synctest.Wait()
		}
		batch()
		old := limiter.TryTakeN(2)
		if !old.OK() {
			t.Fatal("there is no first batch")
		}
		pass(3 * time.Second)
		batch()
		before := limiter.Stats()
		if before.Batches < 2 || before.Left == 0 {
			t.Fatalf("there is no second batch: %+v", before)
		}
		old.Cancel()
		if after := limiter.Stats(); after.Left != before.Left || after.Forfeited != before.Forfeited+2 || after.Spent != before.Spent-2 {
			t.Errorf("before Cancel %+v, after it %+v", before, after)
		}
	})
}

func TestWait_ServesInClusterOrderWhenExhausted(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 10})
		limiter := c.Limiter("t/core")
		var served atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := limiter.Wait(context.Background()); err != nil {
					t.Error(err)
				}
				served.Add(1)
			})
		}
		for i := range int64(8) {
			pass(20 * time.Second)
			cluster.Add("t/core", 1)
			synctest.Wait()
			if got := served.Load(); got != i+1 {
				t.Errorf("%d served of %d", got, i+1)
			}
		}
		wg.Wait()
		if limiter.Allow() {
			t.Error("allowed at 0")
		}
		start := time.Now()
		if err := limiter.Wait(within(t, 5*time.Second)); err == nil || time.Since(start) > 5*time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

// Regression: fail closed applied to Reserve only; other calls passed while the cluster was away.
func TestFailClosed_CoversEveryCall(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		open := c.Limiter("t/core", FailOpen())
		lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 10), Consume: true})
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		left := limiter.Stats().Left
		cluster.Break(0, fakequota.Refusing)
		for range left {
			if !limiter.Allow() {
				t.Fatal("what was consumed before may be spent")
			}
		}
		for range 20 {
			if limiter.Allow() {
				t.Fatal("allowed while the cluster is away")
			}
		}
		if got := limiter.State(); got != ClusterAway {
			t.Errorf("state %v", got)
		}
		ctx := within(t, time.Second)
		errs := map[string]error{"wait": limiter.Wait(ctx), "renew": lease.Renew(ctx, 0)}
		_, errs["reserve"] = c.Reserve(ctx, ReserveRequest{Items: one("t/core", 1)})
		_, errs["consume"] = lease.Consume(ctx)
		_, errs["settle"] = lease.Operation().Settle(ctx, Settlement{Final: true})
		for name, err := range errs {
			if !errors.Is(err, ErrClusterAway) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !open.Allow() || open.Wait(within(t, time.Second)) != nil || open.Stats().Uncounted != 2 {
			t.Errorf("a limiter that fails open did not: %+v", open.Stats())
		}
		cluster.Break(0, fakequota.Healthy)
		if err := limiter.Wait(within(t, time.Second)); err != nil {
			t.Errorf("the cluster is back: %v", err)
		}
	})
}

// Regression: a missing estimate held nothing at all, and a failed settle kept its hold permanently.
func TestLimiter_DefaultEstimateAndFailedReturn(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.LimiterOf([]Item{{Quota: "t/core"}})
		if err := limiter.Wait(context.Background()); err != nil || taken(cluster) != 1 {
			t.Errorf("taken %d, %v", taken(cluster), err)
		}
		busy := c.Limiter("t/core", Holders(1))
		for range 40 {
			_ = busy.Wait(context.Background())
		}
		// No request succeeds until the spend-by has passed, so returning units fails.
		cluster.Break(0, fakequota.Silent)
		pass(4 * time.Second)
		cluster.Break(0, fakequota.Healthy)
		pass(time.Minute)
		synctest.Wait()
		stats := busy.Stats()
		if stats.Spent+stats.Forfeited+stats.Returned != stats.Consumed || stats.Forfeited == 0 {
			t.Errorf("stats %+v", stats)
		}
	})
}

func TestLimiter_RefusesSlotsAndUnknownQuotas(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/slots", fakequota.Quota{Usable: 5, Available: 5, Slots: true})
		if err := c.Limiter("t/slots").Wait(context.Background()); !errors.Is(err, ErrSlots) {
			t.Errorf("slots: %v", err)
		}
		if err := c.Limiter("nowhere").Wait(context.Background()); !errors.Is(err, ReasonUnknownQuota) {
			t.Errorf("unknown quota: %v", err)
		}
		if c.Limiter("nowhere").Allow() {
			t.Error("an unknown quota allows")
		}
	})
}

func TestLimiter_SpendsNoBatchAfterSleep(t *testing.T) {
	var slept atomic.Int64
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1))
		lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1), TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			_ = limiter.Wait(context.Background())
		}
		synctest.Wait()
		if limiter.Stats().Left == 0 {
			t.Fatal("there is no batch to test with")
		}
		slept.Store(int64(time.Hour))
		pass(20 * time.Millisecond)
		asked := cluster.Executed("reserve")
		if !limiter.Allow() || cluster.Executed("reserve") == asked {
			t.Error("a batch from before the sleep was spent")
		}
		if lease.Left() != 0 || !errors.Is(lease.Err(), ErrLeaseExpired) {
			t.Errorf("a lease from before the sleep has %v left", lease.Left())
		}
	}, WithWallClock(func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }))
}

// After any sequence of events, allowed, returned and forfeited units add up to the consumed ones, and the cluster's counts agree.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 6), 1, 80).Draw(rt, "steps")
		holders := rapid.IntRange(1, 4).Draw(rt, "holders")
		virtual(t, 2, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			limiter := c.Limiter("t/core", Holders(holders))
			allowed := int64(0)
			for _, step := range steps {
				switch step {
				case 0, 1:
					for range 10 {
						if limiter.Allow() {
							allowed++
						}
					}
				case 2:
					if limiter.WaitN(within(t, time.Second), 3) == nil {
						allowed += 3
					}
				case 3:
					if limiter.TryTakeN(2).OK() {
						allowed += 2
					}
				case 4:
					limiter.TryTake().Cancel()
				case 5:
					pass(300 * time.Millisecond)
				case 6:
					limiter.releaseBatches()
				}
			}
			pass(5 * time.Second)
			synctest.Wait()
			stats := limiter.Stats()
			if int64(stats.Spent+stats.Forfeited) < allowed || stats.Spent != uint64(allowed) ||
				stats.Consumed != stats.Spent+stats.Returned+stats.Forfeited {
				rt.Errorf("allowed %d, stats %+v", allowed, stats)
			}
			if got := taken(cluster); got != int64(stats.Consumed-stats.Returned) {
				rt.Errorf("the cluster counts %d, stats %+v", got, stats)
			}
		})
	})
}

func TestLimiter_ConcurrentTakesNeverExceedConsumed(t *testing.T) {
	cluster := fakequota.New(1)
	cluster.Set("t/core", fakequota.Quota{Usable: 100_000, Available: 20_000, SpendBy: 200 * time.Millisecond, Transit: 20 * time.Millisecond})
	c := connected(t, cluster)
	defer func() { _ = c.Close() }()
	limiter := c.Limiter("t/core", Holders(1))
	var allowed atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(700 * time.Millisecond)
	for worker := range 8 {
		wg.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				n := 1 + (i+worker)%5
				if limiter.AllowN(n) {
					allowed.Add(int64(n))
				}
				if i%64 == 0 && limiter.TryTake().OK() {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	limiter.Close()
	if err := c.flush(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	stats := limiter.Stats()
	gone := 20_000 - cluster.Available("t/core")
	if allowed.Load() == 0 || allowed.Load() > gone {
		t.Errorf("allowed %d, the cluster gave %d: %+v", allowed.Load(), gone, stats)
	}
	if stats.Spent != uint64(allowed.Load()) {
		t.Errorf("allowed %d, counted %d", allowed.Load(), stats.Spent)
	}
}

func TestShare(t *testing.T) {
	for _, tt := range []struct {
		name    string
		holders int64
		quota   Quota
		want    int64
	}{
		{"half of it for one", 1, Quota{Usable: 1_000, DefaultEstimate: 1}, 500},
		{"less for many", 50, Quota{Usable: 1_000, DefaultEstimate: 1}, 10},
		{"as many as the cluster sees", 0, Quota{Usable: 1_000, Leases: 5, DefaultEstimate: 1}, 100},
		{"nobody seen", 0, Quota{Usable: 1_000, DefaultEstimate: 1}, 500},
		{"too many", 5_000, Quota{Usable: 1_000, DefaultEstimate: 1}, 0},
		{"green", 1, Quota{Usable: 1_000, Zone: Green, DefaultEstimate: 3}, 60},
		{"amber", 1, Quota{Usable: 1_000, Zone: Amber, DefaultEstimate: 3}, 15},
		{"red", 1, Quota{Usable: 1_000, Zone: Red, DefaultEstimate: 3}, 3},
	} {
		l := &Limiter{settings: limiterSettings{holders: tt.holders}}
		if got := l.share(tt.quota, 1); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestMaxBatch_OfOneAsksEachTime(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core", Holders(1), MaxBatch(1), LimiterClass(Background))
		for range 20 {
			if err := limiter.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if got := cluster.Executed("reserve"); got != 20 {
			t.Errorf("asked %d times", got)
		}
	})
}

// TestAllow_ARefusalAnswersTheNextTakeToo: for a moment, a caller in a loop does not ask the cluster in each iteration.
func TestAllow_ARefusalAnswersTheNextTakeToo(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 10})
		limiter := c.Limiter("t/core")
		for range 100 {
			if limiter.Allow() {
				t.Fatal("there is nothing to take")
			}
		}
		if asked := cluster.Executed("reserve"); asked != 1 {
			t.Errorf("asked %d times", asked)
		}
		pass(refusalMemory)
		limiter.Allow()
		if asked := cluster.Executed("reserve"); asked != 2 {
			t.Errorf("asked %d times when a moment had passed", asked)
		}
	})
}

// TestLimiter_ReturnsBatchInQuotaUnits: if a unit of the limiter is several units of a quota, all of them return.
func TestLimiter_ReturnsBatchInQuotaUnits(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.LimiterOf(one("t/core", 3), Holders(1))
		for range 40 {
			if err := limiter.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if limiter.Stats().Left == 0 {
			t.Fatal("nothing is left to return")
		}
		limiter.Close()
		synctest.Wait()
		if got := taken(cluster); got != 3*40 {
			t.Errorf("%d are taken, want 3 for each of 40 takes", got)
		}
	})
}
