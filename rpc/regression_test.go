package rpc_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Tests named after the defects that they guard against: users of other rate limiters met them, and reported them where named.

// TestReserve_AtThreeNodesGrantsLimitOnce: callers spread over all nodes share one limit, instead of a limit at each node (maximhq/bifrost
// 3547, BerriAI/litellm 40291). Without a policy they can use all of it (BerriAI/litellm 19092).
func TestReserve_AtThreeNodesGrantsLimitOnce(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	const limit = 100
	const quotas = `{"quotas":[{"name":"w","window":{"limit":100,"every":"month"}}]}`
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", quotas); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	granted := reserveAtOnce(t, nodes, 8, 30, []*quotav1.Item{{Quota: "w"}})
	if granted != limit {
		t.Errorf("%d were granted of %d", granted, limit)
	}
}

// TestReserve_TwoBottlenecksBindTogether: concurrent requests for two quotas get no more than either has left. A refused request takes
// nothing of the other quota (envoyproxy/ai-gateway 680, BerriAI/litellm 34732).
func TestReserve_TwoBottlenecksBindTogether(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	const quotas = `{"quotas":[{"name":"wide","window":{"limit":100,"every":"month"}},` +
		`{"name":"narrow","window":{"limit":20,"every":"month"}}]}`
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", quotas); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if both := reserveAtOnce(t, nodes, 8, 10, []*quotav1.Item{{Quota: "wide"}, {Quota: "narrow"}}); both != 20 {
		t.Errorf("%d have both, 20 fit", both)
	}
	if rest := reserveAtOnce(t, nodes, 8, 20, []*quotav1.Item{{Quota: "wide"}}); rest != 80 {
		t.Errorf("%d of the wide one were left, not 80: refused requests took some", rest)
	}
}

// reserveAtOnce sends Reserve-and-consume from so many callers at each node, so many times each, and counts the grants.
func reserveAtOnce(t *testing.T, nodes []*testNode, callers, times int, items []*quotav1.Item) int64 {
	t.Helper()
	var granted atomic.Int64
	var all sync.WaitGroup
	for i, n := range nodes {
		api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url, persistent)
		for caller := range callers {
			all.Go(func() {
				for range times {
					res, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{
						Holder: fmt.Sprintf("holder-%d-%d", i, caller), Consume: true, Ttl: durationpb.New(time.Hour), Items: items,
					})
					if err != nil {
						t.Error(err)
						return
					}
					if res.GetLease() != nil {
						granted.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	return granted.Load()
}
