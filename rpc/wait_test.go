package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// reasonOf returns the reason of a typed error; unspecified for other errors.
func reasonOf(t *testing.T, err error) quotav1.Reason {
	t.Helper()
	return infoOf(err).GetReason()
}

func infoOf(err error) *quotav1.ErrorInfo {
	connectErr, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return nil
	}
	for _, detail := range connectErr.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// oneSlot makes a quota with one slot, and returns clients of all nodes and the lease that holds the slot.
func oneSlot(t *testing.T, nodes []*testNode) (apis []quotav1connect.QuotaServiceClient, held *quotav1.Lease) {
	t.Helper()
	const slots = `{"quotas":[{"name":"s","slots":{"limit":1}}]}`
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", slots); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	for _, n := range nodes {
		apis = append(apis, quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url, persistent))
	}
	res, err := apis[0].Reserve(t.Context(), &quotav1.ReserveRequest{
		Holder: "first", Items: []*quotav1.Item{{Quota: "s"}}, Ttl: durationpb.New(time.Hour),
	})
	if err != nil || res.GetLease() == nil {
		t.Fatalf("%v %v", res, err)
	}
	return apis, res.GetLease()
}

func waiting(t *testing.T, api quotav1connect.QuotaServiceClient) int64 {
	t.Helper()
	res, err := api.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	return res.Quota.Waiting
}

type reserved struct {
	res *quotav1.ReserveResponse
	err error
}

// waitFor sends a Reserve that waits, and returns once it is in the queue.
func waitFor(
	t *testing.T, ctx context.Context, api quotav1connect.QuotaServiceClient, id *quotav1.RequestId, //nolint:revive // t first
) <-chan reserved {
	t.Helper()
	before := waiting(t, api)
	done := make(chan reserved, 1)
	go func() {
		res, err := api.Reserve(ctx, &quotav1.ReserveRequest{
			RequestId: id, Holder: "second", Items: []*quotav1.Item{{Quota: "s"}},
			Ttl: durationpb.New(time.Minute), Wait: durationpb.New(time.Minute),
		})
		done <- reserved{res, err}
	}()
	eventually(t, "a place in the queue", func() bool { return waiting(t, api) == before+1 })
	return done
}

func leaderAndFollower(t *testing.T, nodes []*testNode) (leader, follower int) {
	t.Helper()
	leader, follower = -1, -1
	eventually(t, "a leader", func() bool {
		for i, n := range nodes {
			if _, _, self := n.node.Leader(); self {
				leader = i
			} else {
				follower = i
			}
		}
		return leader >= 0
	})
	return leader, follower
}

// TestWait_EndsWhenQuotaIsFree: a wait is granted at the leader and through a node that forwards it. A lease with slots has the
// requested length.
func TestWait_EndsWhenQuotaIsFree(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apis, held := oneSlot(t, nodes)
	for _, api := range apis {
		done := waitFor(t, t.Context(), api, nil)
		if _, err := api.Release(t.Context(), &quotav1.ReleaseRequest{Lease: held.Id, Fence: held.Fence}); err != nil {
			t.Fatal(err)
		}
		got := <-done
		if got.err != nil || got.res.GetLease() == nil {
			t.Fatalf("%v %v", got.res, got.err)
		}
		if left := got.res.GetLease().ExpiresIn.AsDuration(); left <= 30*time.Second || left > time.Minute {
			t.Fatalf("%v are left of a minute", left)
		}
		held = got.res.GetLease()
	}
}

// TestWait_CancelledLeavesQueue: a caller that disconnects leaves the queue, at the leader and through another node, unless the
// cluster loses its leader meanwhile.
func TestWait_CancelledLeavesQueue(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apis, _ := oneSlot(t, nodes)
	term := func(api quotav1connect.QuotaServiceClient) uint64 {
		res, err := api.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "s"})
		if err != nil {
			t.Fatal(err)
		}
		return res.Meta.Term
	}
	for _, api := range apis {
		others, before := waiting(t, api), term(api)
		ctx, leave := context.WithCancel(t.Context())
		done := waitFor(t, ctx, api, nil)
		leave()
		if got := <-done; got.err == nil {
			t.Fatalf("%v", got.res)
		}
		eventually(t, "its place is gone", func() bool { return waiting(t, api) <= others || term(api) != before })
	}
}

// TestReserve_CancelledWhileApplied: it disconnects while the entry with its Reserve is applied, before the node learns the result.
// Without a request id nothing of it is left, and it counts as not accepted only if it had no other effect. With a request id its result
// is kept.
func TestReserve_CancelledWhileApplied(t *testing.T) {
	n := newNodes(t, 1)[0]
	var leave context.CancelFunc
	n.kill()
	n.config.Applied = func(_ *fsm.Applied, payload []byte, _ func() [32]byte) {
		if bytes.Contains(payload, []byte("gone")) {
			leave()
		}
	}
	n.again(t)
	eventually(t, "a leader", func() bool { _, _, self := n.node.Leader(); return self })
	apis, _ := oneSlot(t, []*testNode{n})
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"free","rate":{"limit":1000000,"per":"3600s"}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	leases := func() int {
		res, err := apis[0].ListLeases(t.Context(), &quotav1.ListLeasesRequest{Holder: "gone"})
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Leases)
	}
	for round := range 20 { // the scheduler decides whether the caller's end or the entry's is seen first
		for ask, withdrawn := range map[string]bool{
			`"items":[{"quota":"s"}],"wait":"60s"`: true, `"items":[{"quota":"s"}],"wait":"60s","resume":true`: false,
			`"items":[{"quota":"free"}]`: false, `"items":[{"quota":"free"}],"consume":true`: false,
		} {
			ctx, goAway := context.WithCancel(t.Context())
			leave = goAway
			status, body := reserveHere(ctx, n, `{"holder":"gone",`+ask+`}`)
			if goAway(); status == http.StatusOK || strings.Contains(body, `"notAccepted":true`) != withdrawn {
				t.Fatalf("round %d, %s: %d %s", round, ask, status, body)
			}
			if waits, held := waiting(t, apis[0]), leases(); waits != 0 || held != 0 {
				t.Fatalf("round %d, %s: %d wait, %d leases", round, ask, waits, held)
			}
		}
	}
	ctx, goAway := context.WithCancel(t.Context())
	defer goAway()
	leave = goAway
	reserveHere(ctx, n, `{"holder":"gone","items":[{"quota":"free"}],"requestId":{"idempotencyKey":"mine"}}`)
	if held := leases(); held != 1 {
		t.Fatalf("%d leases are kept for one that may come back", held)
	}
}

// reserveHere sends a Reserve to a node, not over the network, from a caller that disconnects when ctx ends.
func reserveHere(ctx context.Context, n *testNode, ask string) (status int, body string) {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/quota.v1.QuotaService/Reserve", strings.NewReader(ask))
	req.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	n.server.Handler().ServeHTTP(answer, req)
	return answer.Code, answer.Body.String()
}

// TestWait_WithRequestIDSurvivesCancel: its place stays, and any node returns the outcome under the same id. A Withdraw removes it from
// the queue.
func TestWait_WithRequestIDSurvivesCancel(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apis, held := oneSlot(t, nodes)
	id := &quotav1.RequestId{IdempotencyKey: "mine"}
	ctx, leave := context.WithCancel(t.Context())
	done := waitFor(t, ctx, apis[0], id)
	leave()
	<-done
	again := make(chan reserved, 1)
	go func() {
		res, err := apis[1].Reserve(t.Context(), &quotav1.ReserveRequest{
			RequestId: id, Holder: "second", Items: []*quotav1.Item{{Quota: "s"}},
			Ttl: durationpb.New(time.Minute), Wait: durationpb.New(time.Minute),
		})
		again <- reserved{res, err}
	}()
	if _, err := apis[2].Release(t.Context(), &quotav1.ReleaseRequest{Lease: held.Id, Fence: held.Fence}); err != nil {
		t.Fatal(err)
	}
	got := <-again
	if got.err != nil || got.res.GetLease() == nil {
		t.Fatalf("%v %v", got.res, got.err)
	}
	// The next one is withdrawn by its ticket.
	ticket, err := apis[0].Reserve(t.Context(), &quotav1.ReserveRequest{
		RequestId: &quotav1.RequestId{IdempotencyKey: "next"}, Holder: "third", Items: []*quotav1.Item{{Quota: "s"}},
		Wait: durationpb.New(time.Minute), NoBlock: true,
	})
	if err != nil || ticket.GetWaiting() == nil {
		t.Fatalf("%v %v", ticket, err)
	}
	for i, want := range []quotav1.Reason{quotav1.Reason_REASON_UNSPECIFIED, quotav1.Reason_REASON_UNKNOWN_TICKET} {
		_, err := apis[i].Withdraw(t.Context(), &quotav1.WithdrawRequest{Ticket: ticket.GetWaiting().Ticket})
		if reasonOf(t, err) != want || (err == nil) != (i == 0) {
			t.Fatalf("withdrawn %d times: %v", i+1, err)
		}
	}
}

// TestDrain_EndsWaitsTyped: a wait without a request id leaves the queue and was not accepted. One with an id keeps its place, and
// continues elsewhere. Other callers of the stopping node notice nothing.
func TestDrain_EndsWaitsTyped(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apis, held := oneSlot(t, nodes)
	leader, follower := leaderAndFollower(t, nodes)
	named := &quotav1.RequestId{IdempotencyKey: "mine"}
	anonymous := waitFor(t, t.Context(), apis[leader], nil)
	known := waitFor(t, t.Context(), apis[leader], named)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := nodes[leader].server.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		done        <-chan reserved
		notAccepted bool
	}{"without an id": {anonymous, true}, "with an id": {known, false}} {
		got := <-c.done
		info := infoOf(got.err)
		if info.GetReason() != quotav1.Reason_REASON_STOPPING || info.GetNotAccepted() != c.notAccepted {
			t.Errorf("a wait %s: %v", name, got.err)
		}
	}
	if got := waiting(t, apis[follower]); got != 1 {
		t.Errorf("%d wait", got)
	}
	if _, err := apis[leader].GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "s"}); reasonOf(t, err) != quotav1.Reason_REASON_STOPPING {
		t.Errorf("a new call at a node that stops: %v", err)
	}
	if _, err := quotav1connect.NewAdminServiceClient(http.DefaultClient, nodes[leader].url).GetStatus(t.Context(),
		&quotav1.GetStatusRequest{}); err != nil {
		t.Errorf("its status: %v", err)
	}
	if status, _ := get(t, nodes[leader].url+"/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("ready while it stops: %d", status)
	}
	if _, err := apis[follower].Release(t.Context(), &quotav1.ReleaseRequest{Lease: held.Id, Fence: held.Fence}); err != nil {
		t.Fatal(err)
	}
	res, err := apis[follower].Reserve(t.Context(), &quotav1.ReserveRequest{
		RequestId: named, Holder: "second", Items: []*quotav1.Item{{Quota: "s"}},
		Ttl: durationpb.New(time.Minute), Wait: durationpb.New(time.Minute),
	})
	if err != nil || res.GetLease() == nil {
		t.Errorf("the wait continues elsewhere: %v %v", res, err)
	}
}

// TestWait_LeavesRoomForReleases: however many calls wait, a Release finds room.
func TestWait_LeavesRoomForReleases(t *testing.T) {
	n := newNodes(t, 1, func(c *rpcConfig) { c.MaxInFlight = 16 })
	apis, held := oneSlot(t, n)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var waits []<-chan reserved
	for range 6 {
		waits = append(waits, waitFor(t, ctx, apis[0], nil))
	}
	seventh := make(chan reserved, 1)
	go func() {
		for { // a read of the quota may take the last room for a moment
			res, err := apis[0].Reserve(ctx, &quotav1.ReserveRequest{
				Holder: "second", Items: []*quotav1.Item{{Quota: "s"}}, Wait: durationpb.New(time.Minute),
			})
			if infoOf(err).GetReason() != quotav1.Reason_REASON_CALLER_BUDGET {
				seventh <- reserved{res, err}
				return
			}
		}
	}()
	eventually(t, "no more room to ask", func() bool {
		_, err := apis[0].GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "s"})
		return reasonOf(t, err) == quotav1.Reason_REASON_CALLER_BUDGET && infoOf(err).NotAccepted
	})
	if _, err := apis[0].Release(t.Context(), &quotav1.ReleaseRequest{Lease: held.Id, Fence: held.Fence}); err != nil {
		t.Fatal(err)
	}
	leave()
	granted := 0
	for _, done := range append(waits, seventh) {
		if got := <-done; got.err == nil && got.res.GetLease() != nil {
			granted++
		}
	}
	if granted > 1 {
		t.Fatalf("%d have the one slot", granted)
	}
}

// get fetches a page.
func get(t *testing.T, url string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	head, body := send(t, http.DefaultClient, req)
	return head.StatusCode, body
}

// TestDrain_EndsForwardedWaits: when the node that forwarded a wait drains, the wait ends with a typed error and leaves the
// queue at the leader.
func TestDrain_EndsForwardedWaits(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apis, _ := oneSlot(t, nodes)
	leader, follower := leaderAndFollower(t, nodes)
	done := waitFor(t, t.Context(), apis[follower], nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := nodes[follower].server.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if got := <-done; reasonOf(t, got.err) != quotav1.Reason_REASON_STOPPING || !strings.Contains(got.err.Error(), "stopping") {
		t.Errorf("%v %v", got.res, got.err)
	}
	eventually(t, "an empty queue", func() bool { return waiting(t, apis[leader]) == 0 })
}

// TestStop_LeaderWithoutSuccessorStopsInTime: no node can take its leadership, and it does not wait for one.
func TestStop_LeaderWithoutSuccessorStopsInTime(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	leader, _ := leaderAndFollower(t, nodes)
	for i, n := range nodes {
		if i != leader {
			n.kill()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := nodes[leader].server.Drain(ctx); err != nil {
		t.Error(err)
	}
	_ = nodes[leader].http.Close()
	if err := nodes[leader].node.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestWait_LostLeadershipIsUnknown: a node that stops leading between a waiter's grant and its answer asks for the result under the
// request's id, and is not accepted. But the Reserve was accepted before, and may have been granted.
func TestWait_LostLeadershipIsUnknown(t *testing.T) {
	t.Parallel()
	for _, n := range newNodes(t, 3) {
		if _, _, self := n.node.Leader(); self {
			continue
		}
		command := &logpb.Command{IdempotencyKey: "k", Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
			Holder: "a", Items: []*logpb.Item{{Quota: "s"}}, WaitNs: int64(time.Minute),
		}}}
		_, _, err := rpc.Await(n.server, t.Context(), command, &logpb.Waiting{Ticket: 1}, raftnode.Position{})
		if _, unknown := errors.AsType[*raftnode.UnknownError](err); !unknown {
			t.Errorf("%T: %v", err, err)
		}
		if _, refused := errors.AsType[*raftnode.NotAcceptedError](err); refused {
			t.Errorf("it is taken for one that had no effect: %v", err)
		}
	}
}
