package rpc_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestAFullDiskIsNoAnswer: a grant that a full disk keeps from the log is not accepted. It is no refusal: that is an
// answer for good, and an earlier attempt of the same request may have been carried out. What frees quota goes on, in a
// Batch too.
func TestAFullDiskIsNoAnswer(t *testing.T) {
	n := newNodes(t, 1)[0]
	n.kill()
	var free atomic.Int64
	free.Store(1 << 40)
	n.config.Free = func(string) (int64, error) { return free.Load(), nil }
	n.again(t)
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url)
	eventually(t, "it leads again", func() bool {
		_, _, self := n.node.Leader()
		return self
	})
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", `{"quotas":[{"name":"q","rate":{"limit":10,"per":"60s"}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	asked := &quotav1.ReserveRequest{
		Holder: "h", Items: []*quotav1.Item{{Quota: "q", Amount: new(int64(1))}}, RequestId: &quotav1.RequestId{IdempotencyKey: "k"},
	}
	granted, err := api.Reserve(t.Context(), asked)
	if err != nil || granted.GetLease() == nil {
		t.Fatalf("%v %v", granted, err)
	}
	free.Store(100 << 20)
	eventually(t, "the disk is found full", func() bool {
		_, err = api.Reserve(context.Background(), asked)
		return err != nil
	})
	info := infoOf(err)
	if connect.CodeOf(err) != connect.CodeUnavailable || info.Reason != quotav1.Reason_REASON_DISK_FULL || !info.NotAccepted || info.RetryAfter.AsDuration() <= 0 {
		t.Errorf("%v: %v", err, info)
	}
	lease := granted.GetLease()
	batch, err := api.Batch(t.Context(), &quotav1.BatchRequest{Commands: []*quotav1.Command{
		{Kind: &quotav1.Command_Reserve{Reserve: asked}},
		{Kind: &quotav1.Command_Release{Release: &quotav1.ReleaseRequest{Lease: lease.Id, Fence: lease.Fence}}},
		{Kind: &quotav1.Command_Reserve{Reserve: asked}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 2} {
		if failed := batch.Results[i].GetError(); failed.GetInfo().GetReason() != quotav1.Reason_REASON_DISK_FULL || !failed.Info.NotAccepted {
			t.Errorf("the Reserve at %d: %v", i, batch.Results[i])
		}
	}
	if batch.Results[1].GetRelease() == nil || batch.Meta.Index == 0 {
		t.Errorf("the Release: %v", batch)
	}
	free.Store(1 << 40)
	eventually(t, "there is room again", func() bool {
		_, err = api.Reserve(context.Background(), asked)
		return err == nil
	})
	again, err := api.Reserve(t.Context(), asked)
	if err != nil || again.GetLease().GetId() != lease.Id {
		t.Errorf("sent again: %v %v, was %v", again, err, lease)
	}
}
