package rpc_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestSetOverride_OverTheAPI: an override changes the limit for a time, is shown, is refused where it cannot work, and ends.
func TestSetOverride_OverTheAPI(t *testing.T) {
	n := newNodes(t, 1)[0]
	admin := quotav1connect.NewAdminServiceClient(h2c(t), n.url)
	api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url)
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	limit := int64(3)
	if _, err := admin.OverrideQuota(t.Context(), &quotav1.OverrideQuotaRequest{
		Name: "t/core", Limit: &limit, Duration: durationpb.New(time.Hour), Note: "tonight",
	}); err != nil {
		t.Fatal(err)
	}
	seen := func() *quotav1.QuotaStatus {
		res, err := api.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "t/core"})
		if err != nil {
			t.Fatal(err)
		}
		return res.Quota
	}
	if q := seen(); q.Usable != 3 || q.Override.GetLimit() != 3 || q.Override.Note != "tonight" ||
		q.Override.Left.AsDuration() <= 59*time.Minute {
		t.Fatalf("%v", q)
	}
	for body, want := range map[string]string{
		`{"name":"t/core","limit":"3"}`:                       "duration",
		`{"name":"t/core","limit":"-1","duration":"60s"}`:     "limit",
		`{"name":"t/core","limit":"3","duration":"0.1s"}`:     "1 s to 31 days",
		`{"name":"missing","limit":"3","duration":"60s"}`:     "UNKNOWN_QUOTA",
		`{"name":"","limit":"3","duration":"60s"}`:            "name",
		`{"name":"t/core","limit":"3","duration":"9999999s"}`: "31 days",
	} {
		if status, answer := post(t, n.url, "/quota.v1.AdminService/OverrideQuota", body); status == http.StatusOK ||
			!strings.Contains(answer, want) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	if _, err := admin.OverrideQuota(t.Context(), &quotav1.OverrideQuotaRequest{Name: "t/core"}); err != nil {
		t.Fatal(err)
	}
	if q := seen(); q.Override != nil || q.Usable == 3 {
		t.Fatalf("%v", q)
	}
}

// TestSetLimits_OverTheAPI: the bounds of the state are shown and changed.
func TestSetLimits_OverTheAPI(t *testing.T) {
	n := newNodes(t, 1)[0]
	admin := quotav1connect.NewAdminServiceClient(h2c(t), n.url)
	res, err := admin.SetLimits(t.Context(), &quotav1.SetLimitsRequest{Limits: &quotav1.Limits{SessionIdle: durationpb.New(90 * time.Second)}})
	if err != nil || res.Limits.SessionIdle.AsDuration() != 90*time.Second || res.Limits.GetMaxSessions() != 262_144 {
		t.Fatalf("%v %v", res, err)
	}
	status, err := admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
	if err != nil || status.Limits.SessionIdle.AsDuration() != 90*time.Second {
		t.Fatalf("%v %v", status, err)
	}
	for _, bad := range []*quotav1.SetLimitsRequest{
		{}, {Limits: &quotav1.Limits{MaxWaiters: new(int64(0))}}, {Limits: &quotav1.Limits{KeyLife: durationpb.New(time.Millisecond)}},
	} {
		if _, err := admin.SetLimits(t.Context(), bad); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

const applyChain = `{"quotas":[
	{"name":"big","rate":{"limit":"1","per":"3600s"},"fallback":"small","policy":{"metering":true}},
	{"name":"small","window":{"limit":"1000","every":"month"},"policy":{"metering":true,"prediction":{"samples":3}}}]}`

// TestReserve_FallbackAndForecastOverTheAPI: answers name the fallback and carry the forecast. The usage of holders is listed, and exported
// to Prometheus.
func TestReserve_FallbackAndForecastOverTheAPI(t *testing.T) {
	n := newNodes(t, 1)[0]
	api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url)
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyChain); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	ask := func(quota string, fallback bool) *quotav1.ReserveResponse {
		one := int64(1)
		res, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{
			Holder: "ralph", Items: []*quotav1.Item{{Quota: quota, Amount: &one}}, Consume: true, Fallback: fallback,
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if item := ask("big", true).GetLease().GetItems()[0]; item.Quota != "big" || item.InsteadOf != "" {
		t.Fatalf("%v", item)
	}
	if item := ask("big", true).GetLease().GetItems()[0]; item.Quota != "small" || item.InsteadOf != "big" {
		t.Fatalf("%v", item)
	}
	if refusal := ask("big", false).GetRefusal(); refusal.GetReason() != quotav1.Reason_REASON_EXHAUSTED {
		t.Fatalf("%v", refusal)
	}
	var forecast *quotav1.Forecast
	deadline := time.Now().Add(20 * time.Second)
	for left := int64(300); forecast == nil && time.Now().Before(deadline); left -= 20 {
		lease := ask("small", false).GetLease()
		forecast = lease.GetForecast()
		if _, err := api.Report(t.Context(), &quotav1.ReportRequest{
			Lease: lease.GetId(), Fence: lease.GetFence(), Op: 1,
			Signals: []*quotav1.Signal{
				{Quota: "small", Cause: quotav1.Cause_CAUSE_OK, Remaining: new(max(left, 1))},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if forecast.GetQuota() != "small" || forecast.Smaller < 0.1 || forecast.Smaller > 1 || forecast.ExhaustedIn == nil {
		t.Fatalf("forecast: %v", forecast)
	}
	q, err := api.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "small"})
	if err != nil || q.Quota.Circuit == quotav1.Circuit_CIRCUIT_UNSPECIFIED || q.Quota.Samples == 0 {
		t.Fatalf("%v %v", q, err)
	}
	var rows []*quotav1.Usage
	for token := ""; ; {
		page, err := api.ListUsage(t.Context(), &quotav1.ListUsageRequest{PageSize: 1, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, page.Usage...)
		if token = page.NextPageToken; token == "" || len(rows) > 5 {
			break
		}
	}
	if len(rows) != 2 || rows[0].Quota != "big" || rows[0].Consumed != 1 || len(rows[0].Refusals) != 1 || rows[1].Answered == 0 {
		t.Fatalf("%v", rows)
	}
	shown := httptest.NewRecorder()
	n.server.Handler().ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`quotad_holder_consumed_total{holder="ralph",quota="big"} 1`,
		`quotad_holder_refusals_total{holder="ralph",quota="big",reason="exhausted"} 1`,
		`quotad_quota_usable{quota="big"} 1`, `quotad_longest_wait_seconds{class="background"} 0`,
	} {
		if !strings.Contains(shown.Body.String(), want) {
			t.Errorf("no %s", want)
		}
	}
	if status, answer := post(t, n.url, "/quota.v1.QuotaService/ListUsage", `{"pageToken":"x"}`); status != http.StatusBadRequest ||
		!strings.Contains(answer, "page_token") {
		t.Errorf("%d %s", status, answer)
	}
}
