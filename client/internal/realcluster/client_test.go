package realcluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
)

func one(quota string, n int64) []client.Item { return []client.Item{{Quota: quota, Amount: n}} }

func TestLease_FromReserveToRelease(t *testing.T) {
	cluster := start(t, 3)
	cluster.apply(rate("t/core", 100, time.Minute))
	c := cluster.client(client.WithHolder("picard"))
	ctx := t.Context()
	lease, err := c.Reserve(ctx, client.ReserveRequest{Items: one("t/core", 10), TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	op, err := lease.Consume(ctx, client.Item{Quota: "t/core", Amount: 4})
	if err != nil || op.Left() <= 0 || op.Left() > 2*time.Second {
		t.Fatalf("%v, left %v", err, op.Left())
	}
	if _, err := op.Settle(ctx, client.Settlement{Unspent: one("t/core", 1)}); err != nil {
		t.Fatal(err)
	}
	if settled, err := op.Settle(ctx, client.Settlement{Actual: one("t/core", 5)}); err != nil || len(settled.Overrun) != 1 ||
		settled.Overrun[0].Amount != 2 {
		t.Fatalf("settled %+v, %v", settled, err)
	}
	if err := lease.Renew(ctx, 2*time.Minute); err != nil || lease.Left() < 110*time.Second {
		t.Fatalf("%v, left %v", err, lease.Left())
	}
	if valid, left, err := c.CheckFence(ctx, lease.ID(), lease.Fence()); err != nil || !valid || left < lease.Left() {
		t.Fatalf("valid %v, left %v here %v, %v", valid, left, lease.Left(), err)
	}
	if returned, err := lease.Release(ctx); err != nil || len(returned) != 1 || returned[0].Amount != 6 {
		t.Fatalf("returned %v, %v", returned, err)
	}
	if quota, err := c.Quota(ctx, "t/core"); err != nil || quota.Available != 95 || quota.Kind != client.KindRate || quota.Usable != 100 {
		t.Fatalf("%+v, %v", quota, err)
	}
	for name, want := range map[string]error{
		"unknown quota": client.ReasonUnknownQuota, "stale fence": client.ReasonStaleFence,
		"never fits": client.ReasonNeverFits, "invalid": client.ReasonInvalid,
	} {
		switch name {
		case "unknown quota":
			_, err = c.Reserve(ctx, client.ReserveRequest{Items: one("nowhere", 1)})
		case "stale fence":
			_, err = lease.Consume(ctx)
		case "never fits":
			_, err = c.Reserve(ctx, client.ReserveRequest{Items: one("t/core", 101), Wait: time.Minute})
		case "invalid":
			_, err = c.Reserve(ctx, client.ReserveRequest{Items: one("t/core", -1)})
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every Reserve is carried out once, even though the leader stops meanwhile.
func TestReserve_OnceAcrossLeaderStop(t *testing.T) {
	cluster := start(t, 3)
	cluster.apply(rate("t/core", 1_000_000, time.Hour))
	c := cluster.client()
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				if _, err := c.Reserve(ctx, client.ReserveRequest{Items: one("t/core", 1)}); err != nil {
					t.Errorf("reserve: %v", err)
				}
				granted.Add(1)
				cancel()
			}
		})
	}
	eventually(t, "some are granted", func() bool { return granted.Load() > 200 })
	cluster.stop(cluster.leader())
	wg.Wait()
	quota, err := c.Quota(t.Context(), "t/core")
	if err != nil || quota.Held != granted.Load() {
		t.Errorf("held %d, want %d: %v; client %+v", quota.Held, granted.Load(), err, c.Stats())
	}
}

func TestReserve_KeepsQueuePlaceAcrossLeaderStop(t *testing.T) {
	cluster := start(t, 3)
	cluster.apply(slots("t/streams", 1))
	c := cluster.client()
	first, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/streams", 1)})
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	go func() {
		lease, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/streams", 1), Wait: time.Minute})
		if err == nil {
			_, err = lease.Release(t.Context())
		}
		granted <- err
	}()
	waiting := func() bool {
		quota, err := c.Quota(t.Context(), "t/streams")
		return err == nil && quota.Waiting == 1
	}
	eventually(t, "it waits", waiting)
	cluster.stop(cluster.leader())
	eventually(t, "it waits at the new leader", waiting)
	if _, err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
}

func TestReserve_CancelledWaitIsWithdrawn(t *testing.T) {
	cluster := start(t, 1)
	cluster.apply(slots("t/streams", 1))
	c := cluster.client()
	if _, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/streams", 1)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Reserve(ctx, client.ReserveRequest{
		Items: one("t/streams", 1), Wait: time.Minute,
	}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	eventually(t, "nobody waits", func() bool {
		quota, err := c.Quota(t.Context(), "t/streams")
		return err == nil && quota.Waiting == 0
	})
}

// Limiters of three programs keep a sliding limit: no period sees more calls than the usable amount. As with any take, a call starts by
// its spend-by or not at all: a busy machine may be too late.
func TestLimiter_KeepsSlidingLimit(t *testing.T) {
	const limit, period = 100, 2 * time.Second
	cluster := start(t, 1) // which keeps its leader however busy the machine is
	cluster.apply(rate("t/core", limit, period))
	var mu sync.Mutex
	var calls []time.Time
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for range 3 {
		limiter := cluster.client().Limiter("t/core", client.Holders(3))
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					taken, err := limiter.WaitTake(ctx, 1)
					if err != nil {
						continue // such as a node that did not answer in time
					}
					mu.Lock()
					if now := time.Now(); taken.Left() > 0 {
						calls = append(calls, now)
					}
					if len(calls) == 4*limit {
						cancel()
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	for i := range calls {
		if j := i + limit; j < len(calls) && calls[j].Sub(calls[i]) < period {
			t.Fatalf("calls %d to %d came within %v", i, j, calls[j].Sub(calls[i]))
		}
	}
	if len(calls) < 4*limit {
		t.Errorf("%d calls in 2 min, the limit allows %d in 6 s", len(calls), 4*limit)
	}
}

func TestTransport_HoldsSlotWhileBodyIsOpen(t *testing.T) {
	cluster := start(t, 1)
	cluster.apply(slots("t/streams", 1), rate("t/core", 100, time.Minute))
	c := cluster.client()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer provider.Close()
	for name, items := range map[string][]client.Item{
		"slots alone": one("t/streams", 1), "slots and a rate": {{Quota: "t/core", Amount: 1}, {Quota: "t/streams", Amount: 1}},
	} {
		base := &http.Transport{}
		defer base.CloseIdleConnections()
		transport := client.NewTransport(c, base, client.Match(func(*http.Request) client.Call { return client.Call{Items: items} }))
		governed := &http.Client{Transport: transport}
		response, err := governed.Get(provider.URL)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/streams", 1)}); !errors.Is(err, client.ReasonExhausted) {
			t.Errorf("%s: the slot is free while the body is open: %v", name, err)
		}
		_ = response.Body.Close()
		eventually(t, name+": the slot is free", func() bool {
			quota, err := c.Quota(t.Context(), "t/streams")
			return err == nil && quota.Available == 1
		})
	}
	if quota, err := c.Quota(t.Context(), "t/core"); err != nil || quota.Available != 99 {
		t.Errorf("%+v, %v", quota, err)
	}
}

func TestTransport_429ClosesQuotaForFleet(t *testing.T) {
	cluster := start(t, 3)
	cluster.apply(rate("t/core", 1_000, time.Minute))
	var served atomic.Int64
	var first, second time.Time
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		second = time.Now()
	}))
	defer provider.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	match := client.Match(func(*http.Request) client.Call { return client.Call{Items: one("t/core", 1)} })
	governed := &http.Client{Transport: client.NewTransport(cluster.client(), base, match)}
	done := make(chan error, 1)
	go func() {
		response, err := governed.Get(provider.URL)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				err = errors.New(response.Status)
			}
		}
		done <- err
	}()
	other := cluster.client(client.WithHolder("ralph"))
	eventually(t, "the quota is closed for another holder", func() bool {
		lease, err := other.Reserve(t.Context(), client.ReserveRequest{Items: one("t/core", 1)})
		if err == nil {
			_, _ = lease.Release(t.Context())
		}
		return errors.Is(err, client.ReasonCooldown)
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if apart := second.Sub(first); apart < 2*time.Second {
		t.Errorf("tried again after %v", apart)
	}
}

func BenchmarkReserveAndConsume(b *testing.B) {
	cluster := start(b, 3)
	cluster.apply(rate("t/core", 1<<40, 24*time.Hour))
	c := cluster.client()
	for _, callers := range []int{1, 64, 256} {
		b.Run(map[int]string{1: "1-caller", 64: "64-callers", 256: "256-callers"}[callers], func(b *testing.B) {
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						_, err := c.Reserve(context.Background(), client.ReserveRequest{Items: one("t/core", 1), Consume: true, TTL: time.Second})
						if err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
		})
	}
}
