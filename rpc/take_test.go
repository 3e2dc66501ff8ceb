package rpc_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// taken sends a take or a report as a script does, again if it was refused because leadership moved. It returns status, Retry-After and
// body.
func taken(t *testing.T, n *testNode, path, body string, headers ...string) (status int, retryAfter, answer string) {
	t.Helper()
	eventually(t, "a leader takes or refuses a call", func() bool {
		status, retryAfter, answer = takenOnce(t, n, path, body, headers...)
		return !saysLeadershipMoved(answer)
	})
	return status, retryAfter, answer
}

func takenOnce(t *testing.T, n *testNode, path, body string, headers ...string) (status int, retryAfter, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Retry-After"), string(data)
}

const asJSON = "application/json"

// TestTake_AtAnyNode: 200 is the permission to call, 429 says when to retry, and a report of the answer closes the quota.
func TestTake_AtAnyNode(t *testing.T) {
	t.Parallel() // mostly waiting
	nodes := newNodes(t, 3)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyTwo); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	var last string
	for i := range 10 {
		n := nodes[i%len(nodes)]
		eventually(t, "the node knows the quota", func() bool {
			status, _ := post(t, n.url, "/quota.v1.QuotaService/GetQuota", `{"name":"t/core","read":"stale"}`)
			return status == http.StatusOK
		})
		status, _, body := taken(t, n, "/take?quota=t/core", "")
		if status != http.StatusOK || at(fields(t, body), "spendIn") == nil {
			t.Fatalf("take %d: %d %s", i, status, body)
		}
		last = body
	}
	for _, n := range nodes {
		status, again, body := taken(t, n, "/take?quota=t/core&wait=0s", "")
		if status != http.StatusTooManyRequests || again == "" || at(fields(t, body), "error", "reason") != "REASON_EXHAUSTED" {
			t.Errorf("the 11th: %d %q %s", status, again, body)
		}
	}
	lease := fields(t, last)
	report := fmt.Sprintf("/report?lease=%v&fence=%v", lease["lease"], lease["fence"])
	status, _, body := taken(t, nodes[0], report, `{"status":429,"headers":{"Retry-After":"40"}}`, "Content-Type", asJSON)
	if status != http.StatusOK || !strings.Contains(body, "cooldownLeft") {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body = taken(t, nodes[1], "/take?quota=t/core&wait=0s", ""); at(fields(t, body), "error", "reason") != "REASON_COOLDOWN" {
		t.Errorf("after the report: %d %s", status, body)
	}
}

// TestTake_Table: takes in the query and as JSON, and their errors.
func TestTake_Table(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		strings.Replace(applyTwo, `"quotas":[`, `"quotas":[{"name":"s","slots":{"limit":3}},`+
			`{"name":"p","pool":{"members":[{"name":"a","quota":"s"}]}},`+
			`{"name":"rates","pool":{"members":[{"name":"a","quota":"o/m/tokens"}]}},`, 1)); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		status     int
		// field is what the error names, hint a part of its hint.
		field, hint string
	}{
		"two at once": {
			path: "/take", body: `{"items":[{"quota":"o/m/requests"},{"quota":"o/m/tokens","amount":5}],"holder":"picard","class":"background"}`,
			headers: []string{"Content-Type", asJSON}, status: 200,
		},
		"as a class, with time": {path: "/take?quota=o/m/tokens&amount=3&class=background&wait=2m&holder=ralph", status: 200},
		"no quota":              {path: "/take", status: 400, field: "quota"},
		"half a unit":           {path: "/take?quota=t/core&amount=0.5", status: 400, field: "amount"},
		"a word of no meaning":  {path: "/take?quota=t/core&amounts=5", status: 400, field: `"amounts"`},
		"two quotas": {
			path: "/take?quota=o/m/requests&quota=o/m/tokens", status: 400, field: "quota", hint: `{"items":[{"quota":"github/core","amount":1}]}`,
		},
		"one quota twice":    {path: "/take?quota=t/core&quota=t/core", status: 400, field: "quota", hint: "items"},
		"two amounts":        {path: "/take?quota=t/core&amount=1&amount=2", status: 400, field: "amount", hint: "once"},
		"two holders":        {path: "/take?quota=t/core&holder=&holder=picard", status: 400, field: "holder", hint: "once"},
		"no such class":      {path: "/take?quota=t/core&class=urgent", status: 400, field: "class"},
		"no length of time":  {path: "/take?quota=t/core&wait=30", status: 400, field: "wait"},
		"an hour":            {path: "/take?quota=t/core&wait=1h", status: 400, field: "wait"},
		"slots":              {path: "/take?quota=s", status: 400, field: "items[0].quota"},
		"a pool of slots":    {path: "/take?quota=p", status: 400, field: "items[0].quota"},
		"a pool of rates":    {path: "/take?quota=rates", status: 200},
		"nobody's quota":     {path: "/take?quota=nowhere", status: 404},
		"more than there is": {path: "/take?quota=t/core&amount=11", status: 429},
		"a form": {
			path: "/take?quota=t/core", body: "a=b", headers: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 400,
			field: "content-type",
		},
		"a page of elsewhere": {
			path: "/take?quota=t/core", headers: []string{"Origin", "http://elsewhere.example"}, status: 403, field: "Origin",
		},
		"a report of nothing": {path: "/report?lease=1&fence=1", status: 400, field: "answer.status"},
		"a report of no take": {
			path: "/report", body: `{"status":429}`, headers: []string{"Content-Type", asJSON}, status: 400, field: "lease",
		},
		"a report of two": {
			path: "/report?lease=1&lease=2&fence=1", body: `{"status":429}`, headers: []string{"Content-Type", asJSON}, status: 400, field: "lease",
			hint: "once",
		},
		"a number that is none": {
			path: "/report?lease=x&fence=1", body: `{"status":429}`, headers: []string{"Content-Type", asJSON}, status: 400, field: "lease",
		},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, body := taken(t, n, c.path, c.body, c.headers...)
			answer := fields(t, body)
			if status != c.status {
				t.Fatalf("%d %s, want %d", status, body, c.status)
			}
			if status == http.StatusOK && (answer["lease"] == nil || answer["spendIn"] == nil) {
				t.Errorf("%s", body)
			}
			if status != http.StatusOK && (at(answer, "error", "reason") == nil || c.field != "" && at(answer, "error", "field") != c.field) {
				t.Errorf("%s, want field %s", body, c.field)
			}
			if hint, _ := at(answer, "error", "hint").(string); !strings.Contains(hint, c.hint) {
				t.Errorf("the hint is %q, want %q", hint, c.hint)
			}
		})
	}
}

// TestTake_NamesMemberAndForecast: the answer names the pool's member whose key the call is for, and has the forecast, as a refusal does.
func TestTake_NamesMemberAndForecast(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", `{"quotas":[`+
		`{"name":"k","rate":{"limit":600,"per":"60s"},"policy":{"prediction":{}}},`+
		`{"name":"keys","pool":{"members":[{"name":"a","quota":"k"}]}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	var answer map[string]any
	for range 5 {
		status, _, body := taken(t, n, "/take?quota=keys&amount=100", "")
		if answer = fields(t, body); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	items, _ := answer["items"].([]any)
	item := map[string]any{}
	if len(items) == 1 {
		item, _ = items[0].(map[string]any)
	}
	if at(item, "quota") != "k" || at(item, "pool") != "keys" || at(item, "member") != "a" {
		t.Errorf("taken of a pool: %v", answer)
	}
	if at(answer, "forecast", "quota") != "k" || at(answer, "forecast", "smaller") == nil {
		t.Errorf("predicted is %v", answer)
	}
	status, _, body := taken(t, n, "/take?quota=keys&amount=200&wait=0s", "")
	if status != http.StatusTooManyRequests || at(fields(t, body), "error", "forecast", "quota") != "k" {
		t.Errorf("a refusal: %d %s", status, body)
	}
}

// TestTake_ReleasesSlots: a node that does not know yet that a quota has slots is granted some, and releases them: its caller
// would not.
func TestTake_ReleasesSlots(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"s","slots":{"limit":1}},{"name":"r","rate":{"limit":1,"per":"60s"}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url)
	for name, items := range map[string][]*quotav1.Item{"alone": {{Quota: "s"}}, "with others": {{Quota: "r"}, {Quota: "s"}}} {
		t.Run(name, func(t *testing.T) {
			granted, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: "h", Items: items, Consume: true})
			if err != nil || granted.GetLease() == nil {
				t.Fatal(granted, err)
			}
			if err := rpc.Taken(t.Context(), n.server, granted.GetLease()); reasonOf(t, err) != quotav1.Reason_REASON_INVALID {
				t.Errorf("%v", err)
			}
			left, err := api.ListLeases(t.Context(), &quotav1.ListLeasesRequest{})
			if err != nil || len(left.Leases) > 0 {
				t.Errorf("%v %v", left, err)
			}
			quota, err := api.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "r"})
			if err != nil || quota.Quota.GetConsumed() != 0 {
				t.Errorf("%v %v", quota, err)
			}
		})
	}
}
