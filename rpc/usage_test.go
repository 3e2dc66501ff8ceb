package rpc_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

const applyMetered = `{"quotas":[{"name":"q","rate":{"limit":"100000","per":"60s"},"policy":{"metering":true}}]}`

func reserveOneOf(holder string) *quotav1.Command {
	return &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{
		Holder: holder, Items: []*quotav1.Item{{Quota: "q"}}, Consume: true,
	}}}
}

// TestMetrics_ManyHoldersShareASeries: beyond 500 pairs of holder and quota, the rest are counted in one series without a holder. No
// holder's name, however plausible, can clash with it.
func TestMetrics_ManyHoldersShareASeries(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyMetered); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	batch := &quotav1.BatchRequest{}
	for i := range 503 {
		batch.Commands = append(batch.Commands, reserveOneOf(fmt.Sprintf("p%04d", i)))
	}
	batch.Commands = append(batch.Commands, reserveOneOf("other"), reserveOneOf("rest"))
	res, err := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url).Batch(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, result := range res.Results {
		if result.GetReserve().GetLease() == nil {
			t.Fatalf("%d: %v", i, result)
		}
	}
	shown := httptest.NewRecorder()
	n.server.Handler().ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if shown.Code != http.StatusOK {
		t.Fatalf("%d %.300s", shown.Code, shown.Body.String())
	}
	const series = "\nquotad_holder_consumed_total{"
	if got := strings.Count(shown.Body.String(), series); got != 501 {
		t.Errorf("%d series", got)
	}
	if !strings.Contains(shown.Body.String(), series+`holder="",quota="q"} 5`) {
		t.Errorf("the rest is not summed")
	}
	for _, want := range []string{
		`{kind="quotas"} 1`, `{kind="leases"} 505`, `{kind="operations"} 505`, `{kind="holders"} 505`, `{kind="waiting"} 0`,
	} {
		if !strings.Contains(shown.Body.String(), "\nquotad_records"+want+"\n") {
			t.Errorf("no quotad_records%s", want)
		}
	}
}

// TestUsage_ShowsHoldersOfToken: a token shows the usage of holders that it may act for, and pages skip the others.
func TestUsage_ShowsHoldersOfToken(t *testing.T) {
	tokens, secrets := holderTokens(t, "picard", "ralph")
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyMetered, "Authorization",
		"Bearer "+secrets["ralph"]); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url)
	for _, name := range []string{"picard@1", "picard@2", "ralph@1", "ralph@2"} {
		who, _, _ := strings.Cut(name, "@")
		if _, err := api.Reserve(bearer(t, secrets[who]), reserveOneOf(name).GetReserve()); err != nil {
			t.Fatal(err)
		}
	}
	ralph := bearer(t, secrets["ralph"])
	var seen []string
	for token := ""; ; {
		page, err := api.ListUsage(ralph, &quotav1.ListUsageRequest{PageSize: 1, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range page.Usage {
			seen = append(seen, row.Holder)
		}
		if token = page.NextPageToken; token == "" || len(seen) > 4 {
			break
		}
	}
	if !slices.Equal(seen, []string{"ralph@1", "ralph@2"}) {
		t.Errorf("ralph sees %q", seen)
	}
	_, err := api.ListUsage(ralph, &quotav1.ListUsageRequest{Holder: "picard@1"})
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a foreign holder: %v", err)
	}
}

// TestMetrics_ForAutoscalers: metrics show that a quota is closed or used up, and for how long.
func TestMetrics_ForAutoscalers(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"q","rate":{"limit":"10","per":"1h"}},`+
			`{"name":"r","rate":{"limit":"10","per":"1h"},"policy":{"shares":{"critical":0.4,"standard":0.3,"background":0.3}}},`+
			`{"name":"w","window":{"limit":"100","every":"hour"},"policy":{"zones":"smooth"}},`+
			`{"name":"below","parent":"q","rate":{"limit":"9","per":"1h"}},{"name":"apart","rate":{"limit":"3","per":"1h"}},`+
			`{"name":"pool","pool":{"members":[{"name":"a","quota":"below"},{"name":"b","quota":"apart"}]}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	lease := called(t, n, "me", "q")
	series := func() string {
		shown := httptest.NewRecorder()
		n.server.Handler().ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return shown.Body.String()
	}
	shows := func(want ...string) func() bool {
		return func() bool {
			all := series()
			return !slices.ContainsFunc(want, func(line string) bool { return !strings.Contains(all, "\n"+line) })
		}
	}
	eventually(t, "what is open", shows(`quotad_quota_available{quota="q"} 9`+"\n", `quotad_quota_cooldown_seconds{quota="q"} 0`+"\n",
		`quotad_quota_zone{quota="q"} 0`+"\n", `quotad_quota_zone{quota="w"} 1`+"\n", `quotad_quota_zone{quota="r"} 1`+"\n",
		`quotad_quota_available{quota="below"} 9`+"\n", `quotad_quota_available{quota="pool"} 9`+"\n"))
	if strings.Contains(series(), "\nquotad_quota_observed_limit{") {
		t.Error("a limit is observed that nobody named")
	}
	status, body := post(t, n.url, "/quota.v1.QuotaService/Report", "{"+lease+`,"signals":[{"quota":"q","cause":"CAUSE_OK","limit":"20"}]}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, "the limit that was named", shows(`quotad_quota_observed_limit{quota="q"} 20`+"\n", `quotad_quota_limit{quota="q"} 10`+"\n",
		`quotad_quota_limit{quota="w"} 100`+"\n"))
	status, body = post(t, n.url, "/quota.v1.QuotaService/Report", "{"+lease+`,"answer":{"status":429,"headers":{"retry-after":"300"}}}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, "what is closed", func() bool {
		return shows(`quotad_quota_available{quota="q"} 0`+"\n")() && !shows(`quotad_quota_cooldown_seconds{quota="q"} 0`+"\n")()
	})
	eventually(t, "what a closed parent closes", shows(`quotad_quota_available{quota="below"} 0`+"\n",
		`quotad_quota_available{quota="pool"} 3`+"\n"))
	if strings.Contains(series(), "\nquotad_quota_forecast_seconds{") {
		t.Error("something is predicted")
	}
}
