package client

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// Regression: a take that lost its batch between reading the deadline and subtracting was undone in the following batch, so that units
// were spent that nobody had consumed.
func TestLimiter_UndoneTakeGrowsNoOtherBatch(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := atWork(t, c)
		// The take has read the deadline of a batch that ends now.
		limiter.releaseBatches()
		n := int64(7)
		word := limiter.word.Add(-uint64(n))
		for limiter.State() != Live {
			limiter.TryTake().Cancel()
			synctest.Wait()
		}
		limiter.mu.Lock()
		limiter.endLocked() // no further batch
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

// slow delays every request to the nodes.
type slow struct {
	*fakequota.Cluster
	there, back time.Duration
}

func (s slow) Do(request *http.Request) (*http.Response, error) {
	if err := sleep(request.Context(), s.there); err != nil {
		return nil, request.Context().Err()
	}
	response, err := s.Cluster.Do(request)
	pass(s.back)
	return response, err
}

// Regression: a caller that left counted as an absent cluster, so that limiters that fail open passed thousands of uncounted calls
// while the cluster was healthy.
func TestFailOpen_CancelledCallOpensNothing(t *testing.T) {
	for name, leave := range map[string]func(*testing.T) context.Context{
		"cancelled": func(*testing.T) context.Context {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(10*time.Millisecond, cancel)
			return ctx
		},
		"deadline": func(t *testing.T) context.Context { return within(t, 10*time.Millisecond) },
	} {
		synctest.Test(t, func(t *testing.T) {
			cluster := fakequota.New(1)
			cluster.Set("t/core", fakequota.Quota{Usable: 10, Available: 10})
			c := connected(t, cluster, WithHTTPClient(slow{Cluster: cluster, there: 30 * time.Millisecond}))
			defer func() { _ = c.Close() }()
			limiter := c.Limiter("t/core", FailOpen())
			if err := limiter.Wait(leave(t)); err == nil || errors.Is(err, ErrClusterAway) {
				t.Errorf("%s: %v", name, err)
			}
			allowed := 0
			for range 1_000 {
				if limiter.Allow() {
					allowed++
				}
			}
			if stats := limiter.Stats(); allowed != 10 || stats.Uncounted != 0 {
				t.Errorf("%s: %d allowed of 10: %+v", name, allowed, stats)
			}
		})
	}
}

func TestLimiter_CancelledWaitRefusesNoOther(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 10})
		limiter := c.Limiter("t/core")
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		if err := limiter.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		cluster.Add("t/core", 10)
		synctest.Wait()
		if !limiter.Allow() {
			t.Errorf("10 units are there, and it says no: %+v", limiter.Stats())
		}
	})
}

// A limiter that fails open lets a caller pass that no node answered by its deadline, even the first caller.
func TestFailOpen_SilentNodesAreAway(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Break(0, fakequota.Silent)
		limiter := c.Limiter("t/core", FailOpen())
		if err := limiter.Wait(within(t, time.Second)); err != nil || limiter.Stats().Uncounted != 1 {
			t.Errorf("%v, %+v", err, limiter.Stats())
		}
	})
}

// Regression: a batch in flight while the client learnt of a cooldown was spent during the cooldown.
func TestLimiter_BatchArrivingInCooldownIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := full()
		c := connected(t, cluster, WithHTTPClient(slow{Cluster: cluster, back: 60 * time.Millisecond}))
		defer func() { _ = c.Close() }()
		limiter := c.Limiter("t/core", Holders(1))
		if err := limiter.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		limiter.mu.Lock()
		limiter.fetchLocked(50)
		limiter.mu.Unlock()
		pass(30 * time.Millisecond)
		if taken(cluster) != 51 {
			t.Fatal("the batch is not on its way")
		}
		c.cooldowns.learn("t/core", time.Minute)
		pass(200 * time.Millisecond)
		if limiter.Allow() || taken(cluster) != 1 || limiter.Stats().Returned != 50 {
			t.Errorf("taken %d, %+v", taken(cluster), limiter.Stats())
		}
	})
}

// Regression: Reserve did not check the wall clock.
func TestTryTake_IgnoresBatchFromBeforeSleep(t *testing.T) {
	var slept atomic.Int64
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := atWork(t, c)
		slept.Store(int64(time.Hour))
		pass(20 * time.Millisecond)
		if limiter.TryTake().OK() {
			t.Error("units from before the sleep were reserved")
		}
	}, WithWallClock(func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }))
}

// Regression: when units arrived too late to be spent, Wait asked for more at full speed and without end.
func TestWait_FailsForUnitsThatArriveTooLate(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 1_000, Available: 1_000, SpendBy: 90 * time.Millisecond, Transit: 45 * time.Millisecond})
		limiter := c.Limiter("t/core")
		if err := limiter.Wait(context.Background()); !errors.Is(err, ErrLate) {
			t.Errorf("got %v", err)
		}
		for range 100 {
			if limiter.Allow() {
				t.Error("allowed")
			}
		}
		if asked := cluster.Executed("reserve"); asked > 2*maxAsked {
			t.Errorf("asked %d times", asked)
		}
		pass(5 * time.Second)
		if taken(cluster) != 0 {
			t.Errorf("%d were not returned", taken(cluster))
		}
	})
}

// Regression: a Wait in the cluster's queue continued for ten minutes after the cluster had gone away.
func TestWait_EndsWhenClusterIsGone(t *testing.T) {
	for name, fault := range map[string]fakequota.Fault{"refusing": fakequota.Refusing, "silent": fakequota.Silent} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.Set("t/core", fakequota.Quota{Usable: 10})
			time.AfterFunc(time.Second, func() { cluster.Break(0, fault) })
			start := time.Now()
			err := c.Limiter("t/core").Wait(context.Background())
			if took := time.Since(start); !errors.Is(err, ErrClusterAway) || took > 30*time.Second {
				t.Errorf("%s: %v after %v", name, err, took)
			}
		})
	}
}

// A Wait waits for a healthy cluster, however long its queue is.
func TestWait_OutlivesItsLongPolls(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 10})
		time.AfterFunc(5*time.Minute, func() { cluster.Add("t/core", 1) })
		if err := c.Limiter("t/core").Wait(context.Background()); err != nil {
			t.Error(err)
		}
		if c.trouble() != nil {
			t.Errorf("it is taken for away: %v", c.trouble())
		}
	})
}

// Regression: a Wait that paused before asking again ignored Close of its limiter and of its client.
func TestWait_PauseEndsWithClose(t *testing.T) {
	for _, whole := range []bool{false, true} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			limiter := c.Limiter("t/core")
			cluster.RefuseFor(50 * time.Minute)
			ended := make(chan error, 1)
			go func() { ended <- limiter.Wait(context.Background()) }()
			pass(time.Second)
			start := time.Now()
			if whole {
				_ = c.Close()
			} else {
				limiter.Close()
			}
			if err := <-ended; !errors.Is(err, ErrClosed) || time.Since(start) > 5*time.Second {
				t.Errorf("client %v: %v after %v", whole, err, time.Since(start))
			}
		})
	}
}

// Regression: a Reserve of any size fetched a batch of that size, which drained the quota for nothing.
func TestTryTakeN_BeyondBatchFetchesNothing(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 1 << 50, Available: 1 << 50})
		for n, limiter := range map[int]*Limiter{
			2: c.Limiter("t/core", MaxBatch(1)), mostUnits + 1: c.Limiter("t/core"), -1: c.Limiter("t/core"),
		} {
			r := limiter.TryTakeN(n)
			synctest.Wait()
			if r.OK() || r.Delay() != math.MaxInt64 || cluster.Executed("reserve") != 0 {
				t.Errorf("%d: OK %v, delay %v, %d reserves", n, r.OK(), r.Delay(), cluster.Executed("reserve"))
			}
		}
	})
}
