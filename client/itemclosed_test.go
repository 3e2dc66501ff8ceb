package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestLease_ReportsClosedItem: by the next renewal, by the answer to a Consume, and when the lease ends.
func TestLease_ReportsClosedItem(t *testing.T) {
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
			t.Fatal("nobody learns of it")
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
			if _, err := lease.Consume(context.Background()); !errors.Is(err, ReasonItemClosed) {
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

// TestItemClosed_AtTheFirstEnd: the channel closes at the first end of several items that end before their lease.
func TestItemClosed_AtTheFirstEnd(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		item := func(quota string, left time.Duration) *quotav1.GrantedItem {
			return &quotav1.GrantedItem{Quota: quota, Amount: 1, ExpiresIn: durationpb.New(left)}
		}
		now := time.Now()
		lease := newLease(c, &quotav1.Lease{
			ExpiresIn: durationpb.New(time.Minute),
			Items:     []*quotav1.GrantedItem{item("later", 900*time.Millisecond), item("first", 300*time.Millisecond), item("never", time.Minute)},
		}, stamp{sent: now, received: now})
		<-lease.ItemClosed()
		if took, closed := time.Since(now), lease.ClosedItems(); took > 300*time.Millisecond || !slices.Equal(closed, []string{"first"}) {
			t.Errorf("after %v closed are %v", took, closed)
		}
	})
}
