package rpc_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// follows makes a node follow the limits of its state until the test's end, as a process does.
func follows(t *testing.T, n *testNode) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func(server *rpc.Server) {
		defer close(ended)
		server.FollowLimits(ctx)
	}(n.server)
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// capacities are those of a node's budgets.
type capacities struct{ calls, streams, connections int64 }

func capacitiesOf(t *testing.T, admin quotav1connect.AdminServiceClient) capacities {
	t.Helper()
	status, err := admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
	if err != nil {
		return capacities{}
	}
	of := func(name string) int64 {
		i := slices.IndexFunc(status.NodeBudgets, func(b *quotav1.Budget) bool { return b.Name == name })
		return status.NodeBudgets[i].Capacity
	}
	return capacities{of("calls"), of("streams"), of("connections")}
}

// The lowest limits, and the sizes that their budgets show: a sixteenth of the calls is for calls about held amounts, a fifth of the
// connections for anonymous callers.
var (
	lowest      = &quotav1.Limits{MaxCalls: new(int64(64)), MaxStreams: new(int64(16)), MaxConnections: new(int64(64))}
	lowestSizes = capacities{60, 16, 52}
)

// TestFollowLimits_AtEveryNode: all nodes follow limits that were set at one of them, also a node that starts later.
func TestFollowLimits_AtEveryNode(t *testing.T) {
	t.Parallel() // mostly waiting
	nodes := newNodes(t, 3)
	var admins []quotav1connect.AdminServiceClient
	for _, n := range nodes {
		follows(t, n)
		admins = append(admins, quotav1connect.NewAdminServiceClient(h2c(t), n.url))
	}
	for i, admin := range admins {
		if got := capacitiesOf(t, admin); got != (capacities{22_500, 4096, 8000}) {
			t.Errorf("node %d has %+v at first", i, got)
		}
	}
	eventually(t, "the limits are set", func() bool {
		res, err := admins[0].SetLimits(t.Context(), &quotav1.SetLimitsRequest{Limits: lowest})
		return err == nil && res.Limits.GetMaxCalls() == 64 && res.Limits.GetMaxStreams() == 16 && res.Limits.GetMaxConnections() == 64
	})
	for _, admin := range admins {
		eventually(t, "a node follows", func() bool { return capacitiesOf(t, admin) == lowestSizes })
	}
	nodes[1].kill()
	nodes[1].again(t)
	follows(t, nodes[1])
	eventually(t, "a node follows that starts again", func() bool { return capacitiesOf(t, admins[1]) == lowestSizes })
}

// TestFollowLimits_LeaveOperatorsAWayIn: at the lowest limits an operator can raise them, next to a caller that has its part of
// everything, or its part of larger budgets from before. That holds with tokens, and without them from the same address.
func TestFollowLimits_LeaveOperatorsAWayIn(t *testing.T) {
	for name, c := range map[string]struct{ tokens, filledBefore bool }{
		"with tokens":               {true, false},
		"with tokens, shrinking":    {true, true},
		"without tokens":            {false, false},
		"without tokens, shrinking": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var n *testNode
			var secrets map[string]string
			if c.tokens {
				n, secrets = guarded(t, func(*rpc.Config) {})
			} else {
				n = newNodes(t, 1)[0]
				const quota = `{"quotas":[{"name":"s","slots":{"limit":1}}]}`
				if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", quota); status != http.StatusOK {
					t.Fatalf("%d %s", status, body)
				}
			}
			follows(t, n)
			lower := func() {
				_, admin := apisAs(t, n.url, secrets["operator"])
				if _, err := admin.SetLimits(t.Context(), &quotav1.SetLimitsRequest{Limits: lowest}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the node follows", func() bool { return capacitiesOf(t, admin) == lowestSizes })
			}
			if c.filledBefore {
				fillNode(t, n, secrets["hostile"], 300)
				lower()
				fillNode(t, n, secrets["hostile"], 0)
			} else {
				lower()
				fillNode(t, n, secrets["hostile"], 0)
			}
			_, operator := apisAs(t, n.url, secrets["operator"]) // over a connection of its own
			within, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			res, err := operator.SetLimits(within, &quotav1.SetLimitsRequest{Limits: &quotav1.Limits{MaxCalls: new(int64(24_000))}})
			if err != nil || res.Limits.GetMaxCalls() != 24_000 {
				t.Fatalf("%v %v", res, err)
			}
			eventually(t, "the node follows again", func() bool { return capacitiesOf(t, operator).calls == 22_500 })
		})
	}
}

// fillNode makes a caller send that many waiting calls, or as many as it can get. It opens streams until none is left, and more silent
// connections than the caller may have.
func fillNode(t *testing.T, n *testNode, secret string, calls int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	api, admin := apisAs(t, n.url, secret)
	waits := func(refused chan<- error) {
		_, err := api.Reserve(ctx, &quotav1.ReserveRequest{
			Holder: "h", Items: []*quotav1.Item{{Quota: "s"}}, Wait: durationpb.New(10 * time.Minute),
		})
		if err != nil && ctx.Err() == nil {
			refused <- err
		}
	}
	refused := make(chan error, max(calls, 100))
	for range cap(refused) {
		go waits(refused)
	}
	if calls > 0 {
		eventually(t, "its calls wait", func() bool {
			status, err := admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
			return err == nil && status.Waiting >= int64(calls-1)
		})
	} else {
		for beyond := 0; beyond < 60; { // fewer than half of a hundred stay
			err := <-refused
			switch info := infoOf(err); {
			case info == nil && (connect.CodeOf(err) == connect.CodeUnavailable || connect.CodeOf(err) == connect.CodeCanceled),
				info.GetBudget() == "processor":
				// Its connection was closed for another one, perhaps during a write, or the machine is busy: neither is the node's bound.
				go waits(refused)
			case info.GetReason() != quotav1.Reason_REASON_CALLER_BUDGET || info.Budget != "calls" && info.Budget != "connections":
				t.Fatalf("beyond its part: %v", err)
			default:
				beyond++
			}
		}
	}
	for i := range 20 {
		client := &http.Client{Transport: withToken{h2c(t).Transport, secret}}
		stream, err := quotav1connect.NewQuotaServiceClient(client, n.url).Watch(ctx, &quotav1.WatchRequest{QuotaPrefix: fmt.Sprint("none", i)})
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = stream.Close() })
	}
	for range 100 {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.config.APIAddress)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}
