package client

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/quotad/quotad/client/internal/fakequota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// virtual runs a test with a cluster and a client in virtual time, and closes the client at the end.
func virtual(t *testing.T, nodes int, f func(t *testing.T, cluster *fakequota.Cluster, c *Client), options ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cluster := fakequota.New(nodes)
		cluster.Set("t/core", fakequota.Quota{Usable: 1_000, Available: 1_000})
		c := connected(t, cluster, options...)
		defer func() { _ = c.Close() }()
		f(t, cluster, c)
	})
}

func connected(t *testing.T, cluster *fakequota.Cluster, options ...Option) *Client {
	t.Helper()
	all := []Option{WithHTTPClient(cluster), WithHolder("picard"), WithLogger(slog.New(slog.DiscardHandler))}
	c, err := New(cluster.Addresses(), append(all, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func one(quota string, n int64) []Item { return []Item{{Quota: quota, Amount: n}} }

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }
