package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// Regression: a string that the wire cannot carry was sent again for ever, and with it the batch that it travelled in.
func TestAStringThatIsNotUTF8StopsNobodyElse(t *testing.T) {
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
			if !errors.As(err, new(*RequestError)) || !errors.Is(err, Invalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// What nobody waits for is not looked at before: the batch that it spoils is halved.
		for range maxLanes {
			c.send(time.Hour, (&Operation{lease: lease, number: 1}).settlement(Settlement{Actual: one(bad, 1)}))
			synctest.Wait()
		}
		if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)}); err != nil {
			t.Errorf("an innocent call: %v", err)
		}
	})
}
