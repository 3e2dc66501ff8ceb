package client

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// Regression: a string that cannot be encoded was retried indefinitely, and with it its whole batch.
func TestBatch_InvalidUTF8StopsNoOtherCall(t *testing.T) {
	const bad = "t/\xff"
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		ctx := within(t, time.Minute)
		lease, err := c.Reserve(ctx, ReserveRequest{Items: one("t/core", 10), Consume: true})
		if err != nil {
			t.Fatal(err)
		}
		errs := map[string]error{}
		_, errs["a quota"] = c.Reserve(ctx, ReserveRequest{Items: one(bad, 1)})
		_, errs["a holder"] = c.Reserve(ctx, ReserveRequest{Items: one("t/core", 1), Holder: bad})
		_, errs["consume"] = lease.Consume(ctx, Item{bad, 1})
		_, errs["release"] = lease.Release(ctx, Item{bad, 1})
		_, errs["settle"] = lease.Operation().Settle(ctx, Settlement{Actual: one(bad, 1)})
		_, errs["report"] = lease.Operation().Report(ctx, Signal{Quota: bad})
		_, errs["read"] = c.Quota(ctx, bad)
		_, errs["list"] = c.Quotas(ctx, bad)
		for name, err := range errs {
			if !errors.As(err, new(*RequestError)) || !errors.Is(err, ReasonInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// Commands without a waiting caller are not checked first: the batch that one spoils is halved.
		for range maxPipelines {
			c.send(time.Hour, (&Operation{lease: lease, number: 1}).settlement(Settlement{Actual: one(bad, 1)}))
			synctest.Wait()
		}
		if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
			t.Errorf("an innocent call: %v", err)
		}
	})
}

// refusing is a proxy in front of the nodes: it refuses the next requests, next of them.
type refusing struct {
	*fakequota.Cluster
	next *atomic.Int64
}

func (r refusing) Do(request *http.Request) (*http.Response, error) {
	if r.next.Add(-1) >= 0 {
		recorder := httptest.NewRecorder()
		http.Error(recorder, "no", http.StatusNotFound)
		return recorder.Result(), nil
	}
	return r.Cluster.Do(request)
}

// Regression: a Reserve that may have been granted was reported as without effect, once a retry met a proxy without a
// backend or a rotated token.
func TestReserve_ProxyRefusalKeepsOutcomeUnknown(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cluster, next := full(), &atomic.Int64{}
			c := connected(t, cluster, WithHTTPClient(refusing{cluster, next}))
			defer func() { _ = c.Close() }()
			request := ReserveRequest{Items: one("t/core", 5)}
			refuse := func() {
				next.Store(2)
				time.AfterFunc(5*time.Second, func() { cluster.Break(0, fakequota.Healthy) })
			}
			if waits {
				// Reserve waits in the queue when the proxy refuses its probe and its next long poll.
				cluster.Set("t/core", fakequota.Quota{Usable: 10})
				request.Wait = time.Minute
				time.AfterFunc(9*time.Second, refuse)
			} else {
				cluster.AfterBatch(0, func() { cluster.Break(0, fakequota.Mute); refuse() })
			}
			_, err := c.Reserve(context.Background(), request)
			if !errors.As(err, new(*UnknownOutcomeError)) || errors.As(err, new(*RequestError)) || !errors.Is(err, ReasonInvalid) {
				t.Errorf("waits %v: %T %v", waits, err, err)
			}
			if got := c.Stats().UnknownOutcomes; got != 1 {
				t.Errorf("waits %v: %d unknown outcomes", waits, got)
			}
			pass(10 * time.Second)
			if cluster.Waiting() != 0 {
				t.Errorf("waits %v: it still waits", waits)
			}
		})
	}
}

// Regression: a partial Release was carried out twice after its answer and session were lost.
func TestRelease_OfPartRunsOnce(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 10), TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		cluster.AfterBatch(0, func() {
			cluster.Break(0, fakequota.Mute)
			time.AfterFunc(time.Second, func() { cluster.ForgetSessions(); cluster.Break(0, fakequota.Healthy) })
		})
		_, err = lease.Release(context.Background(), Item{"t/core", 3})
		if !errors.As(err, new(*UnknownOutcomeError)) || taken(cluster) != 7 {
			t.Errorf("%v; %d are taken, want 7", err, taken(cluster))
		}
	})
}

// TestExpiredSession_RepeatsSafeRequests: a Renew whose answer and session were lost is repeated under a new session.
func TestExpiredSession_RepeatsSafeRequests(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		lease, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 10), TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		cluster.AfterBatch(0, func() {
			cluster.Break(0, fakequota.Mute)
			time.AfterFunc(time.Second, func() { cluster.ForgetSessions(); cluster.Break(0, fakequota.Healthy) })
		})
		if err := lease.Renew(context.Background(), 2*time.Hour); err != nil || lease.Left() < time.Hour {
			t.Errorf("%v, left %v", err, lease.Left())
		}
	})
}

// Regression: after a Consume of unknown outcome the client reported its operation as unfinished indefinitely, so the
// cluster kept the records of all later operations.
func TestConsume_UnknownOutcomeDoesNotStopLowWater(t *testing.T) {
	for name, fault := range map[string]fakequota.Fault{"not carried out": fakequota.Silent, "carried out": fakequota.Mute} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			ctx := context.Background()
			lease, err := c.Reserve(ctx, ReserveRequest{Items: one("t/core", 500), TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			cluster.Break(0, fault)
			if _, err := lease.Consume(within(t, 500*time.Millisecond), Item{"t/core", 1}); !errors.As(err, new(*UnknownOutcomeError)) {
				t.Errorf("%s: %v", name, err)
			}
			cluster.Break(0, fakequota.Healthy)
			pass(5 * time.Second)
			if cluster.Executed("settle") == 0 {
				t.Errorf("%s: nobody settles what may have been consumed", name)
			}
			for range 10 {
				op, err := lease.Consume(ctx, Item{"t/core", 1})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := op.Settle(ctx, Settlement{Final: true}); err != nil {
					t.Fatal(err)
				}
			}
			if got := lease.lowWater(); got != 12 {
				t.Errorf("%s: low water %d, want 12", name, got)
			}
		})
	}
}
