package gateway_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// inGzip compresses a text.
func inGzip(text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return out.String()
}

// said are answers by which providers refuse a call for a limit, all of them identified by their body. Each closes its quota. rule is
// the recognised rule; after is the least Retry-After for the client, in seconds; 0: waiting does not help.
var said = map[string]struct {
	dialect string
	status  int
	header  map[string]string
	body    string
	rule    string
	after   int
}{
	"openai-rate": {
		"openai", 429, nil, `{"error":{"message":"Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29000, ` +
			`Requested 4000. Please try again in 40s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`, "openai/rate_limit", 40,
	},
	"openai-budget": {
		"openai", 429, nil, `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.",` +
			`"type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`, "openai/insufficient_quota", 0,
	},
	"anthropic-rate": {
		"anthropic", 429, nil, `{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your limit of ` +
			`50 requests per minute. Please try again in 40s."}}`, "anthropic/rate_limit", 1,
	},
	"anthropic-budget": {
		"anthropic", 403, nil, `{"type":"error","error":{"type":"billing_error","message":"Your credit balance is too low."}}`,
		"anthropic/billing", 0,
	},
	"anthropic-spend-limit": {
		"anthropic", 400, nil, `{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API ` +
			`usage limits."}}`, "anthropic/billing", 0,
	},
	"gemini-rate": {
		"gemini", 429, nil, `{"error":{"code":429,"message":"Quota exceeded.","status":"RESOURCE_EXHAUSTED","details":[{"@type":` +
			`"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"40s"}]}}`, "gemini/rate_limit", 40,
	},
	"gemini-no-quota": {
		"gemini", 429, nil, `{"error":{"code":429,"message":"Quota exceeded for metric: x, limit: 0","status":"RESOURCE_EXHAUSTED"}}`,
		"gemini/no_quota", 0,
	},
	"azure-rate": {
		"azure", 429, nil, `{"error":{"code":"429","message":"Requests have exceeded call rate limit. Please retry after 40 seconds."}}`,
		"openai/rate_limit", 40,
	},
	"azure-quota": {
		"azure", 403, nil, `{"statusCode":403,"message":"Out of call volume quota. Quota will be replenished in 00:00:40."}`, "azure/quota", 1,
	},
	"bedrock-rate": {
		"bedrock", 400, nil, `{"__type":"ThrottlingException","message":"Too many requests, please wait before trying again."}`,
		"bedrock/throttling", 1,
	},
	"codex-plan": {
		"codex", 429, nil, `{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached","resets_in_seconds":3600}}`,
		"codex/usage_limit", 3600,
	},
	"github-secondary": {
		"github", 403,
		map[string]string{"X-Ratelimit-Remaining": "4000", "X-Ratelimit-Limit": "5000", "X-Ratelimit-Resource": "core"},
		`{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`, "github/secondary", 60,
	},
	"github-graphql": {
		"github", 200,
		map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Limit": "5000", "X-Ratelimit-Resource": "graphql"},
		`{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded for user ID 1."}]}`, "github/graphql", 1,
	},
}

// TestLimit_IsReadInEachEncoding: a provider's limit in the body counts the same with and without compression, and the client gets it
// byte for byte. The provider receives one call: none of these limits ends within the wait.
func TestLimit_IsReadInEachEncoding(t *testing.T) {
	c := startCluster(t)
	encodings := map[string]string{"plain": "", "packed": "gzip", "old": "x-gzip"}
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		name := strings.Split(r.URL.Path, "/")[1]
		prefix, which, _ := strings.Cut(name, "-")
		for field, value := range said[which].header {
			w.Header().Set(field, value)
		}
		body := said[which].body
		if encoding := encodings[prefix]; encoding != "" {
			w.Header().Set("Content-Encoding", encoding)
			body = inGzip(body)
		}
		speak(said[which].status, body)(w, r)
	})
	upstreams := map[string]config.Upstream{}
	for prefix := range encodings {
		for which, says := range said {
			name := prefix + "-" + which
			upstreams[name] = config.Upstream{Dialect: says.dialect, Base: p.URL + "/" + name, Plain: true}
			_, quota, _ := strings.Cut(forms[says.dialect].quota, "/")
			if says.rule == "github/graphql" {
				quota = "graphql"
			}
			c.apply(rate(name+"/"+quota, 100))
		}
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	for prefix, encoding := range encodings {
		for which := range said {
			name := prefix + "-" + which
			t.Run(name, func(t *testing.T) { f.limitIsRead(t, name, which, encoding) })
		}
	}
}

// limitIsRead makes the refused call at an upstream.
func (f *fixture) limitIsRead(t *testing.T, name, which, encoding string) {
	t.Helper()
	says, body := said[which], said[which].body
	form, method := forms[says.dialect], http.MethodPost
	_, path, _ := strings.Cut(form.path[1:], "/")
	_, quota, _ := strings.Cut(form.quota, "/")
	switch {
	case says.rule == "github/graphql":
		path, quota, form.body = "graphql", "graphql", `{"query":"query { viewer { login } }"}`
	case form.body == "":
		method = http.MethodGet
	}
	if encoding != "" {
		body = inGzip(body)
	}
	before := len(f.provider.seen())
	got := f.do(method, "/"+name+"/"+path, form.body, "Accept-Encoding", "br, gzip", "X-Quotad-Class", "critical", "X-Quotad-Wait", "500ms")
	if got.status != says.status || got.body != body {
		t.Errorf("got %d %q", got.status, got.body)
	}
	sent := f.provider.seen()[before:]
	if len(sent) != 1 || sent[0].header.Get("Accept-Encoding") != "gzip" {
		t.Errorf("the provider saw %+v", sent)
	}
	counted := fmt.Sprintf(`quotad_gateway_upstream_limited_total{action="passed",rule=%q,upstream=%q} 1`, says.rule, name)
	if metrics := f.do(http.MethodGet, "/metrics", "").body; !strings.Contains(metrics, counted) {
		t.Errorf("the answer was not read as %s", says.rule)
	}
	after, _ := strconv.Atoi(got.header.Get("Retry-After"))
	if says.after == 0 && got.header.Get("Retry-After") != "" || after < says.after {
		t.Errorf("Retry-After is %q, want at least %d", got.header.Get("Retry-After"), says.after)
	}
	if f.cluster.quota(name+"/"+quota).CooldownLeft == 0 {
		t.Error("the quota is open")
	}
}
