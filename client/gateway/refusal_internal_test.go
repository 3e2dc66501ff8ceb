package gateway

import (
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// TestQuotaRefusal_IsWrittenAsTheProviderWrites: status, headers and body of each form, to the letter: agents and SDKs match them. It is
// midnight of the year 2000.
func TestQuotaRefusal_IsWrittenAsTheProviderWrites(t *testing.T) {
	const (
		soon, late = 11_840 * time.Millisecond, 31_020 * time.Second
		docs       = `"documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api`
		failure    = `"details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"`
		info       = `{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"`
	)
	for _, c := range []struct {
		dialect     dialect.Name
		quota, part string
		reason      client.Reason
		after       time.Duration
		daily       bool
		body        string
		// header has what the form has besides the headers of all.
		header map[string]string
	}{
		{
			dialect.OpenAI, "openai/gpt-5/tokens", "tokens", client.ReasonExhausted, soon, false,
			`{"error":{"code":"rate_limit_exceeded","message":"Rate limit reached for gpt-5: openai/gpt-5/tokens is EXHAUSTED (quotad, holder ` +
				`data@node-7). Please try again in 11.84s.","param":null,"type":"tokens"}}`, nil,
		},
		{
			dialect.Codex, "chatgpt/gpt-5/requests", "requests", client.ReasonCooldown, soon, false,
			`{"error":{"code":"rate_limit_exceeded","message":"Rate limit reached for gpt-5: chatgpt/gpt-5/requests is COOLDOWN (quotad, holder ` +
				`data@node-7). Please try again in 11.84s.","param":null,"type":"requests"}}`, nil,
		},
		{
			dialect.Azure, "azure/gpt-5/tokens", "tokens", client.ReasonExhausted, soon, false,
			`{"error":{"code":"429","message":"Rate limit reached for gpt-5: azure/gpt-5/tokens is EXHAUSTED (quotad, holder data@node-7). ` +
				`Please retry after 12 seconds.","param":null,"type":"tokens"}}`, nil,
		},
		{
			dialect.OpenAI, "team/red/cost", "cost", client.ReasonExhausted, late, true,
			`{"error":{"code":"insufficient_quota","message":"team/red/cost is EXHAUSTED until 2000-01-01 08:37 UTC (quotad, holder ` +
				`data@node-7).","param":null,"type":"insufficient_quota"}}`,
			map[string]string{"X-Should-Retry": "false"},
		},
		{
			dialect.Anthropic, "anthropic/opus-4/output-tokens", "output-tokens", client.ReasonExhausted, soon, false,
			`{"error":{"message":"anthropic/opus-4/output-tokens is EXHAUSTED (quotad, holder data@node-7).","type":"rate_limit_error"},` +
				`"request_id":"qgw_1","type":"error"}`,
			map[string]string{"Request-Id": "qgw_1"},
		},
		{
			dialect.Anthropic, "team/red/cost", "cost", client.ReasonExhausted, late, true,
			`{"error":{"message":"spend limit reached (resets 2000-01-01 08:37 UTC)","type":"billing_error"},"request_id":"qgw_1","type":"error"}`,
			map[string]string{"Request-Id": "qgw_1", "X-Should-Retry": "false", "Retry-After": "31020"},
		},
		{
			dialect.GitHub, "github/core", "core", client.ReasonZone, soon, false,
			`{` + docs + `","message":"API rate limit exceeded (quotad: github/core ZONE, holder data@node-7)."}`,
			map[string]string{
				"X-Ratelimit-Limit": "5000", "X-Ratelimit-Used": "5000", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Resource": "core",
				"X-Ratelimit-Reset": "946684812",
			},
		},
		{
			dialect.GitHub, "github/concurrent", "concurrent", client.ReasonExhausted, soon, false,
			`{` + docs + `#about-secondary-rate-limits","message":"You have exceeded a secondary rate limit (quotad: github/concurrent ` +
				`EXHAUSTED, holder data@node-7)."}`, nil,
		},
		{
			dialect.Gemini, "gemini/pro/requests", "requests", client.ReasonExhausted, soon, false,
			`{"error":{"code":429,` + failure + `QuotadPerMinute","quotaMetric":"quotad/requests"}]},` + info + `11.84s"}],` +
				`"message":"gemini/pro/requests is EXHAUSTED (quotad, holder data@node-7). Please retry in 11.84s.","status":"RESOURCE_EXHAUSTED"}}`,
			nil,
		},
		{
			dialect.Gemini, "gemini/pro/requests-per-day", "requests-per-day", client.ReasonExhausted, late, true,
			`{"error":{"code":429,` + failure + `QuotadPerDay","quotaMetric":"quotad/requests-per-day"}]},` + info + `31020s"}],` +
				`"message":"gemini/pro/requests-per-day is EXHAUSTED (quotad, holder data@node-7). Please retry in 31020s.",` +
				`"status":"RESOURCE_EXHAUSTED"}}`,
			map[string]string{"X-Should-Retry": "false"},
		},
		{
			dialect.Bedrock, "bedrock/m/tokens", "tokens", client.ReasonExhausted, soon, false,
			`{"message":"Too many tokens, please wait before trying again. (quotad: bedrock/m/tokens is EXHAUSTED, holder data@node-7)"}`,
			map[string]string{"X-Amzn-Errortype": "ThrottlingException"},
		},
		{
			dialect.Generic, "t/core", "core", client.ReasonExhausted, soon, false,
			`{"detail":"t/core is EXHAUSTED (quotad, holder data@node-7).","status":429,"title":"quota exceeded",` +
				`"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["t/core"]}`,
			map[string]string{"Content-Type": "application/problem+json"},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := &call{op: dialect.Operation{Dialect: c.dialect}, caller: identity.Caller{Holder: "data@node-7"}, draws: []draw{{part: c.part}}}
			asked.target.Model = "gpt-5"
			q := &asked.draws[0].quota
			q.Name, q.Limit, q.Daily = c.quota, 5000, c.daily
			refusal := asked.quotaRefusal(&client.RefusalError{Quota: c.quota, Reason: c.reason, RetryAfter: c.after})
			refusal.RequestID = "qgw_1"
			got := c.dialect.Refuse(refusal)
			if got.Status != http.StatusTooManyRequests || string(got.Body) != c.body {
				t.Errorf("%s %s: %d\n%s\nwant\n%s", c.dialect, c.part, got.Status, got.Body, c.body)
			}
			want := map[string]string{
				"Content-Type": "application/json", "Retry-After": "12", "Retry-After-Ms": "11840", "X-Should-Retry": "", "X-Request-Id": "qgw_1",
				"X-Quotad-Refusal": c.reason.String() + `; quota="` + c.quota + `"`, "X-Ratelimit-Limit": "",
			}
			if c.after == late {
				want["Retry-After"], want["Retry-After-Ms"] = "31020", "31020000"
			}
			maps.Copy(want, c.header)
			for name, value := range want {
				if said := got.Header.Get(name); said != value {
					t.Errorf("%s %s: %s is %q, want %q", c.dialect, c.part, name, said, value)
				}
			}
		})
	}
}
