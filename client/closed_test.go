package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// TestLease_TellsThatAnItemClosed: by the next renewal, by the answer to a Consume, and by the end of the lease.
func TestLease_TellsThatAnItemClosed(t *testing.T) {
	reserved := func(t *testing.T, cluster *fakequota.Cluster, c *Client) *Lease {
		t.Helper()
		cluster.Set("t/rate", fakequota.Quota{Usable: 100, Available: 100})
		lease, err := c.Reserve(context.Background(), ReserveRequest{
			Items: []Item{{Quota: "t/core", Amount: 5}, {Quota: "t/rate", Amount: 5}}, TTL: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-lease.ItemClosed():
			t.Fatal("an item is closed from the start")
		default:
		}
		return lease
	}
	closed := func(t *testing.T, lease *Lease, want ...string) {
		t.Helper()
		select {
		case <-lease.ItemClosed():
		case <-time.After(2 * time.Minute):
			t.Fatal("nobody is told")
		}
		if got := lease.ClosedItems(); !slices.Equal(got, want) {
			t.Fatalf("closed are %v, want %v", got, want)
		}
	}
	t.Run("renewed", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			lease := reserved(t, cluster, c)
			lease.KeepAlive()
			cluster.CloseWindow("t/core")
			closed(t, lease, "t/core")
			if lease.Err() != nil {
				t.Fatalf("the lease has ended: %v", lease.Err())
			}
		})
	})
	t.Run("consumed", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			lease := reserved(t, cluster, c)
			cluster.CloseWindow("t/core")
			if _, err := lease.Consume(context.Background()); !errors.Is(err, ItemClosed) {
				t.Fatalf("consumed all: %v", err)
			}
			closed(t, lease, "t/core")
			if _, err := lease.Consume(context.Background(), Item{Quota: "t/rate", Amount: 5}); err != nil {
				t.Fatalf("what is left: %v", err)
			}
		})
	})
	t.Run("ended", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			lease := reserved(t, cluster, c)
			if _, err := lease.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
			closed(t, lease)
		})
	})
}
