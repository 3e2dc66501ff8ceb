package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

func TestLease_FromReserveToRelease(t *testing.T) {
	virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		ctx := context.Background()
		lease, err := c.Reserve(ctx, ReserveRequest{Items: one("t/core", 10), TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if lease.Left() <= 50*time.Second || lease.Left() > time.Minute || lease.Fence() == 0 {
			t.Errorf("left %v, fence %d", lease.Left(), lease.Fence())
		}
		op, err := lease.Consume(ctx, Item{"t/core", 4})
		if err != nil {
			t.Fatal(err)
		}
		if op.Number() != 1 || len(op.Items()) != 1 || op.Items()[0] != (Item{"t/core", 4}) || op.Left() <= 0 || op.Left() > time.Second {
			t.Errorf("operation %+v, left %v", op.Items(), op.Left())
		}
		settled, err := op.Settle(ctx, Settlement{Actual: one("t/core", 6)})
		if err != nil || len(settled.Overrun) != 1 || settled.Overrun[0].Amount != 2 {
			t.Errorf("settled %+v, %v", settled, err)
		}
		if valid, left, err := c.CheckFence(ctx, lease.ID(), lease.Fence()); err != nil || !valid || left <= 0 {
			t.Errorf("fence valid %v, left %v, %v", valid, left, err)
		}
		returned, err := lease.Release(ctx)
		if err != nil || len(returned) != 1 || returned[0].Amount != 6 {
			t.Errorf("returned %v, %v", returned, err)
		}
		if got := cluster.Available("t/core"); got != 994 {
			t.Errorf("available %d, want 994", got)
		}
		if !errors.Is(lease.Err(), ErrLeaseReleased) {
			t.Errorf("released lease ended with %v", lease.Err())
		}
		if _, err := lease.Consume(ctx); !errors.Is(err, ReasonStaleFence) {
			t.Errorf("consume after release: %v", err)
		}
	})
}

func TestRefusalError_HasReasonAndQuota(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		_, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 2_000)})
		var refusal *RefusalError
		if !errors.As(err, &refusal) || !errors.Is(err, ReasonNeverFits) || refusal.Quota != "t/core" || refusal.RetryAfter != -1 {
			t.Errorf("got %v", err)
		}
		_, err = c.Reserve(context.Background(), ReserveRequest{Items: one("nowhere", 1)})
		var wrong *RequestError
		if !errors.As(err, &wrong) || !errors.Is(err, ReasonUnknownQuota) {
			t.Errorf("got %v", err)
		}
	})
}

func TestClient_FindsLeaderByOneRedirect(t *testing.T) {
	virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Lead(2)
		for range 5 {
			if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
				t.Fatal(err)
			}
		}
		if asked := []int{cluster.Asked(0), cluster.Asked(1)}; asked[0] != 1 || asked[1] != 0 {
			t.Errorf("asked the followers %v times, want the first once", asked)
		}
	})
}

func TestClient_RedirectLoopEndsInError(t *testing.T) {
	virtual(t, 2, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Lead(-1)
		_, err := c.Reserve(within(t, time.Second), ReserveRequest{Items: one("t/core", 1)})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrClusterAway) || !errors.Is(err, ReasonNoLeader) {
			t.Errorf("got %v", err)
		}
	})
}

func TestClient_LeavesSilentLeaderQuickly(t *testing.T) {
	virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
			t.Fatal(err)
		}
		cluster.Break(0, fakequota.Silent)
		cluster.Lead(1)
		start := time.Now()
		if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 400*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

func TestClient_RepeatsLostRequestUnderSameNumber(t *testing.T) {
	virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Break(0, fakequota.Mute)
		time.AfterFunc(3*time.Second, func() { cluster.Break(0, fakequota.Healthy) })
		if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 7)}); err != nil {
			t.Fatal(err)
		}
		if got := cluster.Executed("reserve"); got != 1 {
			t.Errorf("carried out %d times", got)
		}
		if got := cluster.Available("t/core"); got != 993 {
			t.Errorf("available %d, want 993", got)
		}
	})
}

// TestSession_AcknowledgesNoRequestInFlight: a request whose answer was lost is still repeated after later requests have completed.
func TestSession_AcknowledgesNoRequestInFlight(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.AfterBatch(0, func() { cluster.Break(0, fakequota.Mute) })
		first := make(chan error)
		go func() {
			_, err := c.Reserve(within(t, 30*time.Second), ReserveRequest{Items: one("t/core", 7)})
			first <- err
		}()
		synctest.Wait()
		if cluster.Executed("reserve") != 1 {
			t.Fatal("the first request was not carried out")
		}
		cluster.Break(0, fakequota.Healthy)
		for range 3 { // each acknowledges the finished ones
			if _, err := c.Reserve(within(t, 30*time.Second), ReserveRequest{Items: one("t/core", 1)}); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case err := <-first:
			t.Fatalf("the first request was not in flight meanwhile: %v", err)
		default:
		}
		if err := <-first; err != nil {
			t.Errorf("the first request: %v", err)
		}
		if taken(cluster) != 10 || cluster.Executed("reserve") != 4 {
			t.Errorf("%d taken by %d Reserves", taken(cluster), cluster.Executed("reserve"))
		}
	})
}

func TestBatch_ConcurrentCallsShareOne(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		var wg sync.WaitGroup
		hold := make(chan struct{})
		cluster.AfterBatch(0, func() {
			cluster.AfterBatch(0, func() { <-hold })
			<-hold
		})
		for range 200 {
			wg.Go(func() {
				if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		if sizes := cluster.BatchSizes(); len(sizes) > maxPipelines+2 {
			t.Errorf("200 calls took %d batches: %v", len(sizes), sizes)
		}
		if got := cluster.Sessions(); got != 1 {
			t.Errorf("%d sessions", got)
		}
	})
}

func TestBatch_IsBoundedInBytes(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		var items []Item
		for i := range 64 {
			name := fmt.Sprintf("%0180d", i)
			cluster.Set(name, fakequota.Quota{Usable: 1_000, Available: 1_000})
			items = append(items, Item{name, 1})
		}
		var wg sync.WaitGroup
		hold := make(chan struct{})
		cluster.AfterBatch(0, func() {
			cluster.AfterBatch(0, func() { <-hold })
			<-hold
		})
		for range 300 {
			wg.Go(func() {
				if _, err := c.Reserve(context.Background(), ReserveRequest{Items: items}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		for _, size := range cluster.BatchSizes() {
			if size*64*180 > maxBatchBytes {
				t.Errorf("a batch of %d such commands", size)
			}
		}
	})
}

func TestSession_Expires(t *testing.T) {
	t.Run("a request that was not sent before goes to a new session", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			if err != nil {
				t.Fatal(err)
			}
			cluster.ForgetSessions()
			if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
				t.Error(err)
			}
			cluster.ForgetSessions()
			if _, err := lease.Consume(context.Background()); err != nil {
				t.Error(err)
			}
			if got := cluster.Available("t/core"); got != 998 {
				t.Errorf("available %d, want 998", got)
			}
		})
	})
	t.Run("a Reserve in doubt has an unknown outcome", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
				t.Fatal(err)
			}
			cluster.AfterBatch(0, func() {
				cluster.Break(0, fakequota.Mute)
				time.AfterFunc(time.Second, func() {
					cluster.ForgetSessions()
					cluster.Break(0, fakequota.Healthy)
				})
			})
			_, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			var doubt *UnknownOutcomeError
			if !errors.As(err, &doubt) || !errors.Is(err, ReasonUnknownSession) {
				t.Errorf("got %v", err)
			}
		})
	})
}

// TestBudgets_AreReportedAtOnce: a caller whose budget is full receives that error at once, by name, and not that the cluster is away. It
// can still release its lease.
func TestBudgets_AreReportedAtOnce(t *testing.T) {
	t.Run("no session", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.Break(0, fakequota.Spent)
			start := time.Now()
			_, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			var refused *NotAcceptedError
			if !errors.As(err, &refused) || !errors.Is(err, ReasonCallerBudget) || errors.Is(err, ErrClusterAway) ||
				time.Since(start) > time.Second {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			cluster.Break(0, fakequota.Healthy)
			if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("no lease", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			if err != nil {
				t.Fatal(err)
			}
			cluster.Break(0, fakequota.Spent)
			_, err = c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			var refusal *RefusalError
			if !errors.As(err, &refusal) || !errors.Is(err, ReasonCallerBudget) || refusal.Budget != "leases" || refusal.RetryAfter <= 0 {
				t.Errorf("%v", err)
			}
			if _, err := lease.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestFullDisk_NewRequestsFailUnlessInDoubt: a caller learns at once that no new lease is granted, unless an earlier attempt may have been
// carried out: nobody would hold its lease.
func TestFullDisk_NewRequestsFailUnlessInDoubt(t *testing.T) {
	t.Run("without doubt", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			if err != nil {
				t.Fatal(err)
			}
			cluster.Break(0, fakequota.Full)
			start := time.Now()
			_, err = c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			var refused *NotAcceptedError
			if !errors.As(err, &refused) || !errors.Is(err, ReasonDiskFull) || time.Since(start) > time.Second {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			if _, err := lease.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("in doubt", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.AfterBatch(0, func() {
				cluster.Break(0, fakequota.Mute)
				time.AfterFunc(time.Second, func() { cluster.Break(0, fakequota.Full) })
				time.AfterFunc(3*time.Second, func() { cluster.Break(0, fakequota.Healthy) })
			})
			lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
			if err != nil || lease == nil {
				t.Fatal(err)
			}
			if got := cluster.Executed("reserve"); got != 1 {
				t.Errorf("carried out %d times", got)
			}
		})
	})
}

func TestReserve_WaitsAcrossLeaderChange(t *testing.T) {
	for _, restart := range []bool{false, true} {
		virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.Set("t/core", fakequota.Quota{Usable: 10})
			time.AfterFunc(25*time.Second, func() { cluster.Add("t/core", 5) })
			if restart {
				time.AfterFunc(5*time.Second, func() { cluster.Break(0, fakequota.Silent); cluster.Lead(1) })
			}
			start := time.Now()
			lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 5), Wait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < 25*time.Second || took > 26*time.Second {
				t.Errorf("restart %v: took %v", restart, took)
			}
			if got := cluster.Executed("reserve"); got != 1 || lease.Left() <= 0 {
				t.Errorf("carried out %d times, left %v", got, lease.Left())
			}
		})
	}
}

func TestReserve_CancelledWaitIsWithdrawn(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 10})
		_, err := c.Reserve(within(t, 3*time.Second), ReserveRequest{Items: one("t/core", 5), Wait: time.Minute})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if cluster.Waiting() != 0 {
			t.Error("it still waits")
		}
		if s := c.sessions.open[0]; s.low != s.next {
			t.Errorf("request %d of %d is not finished: the cluster keeps all results after it", s.low, s.next-1)
		}
	})
}

func TestReserve_LateGrantOfCancelledCallIsReturned(t *testing.T) {
	for _, consume := range []bool{false, true} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.AfterBatch(0, func() {
				cluster.Break(0, fakequota.Mute)
				time.AfterFunc(1500*time.Millisecond, func() { cluster.Break(0, fakequota.Healthy) })
			})
			_, err := c.Reserve(within(t, time.Second), ReserveRequest{Items: one("t/core", 5), Consume: consume})
			if _, ok := errors.AsType[*UnknownOutcomeError](err); !ok {
				t.Errorf("got %v", err)
			}
			pass(5 * time.Second)
			synctest.Wait()
			if got := cluster.Available("t/core"); (!consume && got != 1_000) || cluster.Leases() != 0 {
				t.Errorf("consume %v: available %d, %d leases", consume, got, cluster.Leases())
			}
			if got := c.Stats().Returned; got != 1 {
				t.Errorf("returned %d", got)
			}
		})
	}
}

// Regression: callers of a limiter whose cluster was gone hung indefinitely, and their requests accumulated.
func TestClient_ClusterGoneCallsKeepDeadlines(t *testing.T) {
	virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 10), TTL: time.Hour, Consume: true})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			cluster.Break(i, fakequota.Silent)
		}
		limiter := c.Limiter("t/core")
		calls := map[string]func(context.Context) error{
			"reserve": func(ctx context.Context) error {
				_, err := c.Reserve(ctx, ReserveRequest{Items: one("t/core", 1), Wait: time.Minute})
				return err
			},
			"consume": func(ctx context.Context) error { _, err := lease.Consume(ctx, Item{"t/core", 1}); return err },
			"settle": func(ctx context.Context) error {
				_, err := lease.Operation().Settle(ctx, Settlement{Final: true})
				return err
			},
			"renew":  func(ctx context.Context) error { return lease.Renew(ctx, 0) },
			"report": func(ctx context.Context) error { _, err := lease.Operation().Report(ctx); return err },
			"quota":  func(ctx context.Context) error { _, err := c.Quota(ctx, "t/core"); return err },
			"wait":   limiter.Wait,
			"fence":  func(ctx context.Context) error { _, _, err := c.CheckFence(ctx, 1, 1); return err },
		}
		var wg sync.WaitGroup
		for name, call := range calls {
			for range 50 {
				wg.Go(func() {
					start := time.Now()
					err := call(within(t, 700*time.Millisecond))
					if err == nil || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v", name, err)
					}
					if took := time.Since(start); took > 710*time.Millisecond {
						t.Errorf("%s took %v", name, took)
					}
				})
			}
		}
		wg.Wait()
		pass(time.Minute)
		synctest.Wait()
		if !c.queue.idle() {
			t.Error("requests of callers that left are still kept")
		}
		start := time.Now()
		if _, err := c.Quotas(context.Background(), ""); !errors.Is(err, ErrClusterAway) || time.Since(start) > 11*time.Second {
			t.Errorf("without a deadline: %v after %v", err, time.Since(start))
		}
	})
}

func TestClose_EndsCallsInProgress(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/core", fakequota.Quota{Usable: 10})
		ended := make(chan error, 1)
		go func() {
			_, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 5), Wait: time.Minute})
			ended <- err
		}()
		synctest.Wait()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("Close took %v", took)
		}
		if _, err := c.Reserve(context.Background(), ReserveRequest{}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestBatch_MalformedCommandFailsAlone(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				items := one("t/core", 1)
				if i == 7 {
					items = nil
				}
				_, err := c.Reserve(context.Background(), ReserveRequest{Items: items})
				if (i == 7) != errors.Is(err, ReasonInvalid) {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestNew_RefusesBadSettings(t *testing.T) {
	for name, f := range map[string]func() (*Client, error){
		"no address":  func() (*Client, error) { return New(nil) },
		"not a port":  func() (*Client, error) { return New([]string{"localhost"}) },
		"not a URL":   func() (*Client, error) { return New([]string{"ftp://x:1"}) },
		"long holder": func() (*Client, error) { return New([]string{"x:1"}, WithHolder(string(make([]byte, 129)))) },
		"not UTF-8":   func() (*Client, error) { return New([]string{"x:1"}, WithHolder("\xff")) },
		"short ttl":   func() (*Client, error) { return New([]string{"x:1"}, WithTTL(time.Millisecond)) },
		"class":       func() (*Client, error) { return New([]string{"x:1"}, WithClass(9)) },
		"timeout":     func() (*Client, error) { return New([]string{"x:1"}, WithCallTimeout(0)) },
	} {
		if c, err := f(); err == nil || c != nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestBatch_SecondPipelineIsAsLargeAsFirst: with one command in flight the next leaves at once; with many in flight, a few wait for them.
func TestBatch_SecondPipelineIsAsLargeAsFirst(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		var wg sync.WaitGroup
		hold := make(chan struct{})
		reserve := func(calls int) {
			for range calls {
				wg.Go(func() {
					if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		cluster.AfterBatch(0, func() { cluster.AfterBatch(0, func() { <-hold }); <-hold })
		reserve(1)
		reserve(1)
		if got := len(cluster.BatchSizes()); got != 2 {
			t.Fatalf("%d batches on their way for two calls, one after the other", got)
		}
		reserve(100)
		first := hold
		hold = make(chan struct{})
		cluster.AfterBatch(0, func() { <-hold })
		close(first) // both pipelines return; one takes all commands
		synctest.Wait()
		reserve(3)
		if sizes := cluster.BatchSizes(); len(sizes) != 3 || sizes[2] != 100 {
			t.Fatalf("batches of %v; three calls next to a hundred wait for them", sizes)
		}
		reserve(97)
		if sizes := cluster.BatchSizes(); len(sizes) != 4 || sizes[3] != 100 {
			t.Fatalf("batches of %v; a hundred calls next to a hundred go", sizes)
		}
		close(hold)
		wg.Wait()
	})
}
