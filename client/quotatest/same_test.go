package quotatest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// sample does something with a client and returns the result as text. pass advances time.
type sample func(ctx context.Context, c *client.Client, pass func(time.Duration)) string

// reported describes an error by the parts that programs can inspect.
func reported(err error) string {
	if err == nil {
		return "ok"
	}
	if refusal, ok := errors.AsType[*client.RefusalError](err); ok {
		waits := refusal.RetryAfter >= 0
		return fmt.Sprintf("refused: %v of %s, %d available, helps to wait: %v", refusal.Reason, refusal.Quota, refusal.Available, waits)
	}
	if wrong, ok := errors.AsType[*client.RequestError](err); ok {
		return fmt.Sprintf("wrong: %v, about %s %s", wrong.Reason, wrong.Quota, wrong.Field)
	}
	return err.Error()
}

func samples() map[string]sample {
	return map[string]sample{
		"a lease lives": func(ctx context.Context, c *client.Client, _ func(time.Duration)) string {
			lease, err := c.Reserve(ctx, client.ReserveRequest{Items: one("life", 10), TTL: time.Minute})
			if err != nil {
				return reported(err)
			}
			op, err := lease.Consume(ctx, client.Item{Quota: "life", Amount: 4})
			if err != nil {
				return reported(err)
			}
			settled, err := op.Settle(ctx, client.Settlement{Actual: one("life", 5)})
			if err != nil {
				return reported(err)
			}
			returned, err := lease.Release(ctx)
			_, after := lease.Consume(ctx)
			return fmt.Sprint(settled.Overrun, returned, reported(err), "; ", reported(after))
		},
		"it is used up": func(ctx context.Context, c *client.Client, _ func(time.Duration)) string {
			_, first := c.Reserve(ctx, client.ReserveRequest{Items: one("short", 4), Consume: true})
			_, second := c.Reserve(ctx, client.ReserveRequest{Items: one("short", 2)})
			_, never := c.Reserve(ctx, client.ReserveRequest{Items: one("short", 6), Wait: time.Minute})
			return fmt.Sprint(reported(first), "; ", reported(second), "; ", reported(never))
		},
		"the request is wrong": func(ctx context.Context, c *client.Client, _ func(time.Duration)) string {
			_, unknown := c.Reserve(ctx, client.ReserveRequest{Items: one("nowhere", 1)})
			_, negative := c.Reserve(ctx, client.ReserveRequest{Items: one("life", -1)})
			return reported(unknown) + "; " + reported(negative)
		},
		"a provider refuses": func(ctx context.Context, c *client.Client, _ func(time.Duration)) string {
			lease, err := c.Reserve(ctx, client.ReserveRequest{Items: one("closed", 1), Consume: true})
			if err != nil {
				return reported(err)
			}
			wait := time.Minute
			_, err = lease.Operation().Report(ctx, client.Signal{Quota: "closed", Cause: client.CauseSaturated, RetryAfter: &wait})
			_, after := c.Reserve(ctx, client.ReserveRequest{Items: one("closed", 1)})
			return reported(err) + "; " + reported(after)
		},
		"a slot comes back": func(ctx context.Context, c *client.Client, pass func(time.Duration)) string {
			lease, err := c.Reserve(ctx, client.ReserveRequest{Items: one("streams", 1), TTL: time.Second})
			if err != nil {
				return reported(err)
			}
			_, second := c.Reserve(ctx, client.ReserveRequest{Items: one("streams", 1)})
			pass(3 * time.Second)
			_, third := c.Reserve(ctx, client.ReserveRequest{Items: one("streams", 1), Wait: time.Minute})
			return fmt.Sprint(reported(second), "; ", reported(lease.Renew(ctx, 0)), "; ", reported(third))
		},
		"a period passes": func(ctx context.Context, c *client.Client, pass func(time.Duration)) string {
			_, first := c.Reserve(ctx, client.ReserveRequest{Items: one("second", 3), Consume: true})
			pass(3 * time.Second)
			_, second := c.Reserve(ctx, client.ReserveRequest{Items: one("second", 3), Consume: true, Wait: time.Minute})
			return reported(first) + "; " + reported(second)
		},
	}
}

func quotas() []*quotav1.Quota {
	return []*quotav1.Quota{
		quotatest.Rate("life", 100, time.Hour), quotatest.Rate("short", 5, time.Hour), quotatest.Rate("closed", 5, time.Hour),
		quotatest.Slots("streams", 1), quotatest.Rate("second", 3, time.Second),
	}
}

// Programs see the same behaviour of a cluster of this package as of a node with the machine's clock, on a network.
func TestCluster_AnswersAsARealNode(t *testing.T) {
	here := quotatest.New(t, quotas()...)
	address := startNode(t)
	there, err := client.New([]string{address}, client.WithHolder("picard"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = there.Close() })
	mine := here.Client(client.WithHolder("picard"))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	wanted := map[string]chan string{} // concurrently: some wait in real time
	for name, run := range samples() {
		want := make(chan string, 1)
		wanted[name] = want
		go func() { want <- run(ctx, there, func(d time.Duration) { <-time.After(d) }) }()
	}
	for name, run := range samples() {
		got := run(ctx, mine, here.Clock().Advance)
		t.Logf("%s: %s", name, got)
		if want := <-wanted[name]; got != want {
			t.Errorf("%s:\n%s\na real node:\n%s", name, got, want)
		}
	}
}

// startNode starts a node like quotad does, and returns its API's address.
func startNode(t *testing.T) string {
	t.Helper()
	addresses, err := loopback.Free(2)
	if err != nil {
		t.Fatal(err)
	}
	config := raftnode.DefaultConfig()
	config.ID, config.RaftAddress, config.APIAddress, config.DataDir = "real", addresses[0], addresses[1], t.TempDir()
	config.Peers = []raftnode.Peer{{ID: config.ID, RaftAddress: config.RaftAddress, APIAddress: config.APIAddress}}
	node, err := raftnode.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	api, err := rpc.New(rpc.Config{Node: node})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", config.APIAddress)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewHTTPServer(api.Handler(), nil, hclog.NewNullLogger())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = api.Drain(ctx)
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if err := node.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the node leads", func() bool {
		_, _, leads := node.Leader()
		return leads
	})
	operator := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	admin := quotav1connect.NewAdminServiceClient(operator, "http://"+config.APIAddress)
	if _, err := admin.ApplyQuotas(t.Context(), &quotav1.ApplyQuotasRequest{Quotas: quotas()}); err != nil {
		t.Fatal(err)
	}
	return config.APIAddress
}
