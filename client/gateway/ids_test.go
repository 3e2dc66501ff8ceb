package gateway_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestIDs_OfProviderAndGatewayAreApart: the provider's id and the caller's trace pass through, and the gateway's own id is in its log.
// A refusal has the gateway's id where SDKs expect the provider's.
func TestIDs_OfProviderAndGatewayAreApart(t *testing.T) {
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "req_provider")
		speak(200, chatAnswer)(w, r)
	}, nil)
	trace := []string{"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate", "a=b", "Baggage", "c=d"}
	got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`, trace...)
	own := got.header.Values("X-Quotad-Request-Id")
	if got.header.Get("X-Request-Id") != "req_provider" || len(own) != 1 || !strings.HasPrefix(own[0], "qgw_") {
		t.Fatalf("got %d, X-Request-Id %q, X-Quotad-Request-Id %q", got.status, got.header.Values("X-Request-Id"), own)
	}
	f.logs(t, "id="+own[0], 1)
	sent := f.provider.one(t)
	for i := 0; i < len(trace); i += 2 {
		if sent.header.Get(trace[i]) != trace[i+1] {
			t.Errorf("the provider saw %s %q", trace[i], sent.header.Get(trace[i]))
		}
	}
	refused := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-6","input":"x"}`)
	if id := refused.header.Get("X-Request-Id"); id == own[0] || id != refused.header.Get("X-Quotad-Request-Id") {
		t.Errorf("a refusal has the ids %q and %q", id, refused.header.Get("X-Quotad-Request-Id"))
	}
	api := f.do(http.MethodPost, "/quota.v1.QuotaService/GetQuota", `{"name":"openai/gpt-5/requests"}`)
	if ids := api.header.Values("X-Quotad-Request-Id"); api.status != 200 || len(ids) != 1 || !strings.HasPrefix(ids[0], "qgw_") {
		t.Errorf("a call of the API: %d, X-Quotad-Request-Id %q", api.status, ids)
	}
}
