package signals

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// fuzzDialect sends responses to one dialect: a status, a header that it knows, one of any name, and a body.
func fuzzDialect(f *testing.F, dialect Dialect, names ...string) {
	f.Helper()
	values := []string{
		"0", "-1", "5000", "30,000", "1e400", "NaN", "9223372036854775807", "99999999999999999999", "1767225660000", "6m0s",
		"2562047h47m16.854775807s",
		"2026-01-01T00:00:30Z", "0001-01-01T00:00:00Z", "42.5", `"default";r=50;t=30`, `10, 10;w=1;name="per-ip", 1000;w=3600`,
		"limit=100, remaining=50, reset=5",
		"Fri, 31 Dec 9999 23:59:59 GMT", "rejected", "true", "", "CAgaLgopdHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIBCg",
	}
	bodies := []string{
		``, `{`, `null`, `[]`, `{"error":{"code":"rate_limit_exceeded","message":"Limit 10, Used 8, Requested 7. Please try again in 6m0s"}}`,
		`{"message":"You have exceeded a secondary rate limit"}`, `{"error":{"type":"usage_limit_reached","resets_at":1767243600}}`,
		`{"type":"error","error":{"type":"rate_limit_error","details":{"error_code":"enforced_spend_limit_reached"}}}`,
		gemini("Please retry in 10h17m5.7s.", perMinute, perDay, fmt.Sprintf(retryInfo, "56s")),
		`{"__type":"a#ThrottlingException","message":"Too many tokens"}`,
		`{"code":"resource_exhausted","details":[{"type":"quota.v1.ErrorInfo","value":"QgIIDA"}]}`,
		"data: {\"type\":\"response.failed\",\"response\":{\"error\":{}}}",
		`{"type":"x#quota-exceeded","violated-policies":["daily"]}`,
	}
	for i, value := range values {
		for j := range names {
			f.Add([]int{200, 403, 429, 503, 529}[(i+j)%5], uint8(j), value, "Retry-After", values[(i+j)%len(values)], bodies[(i+j)%len(bodies)])
		}
	}
	f.Fuzz(func(t *testing.T, status int, which uint8, value, name, other, body string) {
		header := http.Header{}
		header.Add(names[int(which)%len(names)], value)
		header.Add(name, other)
		for _, s := range dialect.Observe(received, status, header, []byte(body)) {
			// The end of a month or of California's day comes from the calendar, not from a number in the response.
			if s.Rule != "anthropic/spend_limit" && s.Rule != "gemini/day" {
				checkSignal(t, s, strings.Join([]string{name, value, other, body}, " ")+header.Get("Date"))
			}
		}
	})
}

func FuzzGitHub(f *testing.F) {
	fuzzDialect(f, GitHub, "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Used", "X-Ratelimit-Reset", "X-Ratelimit-Resource",
		"Retry-After", "Retry-After-Ms", "Date")
}

func FuzzOpenAI(f *testing.F) {
	fuzzDialect(f, OpenAI, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Project-Tokens", "Retry-After-Ms")
}

func FuzzAzure(f *testing.F) {
	fuzzDialect(f, Azure, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens", "Retry-After-Ms")
}

func FuzzCodex(f *testing.F) {
	fuzzDialect(f, Codex, "X-Codex-Primary-Used-Percent", "X-Codex-Primary-Window-Minutes", "X-Codex-Secondary-Reset-At",
		"X-Codex-A-Primary-Reset-After-Seconds", "X-Codex-Active-Limit")
}

func FuzzAnthropic(f *testing.F) {
	fuzzDialect(f, Anthropic, "Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Input-Tokens-Reset",
		"Anthropic-Priority-Output-Tokens-Remaining",
		"Anthropic-Ratelimit-Unified-Status", "Anthropic-Ratelimit-Unified-Reset", "Anthropic-Ratelimit-Unified-5h-Utilization",
		"Anthropic-Ratelimit-Unified-7d_opus-Reset")
}

func FuzzGemini(f *testing.F) { fuzzDialect(f, Gemini, "Retry-After", "Retry-After-Ms") }

func FuzzBedrock(f *testing.F) { fuzzDialect(f, Bedrock, "X-Amzn-Errortype", "Retry-After") }

func FuzzGeneric(f *testing.F) {
	fuzzDialect(f, Generic, "Ratelimit", "Ratelimit-Policy", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", "X-Ratelimit-Limit",
		"X-Ratelimit-Remaining",
		"X-Ratelimit-Reset", "X-Envoy-Ratelimited", "Content-Type", "Grpc-Status", "Grpc-Status-Details-Bin", "Age")
}

func FuzzAuto(f *testing.F) {
	fuzzDialect(f, Auto, "X-Github-Request-Id", "Anthropic-Ratelimit-Requests-Limit", "X-Codex-Active-Limit", "Apim-Request-Id",
		"Openai-Version", "X-Amzn-Requestid")
}
