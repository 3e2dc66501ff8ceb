package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// tokensFor makes a token with the given verbs for each name.
func tokensFor(t *testing.T, verbs map[string][]rpc.Verb) (*rpc.Tokens, map[string]string) {
	t.Helper()
	text, secrets := "tokens:\n", map[string]string{}
	for name, allowed := range verbs { // in any order
		secret, entry, err := rpc.NewToken(name, "*", "standard", allowed)
		if err != nil {
			t.Fatal(err)
		}
		secrets[name] = secret
		words := make([]string, len(allowed))
		for i, verb := range allowed {
			words[i] = string(verb)
		}
		text += fmt.Sprintf("- {id: %s, sha256: %s, holder: '*', verbs: [%s]}\n", name, entry.SHA256, strings.Join(words, ", "))
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	return tokens, secrets
}

// guarded starts a node with tokens for two callers and an operator, and little room.
func guarded(t *testing.T, change func(*rpc.Config)) (n *testNode, secrets map[string]string) {
	t.Helper()
	return guardedElecting(t, 20*time.Millisecond, change)
}

// guardedElecting is guarded with another time for elections, for a node that gets company.
func guardedElecting(t *testing.T, elections time.Duration, change func(*rpc.Config)) (n *testNode, secrets map[string]string) {
	t.Helper()
	use := []rpc.Verb{rpc.VerbUse, rpc.VerbRead, rpc.VerbReport}
	tokens, secrets := tokensFor(t, map[string][]rpc.Verb{
		"hostile": use, "other": use, "operator": {rpc.VerbRead, rpc.VerbAdminQuota, rpc.VerbAdminCluster},
	})
	n = newElectingNodes(t, 1, elections, func(c *rpc.Config) {
		c.Tokens = tokens
		change(c)
	})[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"s","slots":{"limit":1}},{"name":"t/core","rate":{"limit":1000,"per":"60s"}}]}`,
		"Authorization", "Bearer "+secrets["operator"]); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	return n, secrets
}

// withToken adds a token to each request.
type withToken struct {
	next   http.RoundTripper
	secret string
}

// RoundTrip implements http.RoundTripper.
func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.secret)
	return w.next.RoundTrip(r)
}

// apisAs makes clients for a node whose calls carry a token.
func apisAs(t *testing.T, url, secret string) (quotav1connect.QuotaServiceClient, quotav1connect.AdminServiceClient) {
	t.Helper()
	client := &http.Client{Transport: withToken{h2c(t).Transport, secret}}
	return quotav1connect.NewQuotaServiceClient(client, url), quotav1connect.NewAdminServiceClient(client, url)
}

// TestCalls_OfOneCallerLeaveRoom: a caller with as many waiting calls as it can get learns which budget is used up. Others are served,
// and so is the operator while all others together take what they can.
func TestCalls_OfOneCallerLeaveRoom(t *testing.T) {
	n, secrets := guardedElecting(t, time.Second, func(c *rpc.Config) { c.MaxInFlight = 64 })
	hostile, _ := apisAs(t, n.url, secrets["hostile"])
	other, _ := apisAs(t, n.url, secrets["other"])
	_, operator := apisAs(t, n.url, secrets["operator"])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if res, err := hostile.Reserve(ctx, &quotav1.ReserveRequest{Holder: "h", Items: []*quotav1.Item{{Quota: "s"}}}); err != nil ||
		res.GetLease() == nil {
		t.Fatalf("%v %v", res, err)
	}
	flood := func(api quotav1connect.QuotaServiceClient) <-chan error {
		refused := make(chan error, 100)
		for i := range cap(refused) {
			go func() {
				_, err := api.Reserve(ctx, &quotav1.ReserveRequest{
					Holder: fmt.Sprint("h", i), Items: []*quotav1.Item{{Quota: "s"}}, Wait: durationpb.New(time.Minute),
				})
				if err != nil {
					refused <- err
				}
			}()
		}
		return refused
	}
	refused := flood(hostile)
	for range 60 { // fewer than half of 100 stay
		info := infoOf(<-refused)
		if info.GetReason() != quotav1.Reason_REASON_CALLER_BUDGET || info.Budget != "calls" || !info.NotAccepted {
			t.Fatalf("beyond its part: %v", info)
		}
	}
	if res, err := other.Reserve(ctx, &quotav1.ReserveRequest{Holder: "o", Items: []*quotav1.Item{{Quota: "t/core"}}}); err != nil ||
		res.GetLease() == nil {
		t.Errorf("another caller: %v %v", res, err)
	}
	_ = flood(other)
	for range 20 {
		if _, err := operator.OverrideQuota(ctx, &quotav1.OverrideQuotaRequest{
			Name: "t/core", Limit: new(int64(0)), Duration: durationpb.New(time.Minute),
		}); err != nil {
			t.Fatalf("the operator: %v", err)
		}
	}
	changeMembers(t, operator)
}

// changeMembers adds a node, makes it a voter and removes it.
func changeMembers(t *testing.T, operator quotav1connect.AdminServiceClient) {
	t.Helper()
	addresses, err := loopback.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	conf := raftnode.DefaultConfig()
	conf.ID, conf.RaftAddress, conf.DataDir = "n9", addresses[0], t.TempDir()
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLease = time.Second, time.Second, 900*time.Millisecond
	joining, err := raftnode.Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(joining.Kill)
	// One of two voters may miss the other for a moment, and a member that was just added has not caught up. What counts is that no budget
	// keeps the operator's call out.
	done := func(what string, err error) bool {
		keptOut := []quotav1.Reason{quotav1.Reason_REASON_CALLER_BUDGET, quotav1.Reason_REASON_BUDGET_FULL, quotav1.Reason_REASON_OVERLOADED}
		if slices.Contains(keptOut, reasonOf(t, err)) {
			t.Fatalf("%s: %v", what, err)
		}
		return err == nil
	}
	eventually(t, "a member is added", func() bool {
		_, err := operator.AddMember(t.Context(), &quotav1.AddMemberRequest{Id: "n9", RaftAddress: addresses[0], ApiAddress: "127.0.0.1:1999"})
		return done("adding a member", err)
	})
	eventually(t, "the member votes", func() bool {
		_, err := operator.PromoteMember(t.Context(), &quotav1.PromoteMemberRequest{Id: "n9"})
		return done("promoting it", err)
	})
	eventually(t, "the member is removed", func() bool {
		_, err := operator.RemoveMember(t.Context(), &quotav1.RemoveMemberRequest{Id: "n9"})
		return done("removing it", err) || reasonOf(t, err) == quotav1.Reason_REASON_UNKNOWN_MEMBER
	})
}

// TestCalls_StalledOfOneCallerLeaveRoom: a caller whose calls stall in the middle of their bodies fills its part of the budget of calls,
// and learns so. Others and the operator are served. All of it is returned when those calls end, whether the caller or the node ends
// them.
func TestCalls_StalledOfOneCallerLeaveRoom(t *testing.T) {
	for name, within := range map[string]time.Duration{"the caller leaves": time.Hour, "their time is over": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			n, secrets := guarded(t, func(c *rpc.Config) { c.MaxInFlight, c.ReadBody = 64, within })
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			answers := make(chan string, 100)
			stall := func() {
				body, written := io.Pipe()
				go func() { _, _ = io.WriteString(written, "{") }()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+reservePath, body)
				if err != nil {
					answers <- err.Error()
					return
				}
				req.Header.Set("Content-Type", "application/json")
				res, err := (&http.Client{Transport: withToken{h2c(t).Transport, secrets["hostile"]}}).Do(req)
				if err != nil {
					answers <- err.Error()
					return
				}
				text, _ := io.ReadAll(res.Body)
				answers <- errors.Join(fmt.Errorf("%d %s", res.StatusCode, text), res.Body.Close()).Error()
			}
			for range cap(answers) {
				go stall()
			}
			left := cap(answers)
			if within == time.Hour {
				for range 60 { // fewer than half of 100 stay
					left--
					if got := <-answers; !strings.HasPrefix(got, "429 ") || !strings.Contains(got, `"budget":"calls"`) {
						t.Fatalf("beyond its part: %s", got)
					}
				}
				status, body := post(t, n.url, reservePath, `{"holder":"o","items":[{"quota":"t/core"}]}`, "Authorization", "Bearer "+secrets["other"])
				if status != http.StatusOK {
					t.Errorf("another caller: %d %s", status, body)
				}
				if used := inUse(t, n, secrets["operator"], "calls"); used < 16 {
					t.Errorf("%d calls are in flight", used)
				}
				leave()
			}
			for range left {
				<-answers
			}
			eventually(t, "all is released", func() bool { return inUse(t, n, secrets["operator"], "calls") == 1 }) // this call itself
		})
	}
}

// watches opens a stream of events from an index that has one, and leaves it open until the test's end.
func watches(t *testing.T, api quotav1connect.QuotaServiceClient, from uint64) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := api.Watch(ctx, &quotav1.WatchRequest{FromIndex: from})
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = stream.Close() })
	if !stream.Receive() {
		return stream.Err()
	}
	return nil
}

// TestStreams_OfOneCallerLeaveRoom: streams are a budget of their own, and take no room from calls.
func TestStreams_OfOneCallerLeaveRoom(t *testing.T) {
	n, secrets := guarded(t, func(c *rpc.Config) { c.MaxStreams = 32 })
	api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url)
	granted, err := api.Reserve(bearer(t, secrets["other"]), &quotav1.ReserveRequest{Holder: "o", Items: []*quotav1.Item{{Quota: "t/core"}}})
	if err != nil {
		t.Fatal(err)
	}
	shared := h2c(t).Transport
	watch := func(name string) error {
		client := &http.Client{Transport: withToken{shared, secrets[name]}}
		return watches(t, quotav1connect.NewQuotaServiceClient(client, n.url), granted.Meta.Index)
	}
	served := 0
	for range 60 {
		if err := watch("hostile"); err == nil {
			served++
		} else if info := infoOf(err); info.GetReason() != quotav1.Reason_REASON_CALLER_BUDGET || info.Budget != "streams" {
			t.Fatalf("beyond its part: %v", err)
		}
	}
	if served != 14 { // half of the part that is not the operators'
		t.Errorf("%d streams of one caller", served)
	}
	for _, name := range []string{"other", "operator"} {
		if err := watch(name); err != nil {
			t.Errorf("a stream of %s: %v", name, err)
		}
	}
	if status, body := post(t, n.url, reservePath, `{"holder":"h","items":[{"quota":"t/core"}]}`, "Authorization",
		"Bearer "+secrets["hostile"]); status != http.StatusOK {
		t.Errorf("a call of the same caller: %d %s", status, body)
	}
}

// TestGateway_HoldersOfOneTokenAreServed: a thousand holders wait at the same time with calls of one token, in a tenth of a node's
// default room.
func TestGateway_HoldersOfOneTokenAreServed(t *testing.T) {
	n, secrets := guarded(t, func(c *rpc.Config) { c.MaxInFlight = rpc.DefaultMaxInFlight / 10 })
	api, _ := apisAs(t, n.url, secrets["hostile"])
	other, _ := apisAs(t, n.url, secrets["other"])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held, err := api.Reserve(ctx, &quotav1.ReserveRequest{Holder: "h", Items: []*quotav1.Item{{Quota: "s"}}})
	if err != nil || held.GetLease() == nil {
		t.Fatalf("%v %v", held, err)
	}
	answers := make(chan error, 1000) // the same part as ten thousand of 24,000
	for i := range cap(answers) {
		go func() {
			_, err := api.Reserve(ctx, &quotav1.ReserveRequest{
				Holder: fmt.Sprint("h", i), Items: []*quotav1.Item{{Quota: "s"}}, Wait: durationpb.New(time.Minute),
			})
			answers <- err
		}()
	}
	eventually(t, "all of them wait", func() bool {
		select {
		case err := <-answers:
			t.Fatal(err)
		default:
		}
		res, err := other.GetQuota(ctx, &quotav1.GetQuotaRequest{Name: "s"})
		return err == nil && res.Quota.Waiting == int64(cap(answers))
	})
	cancel()
	for range cap(answers) {
		if err := <-answers; err == nil {
			t.Error("a wait that was canceled was granted")
		}
	}
}

// TestGateway_ManyHoldersNextToAHostileCaller: a thousand holders behind one token all get what they ask for at once, in a tenth of a
// node's default room, while another caller has its whole part of the calls and keeps asking for more.
func TestGateway_ManyHoldersNextToAHostileCaller(t *testing.T) {
	const holders, room = 1000, int64(rpc.DefaultMaxInFlight / 10)
	n, secrets := guarded(t, func(c *rpc.Config) { c.MaxInFlight = room })
	hostile, _ := apisAs(t, n.url, secrets["hostile"])
	gateway, _ := apisAs(t, n.url, secrets["other"])
	const quotas = `{"quotas":[{"name":"plenty","rate":{"limit":1000000,"per":"1h"}}]}`
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", quotas,
		"Authorization", "Bearer "+secrets["operator"]); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	held, err := gateway.Reserve(ctx, &quotav1.ReserveRequest{Holder: "h", Items: []*quotav1.Item{{Quota: "s"}}})
	if err != nil || held.GetLease() == nil { // there is no more of it
		t.Fatalf("%v %v", held, err)
	}
	var asking sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		asking.Wait()
	})
	part := room * 7 / 16 // half of what is not kept
	var refused atomic.Int64
	for i := range part + part/100 {
		asking.Go(func() {
			for ctx.Err() == nil {
				_, err := hostile.Reserve(ctx, &quotav1.ReserveRequest{
					Holder: fmt.Sprint("x", i%10), Items: []*quotav1.Item{{Quota: "s", Amount: new(int64(1))}}, Wait: durationpb.New(10 * time.Minute),
				})
				if info := infoOf(err); info.GetReason() == quotav1.Reason_REASON_CALLER_BUDGET && info.Budget == "calls" {
					refused.Add(1)
				}
				pauseFor(ctx, 100*time.Millisecond)
			}
		})
	}
	full := func() bool { return refused.Load() > 0 && inUse(t, n, secrets["operator"], "calls") >= part }
	eventually(t, "the hostile caller has its part", full)
	var served sync.WaitGroup
	for i := range holders {
		served.Go(func() {
			const tries = 1000
			var err error
			for try := 0; try < tries && ctx.Err() == nil; try++ {
				var res *quotav1.ReserveResponse
				if res, err = gateway.Reserve(ctx, &quotav1.ReserveRequest{
					Holder: fmt.Sprint("h", i), Items: []*quotav1.Item{{Quota: "plenty"}}, Wait: durationpb.New(time.Minute),
				}); res.GetLease() != nil {
					return
				}
				pauseFor(ctx, 100*time.Millisecond)
			}
			t.Errorf("holder %d is not served: %v", i, err)
		})
	}
	served.Wait()
	eventually(t, "the hostile caller still has its part", full)
}

// pauseFor waits for a time, at most until ctx ends.
func pauseFor(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

// TestBodies_AreReadForKnownCallers: a body without a token is not even decompressed.
func TestBodies_AreReadForKnownCallers(t *testing.T) {
	n, _ := guarded(t, func(*rpc.Config) {})
	bomb := zipped(t, make([]byte, 3<<20))
	for _, client := range clients(t) {
		for _, f := range forms {
			before := allocated()
			for range 20 {
				sendForm(t, client, http.MethodPost, n.url+"/quota.v1.QuotaService/Batch", f, true, strings.NewReader(string(f.body(bomb, true))))
			}
			if took := allocated() - before; took > 20<<20 { // decompressed they take three times as much
				t.Errorf("as %s: %d MiB were allocated", f.contentType, took>>20)
			}
		}
	}
}
