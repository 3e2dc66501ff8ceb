package realcluster

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Tests named after what they guard against: defects that users of other rate limiters reported, with the source of each.

// governedBy returns an HTTP client whose every request holds a slot of t/streams.
func governedBy(t *testing.T, c *client.Client) *http.Client {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	match := client.Match(func(*http.Request) client.Call { return client.Call{Items: one("t/streams", 1)} })
	return &http.Client{Transport: client.NewTransport(c, base, match)}
}

func free(t *testing.T, c *client.Client) func() bool {
	t.Helper()
	return func() bool {
		quota, err := c.Quota(t.Context(), "t/streams")
		return err == nil && quota.Available == 2 && quota.Leases == 0
	}
}

// TestTransport_DeadStreamFreesSlotOnce: cancelled by its caller, or cut off by the provider (BerriAI/litellm 27955, codex-lb 2470).
func TestTransport_DeadStreamFreesSlotOnce(t *testing.T) {
	cluster := start(t, 1)
	cluster.apply(slots("t/streams", 2))
	c := cluster.client()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the beginning")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/dies" {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
	}))
	defer provider.Close()
	governed := governedBy(t, c)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		for _, path := range []string{"/dies", "/streams"} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := governed.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if path == "/streams" {
				cancel()
			}
			if _, err := io.ReadAll(response.Body); err == nil {
				t.Errorf("%s ended", path)
			}
			_ = response.Body.Close()
			_ = response.Body.Close() // as careful callers do
		}
		cancel()
		eventually(t, "both slots are free", free(t, c))
	}
}

// TestTransport_BadGatewaysWedgeNothing: while the provider fails, failing calls occupy all slots; afterwards every slot is free again
// (BerriAI/litellm 20256).
func TestTransport_BadGatewaysWedgeNothing(t *testing.T) {
	cluster := start(t, 1)
	cluster.apply(slots("t/streams", 2))
	c := cluster.client()
	var broken atomic.Bool
	broken.Store(true)
	var calls atomic.Int64
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n := calls.Add(1); {
		case !broken.Load():
			_, _ = io.WriteString(w, "well again")
		case n%3 == 0:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader([]int{http.StatusBadGateway, http.StatusGatewayTimeout}[n%2])
		}
	}))
	defer provider.Close()
	governed := governedBy(t, c)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for range 10 {
				if response, err := governed.Get(provider.URL); err == nil {
					_ = response.Body.Close() // unread
				}
			}
		})
	}
	all.Wait()
	broken.Store(false)
	eventually(t, "both slots are free", free(t, c))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 5 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := governed.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s", response.Status)
		}
	}
}

// TestObserve_PausesNoLimiter: a provider's refusal of a quota that only observes delays no caller of this client; refusals that
// enforcement would have made are counted (envoyproxy/ratelimit 423).
func TestObserve_PausesNoLimiter(t *testing.T) {
	cluster := start(t, 1)
	observing := rate("t/core", 1_000, time.Minute)
	observing.Policy = &quotav1.Policy{Observe: true}
	cluster.apply(observing)
	c := cluster.client()
	lease, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/core", 1), Consume: true})
	if err != nil {
		t.Fatal(err)
	}
	wait := time.Hour
	reported, err := lease.Operation().Report(t.Context(), client.Signal{Quota: "t/core", Cause: client.CauseSaturated, RetryAfter: &wait})
	if err != nil || len(reported) != 1 || reported[0].CooldownLeft != 0 {
		t.Fatalf("%+v, %v", reported, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	limiter := c.Limiter("t/core", client.MaxBatch(1))
	for range 3 {
		if err := limiter.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if quota, err := c.Quota(ctx, "t/core"); err != nil || quota.Observed != 3 || quota.CooldownLeft == 0 {
		t.Errorf("%+v, %v", quota, err)
	}
}
