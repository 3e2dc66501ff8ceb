package rpc_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestFullDisk_IsNoAnswer: a grant that a full disk keeps from the log is not accepted. That is not a refusal: a refusal is final, and an
// earlier attempt of the same request may have taken effect. Calls that free quota still work, in a Batch too.
func TestFullDisk_IsNoAnswer(t *testing.T) {
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
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"q","rate":{"limit":10,"per":"60s"}}]}`); status != http.StatusOK {
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
	if connect.CodeOf(err) != connect.CodeUnavailable || info.Reason != quotav1.Reason_REASON_DISK_FULL || !info.NotAccepted ||
		info.RetryAfter.AsDuration() <= 0 {
		t.Errorf("%v: %v", err, info)
	}
	lease := granted.GetLease()
	// Neither invalid commands nor the Reserves are in the log: results stay with their commands all the same.
	batch, err := api.Batch(t.Context(), &quotav1.BatchRequest{Commands: []*quotav1.Command{
		{},
		{Kind: &quotav1.Command_Renew{Renew: &quotav1.RenewRequest{Lease: lease.Id, Fence: lease.Fence}}},
		{Kind: &quotav1.Command_Reserve{Reserve: asked}},
		{Kind: &quotav1.Command_Consume{Consume: &quotav1.ConsumeRequest{}}},
		{Kind: &quotav1.Command_Consume{Consume: &quotav1.ConsumeRequest{Lease: lease.Id, Fence: lease.Fence, Op: 1}}},
		{Kind: &quotav1.Command_Reserve{Reserve: asked}},
		{Kind: &quotav1.Command_Release{Release: &quotav1.ReleaseRequest{Lease: lease.Id, Fence: lease.Fence}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []quotav1.Reason{
		2: quotav1.Reason_REASON_DISK_FULL, 5: quotav1.Reason_REASON_DISK_FULL, 0: quotav1.Reason_REASON_INVALID,
		3: quotav1.Reason_REASON_INVALID, 6: 0,
	} {
		failed := batch.Results[i].GetError()
		if failed.GetInfo().GetReason() != want || want == quotav1.Reason_REASON_DISK_FULL && !failed.Info.NotAccepted {
			t.Errorf("command %d: %v, want %v", i, batch.Results[i], want)
		}
	}
	if batch.Results[1].GetRenew() == nil || batch.Results[4].GetConsume() == nil || batch.Results[6].GetRelease() == nil ||
		batch.Meta.Index == 0 {
		t.Errorf("what releases or keeps: %v", batch)
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

// TestFullMemory_IsNoAnswer: above the mark, grants, waits and sessions are not accepted, with a typed error. Calls that release quota
// and operators' calls still work, and the check is red. Grants return well below the mark.
func TestFullMemory_IsNoAnswer(t *testing.T) {
	n := newNodes(t, 1)[0]
	n.kill()
	var memory atomic.Int64
	memory.Store(50)
	n.config.MemoryLimit, n.config.Memory = 100, func() (int64, error) { return memory.Load(), nil }
	n.again(t)
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url)
	eventually(t, "it leads again", func() bool {
		_, _, self := n.node.Leader()
		return self
	})
	apply := func() (int, string) {
		return post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", `{"quotas":[{"name":"q","rate":{"limit":10,"per":"60s"}}]}`)
	}
	if status, body := apply(); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	asked := &quotav1.ReserveRequest{Holder: "h", Items: []*quotav1.Item{{Quota: "q", Amount: new(int64(1))}}}
	granted, err := api.Reserve(t.Context(), asked)
	if err != nil || granted.GetLease() == nil {
		t.Fatalf("%v %v", granted, err)
	}
	other, err := api.Reserve(t.Context(), asked)
	if err != nil || other.GetLease() == nil {
		t.Fatalf("%v %v", other, err)
	}
	used := other.GetLease()
	if _, err := api.Consume(t.Context(), &quotav1.ConsumeRequest{Lease: used.Id, Fence: used.Fence, Op: 1}); err != nil {
		t.Fatal(err)
	}
	memory.Store(86)
	eventually(t, "memory is found full", func() bool {
		_, err = api.Reserve(t.Context(), asked)
		return err != nil
	})
	info := infoOf(err)
	if connect.CodeOf(err) != connect.CodeUnavailable || info.Reason != quotav1.Reason_REASON_MEMORY_FULL || !info.NotAccepted ||
		info.RetryAfter.AsDuration() <= 0 {
		t.Errorf("%v: %v", err, info)
	}
	if _, err := api.OpenSession(t.Context(), &quotav1.OpenSessionRequest{Holder: "h"}); reasonOf(t,
		err) != quotav1.Reason_REASON_MEMORY_FULL {
		t.Errorf("a session: %v", err)
	}
	waits := &quotav1.ReserveRequest{Holder: "h", Items: asked.Items, Wait: durationpb.New(time.Minute)}
	if _, err := api.Reserve(t.Context(), waits); reasonOf(t, err) != quotav1.Reason_REASON_MEMORY_FULL {
		t.Errorf("one that waits: %v", err)
	}
	tasks := quotav1connect.NewTaskServiceClient(http.DefaultClient, n.url)
	if _, err := tasks.BeginTask(t.Context(), &quotav1.BeginTaskRequest{Task: "t", Holder: "h"}); reasonOf(t,
		err) != quotav1.Reason_REASON_MEMORY_FULL {
		t.Errorf("a task: %v", err)
	}
	keepsUsing(t, api, used)
	eventually(t, "the check is red", func() bool {
		status, body := get(t, n.url+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "[-]memory failed")
	})
	memory.Store(82) // below the mark, and not yet well below it
	lease := granted.GetLease()
	batch, err := api.Batch(t.Context(), &quotav1.BatchRequest{Commands: []*quotav1.Command{
		{Kind: &quotav1.Command_Reserve{Reserve: asked}},
		{Kind: &quotav1.Command_Release{Release: &quotav1.ReleaseRequest{Lease: lease.Id, Fence: lease.Fence}}},
	}})
	if err != nil || batch.Results[0].GetError().GetInfo().GetReason() != quotav1.Reason_REASON_MEMORY_FULL ||
		batch.Results[1].GetRelease() == nil {
		t.Errorf("%v %v", batch, err)
	}
	if status, body := apply(); status != http.StatusOK {
		t.Errorf("the operator: %d %s", status, body)
	}
	memory.Store(79)
	eventually(t, "there is memory again", func() bool {
		_, err := api.Reserve(t.Context(), asked)
		return err == nil
	})
}

// keepsUsing checks that a holder can still use a lease whose first operation has consumed: it reports, renews and settles.
func keepsUsing(t *testing.T, api quotav1connect.QuotaServiceClient, lease *quotav1.Lease) {
	t.Helper()
	if _, err := api.Report(t.Context(), &quotav1.ReportRequest{
		Lease: lease.Id, Fence: lease.Fence, Op: 1, Signals: []*quotav1.Signal{{Quota: "q", Cause: quotav1.Cause_CAUSE_OK}},
	}); err != nil {
		t.Errorf("a report: %v", err)
	}
	if _, err := api.Renew(t.Context(), &quotav1.RenewRequest{Lease: lease.Id, Fence: lease.Fence}); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	if _, err := api.Settle(t.Context(), &quotav1.SettleRequest{Lease: lease.Id, Fence: lease.Fence, Op: 1, Final: true}); err != nil {
		t.Errorf("a settlement: %v", err)
	}
}

// TestFullMemory_AFollowerHoldsNoWaits: a follower with little memory left forwards a Reserve without its wait. One with an id keeps its
// place in the queue; one without is refused at once. A take does not count as granted meanwhile.
func TestFullMemory_AFollowerHoldsNoWaits(t *testing.T) {
	t.Parallel() // mostly waiting
	nodes := newNodes(t, 3)
	follower := nodes[2]
	follower.kill()
	var memory atomic.Int64
	memory.Store(50)
	follower.config.MemoryLimit, follower.config.Memory = 100, func() (int64, error) { return memory.Load(), nil }
	follower.again(t)
	var at int
	eventually(t, "another node leads", func() bool {
		if at, _ = leaderAndFollower(t, nodes); nodes[at] != follower {
			return true
		}
		_, _ = follower.node.TransferLeadership(t.Context(), "") // a busy machine may elect it
		return false
	})
	const quota = `{"quotas":[{"name":"q","rate":{"limit":1,"per":"3600s"}}]}`
	if status, body := post(t, nodes[at].url, "/quota.v1.AdminService/ApplyQuotas", quota); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, follower.url)
	var first *quotav1.Lease
	eventually(t, "the follower forwards", func() bool {
		res, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{
			Holder: "h", Items: []*quotav1.Item{{Quota: "q"}}, Ttl: durationpb.New(time.Hour),
		})
		first = res.GetLease()
		return err == nil && first != nil
	})
	memory.Store(86)
	eventually(t, "memory is found full", func() bool {
		status, body := get(t, follower.url+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "[-]memory failed")
	})
	waits := &quotav1.ReserveRequest{Holder: "h", Items: []*quotav1.Item{{Quota: "q"}}, Wait: durationpb.New(10 * time.Minute)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a wait that is held would outlive the test
	defer cancel()
	if res, err := api.Reserve(ctx, waits); err != nil || res.GetRefusal().GetRetryAfter().AsDuration() <= 0 {
		t.Fatalf("one without an id: %v %v", res, err)
	}
	waits.RequestId = &quotav1.RequestId{IdempotencyKey: "k"}
	if res, err := api.Reserve(t.Context(), waits); err != nil || res.GetWaiting() == nil {
		t.Errorf("one with an id: %v %v", res, err)
	}
	if status, body := post(t, follower.url, "/take?quota=q", ""); status != http.StatusTooManyRequests {
		t.Errorf("a take: %d %s", status, body)
	}
	status, body := post(t, follower.url, "/take?quota=q&wait=600s", `{"requestId":{"idempotencyKey":"t"}}`)
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "UNKNOWN_OUTCOME") {
		t.Errorf("a take with an id: %d %s", status, body)
	}
	if _, err := api.Release(t.Context(), &quotav1.ReleaseRequest{Lease: first.Id, Fence: first.Fence}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what waits is granted", func() bool {
		res, err := api.Reserve(t.Context(), waits)
		return err == nil && res.GetLease() != nil
	})
}
