package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// verbOf maps each call to the verb that it needs; none for a Batch, whose commands need one each. A new call must be added here.
var verbOf = map[string]rpc.Verb{
	"OpenSession": rpc.VerbUse, "CloseSession": rpc.VerbUse, "Reserve": rpc.VerbUse, "Consume": rpc.VerbUse,
	"Settle": rpc.VerbUse, "Release": rpc.VerbUse, "Renew": rpc.VerbUse, "Withdraw": rpc.VerbUse, "Batch": "",
	"Report": rpc.VerbReport, "Watch": rpc.VerbRead, "GetQuota": rpc.VerbRead, "ListQuotas": rpc.VerbRead,
	"ListLeases": rpc.VerbRead, "CheckFence": rpc.VerbRead, "GetStatus": rpc.VerbRead, "GetWorkflow": rpc.VerbRead,
	"ListWorkflows":   rpc.VerbRead,
	"ListHolderRules": rpc.VerbRead, "ApplyQuotas": rpc.VerbAdminQuota, "DeleteQuota": rpc.VerbAdminQuota,
	"DeleteWorkflow": rpc.VerbAdminQuota,
	"RevokeLease":    rpc.VerbAdminQuota,
	"AddMember":      rpc.VerbAdminCluster, "PromoteMember": rpc.VerbAdminCluster, "RemoveMember": rpc.VerbAdminCluster,
	"TransferLeadership": rpc.VerbAdminCluster, "Backup": rpc.VerbAdminCluster, "Restore": rpc.VerbAdminCluster,
	"OverrideQuota": rpc.VerbAdminQuota, "ReopenQuota": rpc.VerbAdminQuota, "ResetClock": rpc.VerbAdminCluster,
	"SetLimits": rpc.VerbAdminCluster, "ListUsage": rpc.VerbRead,
	"BeginTask": rpc.VerbUse, "RenewTask": rpc.VerbUse, "EndTask": rpc.VerbUse, "ListTasks": rpc.VerbRead,
	"RetryTask": rpc.VerbAdminQuota, "ForgetTask": rpc.VerbAdminQuota,
	"GetStateHash": rpc.VerbDebug, "DumpLog": rpc.VerbDebug, "SetFault": rpc.VerbDebug,
}

// tokenFile writes one token for each verb and returns their secrets.
func tokenFile(t *testing.T) (path string, secrets map[rpc.Verb]string) {
	t.Helper()
	secrets = make(map[rpc.Verb]string)
	text := "tokens:\n"
	for _, verb := range []rpc.Verb{
		rpc.VerbUse, rpc.VerbReport, rpc.VerbRead, rpc.VerbAdminQuota, rpc.VerbAdminCluster, rpc.VerbDebug,
	} {
		secret, entry, err := rpc.NewToken(string(verb), "ralph*", "standard", []rpc.Verb{verb})
		if err != nil {
			t.Fatal(err)
		}
		secrets[verb] = secret
		text += fmt.Sprintf("- {id: %s, sha256: %s, holder: %q, verbs: [%s]}\n", entry.ID, entry.SHA256, entry.Holder, verb)
	}
	path = filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, secrets
}

// TestTokens_AllowTheirVerbs makes every unary call with every token and with none.
func TestTokens_AllowTheirVerbs(t *testing.T) {
	path, secrets := tokenFile(t)
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	n := newNodes(t, 1, func(c *rpc.Config) {
		c.Tokens, c.Registry = tokens, registry
		c.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &log})
	})[0]
	bodies := ""
	calls := 0
	for service, file := range map[string]protoreflect.FileDescriptor{
		"QuotaService": quotav1.File_quota_v1_quota_proto, "AdminService": quotav1.File_quota_v1_admin_proto,
		"TaskService": quotav1.File_quota_v1_task_proto,
	} { // in any order
		methods := file.Services().Get(0).Methods()
		for i := range methods.Len() {
			method := methods.Get(i)
			name := string(method.Name())
			need, known := verbOf[name]
			if !known {
				t.Errorf("no verb is said for %s", name)
			}
			if calls++; method.IsStreamingServer() || method.IsStreamingClient() {
				continue // curl cannot send those
			}
			for verb, secret := range secrets {
				status, body := post(t, n.url, "/quota.v1."+service+"/"+name, `{}`, "Authorization", "Bearer "+secret)
				bodies += body
				if refused := status == http.StatusForbidden && strings.Contains(body, "REASON_NOT_ALLOWED"); refused == (verb == need || need == "") {
					t.Errorf("%s with a token for %s: %d %s", name, verb, status, body)
				}
			}
			for _, wrong := range []string{"", "Bearer qtd_use_wrong", "Basic abc", "Bearer " + secrets[rpc.VerbUse] + "x"} {
				if status, body := post(t, n.url, "/quota.v1."+service+"/"+name, `{}`, "Authorization", wrong); status != http.StatusUnauthorized {
					t.Errorf("%s with %q: %d %s", name, wrong, status, body)
				}
			}
		}
	}
	if calls != len(verbOf) {
		t.Errorf("%d calls, the table has %d", calls, len(verbOf))
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	everything := log.String() + bodies + fmt.Sprint(families)
	for verb, secret := range secrets {
		if strings.Contains(everything, secret) {
			t.Errorf("the secret of the token for %s got out", verb)
		}
	}
}

// TestTokens_CoverHolders: a token acts for the holders of its pattern, in no higher class than its own.
func TestTokens_CoverHolders(t *testing.T) {
	path, secrets := tokenFile(t)
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	use, quota := "Bearer "+secrets[rpc.VerbUse], "Bearer "+secrets[rpc.VerbAdminQuota]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore, "Authorization", quota); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	reserve := func(holder string) (int, string) {
		return post(t, n.url, "/quota.v1.QuotaService/Reserve",
			`{"holder":"`+holder+`","items":[{"quota":"t/core"}],"class":"CLASS_CRITICAL"}`, "Authorization", use)
	}
	if status, body := reserve("ralph@1"); status != http.StatusOK || !strings.Contains(body, "CLASS_STANDARD") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := reserve("picard"); status != http.StatusForbidden {
		t.Errorf("%d %s", status, body)
	}
}

// TestTokens_SayThatTheyLowerClasses: a caller learns from a refusal that it counted as a lower class than it asked for.
func TestTokens_SayThatTheyLowerClasses(t *testing.T) {
	path, secrets := tokenFile(t)
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore,
		"Authorization", "Bearer "+secrets[rpc.VerbAdminQuota]); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	service, use := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url), bearer(t, secrets[rpc.VerbUse])
	never := int64(1) << 50
	for class, want := range map[quotav1.Class]bool{
		quotav1.Class_CLASS_CRITICAL: true, quotav1.Class_CLASS_STANDARD: false, quotav1.Class_CLASS_BACKGROUND: false,
		quotav1.Class_CLASS_UNSPECIFIED: false,
	} {
		request := &quotav1.ReserveRequest{Holder: "ralph@1", Class: class, Items: []*quotav1.Item{{Quota: "t/core", Amount: &never}}}
		alone, err := service.Reserve(use, request)
		if err != nil {
			t.Fatal(err)
		}
		batch, err := service.Batch(use, &quotav1.BatchRequest{
			Commands: []*quotav1.Command{{Kind: &quotav1.Command_Reserve{Reserve: request}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for call, refusal := range map[string]*quotav1.Refusal{
			"Reserve": alone.GetRefusal(), "Batch": batch.Results[0].GetReserve().GetRefusal(),
		} {
			if said := strings.Contains(refusal.GetAdvice(), "your token lowers the class critical to standard"); refusal == nil || said != want {
				t.Errorf("%s as %v: %v", call, class, refusal)
			}
		}
	}
}

// TestBatch_EachCommandNeedsItsVerb: a token that may only report can report in a Batch too, and do nothing else.
func TestBatch_EachCommandNeedsItsVerb(t *testing.T) {
	path, secrets := tokenFile(t)
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore,
		"Authorization", "Bearer "+secrets[rpc.VerbAdminQuota]); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	granted := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url)
	use := bearer(t, secrets[rpc.VerbUse])
	lease, err := granted.Reserve(use, &quotav1.ReserveRequest{
		Holder: "ralph@1", Consume: true, Items: []*quotav1.Item{{Quota: "t/core"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for verb, secret := range secrets {
		res, err := granted.Batch(bearer(t, secret), &quotav1.BatchRequest{Commands: []*quotav1.Command{
			{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{Holder: "ralph@1", Items: []*quotav1.Item{{Quota: "t/core"}}}}},
			{Kind: &quotav1.Command_Report{Report: &quotav1.ReportRequest{
				Lease: lease.GetLease().Id, Fence: lease.GetLease().Fence, Op: 1,
				Signals: []*quotav1.Signal{{Quota: "t/core", Cause: quotav1.Cause_CAUSE_OK}},
			}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i, of := range []rpc.Verb{rpc.VerbUse, rpc.VerbReport} {
			refused := res.Results[i].GetError().GetInfo().GetReason() == quotav1.Reason_REASON_NOT_ALLOWED
			if refused == (verb == of) {
				t.Errorf("command %d with a token for %s: %v", i, verb, res.Results[i])
			}
		}
	}
}

// bearer returns the context of a call with a token.
func bearer(t *testing.T, secret string) context.Context {
	t.Helper()
	ctx, info := connect.NewClientContext(t.Context())
	info.RequestHeader().Set("Authorization", "Bearer "+secret)
	return ctx
}

// holderTokens makes a token for each name, with the verbs use, read and admin-quota, for all holders that begin with the name.
func holderTokens(t *testing.T, holders ...string) (*rpc.Tokens, map[string]string) {
	t.Helper()
	text, secrets := "tokens:\n", map[string]string{}
	for _, name := range holders {
		secret, entry, err := rpc.NewToken(name, name+"*", "standard", []rpc.Verb{rpc.VerbUse})
		if err != nil {
			t.Fatal(err)
		}
		secrets[name] = secret
		text += fmt.Sprintf("- {id: %s, sha256: %s, holder: %q, verbs: [use, read, admin-quota]}\n", name, entry.SHA256, entry.Holder)
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

// TestSessions_BelongToTheirOpeners: no other token can use, number or close a session, or open one for a foreign holder.
func TestSessions_BelongToTheirOpeners(t *testing.T) {
	tokens, secrets := holderTokens(t, "ralph", "picard")
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url)
	ralph, picard := bearer(t, secrets["ralph"]), bearer(t, secrets["picard"])
	if _, err := api.OpenSession(picard, &quotav1.OpenSessionRequest{Holder: "ralph@1"}); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a session for a foreign holder: %v", err)
	}
	opened, err := api.OpenSession(ralph, &quotav1.OpenSessionRequest{Holder: "ralph@1"})
	if err != nil {
		t.Fatal(err)
	}
	withdraw := &quotav1.WithdrawRequest{RequestId: &quotav1.RequestId{Session: opened.Session, Seq: 1}, Ticket: 7}
	_, foreign := api.Withdraw(picard, withdraw)
	_, closing := api.CloseSession(picard, &quotav1.CloseSessionRequest{Session: opened.Session})
	for what, err := range map[string]error{"used": foreign, "closed": closing} {
		if got := reasonOf(t, err); got != quotav1.Reason_REASON_UNKNOWN_SESSION {
			t.Errorf("a foreign session was %s: %v", what, err)
		}
	}
	if _, err := api.Withdraw(ralph, withdraw); reasonOf(t, err) != quotav1.Reason_REASON_UNKNOWN_TICKET {
		t.Errorf("its opener: %v", err)
	}
	if _, err := api.CloseSession(ralph, &quotav1.CloseSessionRequest{Session: opened.Session}); err != nil {
		t.Error(err)
	}
}

// TestLoadTokens_RefusesMistakes: each mistake is an error, and nothing panics.
func TestLoadTokens_RefusesMistakes(t *testing.T) {
	for name, text := range map[string]string{
		"an empty entry": "tokens: [null]\n", "an unknown key": "tokens: [{id: a, hash: b}]\n",
		"a short hash": "tokens: [{id: a, sha256: ab, holder: '*', verbs: [use]}]\n", "no list": "tokens: 7\n",
	} {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := rpc.LoadTokens(path); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// TestTokens_Expire: a token is valid until its not_after.
func TestTokens_Expire(t *testing.T) {
	secret, entry, err := rpc.NewToken("ci", "ci-*", "standard", []rpc.Verb{rpc.VerbUse})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	for ends, valid := range map[string]bool{
		"": true, ", not_after: 2199-12-31T00:00:00Z": true, ", not_after: 2026-01-31T00:00:00Z": false, ", not_after: 2026-01-31": false,
	} {
		text := fmt.Sprintf("tokens:\n- {id: ci, sha256: %s, holder: 'ci-*', verbs: [use]%s}\n", entry.SHA256, ends)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tokens, err := rpc.LoadTokens(path)
		if err != nil {
			t.Fatalf("%s: %v", ends, err)
		}
		if _, known := tokens.Find(secret); known != valid {
			t.Errorf("%q: the token is valid: %v, want %v", ends, known, valid)
		}
	}
}

// TestListLeases_PagesLeasesOfToken: every lease that the caller may see is on one of the pages, however many of others are between
// them.
func TestListLeases_PagesLeasesOfToken(t *testing.T) {
	secret, entry, err := rpc.NewToken("mine", "mine-*", "standard", []rpc.Verb{rpc.VerbUse, rpc.VerbRead})
	if err != nil {
		t.Fatal(err)
	}
	all, everything, err := rpc.NewToken("all", "*", "standard", []rpc.Verb{rpc.VerbUse, rpc.VerbAdminQuota})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	text := fmt.Sprintf("tokens:\n- {id: mine, sha256: %s, holder: 'mine-*', verbs: [use, read]}\n- {id: all, sha256: %s, holder: '*', "+
		"verbs: [use, admin-quota]}\n",
		entry.SHA256, everything.SHA256)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", `{"quotas":[{"name":"t/core","rate":{"limit":100,"per":"60s"}}]}`,
		"Authorization", "Bearer "+all); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	api, _ := apisAs(t, n.url, all)
	want := 0
	for i, mine := range []bool{false, true, true, true, false, true, true, false, false, false, false, true, true} {
		holder := fmt.Sprint("other-", i)
		if mine {
			want, holder = want+1, fmt.Sprint("mine-", i)
		}
		if res, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: holder, Items: []*quotav1.Item{{Quota: "t/core"}}}); err != nil ||
			res.GetLease() == nil {
			t.Fatalf("%v %v", res, err)
		}
	}
	reader, _ := apisAs(t, n.url, secret)
	for size := range int32(5) {
		seen, ask := 0, &quotav1.ListLeasesRequest{PageSize: size + 1}
		for pages := 0; ; pages++ {
			page, err := reader.ListLeases(t.Context(), ask)
			if err != nil || pages > 20 {
				t.Fatalf("%d pages of %d: %v", pages, size+1, err)
			}
			seen += len(page.Leases)
			if ask.PageToken = page.NextPageToken; ask.PageToken == "" {
				break
			}
		}
		if seen != want {
			t.Errorf("pages of %d show %d leases of %d", size+1, seen, want)
		}
	}
}
