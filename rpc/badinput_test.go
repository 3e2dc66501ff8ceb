package rpc_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// ledgerHash returns the hash of a node's ledger.
func ledgerHash(t *testing.T, n *testNode) string {
	t.Helper()
	res, err := quotav1connect.NewAdminServiceClient(http.DefaultClient, n.url).GetStateHash(t.Context(), &quotav1.GetStateHashRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return res.Ledger
}

// TestBadInput_IsRefusedAndChangesNothing sends malformed, hostile and extreme requests, as curl would. Each has its own reason and
// status, and the ledger stays as it is.
func TestBadInput_IsRefusedAndChangesNothing(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := post(t, n.url, "/quota.v1.QuotaService/Reserve",
		`{"holder":"me","items":[{"quota":"t/core","amount":2}],"ttl":"3600s"}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	many := strings.TrimSuffix(strings.Repeat(`{"quota":"t/core"},`, 10_000), ",")
	const quota, admin = "/quota.v1.QuotaService/", "/quota.v1.AdminService/"
	for name, c := range map[string]struct {
		path, body string
		status     int
		reason     string
	}{
		"nothing":                 {quota + "Reserve", `{}`, 400, "INVALID"},
		"no items":                {quota + "Reserve", `{"holder":"a"}`, 400, "INVALID"},
		"1,000 items":             {quota + "Reserve", `{"holder":"a","items":[` + many[:1000*19-1] + `]}`, 400, "INVALID"},
		"3,000 items":             {quota + "Reserve", `{"holder":"a","items":[` + many[:3000*19-1] + `]}`, 400, "INVALID"},
		"10,000 items":            {quota + "Reserve", `{"holder":"a","items":[` + many + `]}`, 413, "TOO_LARGE"},
		"an item twice":           {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"},{"quota":"t/core"}]}`, 400, "INVALID"},
		"amount 0":                {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core","amount":0}]}`, 400, "INVALID"},
		"a negative amount":       {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core","amount":-1}]}`, 400, "INVALID"},
		"amount 2^53":             {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core","amount":"9007199254740992"}]}`, 400, "INVALID"},
		"amount beyond int64":     {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core","amount":1e19}]}`, 400, "INVALID"},
		"an unknown quota":        {quota + "Reserve", `{"holder":"a","items":[{"quota":"nowhere"}]}`, 404, "UNKNOWN_QUOTA"},
		"a holder with blanks":    {quota + "Reserve", `{"holder":"a b","items":[{"quota":"t/core"}]}`, 400, "INVALID"},
		"a holder that is a star": {quota + "Reserve", `{"holder":"*","items":[{"quota":"t/core"}]}`, 400, "INVALID"},
		"a member of no pool":     {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"member":"x"}`, 400, "INVALID"},
		"a member's name of an age": {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"member":"` + strings.Repeat("x", 65) +
			`"}`, 400, "INVALID"},
		"a pool of nobody": {admin + "ApplyQuotas", `{"quotas":[{"name":"x","pool":{}}]}`, 400, "INVALID"},
		"a pool of what is not": {
			admin + "ApplyQuotas", `{"quotas":[{"name":"x","pool":{"members":[{"name":"a","quota":"y"}]}}]}`, 400,
			"IMPOSSIBLE_QUOTA",
		},
		"a ttl of an age": {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"ttl":"315576000000s"}`, 400, "INVALID"},
		"a negative wait": {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"wait":"-1s"}`, 400, "INVALID"},
		"a workflow of a pattern": {
			admin + "ApplyQuotas", `{"workflows":[{"name":"w","steps":[{"holder":"a*"},{"holder":"b"}]}],"replaceWorkflows":true}`, 400, "INVALID",
		},
		"a workflow that is not there": {admin + "ApplyQuotas", `{"workflows":[null],"replaceWorkflows":true}`, 400, "INVALID"},
		"a cycle": {
			admin + "ApplyQuotas",
			`{"workflows":[{"name":"w","steps":[{"holder":"a","after":["b"]},{"holder":"b","after":["a"]}]}],"replaceWorkflows":true}`, 400,
			"IMPOSSIBLE_WORKFLOW",
		},
		"an unknown workflow":       {quota + "GetWorkflow", `{"name":"nowhere"}`, 404, "UNKNOWN_WORKFLOW"},
		"a workflow without a name": {quota + "GetWorkflow", `{}`, 400, "INVALID"},
		"a deleted workflow":        {admin + "DeleteWorkflow", `{"name":"nowhere"}`, 404, "UNKNOWN_WORKFLOW"},
		"an unknown class":          {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"class":77}`, 400, "INVALID"},
		"seq without session":       {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"requestId":{"seq":1}}`, 400, "INVALID"},
		"session without seq": {
			quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"requestId":{"session":1}}`, 400, "INVALID",
		},
		"an unknown session": {
			quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"requestId":{"session":99,"seq":1}}`, 400, "UNKNOWN_SESSION",
		},
		"no_block without id": {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"noBlock":true}`, 400, "INVALID"},
		"cut-off JSON":        {quota + "Reserve", `{"holder":"a","ite`, 400, "INVALID"},
		"an unknown field":    {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core","quantity":1}]}`, 400, "INVALID"},
		"an empty body":       {quota + "Reserve", ``, 400, "INVALID"},
		"10,000 commands": {quota + "Batch", `{"commands":[` +
			strings.TrimSuffix(strings.Repeat(`{"renew":{"lease":1,"fence":1}},`, 10_000), ",") + `]}`, 400, "INVALID"},
		"more than the limit": {quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core","amount":11}]}`, 200, "NEVER_FITS"},
		"key and session": {
			quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"requestId":{"session":1,"seq":1,"idempotencyKey":"k"}}`, 400, "INVALID",
		},
		"a key of 129 bytes": {
			quota + "Reserve", `{"holder":"a","items":[{"quota":"t/core"}],"requestId":{"idempotencyKey":"` + strings.Repeat("k", 129) + `"}}`, 400,
			"INVALID",
		},
		"an unknown read mode": {quota + "GetQuota", `{"name":"t/core","read":9}`, 400, "INVALID"},
		"a prefix too long":    {quota + "ListQuotas", `{"prefix":"` + strings.Repeat("p", 201) + `"}`, 400, "INVALID"},
		"a leader that is not": {admin + "TransferLeadership", `{"id":"n9"}`, 404, "UNKNOWN_MEMBER"},
		"no JSON":              {quota + "Reserve", `hello`, 400, "INVALID"},
		"broken UTF-8":         {quota + "Reserve", "{\"holder\":\"\xff\",\"items\":[{\"quota\":\"t/core\"}]}", 400, "INVALID"},
		// The rest of a much larger body is not read, and the connection is reset, perhaps before the answer is seen.
		"a body of 200 KiB":    {quota + "Reserve", `{"holder":"` + strings.Repeat("a", 200<<10) + `"}`, 413, "TOO_LARGE"},
		"a dead fence":         {quota + "Consume", `{"lease":1,"fence":0,"op":1}`, 400, "INVALID"},
		"a fence never issued": {quota + "Consume", `{"lease":1,"fence":"18446744073709551615","op":1}`, 400, "NEVER_ISSUED"},
		"a lease that is not":  {quota + "Consume", `{"lease":7,"fence":1,"op":1}`, 400, "STALE_FENCE"},
		"operation 0":          {quota + "Consume", `{"lease":1,"fence":1}`, 400, "INVALID"},
		"more than is held": {
			quota + "Consume", `{"lease":1,"fence":1,"op":1,"items":[{"quota":"t/core","amount":3}]}`, 400, "NOT_HELD",
		},
		"an empty settle":          {quota + "Settle", `{"lease":1,"fence":1,"op":1}`, 400, "INVALID"},
		"an operation that is not": {quota + "Settle", `{"lease":1,"fence":1,"op":5,"final":true}`, 400, "STALE_OPERATION"},
		"actual without an amount": {quota + "Settle", `{"lease":1,"fence":1,"op":1,"actual":[{"quota":"t/core"}]}`, 400, "INVALID"},
		"release of another quota": {quota + "Release", `{"lease":1,"fence":1,"items":[{"quota":"other","amount":1}]}`, 400, "NOT_HELD"},
		"renew for an instant":     {quota + "Renew", `{"lease":1,"fence":1,"ttl":"0.001s"}`, 400, "INVALID"},
		"no such ticket":           {quota + "Withdraw", `{"ticket":9}`, 404, "UNKNOWN_TICKET"},
		"a report without signals": {quota + "Report", `{"lease":1,"fence":1,"op":1}`, 400, "INVALID"},
		"a negative remaining": {
			quota + "Report", `{"lease":1,"fence":1,"op":1,"signals":[{"quota":"t/core","cause":"CAUSE_OK","remaining":"-1"}]}`, 400, "INVALID",
		},
		"a wait in a batch, nameless": {
			quota + "Batch", `{"commands":[{"reserve":{"holder":"a","items":[{"quota":"t/core"}],"wait":"5s"}}]}`, 200, "INVALID",
		},
		"an empty batch":           {quota + "Batch", `{}`, 400, "INVALID"},
		"no such quota to look at": {quota + "GetQuota", `{"name":"nowhere"}`, 404, "UNKNOWN_QUOTA"},
		"a page of a million":      {quota + "ListQuotas", `{"pageSize":1000000}`, 400, "INVALID"},
		"a foreign page token":     {quota + "ListLeases", `{"pageToken":"x"}`, 400, "INVALID"},
		"a fence of nothing":       {quota + "CheckFence", `{}`, 400, "INVALID"},
		"session 0":                {quota + "CloseSession", `{}`, 400, "INVALID"},
		"no quotas":                {admin + "ApplyQuotas", `{}`, 400, "INVALID"},
		"rules of holders for nothing": {
			admin + "ApplyQuotas", `{"quotas":[{"name":"x","slots":{"limit":1}}],"holders":[{"pattern":"a","class":"critical"}]}`, 400, "INVALID",
		},
		"a workflow for nothing": {
			admin + "ApplyQuotas", `{"quotas":[{"name":"x","slots":{"limit":1}}],` + strings.Replace(applyRelease[1:], "true}", "false}", 1), 400,
			"INVALID",
		},
		"a quota without a rule":     {admin + "ApplyQuotas", `{"quotas":[{"name":"x"}]}`, 400, "INVALID"},
		"a negative limit":           {admin + "ApplyQuotas", `{"quotas":[{"name":"x","slots":{"limit":-1}}]}`, 400, "INVALID"},
		"headroom of all":            {admin + "ApplyQuotas", `{"quotas":[{"name":"x","headroom":1,"slots":{"limit":1}}]}`, 400, "INVALID"},
		"headroom that is no number": {admin + "ApplyQuotas", `{"quotas":[{"name":"x","headroom":"NaN","slots":{"limit":1}}]}`, 400, "INVALID"},
		"a burst too small": {
			admin + "ApplyQuotas", `{"quotas":[{"name":"x","rate":{"limit":600,"per":"60s","burst":1}}]}`, 400, "IMPOSSIBLE_QUOTA",
		},
		"a parent that is not": {
			admin + "ApplyQuotas", `{"quotas":[{"name":"x","parent":"y","slots":{"limit":1}}]}`, 400, "IMPOSSIBLE_QUOTA",
		},
		"another kind":                 {admin + "ApplyQuotas", `{"quotas":[{"name":"t/core","slots":{"limit":1}}]}`, 400, "KIND_CHANGE"},
		"a quota in use":               {admin + "DeleteQuota", `{"name":"t/core"}`, 400, "QUOTA_IN_USE"},
		"a lease that is not, revoked": {admin + "RevokeLease", `{"lease":99}`, 404, "UNKNOWN_LEASE"},
		"a member without address":     {admin + "AddMember", `{"id":"n9"}`, 400, "INVALID"},
		"a member that is not":         {admin + "PromoteMember", `{"id":"n9"}`, 404, "UNKNOWN_MEMBER"},
		"a member that is gone":        {admin + "RemoveMember", `{"id":"n9"}`, 404, "UNKNOWN_MEMBER"},
		"the last member":              {admin + "RemoveMember", `{"id":"n0"}`, 400, "UNFIT_MEMBER"},
		"a clock of no rate":           {admin + "SetFault", `{"clockRatePpm":"0"}`, 400, "INVALID"},
		"a baton for an age": {
			admin + "ApplyQuotas", `{"workflows":[{"name":"w","batonTime":"315576000001s"}],"replaceWorkflows":true}`, 400, "INVALID",
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := ledgerHash(t, n)
			status, body := post(t, n.url, c.path, c.body)
			if status != c.status || c.reason != "" && !strings.Contains(body, fmt.Sprintf("%q", "REASON_"+c.reason)) {
				t.Errorf("%d %s; want %d %s", status, body, c.status, c.reason)
			}
			if ledgerHash(t, n) != before {
				t.Error("the ledger changed")
			}
		})
	}
}
