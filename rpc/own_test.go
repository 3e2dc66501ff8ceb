package rpc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
)

// reserveUnder makes a Reserve with a request id.
func reserveUnder(id *quotav1.RequestId) *quotav1.ReserveRequest {
	return &quotav1.ReserveRequest{RequestId: id, Holder: "h", Items: []*quotav1.Item{{Quota: "t/core"}}, Ttl: durationpb.New(time.Minute)}
}

// TestSessions_AreTheirTokens: two tokens may act for the same holders. Neither can use, acknowledge in or close the other's session, or
// use up the other's idempotency keys.
func TestSessions_AreTheirTokens(t *testing.T) {
	n, secrets := guarded(t, func(*rpc.Config) {})
	hostile, _ := apisAs(t, n.url, secrets["hostile"])
	other, _ := apisAs(t, n.url, secrets["other"])
	opened, err := other.OpenSession(t.Context(), &quotav1.OpenSessionRequest{Holder: "h"})
	if err != nil {
		t.Fatal(err)
	}
	in := func(seq, acked uint64) *quotav1.RequestId {
		return &quotav1.RequestId{Session: opened.Session, Seq: seq, AckedBelow: acked}
	}
	key := &quotav1.RequestId{IdempotencyKey: "job-2026-11-26"}
	if _, err := other.Reserve(t.Context(), reserveUnder(in(1, 0))); err != nil {
		t.Fatal(err)
	}
	if _, err := hostile.Reserve(t.Context(), reserveUnder(in(1<<53-1, 1<<53-1))); reasonOf(t, err) != quotav1.Reason_REASON_UNKNOWN_SESSION {
		t.Errorf("another token acknowledges in a session: %v", err)
	}
	_, err = hostile.CloseSession(t.Context(), &quotav1.CloseSessionRequest{Session: opened.Session})
	if reasonOf(t, err) != quotav1.Reason_REASON_UNKNOWN_SESSION {
		t.Errorf("another token closes a session: %v", err)
	}
	if _, err := hostile.Release(t.Context(), &quotav1.ReleaseRequest{RequestId: key, Lease: 1 << 40, Fence: 1}); err == nil {
		t.Error("a lease that never was is released")
	}
	for what, id := range map[string]*quotav1.RequestId{"in its session": in(2, 1), "under its key": key} {
		if _, err := other.Reserve(t.Context(), reserveUnder(id)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSessions_OutliveASecret: a client's token was replaced under the same id, with another secret and another pattern of holders. The
// client still gets its answers under the numbers and keys that it used before.
func TestSessions_OutliveASecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	mint := func(holder string) (secret string) {
		secret, entry, err := rpc.NewToken("ci", holder, "standard", []rpc.Verb{rpc.VerbUse})
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("tokens:\n- {id: ci, sha256: %s, holder: %q, verbs: [use, admin-quota]}\n", entry.SHA256, holder)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return secret
	}
	old := mint("*")
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	if _, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", `{"quotas":[{"name":"t/core","rate":{"limit":100,"per":"60s"}}]}`,
		"Authorization", "Bearer "+old); body == "" {
		t.Fatal("no answer")
	}
	api, _ := apisAs(t, n.url, old)
	opened, err := api.OpenSession(t.Context(), &quotav1.OpenSessionRequest{Holder: "h"})
	if err != nil {
		t.Fatal(err)
	}
	ids := []*quotav1.RequestId{{Session: opened.Session, Seq: 1}, {IdempotencyKey: "k"}}
	var leases []uint64
	for _, id := range ids {
		answer, err := api.Reserve(t.Context(), reserveUnder(id))
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, answer.GetLease().GetId())
	}
	api, _ = apisAs(t, n.url, mint("h*"))
	if err := tokens.Reload(); err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		answer, err := api.Reserve(t.Context(), reserveUnder(id))
		if err != nil || answer.GetLease().GetId() != leases[i] {
			t.Errorf("%v: %v, %v; wanted lease %d", id, answer, err, leases[i])
		}
	}
}
