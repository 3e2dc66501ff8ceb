package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// callersOf returns the callers that have leases, as the leader's state shows them.
func callersOf(t *testing.T, nodes []*testNode) map[string]int64 {
	t.Helper()
	callers := map[string]int64{}
	eventually(t, "a leader shows its state", func() bool {
		leader, _ := leaderAndFollower(t, nodes)
		err := nodes[leader].node.Read(t.Context(), raftnode.Linearizable, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) {
			for _, b := range state.Budgets(100) {
				if b.Name == "leases" {
					for _, use := range b.Top {
						callers[use.Caller] = use.Used
					}
				}
			}
		})
		refused, moved := errors.AsType[*raftnode.NotAcceptedError](err)
		if err != nil && (!moved || refused.Cause != raftnode.NotLeader && refused.Cause != raftnode.NotReady) {
			t.Fatal(err)
		}
		return err == nil
	})
	return callers
}

// from returns a client whose calls come from an address of this machine.
func from(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, to)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestCallers_KeepTheirAddressThroughAFollower: a call that a follower forwards is charged to the address that it came from. Neither the
// leader nor the follower believes what an anonymous caller writes into the follower's header.
func TestCallers_KeepTheirAddressThroughAFollower(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	leader, follower := leaderAndFollower(t, nodes)
	if status, body := post(t, nodes[leader].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	reserve := func(address, url, holder string, headers ...string) {
		t.Helper()
		body := fmt.Sprintf(`{"holder":%q,"items":[{"quota":"t/core"}]}`, holder)
		head, answer := postBy(t, from(t, address), url+reservePath, body, headers...)
		if head.StatusCode != http.StatusOK {
			t.Fatal(head.Status, answer)
		}
	}
	eventually(t, "a forwarded call is charged to where it came from", func() bool {
		reserve("127.0.0.2", nodes[follower].url, "far")
		return callersOf(t, nodes)["address:127.0.0.2 far"] > 0
	})
	reserve("127.0.0.3", nodes[leader].url, "near")
	forged := []string{
		rpc.HeaderForwarded, nodes[follower].node.ID(), rpc.HeaderCaller, strings.Repeat("A", 43) + " address:192.0.2.1",
	}
	reserve("127.0.0.4", nodes[leader].url, "liar", forged...)
	reserve("127.0.0.5", nodes[follower].url, "far-liar", forged[2:]...) // a follower does not forward a call with the first one
	callers := callersOf(t, nodes)
	if callers["address:127.0.0.3 near"] != 1 || callers["address:127.0.0.4 liar"] != 1 || callers["address:127.0.0.5 far-liar"] != 1 {
		t.Errorf("%v", callers)
	}
	for caller := range callers {
		if strings.Contains(caller, "192.0.2.1") {
			t.Errorf("an anonymous caller's header was believed: %v", callers)
		}
	}
}

// TestConnections_OfFollowersAreTheirOwn: a connection over which a follower forwards is the follower's, not that of the caller whose call
// comes first: it carries the calls of all. An anonymous caller that names a member has a connection of its own.
func TestConnections_OfFollowersAreTheirOwn(t *testing.T) {
	t.Parallel()
	path, secrets := tokenFile(t)
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, tokens := range map[string]*rpc.Tokens{"tokens": tokens, "no tokens": nil} {
		nodes := newNodes(t, 3, func(c *rpc.Config) { c.Tokens = tokens })
		leader, follower := leaderAndFollower(t, nodes)
		id, port := nodes[follower].node.ID(), nodes[leader].api.Listener
		token := []string{"Authorization", "Bearer " + secrets[rpc.VerbRead]}
		read := func(url string, headers ...string) {
			t.Helper()
			head, answer := postBy(t, from(t, "127.0.0.5"), url+"/quota.v1.QuotaService/ListQuotas", "{}", append(headers, token...)...)
			if head.StatusCode != http.StatusOK {
				t.Fatal(name, head.Status, answer)
			}
		}
		read(nodes[leader].url, rpc.HeaderForwarded, id, rpc.HeaderCaller, strings.Repeat("A", 43)+" token:")
		if rpc.HasConnections(port, "member:"+id) {
			t.Errorf("%s: an anonymous caller's header was believed", name)
		}
		read(nodes[follower].url)
		if !rpc.HasConnections(port, "member:"+id) {
			t.Errorf("%s: the follower's connection is not its own", name)
		}
	}
}

// TestCallers_AreTheirTokens: a token is one caller, whatever its address and holders, at every node.
func TestCallers_AreTheirTokens(t *testing.T) {
	t.Parallel()
	path, secrets := tokenFile(t)
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	nodes := newNodes(t, 3, func(c *rpc.Config) { c.Tokens = tokens })
	leader, follower := leaderAndFollower(t, nodes)
	if status, body := post(t, nodes[leader].url, "/quota.v1.AdminService/ApplyQuotas", applyCore, "Authorization",
		"Bearer "+secrets[rpc.VerbAdminQuota]); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	for i, n := range []int{leader, follower, follower} {
		body := fmt.Sprintf(`{"holder":"ralph-%d","items":[{"quota":"t/core"}]}`, i)
		if status, answer := post(t, nodes[n].url, reservePath, body, "Authorization", "Bearer "+secrets[rpc.VerbUse]); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	if callers := callersOf(t, nodes); len(callers) != 1 || callers["token:use"] != 3 {
		t.Errorf("%v", callers)
	}
}

// TestBudgets_AreNamedAlikeAtEveryNode: a refusal and an error for a budget name it and say when to retry, also through a follower.
// GetStatus shows which caller has it.
func TestBudgets_AreNamedAlikeAtEveryNode(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	leader, follower := leaderAndFollower(t, nodes)
	for path, body := range map[string]string{
		"/quota.v1.AdminService/ApplyQuotas": applyCore,
		"/quota.v1.AdminService/SetLimits":   `{"limits":{"maxLeases":8,"maxSessions":8,"operatorsPart":0.25}}`,
	} { // in any order
		if status, answer := post(t, nodes[leader].url, path, body); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	const reserve = `{"holder":"a","items":[{"quota":"t/core"}]}`
	const open = `{"holder":"a"}`
	for _, n := range []int{leader, follower} {
		eventually(t, "a caller at its budgets", func() bool {
			_, lease := post(t, nodes[n].url, reservePath, reserve)
			_, session := post(t, nodes[n].url, "/quota.v1.QuotaService/OpenSession", open)
			return strings.Contains(lease, "REASON_CALLER_BUDGET") && strings.Contains(session, "REASON_CALLER_BUDGET")
		})
		status, answer := post(t, nodes[n].url, reservePath, reserve)
		if status != http.StatusOK || !strings.Contains(answer, `"budget":"leases"`) || !strings.Contains(answer, `"retryAfter"`) {
			t.Errorf("a refusal: %d %s", status, answer)
		}
		status, answer = post(t, nodes[n].url, reservePath, reserve, rpc.HeaderRefusalStatus, "429")
		if status != http.StatusTooManyRequests || !strings.Contains(answer, `"budget":"leases"`) {
			t.Errorf("a refusal as an error: %d %s", status, answer)
		}
		status, answer = post(t, nodes[n].url, "/quota.v1.QuotaService/OpenSession", open)
		if status != http.StatusTooManyRequests || !strings.Contains(answer, `"budget":"sessions"`) ||
			!strings.Contains(answer, `"retryAfter":"1s"`) {
			t.Errorf("an error: %d %s", status, answer)
		}
		refused, _ := postBy(t, http.DefaultClient, nodes[n].url+"/quota.v1.QuotaService/OpenSession", open)
		if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" {
			t.Errorf("node %d (the leader is %d): %d without a time to come back: %v", n, leader, refused.StatusCode, refused.Header)
		}
	}
	res, err := quotav1connect.NewAdminServiceClient(http.DefaultClient, nodes[leader].url).GetStatus(t.Context(), &quotav1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range res.Budgets {
		if b.Name == "leases" && (b.Capacity != 8 || b.OperatorsPart != 2 || b.CallersAtBudget == 0 || len(b.Top) == 0 ||
			!strings.HasPrefix(b.Top[0].Caller, "address:127.0.0.1") || b.Top[0].Used == 0) {
			t.Errorf("%v", b)
		}
	}
	if len(res.Budgets) != 9 || len(res.NodeBudgets) != 12 { // three of them are of pages that need no token
		t.Errorf("%d budgets, and %d of the node", len(res.Budgets), len(res.NodeBudgets))
	}
	for _, b := range res.NodeBudgets {
		if b.Name == "connections" && (b.Capacity != 8000 || b.Used == 0 || b.Callers == 0) {
			t.Errorf("%v", b)
		}
		if b.Name == "calls" && (b.Used != 1 || b.Callers != 1 || len(b.Top) != 1 || b.Top[0].Caller != "address:127.0.0.1") { // this call
			t.Errorf("%v", b)
		}
	}
}
