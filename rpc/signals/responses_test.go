package signals

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	retryInfo = `{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"%s"}`
	perMinute = `{"@type":"type.googleapis.com/google.rpc.QuotaFailure",` +
		`"violations":[{"quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier",` +
		`"quotaDimensions":{"model":"gemini-2.5-pro"},"quotaValue":"5"}]}`
	perDay = `{"@type":"type.googleapis.com/google.rpc.QuotaFailure",` +
		`"violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}`
	errorReason = `{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"%s","domain":"cloudcode-pa.googleapis.com"}`
)

func gemini(message string, details ...string) string {
	list := ""
	for i, d := range details {
		if i > 0 {
			list += ","
		}
		list += d
	}
	return fmt.Sprintf(`{"error":{"code":429,"message":%q,"status":"RESOURCE_EXHAUSTED","details":[%s]}}`, message, list)
}

// refusal makes quotad's answer to a caller that asked for refusals as a status.
func refusal(t *testing.T, info *quotav1.ErrorInfo) string {
	t.Helper()
	raw, err := proto.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"code":"resource_exhausted","message":"refused","details":[{"type":"quota.v1.ErrorInfo","value":%q}]}`,
		base64.RawStdEncoding.EncodeToString(raw))
}

func TestResponse_MoreVectors(t *testing.T) {
	waits := func(s Signal, d time.Duration) Signal {
		s.RetryAfter = span(d)
		return s
	}
	tests := []struct {
		name    string
		dialect Dialect
		status  int
		header  http.Header
		body    string
		want    Signal
	}{
		{
			"S13", Codex, 429, nil, `{"error":{"type":"usage_limit_reached","plan_type":"pro","resets_at":1767243600}}`,
			waits(Signal{Class: Exhausted, Scope: ScopePlan, Rule: "codex/usage_limit"}, 18000*time.Second),
		},
		{
			"S14", Anthropic, 429, headers("retry-after", "12"), `{"type":"error","error":{"type":"rate_limit_error"}}`,
			waits(Signal{Class: Throttled, Rule: "anthropic/rate_limit"}, 12*time.Second),
		},
		{
			"S15", Anthropic, 429, nil,
			`{"type":"error","error":{"type":"rate_limit_error","details":{"error_code":"enforced_spend_limit_reached"}}}`,
			Signal{
				Class: Billing, Scope: ScopeOrg, NoRetry: true, ResetIn: span(31 * 24 * time.Hour), ResetResolution: time.Second,
				Rule: "anthropic/spend_limit",
			},
		},
		{
			"S16", Anthropic, 529, nil, `{"type":"error","error":{"type":"overloaded_error"}}`,
			Signal{Class: Overloaded, Scope: ScopeProvider, Rule: "anthropic/overloaded"},
		},
		{
			"S17", Anthropic, 429, headers("anthropic-ratelimit-unified-status", "rejected", "anthropic-ratelimit-unified-reset", "1767240000"),
			`{}`,
			waits(Signal{Class: Exhausted, Scope: ScopePlan, ResetIn: span(4 * time.Hour), ResetResolution: time.Second, Rule: "anthropic/plan"},
				4*time.Hour),
		},
		{
			"S18", Anthropic, 429, nil, `{"type":"error","error":{"type":"rate_limit_error"}}`,
			Signal{Class: Throttled, Rule: "anthropic/rate_limit"},
		},
		{
			"S19", Anthropic, 400, nil,
			`{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified spend limit."}}`,
			Signal{Class: Billing, Scope: ScopeOrg, NoRetry: true, Rule: "anthropic/billing"},
		},
		{
			"S20", Gemini, 429, nil, gemini("", perMinute, fmt.Sprintf(retryInfo, "56s")),
			waits(Signal{
				Class: Throttled, Scope: ScopeModel, Resource: "requests", Limit: known(5), Window: span(time.Minute), Rule: "gemini/rate_limit",
			}, 56*time.Second),
		},
		{"S21", Gemini, 429, nil, gemini("", perDay), waits(Signal{
			Class: Exhausted, Scope: ScopeModel, Resource: "requests-per-day", Window: span(24 * time.Hour), NoRetry: true,
			ResetIn: span(8 * time.Hour), ResetResolution: time.Second, Rule: "gemini/day", // midnight in California
		}, 8*time.Hour)},
		{"S21 with a delay", Gemini, 429, nil, gemini("", perMinute, perDay, fmt.Sprintf(retryInfo, "3600s")), waits(Signal{
			Class: Exhausted, Scope: ScopeModel, Resource: "requests-per-day", Limit: known(5), Window: span(24 * time.Hour), NoRetry: true,
			ResetIn: span(8 * time.Hour), ResetResolution: time.Second, Rule: "gemini/day",
		}, time.Hour)},
		{
			"S22", Gemini, 429, nil, gemini("Quota exceeded, limit: 0, model: gemini-x. Please retry in 10h17m5.723541104s."),
			waits(Signal{Class: Billing, Scope: ScopeModel, NoRetry: true, Rule: "gemini/no_quota"}, 37025723541104*time.Nanosecond),
		},
		{
			"S23", Gemini, 429, nil, gemini("", fmt.Sprintf(errorReason, "RATE_LIMIT_EXCEEDED"), fmt.Sprintf(retryInfo, "0.539477544s")),
			waits(Signal{Class: Throttled, Scope: ScopeModel, Rule: "gemini/rate_limit"}, 539477544*time.Nanosecond),
		},
		{
			"S24", Gemini, 429, nil, gemini("", fmt.Sprintf(errorReason, "MODEL_CAPACITY_EXHAUSTED"), fmt.Sprintf(retryInfo, "9s")),
			waits(Signal{Class: Overloaded, Scope: ScopeModel, Rule: "gemini/capacity"}, 9*time.Second),
		},
		{
			"S24 with 503", Gemini, 503, nil, gemini("", fmt.Sprintf(errorReason, "MODEL_CAPACITY_EXHAUSTED"), fmt.Sprintf(retryInfo, "9s")),
			waits(Signal{Class: Overloaded, Scope: ScopeModel, Rule: "gemini/capacity"}, 9*time.Second),
		},
		{
			"S25", Gemini, 429, nil, gemini("Please retry in 900.2ms."),
			waits(Signal{Class: Throttled, Scope: ScopeModel, Rule: "gemini/rate_limit"}, 900200*time.Microsecond),
		},
		{
			"a stream's list", Gemini, 429, nil, "[" + gemini("Please retry in 2s.") + "]",
			waits(Signal{Class: Throttled, Scope: ScopeModel, Rule: "gemini/rate_limit"}, 2*time.Second),
		},
		{
			"a long wait is no throttle", Gemini, 429, nil, gemini("", fmt.Sprintf(retryInfo, "301s")),
			waits(Signal{Class: Exhausted, Scope: ScopeModel, NoRetry: true, Rule: "gemini/exhausted"}, 301*time.Second),
		},
		{
			"S26", Azure, 429, nil,
			`{"error":{"code":"429","message":"Requests have exceeded token rate limit of your current AIServices S0 pricing tier. Please retry ` +
				`after 37 seconds."}}`,
			waits(Signal{Class: Throttled, Scope: ScopeResource, Resource: "tokens", Rule: "openai/rate_limit"}, 37*time.Second),
		},
		{
			"S27", Azure, 403, headers("Retry-After", "3600"), `{"statusCode":403,"message":"Token quota is exceeded."}`,
			waits(Signal{Class: Exhausted, Rule: "azure/quota"}, time.Hour),
		},
		{
			"S27 until an operator", Azure, 403, nil, `{"statusCode":403,"message":"Out of call volume quota."}`,
			Signal{Class: Exhausted, Rule: "azure/quota"},
		},
		{
			"a key that may not", Azure, 403, nil, `{"error":{"code":"Forbidden","message":"Access denied."}}`,
			Signal{Class: NotALimit, Rule: "azure/forbidden"},
		},
		{
			"S28", Bedrock, 429, headers("X-Amzn-Errortype", "ThrottlingException:http://internal.amazon.com/"),
			`{"message":"Too many tokens, please wait before trying again."}`,
			Signal{Class: Throttled, Scope: ScopeModel, Resource: "tokens", Rule: "bedrock/throttling"},
		},
		{
			"S29", Bedrock, 429, nil, `{"__type":"com.amazon.coral#ModelNotReadyException"}`,
			Signal{Class: Overloaded, Scope: ScopeModel, Rule: "bedrock/not_ready"},
		},
		{
			"S31", Generic, 429, headers("RateLimit", `"default";r=0;t=5`, "Retry-After", "10"), "",
			waits(Signal{
				Class: Throttled, Scope: ScopeResource, Resource: "default", Remaining: known(0), Exact: true, RefillIn: span(5 * time.Second),
				Rule: "generic/429",
			}, 10*time.Second),
		},
		{
			"S31 without Retry-After", Generic, 429, headers("RateLimit", `"default";r=0;t=5`), "",
			waits(Signal{
				Class: Throttled, Scope: ScopeResource, Resource: "default", Remaining: known(0), Exact: true, RefillIn: span(5 * time.Second),
				Rule: "generic/429",
			}, 5*time.Second),
		},
		{
			"S36", Generic, 429, headers("x-envoy-ratelimited", "true", "X-RateLimit-Limit", `10, 10;w=1;name="per-ip", 1000;w=3600`,
				"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3"), "",
			waits(Signal{Class: Throttled, Rule: "generic/429"}, 3*time.Second),
		},
		{
			"S39", Generic, 429, headers("Content-Type", "application/problem+json", "Retry-After", "60"),
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["daily"]}`,
			waits(Signal{Class: Exhausted, Scope: ScopeResource, Resource: "daily", Rule: "problem/quota-exceeded"}, time.Minute),
		},
		{
			"S40", Generic, 429, headers("Retry-After", "13"),
			refusal(t, &quotav1.ErrorInfo{Quota: "t/core", RetryAfter: durationpb.New(12500 * time.Millisecond)}),
			waits(Signal{Class: Throttled, Scope: ScopeResource, Resource: "t/core", Rule: "quotad/refusal"}, 12500*time.Millisecond),
		},
		{
			"S40 without our wait", Generic, 429, headers("Retry-After", "13"), refusal(t, &quotav1.ErrorInfo{Quota: "t/core"}),
			waits(Signal{Class: Throttled, Scope: ScopeResource, Resource: "t/core", Rule: "quotad/refusal"}, 13*time.Second),
		},
		{
			"RetryInfo of a gateway", Generic, 429, nil, `{"code":8,"message":"no","details":[` + fmt.Sprintf(retryInfo, "1.5s") + `]}`,
			waits(Signal{Class: Throttled, Rule: "generic/429"}, 1500*time.Millisecond),
		},
		{
			"RetryInfo of Connect", Generic, 429, nil,
			`{"code":"resource_exhausted","details":[{"type":"google.rpc.RetryInfo","value":"` +
				base64.RawStdEncoding.EncodeToString(retryInfoMessage(7*time.Second)) + `"}]}`,
			waits(Signal{Class: Throttled, Rule: "generic/429"}, 7*time.Second),
		},
		{
			"RetryInfo of gRPC", Generic, 200, headers("Grpc-Status", "8", "Grpc-Status-Details-Bin",
				base64.StdEncoding.EncodeToString(statusMessage(2500*time.Millisecond))), "",
			waits(Signal{Class: Throttled, Rule: "generic/429"}, 2500*time.Millisecond),
		},
		{
			"a limit that Anthropic names", Anthropic, 429, nil,
			`{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 30,000 ` +
				`input tokens per minute."}}`,
			Signal{Class: Throttled, Scope: ScopeResource, Resource: "input-tokens", Limit: known(30000), Rule: "anthropic/rate_limit"},
		},
		{
			"an error in Anthropic's stream", Anthropic, 200, nil,
			"event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: error\ndata: " +
				"{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
			Signal{Class: Overloaded, Scope: ScopeProvider, Rule: "anthropic/overloaded"},
		},
		{
			"not in the plan", Codex, 429, nil, `{"error":{"type":"usage_not_included"}}`,
			Signal{Class: Billing, Scope: ScopePlan, NoRetry: true, Rule: "codex/not_included"},
		},
		{
			"a week of a plan", Codex, 429, headers("x-codex-secondary-used-percent", "100", "x-codex-secondary-window-minutes", "10080",
				"x-codex-secondary-reset-at", "1768089600"),
			`{"error":{"type":"usage_limit_reached"}}`,
			Signal{
				Class: Exhausted, Scope: ScopePlan, Resource: "codex/secondary", UsedShare: known(1_000_000), Window: span(7 * 24 * time.Hour),
				ResetIn: span(10 * 24 * time.Hour), ResetResolution: time.Second, RetryAfter: span(MaxPlanWait), Clamped: true,
				Rule: "codex/usage_limit",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Verdict(tt.dialect.Observe(received, tt.status, tt.header, []byte(tt.body)))
			if !ok || got != tt.want {
				t.Errorf("got  %+v (%v)\nwant %+v", got, ok, tt.want)
			}
		})
	}
}

// retryInfoMessage makes a google.rpc.RetryInfo.
func retryInfoMessage(delay time.Duration) []byte {
	raw, err := proto.Marshal(durationpb.New(delay))
	if err != nil {
		panic(err)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), raw)
}

// statusMessage makes a google.rpc.Status with a RetryInfo.
func statusMessage(delay time.Duration) []byte {
	detail := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "type.googleapis.com/google.rpc.RetryInfo")
	detail = protowire.AppendBytes(protowire.AppendTag(detail, 2, protowire.BytesType), retryInfoMessage(delay))
	status := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 8)
	return protowire.AppendBytes(protowire.AppendTag(status, 3, protowire.BytesType), detail)
}

func TestObserve_CountsOfStandardFields(t *testing.T) {
	fifty := Signal{
		Class: OK, Scope: ScopeResource, Resource: "default", Limit: known(100), Remaining: known(50), Exact: true,
		RefillIn: span(30 * time.Second), Window: span(time.Minute), Rule: "ietf/counts",
	}
	policy := func(limit int64, window time.Duration, rule, name string) Signal {
		return Signal{Class: OK, Scope: ScopeResource, Resource: name, Limit: known(limit), Window: span(window), Rule: rule}
	}
	for _, tt := range []struct {
		name   string
		header http.Header
		want   []Signal
	}{
		{"S30", headers("RateLimit", `"default";r=50;t=30`, "RateLimit-Policy", `"default";q=100;w=60`), []Signal{fifty}},
		{"S30 on two lines", headers("RateLimit", `"default";r=50;t=30`, "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit-Policy",
			`"day";q=1000;w=86400;qu="requests"`), []Signal{
			fifty, policy(1000, 24*time.Hour, "ietf/policy", "day"),
		}},
		{"S32", headers("RateLimit", `limit=100, remaining=50, reset=5`, "RateLimit-Policy", "100;w=10"), []Signal{
			{
				Class: OK, Limit: known(100), Remaining: known(50), Exact: true, ResetIn: span(5 * time.Second), ResetResolution: time.Second,
				Rule: "ietf/counts",
			},
			policy(100, 10*time.Second, "ietf/policy", ""),
		}},
		{"S33", headers("RateLimit-Limit", "10, 10;w=1, 50;w=60", "RateLimit-Remaining", "1", "RateLimit-Reset", "7"), []Signal{
			{
				Class: OK, Limit: known(10), Remaining: known(1), Exact: true, ResetIn: span(7 * time.Second), ResetResolution: time.Second,
				Rule: "ietf/counts",
			},
			policy(10, time.Second, "ietf/counts", ""), policy(50, time.Minute, "ietf/counts", ""),
		}},
		{"no list of policies", headers("RateLimit-Limit", "30,000"), []Signal{{Class: OK, Limit: known(30), Rule: "ietf/counts"}}},
		{"S34", headers("RateLimit", `"p";r=abc`), []Signal{{Class: OK, Rule: "malformed", Malformed: 1}}},
		{"half a field", headers("RateLimit", `"p";r=1, "q";r=-1`), []Signal{{Class: OK, Rule: "malformed", Malformed: 1}}},
		{"no field", headers("RateLimit", `((`), []Signal{{Class: OK, Rule: "malformed", Malformed: 1}}},
		{"S35", headers("RateLimit", `"default";r=50;t=30`, "Age", "30"), nil},
		{
			"S36", headers("X-RateLimit-Limit", `10, 10;w=1;name="per-ip", 1000;w=3600`, "X-RateLimit-Remaining", "4", "X-RateLimit-Reset", "3"),
			[]Signal{
				{
					Class: OK, Limit: known(10), Remaining: known(4), Exact: true, ResetIn: span(3 * time.Second), ResetResolution: time.Second,
					Rule: "envoy/counts",
				},
				policy(10, time.Second, "envoy/counts", "per-ip"), policy(1000, time.Hour, "envoy/counts", ""),
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Generic.Observe(received, 200, tt.header, nil); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// One status has at least four meanings, and 403 has three: none must be taken for another.
func TestResponse_OneStatusManyMeanings(t *testing.T) {
	github := func(remaining string) http.Header {
		return headers("X-Github-Request-Id", "1", "X-Ratelimit-Limit", "5000", "X-Ratelimit-Remaining", remaining, "X-Ratelimit-Reset",
			"1767229200")
	}
	openai := headers("Openai-Version", "2020-10-01")
	for _, tt := range []struct {
		name   string
		status int
		header http.Header
		body   string
		want   Class
	}{
		{"429 too fast", 429, openai, `{"error":{"type":"tokens","code":"rate_limit_exceeded"}}`, Throttled},
		{"429 used up", 429, github("0"), ``, Exhausted},
		{"429 the whole account", 429, openai, `{"error":{"type":"rate_limit_error","code":"slow_down"}}`, Throttled},
		{"429 not paid", 429, openai, `{"error":{"type":"insufficient_quota"}}`, Billing},
		{"429 not in the plan", 429, nil, gemini("limit: 0, model: x"), Billing},
		{"429 busy", 429, nil, gemini("", fmt.Sprintf(errorReason, "MODEL_CAPACITY_EXHAUSTED")), Overloaded},
		{"403 too fast", 403, github("4935"), `{"message":"You have exceeded a secondary rate limit"}`, Throttled},
		{"403 used up", 403, github("0"), `{"message":"API rate limit exceeded"}`, Exhausted},
		{"403 not allowed", 403, github("4935"), `{"message":"Resource not accessible by integration"}`, NotALimit},
		{"401 of an anonymous caller", 401, headers("X-Ratelimit-Limit", "60", "X-Ratelimit-Remaining", "0"), ``, NotALimit},
		{"401 of an anonymous caller at GitHub", 401, github("0"), ``, NotALimit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Verdict(Auto.Observe(received, tt.status, tt.header, []byte(tt.body)))
			if !ok || got.Class != tt.want {
				t.Errorf("got %+v, want %v", got, tt.want)
			}
		})
	}
}

func TestDialectNamed_FindsEach(t *testing.T) {
	for _, d := range Dialects() {
		if got, err := DialectNamed(d.Name()); err != nil || got.Name() != d.Name() {
			t.Errorf("%s: %s, %v", d.Name(), got.Name(), err)
		}
	}
	_, err := DialectNamed("gitlab")
	if e, ok := errors.AsType[*DialectError](err); !ok || e.Name != "gitlab" {
		t.Errorf("%T: %v", err, err)
	}
}

func TestAuto_FindsDialect(t *testing.T) {
	for _, tt := range []struct {
		want   Dialect
		status int
		header http.Header
		body   string
	}{
		{GitHub, 200, headers("X-GitHub-Request-Id", "1"), ""},
		{Anthropic, 200, headers("anthropic-ratelimit-requests-remaining", "1"), ""},
		{Anthropic, 529, nil, `{"type":"error","error":{"type":"overloaded_error"}}`},
		{OpenAI, 200, headers("x-ratelimit-remaining-tokens", "1"), ""},
		{OpenAI, 429, nil, `{"error":{"code":"slow_down"}}`},
		{Azure, 200, headers("x-ratelimit-remaining-tokens", "1", "x-ms-region", "East US"), ""},
		{Codex, 200, headers("x-codex-primary-used-percent", "1"), ""},
		{Codex, 429, nil, `{"error":{"type":"usage_limit_reached"}}`},
		{Bedrock, 429, headers("x-amzn-RequestId", "1"), ""},
		{Gemini, 429, nil, gemini("no")},
		{Gemini, 429, nil, "[" + gemini("no") + "]"},
		{Generic, 429, nil, "no JSON"},
		{Generic, 429, nil, `[]`},
		{Generic, 200, nil, gemini("talk about it")},
	} {
		r := &response{now: received, status: tt.status, header: tt.header, body: []byte(tt.body)}
		if got := Auto.resolve(r); got.Name() != tt.want.Name() {
			t.Errorf("%d %v %s: %s, want %s", tt.status, tt.header, tt.body, got.Name(), tt.want.Name())
		}
	}
}

func TestNeedsBody_ByDialect(t *testing.T) {
	for _, tt := range []struct {
		dialect Dialect
		status  int
		header  http.Header
		want    bool
	}{
		{Generic, 429, nil, true},
		{Generic, 200, headers("X-Ratelimit-Remaining", "0"), false},
		{GitHub, 200, headers("X-Ratelimit-Remaining", "0"), true},
		{GitHub, 200, headers("X-Ratelimit-Remaining", "1"), false},
		{Auto, 200, headers("X-Ratelimit-Remaining", "0"), false},
		{Auto, 200, headers("X-Ratelimit-Remaining", "0", "X-Github-Request-Id", "1"), true},
		{Dialect{}, 429, nil, false},
	} {
		if got := tt.dialect.NeedsBody(tt.status, tt.header); got != tt.want {
			t.Errorf("%s %d %v: %v", tt.dialect.Name(), tt.status, tt.header, got)
		}
	}
}
