package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestProcessor_LimitsBusiestCaller: on a busy node, a caller with many calls at once leaves another caller, and the operator, nearly as
// many as it gets itself.
func TestProcessor_LimitsBusiestCaller(t *testing.T) {
	n, secrets := guarded(t, rpc.AlwaysBusy)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	warm := time.Now().Add(2 * time.Second)
	var hostile, other atomic.Int64
	var wg sync.WaitGroup
	call := func(name string, counted *atomic.Int64, may bool) {
		api, _ := apisAs(t, n.url, secrets[name])
		for ctx.Err() == nil {
			// Without the deadline: the node would end a call by it a little before this side notices.
			_, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: name, Items: []*quotav1.Item{{Quota: "t/core"}}, Consume: true})
			if err != nil && !may {
				t.Error(err)
				return
			}
			if time.Now().After(warm) {
				counted.Add(1)
			}
		}
	}
	for range 64 {
		wg.Go(func() { call("hostile", &hostile, true) })
	}
	wg.Go(func() { call("other", &other, false) })
	_, operator := apisAs(t, n.url, secrets["operator"])
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil {
		if _, err := operator.OverrideQuota(t.Context(), &quotav1.OverrideQuotaRequest{
			Name: "t/core", Limit: new(int64(1 << 40)), Duration: durationpb.New(time.Minute),
		}); err != nil {
			t.Fatal(err)
		}
		<-pace.C
	}
	wg.Wait()
	// In addition, a caller has a fiftieth of the processors' time: at most 800 calls a second with two of them.
	least := int64(2 * 0.02 * float64(runtime.GOMAXPROCS(0)) / 50e-6)
	if hostile.Load() > 4*other.Load()+least {
		t.Errorf("the hostile caller had %d calls, the other one %d", hostile.Load(), other.Load())
	}
	res, err := operator.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range res.NodeBudgets {
		if b.Name == "processor" && (b.Capacity == 0 || b.Minimum == 0) {
			t.Errorf("%v", b)
		}
	}
}

// TestOps_HealthDuringAnonymousFlood: a call that would wait too long for its turn is refused after a while, with the time for a retry.
// Meanwhile both ports answer health and metrics to everybody.
func TestOps_HealthDuringAnonymousFlood(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	n, secrets := guarded(t, rpc.AlwaysBusy)
	ops := httptest.NewServer(n.server.OpsHandler(false))
	t.Cleanup(ops.Close)
	_, operator := apisAs(t, n.url, secrets["operator"])
	poll := func() {
		if _, err := operator.GetStatus(t.Context(), &quotav1.GetStatusRequest{}); err != nil {
			t.Error(err)
		}
	}
	poll()
	var refused atomic.Int64
	var wg sync.WaitGroup
	// Many calls on few connections flood the processors. An address with many connections would lose some of them.
	flood := func() {
		anonymous := h2c(t)
		for range 200 {
			wg.Go(func() {
				for refused.Load() == 0 && t.Context().Err() == nil {
					status, body, err := fetch(t, anonymous, n.url+"/elsewhere")
					if err != nil {
						t.Error(err)
						return
					}
					if strings.Contains(body, `"budget":"processor"`) {
						refused.Add(1)
						if status != http.StatusTooManyRequests || !strings.Contains(body, `"notAccepted":true`) || !strings.Contains(body, `"retryAfter"`) {
							t.Errorf("%d %s", status, body)
						}
					}
				}
			})
		}
	}
	flood()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	// How many calls wait for longer than they may depends on the cost of a call here: floods are added until one does.
	const most = 10
	for began, floods := time.Now(), 1; refused.Load() == 0; {
		if floods < most && time.Since(began) > time.Duration(floods)*processor.Patience {
			flood()
			floods++
		}
		if time.Since(began) > 2*most*processor.Patience {
			refused.Add(1) // ends the others
			t.Error("none was refused")
		}
		poll()
		for _, url := range []string{
			n.url + "/livez", n.url + "/readyz", n.url + "/metrics", ops.URL + "/livez", ops.URL + "/readyz",
			ops.URL + "/metrics",
		} {
			if status, body := get(t, url); status != http.StatusOK {
				t.Errorf("%s: %d %.200s", url, status, body)
			}
		}
		if status, body := get(t, n.url+"/metrics", "Authorization", "Bearer "+secrets["operator"]); strings.Contains(body,
			`"budget":"processor"`) {
			t.Errorf("an operator's metrics: %d %.200s", status, body)
		}
		<-pace.C
	}
	wg.Wait()
}

// fetch gets a page.
func fetch(t *testing.T, client *http.Client, url string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	all, err := io.ReadAll(res.Body)
	return res.StatusCode, string(all), err
}

// TestWatch_SendsGatheredEvents: events that are gathered for one write are sent even if no event that the caller wants follows.
func TestWatch_SendsGatheredEvents(t *testing.T) {
	for name, change := range map[string][]func(*rpc.Config){"idle": nil, "busy": {rpc.AlwaysBusy}} { // in any order
		t.Run(name, func(t *testing.T) {
			n := newNodes(t, 1, change...)[0]
			if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
				`{"quotas":[{"name":"t/many","slots":{"limit":1000}}]}`); status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			const wanted = 100
			for i := range wanted + 50 {
				holder := "a"
				if i >= wanted {
					holder = "b"
				}
				if status, body := post(t, n.url, reservePath, fmt.Sprintf(`{"holder":%q,"items":[{"quota":"t/many"}]}`,
					holder)); status != http.StatusOK {
					t.Fatalf("%d %s", status, body)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stream, err := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url).Watch(ctx,
				&quotav1.WatchRequest{FromIndex: oldest(t, n), Holder: "a"})
			if err != nil {
				t.Fatal(err)
			}
			last := uint64(0)
			for granted := 0; granted < wanted; {
				if !stream.Receive() {
					t.Fatalf("after %d: %v", granted, stream.Err())
				}
				message := stream.Msg()
				if message.Meta.Index <= last {
					t.Fatalf("%d after %d", message.Meta.Index, last)
				}
				last = message.Meta.Index
				for _, e := range message.Events {
					if e.Kind == quotav1.EventKind_EVENT_KIND_GRANTED {
						granted++
					}
				}
			}
			cancel()
			_ = stream.Close()
		})
	}
}

// oldest returns the first index whose events a node has.
func oldest(t *testing.T, n *testNode) uint64 {
	t.Helper()
	_, err := n.node.Watch(1)
	if compacted, ok := errors.AsType[*raftnode.CompactedError](err); ok {
		return compacted.Oldest
	}
	return 1
}
