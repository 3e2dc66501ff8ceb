package rpc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// largeLeases makes leases of 64 items with long names, some 10 KB each, and returns how many.
func largeLeases(t *testing.T, operator quotav1connect.AdminServiceClient, holder quotav1connect.QuotaServiceClient) int {
	t.Helper()
	apply, reserve := &quotav1.ApplyQuotasRequest{}, &quotav1.ReserveRequest{Holder: "h", Ttl: durationpb.New(time.Hour)}
	for i := range 64 {
		name := fmt.Sprintf("q%02d-%s", i, strings.Repeat("x", 100))
		apply.Quotas = append(apply.Quotas, &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Rate{
			Rate: &quotav1.Rate{Limit: 1_000_000, Per: durationpb.New(time.Hour)},
		}})
		reserve.Items = append(reserve.Items, &quotav1.Item{Quota: name, Amount: new(int64(1))})
	}
	if _, err := operator.ApplyQuotas(t.Context(), apply); err != nil {
		t.Fatal(err)
	}
	const leases = 100
	for range leases {
		if res, err := holder.Reserve(t.Context(), reserve); err != nil || res.GetLease() == nil {
			t.Fatal(res, err)
		}
	}
	return leases
}

// TestPages_EndByBytes: a page of large records ends before it has the requested number, and the next pages have all the others.
func TestPages_EndByBytes(t *testing.T) {
	n, secrets := guarded(t, func(*rpc.Config) {})
	quotas, _ := apisAs(t, n.url, secrets["hostile"])
	_, operator := apisAs(t, n.url, secrets["operator"])
	leases := largeLeases(t, operator, quotas)
	const most = 512<<10 + 16<<10 // at most one record beyond
	seen, pages := map[uint64]bool{}, 0
	for token := ""; pages == 0 || token != ""; pages++ {
		page, err := quotas.ListLeases(t.Context(), &quotav1.ListLeasesRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(page); size > most {
			t.Errorf("page %d has %d bytes", pages, size)
		}
		for _, l := range page.Leases {
			if seen[l.Id] {
				t.Errorf("lease %d comes twice", l.Id)
			}
			seen[l.Id] = true
		}
		token = page.NextPageToken
	}
	if len(seen) != leases || pages < 2 {
		t.Errorf("%d leases on %d pages, there are %d", len(seen), pages, leases)
	}
}

// TestAnswers_TakeRequestBytes: the answer to a read takes memory from its caller's part, or is refused with that budget's name.
func TestAnswers_TakeRequestBytes(t *testing.T) {
	n, secrets := guarded(t, func(c *rpc.Config) { c.RequestBytes = 1 << 20 })
	quotas, _ := apisAs(t, n.url, secrets["hostile"])
	_, operator := apisAs(t, n.url, secrets["operator"])
	largeLeases(t, operator, quotas)
	list := func(size int32) error {
		_, err := quotas.ListLeases(t.Context(), &quotav1.ListLeasesRequest{PageSize: size})
		return err
	}
	refused, info := (*connect.Error)(nil), (*quotav1.ErrorInfo)(nil)
	if err := list(1000); !errors.As(err, &refused) {
		t.Fatalf("an answer that there is no room for was given: %v", err)
	}
	for _, detail := range refused.Details() {
		if value, err := detail.Value(); err == nil {
			info, _ = value.(*quotav1.ErrorInfo)
		}
	}
	if info.GetBudget() != "request_bytes" || info.GetReason() != quotav1.Reason_REASON_CALLER_BUDGET {
		t.Errorf("%v: %v", refused, info)
	}
	if err := list(1); err != nil {
		t.Errorf("a small page: %v", err)
	}
	eventually(t, "all is released", func() bool { return inUse(t, n, secrets["operator"], "request_bytes") < 16<<10 })
}
