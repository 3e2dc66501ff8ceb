package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestForward_Once: a call that another node forwarded, or that asks not to be forwarded, gets the name of the leader instead.
func TestForward_Once(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	const reserve = `{"holder":"a","items":[{"quota":"t/core"}]}`
	undisturbed(t, nodes, func(leader, follower int) (err error) {
		address := strings.TrimPrefix(nodes[leader].url, "http://")
		for _, header := range []string{rpc.HeaderForwarded, rpc.HeaderNoForward} {
			status, body := postOnce(t, nodes[follower].url, reservePath, reserve, header, "x")
			if status != http.StatusServiceUnavailable || !strings.Contains(body, "REASON_NO_LEADER") ||
				!strings.Contains(body, `"notAccepted":true`) || !strings.Contains(body, `"leaderAddress":"`+address+`"`) {
				err = errors.Join(err, fmt.Errorf("%s at a follower: %d %s", header, status, body))
			}
			if status, body := postOnce(t, nodes[leader].url, reservePath, reserve, header, "x"); status != http.StatusOK {
				err = errors.Join(err, fmt.Errorf("%s at the leader: %d %s", header, status, body))
			}
		}
		status, body := postOnce(t, nodes[follower].url, reservePath, reserve)
		if status != http.StatusOK || !strings.Contains(body, nodes[leader].node.ID()) {
			err = errors.Join(err, fmt.Errorf("forwarded: %d %s", status, body))
		}
		return err
	})
}

// TestNoLeader_IsAnsweredInTime: a caller with a short deadline learns before it that nothing happened.
func TestNoLeader_IsAnsweredInTime(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	for _, n := range nodes[1:] {
		n.kill()
	}
	eventually(t, "there is no leader", func() bool { id, _, _ := nodes[0].node.Leader(); return id == "" })
	// The node gets a short deadline; this test waits longer, for an answer that is late on a busy machine.
	_, body := postOnce(t, nodes[0].url, "/quota.v1.AdminService/DeleteQuota", `{"name":"a"}`,
		"Connect-Protocol-Version", "1", "Connect-Timeout-Ms", "1500")
	if !strings.Contains(body, `"REASON_NO_LEADER"`) || !strings.Contains(body, `"notAccepted":true`) || strings.Contains(body, `"leader"`) ||
		!strings.Contains(body, "no leader is known") {
		t.Error(body)
	}
}

// TestForward_ReturnsErrorsOfLeader: status, reason, hint and headers of an answer do not depend on the node that is called.
func TestForward_ReturnsErrorsOfLeader(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	leader, follower := leaderAndFollower(t, nodes) // if leadership moves, one of them still forwards
	for name, body := range map[string]string{
		"an unknown quota": `{"holder":"a","items":[{"quota":"nowhere"}]}`,
		"a refusal":        `{"holder":"a","items":[{"quota":"t/core","amount":11}]}`,
		"a bad field":      `{"holder":"a b","items":[{"quota":"t/core"}]}`,
	} {
		here, hereBody := post(t, nodes[leader].url, reservePath, body, rpc.HeaderRefusalStatus, "429")
		there, thereBody := post(t, nodes[follower].url, reservePath, body, rpc.HeaderRefusalStatus, "429")
		if here == http.StatusOK || here != there || hereBody != thereBody {
			t.Errorf("%s: %d %s, through another node %d %s", name, here, hereBody, there, thereBody)
		}
	}
}

// TestRefusal_As429: it carries Retry-After in seconds, rounded up, and in milliseconds, at every node; other answers do not.
func TestRefusal_As429(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	const all = `{"holder":"a","consume":true,"items":[{"quota":"t/core","amount":10}]}`
	if status, body := post(t, nodes[0].url, reservePath, all); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	for _, n := range nodes {
		res, _ := postBy(t, http.DefaultClient, n.url+reservePath, all, rpc.HeaderRefusalStatus, "429")
		after, err := time.ParseDuration(res.Header.Get("Retry-After") + "s")
		if err != nil {
			t.Fatal(err)
		}
		exact, err := time.ParseDuration(res.Header.Get("Retry-After-Ms") + "ms")
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusTooManyRequests || exact <= 0 || after < exact || after >= exact+time.Second {
			t.Errorf("%d, Retry-After %v, exactly %v", res.StatusCode, after, exact)
		}
	}
	// A refused Consume answers in the same way.
	if status, body := post(t, nodes[0].url, reservePath, all, rpc.HeaderRefusalStatus, "200"); status != http.StatusOK ||
		!strings.Contains(body, "refusal") {
		t.Errorf("%d %s", status, body)
	}
}

// TestForward_HidesLostLeader: the next leader answers a read through a node whose leader is gone. If the election takes longer than a
// call is held, the caller learns so no sooner than that, and asks again.
func TestForward_HidesLostLeader(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	leader, follower := leaderAndFollower(t, nodes)
	if status, body := post(t, nodes[leader].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, nodes[follower].url)
	nodes[leader].kill()
	for range 20 {
		began := time.Now()
		res, err := api.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "t/core"})
		if connect.CodeOf(err) == connect.CodeUnavailable && time.Since(began) >= rpc.HoldForLeader {
			continue
		}
		if err != nil || res.Meta.Node == nodes[leader].node.ID() {
			t.Fatalf("%v %v", res, err)
		}
		return
	}
	t.Fatal("the two others elected no leader")
}

// TestForward_KeepsDeadline: a forwarded wait ends at its caller's deadline, and leaves the queue.
func TestForward_KeepsDeadline(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apis, _ := oneSlot(t, nodes)
	_, follower := leaderAndFollower(t, nodes)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := apis[follower].Reserve(ctx, &quotav1.ReserveRequest{
		Holder: "a", Items: []*quotav1.Item{{Quota: "s"}}, Wait: durationpb.New(time.Minute),
	})
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Fatal(err)
	}
	eventually(t, "an empty queue", func() bool { return waiting(t, apis[follower]) == 0 })
}
