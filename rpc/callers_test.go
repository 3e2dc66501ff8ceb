package rpc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc"
)

// These tests check what callers without protobuf see: curl, a script, any language's HTTP library.

// fields reads JSON as such a caller does.
func fields(t *testing.T, body string) map[string]any {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return all
}

// at follows a path of names through JSON; nil if there is nothing.
func at(value any, path ...string) any {
	for _, name := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}

const applyTwo = `{"quotas":[{"name":"t/core","rate":{"limit":10,"per":"60s"}},{"name":"o/m/requests","rate":{"limit":100,"per":"1m"}},
	{"name":"o/m/tokens","rate":{"limit":1000,"per":"1m"}},{"name":"github/core","window":{"limit":5000,"every":"1h","anchor":"provider"}}]}`

// called reserves and consumes, and returns the JSON fields that name the operation afterwards.
func called(t *testing.T, n *testNode, holder string, quotas ...string) string {
	t.Helper()
	var items []string
	for _, quota := range quotas {
		items = append(items, fmt.Sprintf(`{"quota":%q}`, quota))
	}
	status, body := post(t, n.url, "/quota.v1.QuotaService/Reserve",
		fmt.Sprintf(`{"holder":%q,"items":[%s],"consume":true}`, holder, strings.Join(items, ",")))
	lease := at(fields(t, body), "lease")
	if status != http.StatusOK || lease == nil {
		t.Fatalf("%d %s", status, body)
	}
	return fmt.Sprintf(`"lease":%q,"fence":%q,"op":1`, at(lease, "id"), at(lease, "fence"))
}

// TestReport_Answer: the node reads a provider's unchanged answer, and one 429 closes the quota for all.
func TestReport_Answer(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyTwo); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	const date = `"date":"Mon, 02 Jan 2006 15:04:05 GMT"`
	for name, c := range map[string]struct {
		quotas []string
		answer string
		// want is what was read: quota, cause, remaining and the wait. closed is the quota that is closed afterwards.
		want, closed string
	}{
		"a plain 429": {
			quotas: []string{"t/core"}, answer: `{"status":429,"headers":{"retry-after":"7"}}`,
			want: "t/core SATURATED - 7s", closed: "t/core",
		},
		"one that names tokens": {
			quotas: []string{"o/m/requests", "o/m/tokens"},
			answer: `{"status":429,"headers":{"x-ratelimit-remaining-requests":"40","x-ratelimit-limit-requests":"100"},` +
				`"body":"{\"error\":{\"type\":\"tokens\",\"code\":\"rate_limit_exceeded\",` +
				`\"message\":\"Rate limit reached for m on tokens per min (TPM): Limit 1000, Used 900, Requested 200. Please try again in 6s.\"}}"}`,
			want: "o/m/requests OK 40 -; o/m/tokens SATURATED - 6s", closed: "o/m/tokens",
		},
		"counts of a success": {
			quotas: []string{"github/core"},
			answer: `{"status":200,"headers":{` + date + `,"x-ratelimit-resource":"core",` +
				`"x-ratelimit-limit":"5000","x-ratelimit-remaining":"4000","x-ratelimit-reset":"1136214305"}}`,
			want: "github/core OK 4000 -",
		},
		"a success that says nothing": {quotas: []string{"github/core"}, answer: `{"status":200}`, want: "github/core OK - -"},
		"no right to do that": {
			quotas: []string{"github/core"}, answer: `{"status":401,"body":"{\"message\":\"Bad credentials\"}"}`,
			want: "github/core NOT_A_LIMIT - -",
		},
		"by the dialect that is named": {
			quotas: []string{"github/core"},
			answer: `{"status":503,"dialect":"generic","headers":{"retry-after":"2"}}`,
			want:   "github/core OVERLOADED - 2s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			lease := called(t, n, "agent-of-"+strings.ReplaceAll(name, " ", "-"), c.quotas...)
			defer func() {
				if c.closed == "" {
					return
				}
				if status, body := post(t, n.url, "/quota.v1.AdminService/ReopenQuota", fmt.Sprintf(`{"name":%q}`, c.closed)); status != http.StatusOK {
					t.Errorf("%d %s", status, body)
				}
			}()
			for _, path := range []string{"Report", "Batch"} { // both read alike
				request := fmt.Sprintf(`{%s,"answer":%s}`, lease, c.answer)
				if path == "Batch" {
					request = fmt.Sprintf(`{"commands":[{"report":%s}]}`, request)
				}
				status, body := post(t, n.url, "/quota.v1.QuotaService/"+path, request)
				got := at(fields(t, body), "signals")
				if results, _ := at(fields(t, body), "results").([]any); len(results) == 1 {
					got = at(results[0], "report", "signals")
				}
				if sent := signalsReported(got); status != http.StatusOK || sent != c.want {
					t.Errorf("%s: %d %q, want %q: %s", path, status, sent, c.want, body)
				}
			}
			if c.closed == "" {
				return
			}
			_, body := post(t, n.url, "/quota.v1.QuotaService/Reserve", fmt.Sprintf(`{"holder":"another","items":[{"quota":%q}]}`, c.closed))
			if got := at(fields(t, body), "refusal", "reason"); got != "REASON_COOLDOWN" {
				t.Errorf("another holder: %s", body)
			}
		})
	}
}

// signalsReported formats signals in short.
func signalsReported(list any) string {
	all, _ := list.([]any)
	var sent []string
	for _, s := range all {
		text := fmt.Sprint(at(s, "quota"), " ", strings.TrimPrefix(fmt.Sprint(at(s, "cause")), "CAUSE_"))
		for _, name := range []string{"remaining", "retryAfter"} {
			if value := at(s, name); value != nil {
				text += fmt.Sprint(" ", value)
			} else {
				text += " -"
			}
		}
		sent = append(sent, text)
	}
	return strings.Join(sent, "; ")
}

// TestReport_AnswerSentAgain: a report of the same answer under the same id is the same request, even if nothing can be read from it any
// more because the lease has ended. A report of a different answer is a different request.
func TestReport_AnswerSentAgain(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyTwo); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	_, body := post(t, n.url, "/quota.v1.QuotaService/OpenSession", `{"holder":"me"}`)
	session := at(fields(t, body), "session")
	for _, path := range []string{"Report", "Batch"} {
		lease := called(t, n, "me", "github/core")
		report := func(left int) (status int, body string) {
			request := fmt.Sprintf(`{"requestId":{"session":%q,"seq":"%d"},%s,"answer":{"status":200,"headers":{"x-ratelimit-resource":"core",`+
				`"x-ratelimit-limit":"5000","x-ratelimit-remaining":"%d"}}}`, session, len(path), lease, left)
			if path == "Batch" {
				request = fmt.Sprintf(`{"commands":[{"report":%s}]}`, request)
			}
			return post(t, n.url, "/quota.v1.QuotaService/"+path, request)
		}
		first, body := report(4000)
		named := strings.TrimSuffix(lease, `,"op":1`)
		if status, body := post(t, n.url, "/quota.v1.QuotaService/Release", "{"+named+"}"); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		again, sentAgain := report(4000)
		if first != http.StatusOK || again != http.StatusOK || strings.Contains(body+sentAgain, "REASON_") {
			t.Errorf("%s: %d %s, again %d %s", path, first, body, again, sentAgain)
		}
		if _, other := report(3999); !strings.Contains(other, "REASON_SEQ_REUSED") {
			t.Errorf("%s: another answer under the same id: %s", path, other)
		}
	}
}

// TestReport_AnswerOfAnEndedLease: it is refused like any other report of that lease.
func TestReport_AnswerOfAnEndedLease(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyTwo); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	lease := called(t, n, "me", "t/core")
	named := strings.TrimSuffix(lease, `,"op":1`)
	if status, body := post(t, n.url, "/quota.v1.QuotaService/Release", "{"+named+"}"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	status, body := post(t, n.url, "/quota.v1.QuotaService/Report", "{"+lease+`,"answer":{"status":429}}`)
	if got := at(fields(t, body), "error", "reason"); status != http.StatusBadRequest || got != "REASON_STALE_FENCE" {
		t.Errorf("%d %s", status, body)
	}
}

// TestErrors_InOnePlace: the field error has reason, hint and outcome in every error, whichever layer made it.
func TestErrors_InOnePlace(t *testing.T) {
	n := newNodes(t, 1)[0]
	const service = "/quota.v1.QuotaService/"
	for name, c := range map[string]struct {
		method, path, contentType, body string
		status                          int
		reason, outcome, field          string
	}{
		"a field": {
			path: service + "Reserve", body: `{"holder":"a b","items":[{"quota":"q"}]}`,
			status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "holder",
		},
		"a judgement": {
			path: service + "Renew", body: `{"lease":7,"fence":7}`, status: 400, reason: "NEVER_ISSUED", outcome: "APPLIED",
		},
		"a misspelt field": {
			path: service + "Reserve", body: `{"holder":"a","itmes":[]}`, status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "body",
		},
		"too long": {
			path: service + "Reserve", body: `{"holder":"` + strings.Repeat("a", 70_000) + `"}`, status: 413, reason: "TOO_LARGE",
			outcome: "NOT_ACCEPTED",
		},
		"a length of time": {
			path: service + "Reserve", body: `{"holder":"a","items":[{"quota":"q"}],"ttl":"5 min"}`,
			status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "ttl",
		},
		"a bare number as a length of time": {
			path: service + "Batch", body: `{"commands":[{"reserve":{"holder":"a","items":[{"quota":"q"}],"wait":5}}]}`,
			status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "commands[0].reserve.wait",
		},
		"a class": {
			path: service + "Reserve", body: `{"holder":"a","items":[{"quota":"q"}],"class":"urgent"}`,
			status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "class",
		},
		"what curl sends by itself": {
			path: service + "Reserve", contentType: "application/x-www-form-urlencoded", body: `{}`,
			status: 415, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "content-type",
		},
		"a call that does not exist": {path: service + "Reserv", body: `{}`, status: 404, reason: "INVALID", outcome: "NOT_ACCEPTED"},
		"a stream as a call": {
			path: service + "Watch", body: `{}`, status: 415, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "content-type",
		},
		"a call as a stream": {
			path: service + "Reserve", contentType: "application/connect+json", body: `{}`, status: 415, reason: "INVALID",
			outcome: "NOT_ACCEPTED", field: "content-type",
		},
		"a GET without encoding": {
			method: "GET", path: service + "ListQuotas", status: 415, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "content-type",
		},
		"a GET of what changes": {
			method: "GET", path: service + "Reserve?encoding=json&message={}", status: 405, reason: "INVALID", outcome: "NOT_ACCEPTED",
		},
		"an encoding": {
			path: service + "Reserve", body: `{}`, contentType: "application/json; charset=latin1", status: 415, reason: "INVALID",
			outcome: "NOT_ACCEPTED", field: "content-type",
		},
		"a watch from nowhere": {
			method: "GET", path: "/watch?from_index=-1", status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "from_index",
		},
		"a watch of two holders": {
			method: "GET", path: "/watch?holder=a&holder=b", status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED", field: "holder",
		},
		"a watch of more": {method: "GET", path: "/watch?quota=x", status: 400, reason: "INVALID", outcome: "NOT_ACCEPTED"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.method == "" {
				c.method = http.MethodPost
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, n.url+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if c.method == http.MethodPost {
				req.Header.Set("Content-Type", "application/json")
			}
			if c.contentType != "" {
				req.Header.Set("Content-Type", c.contentType)
			}
			head, body := send(t, http.DefaultClient, req)
			status, answer := head.StatusCode, fields(t, body)
			e, _ := answer["error"].(map[string]any)
			if status != c.status || e["reason"] != "REASON_"+c.reason || e["outcome"] != "OUTCOME_"+c.outcome {
				t.Errorf("%d %s, want %d %s %s", status, body, c.status, c.reason, c.outcome)
			}
			if hint, _ := e["hint"].(string); hint == "" && c.outcome == "NOT_ACCEPTED" && c.reason == "INVALID" && c.field != "holder" {
				t.Errorf("no hint: %s", body)
			}
			if c.field != "" && e["field"] != c.field {
				t.Errorf("field %v, want %s: %s", e["field"], c.field, body)
			}
			if answer["code"] == nil || answer["message"] == nil {
				t.Errorf("no error of Connect: %s", body)
			}
		})
	}
}

// TestErrors_WithoutAToken: these errors have the same form, though no handler saw the call.
func TestErrors_WithoutAToken(t *testing.T) {
	n, _ := guarded(t, func(*rpc.Config) {})
	status, body := post(t, n.url, "/quota.v1.QuotaService/GetQuota", `{"name":"q"}`)
	e := at(fields(t, body), "error")
	if status != http.StatusUnauthorized || at(e, "reason") != "REASON_NO_TOKEN" || at(e, "outcome") != "OUTCOME_NOT_ACCEPTED" {
		t.Errorf("%d %s", status, body)
	}
	status, body = get(t, n.url+"/watch")
	if status != http.StatusUnauthorized || at(fields(t, body), "error", "reason") != "REASON_NO_TOKEN" {
		t.Errorf("watch: %d %s", status, body)
	}
}

// TestJSON_AsPeopleWriteIt: 5m is a duration, background a class, and a field with the value 0 is present.
func TestJSON_AsPeopleWriteIt(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyTwo); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	status, body := post(t, n.url, "/quota.v1.QuotaService/Reserve",
		`{"holder":"me","items":[{"quota":"t/core","amount":10}],"ttl":"1h30m","class":"background","consume":true}`)
	lease := at(fields(t, body), "lease")
	if status != http.StatusOK || at(lease, "askedTtl") != "5400s" || at(lease, "class") != "CLASS_BACKGROUND" {
		t.Fatalf("%d %s", status, body)
	}
	status, body = post(t, n.url, "/quota.v1.QuotaService/Reserve", `{"holder":"you","items":[{"quota":"t/core"}]}`)
	refusal := at(fields(t, body), "refusal")
	if status != http.StatusOK || at(refusal, "available") != "0" || at(refusal, "ahead") != "0" {
		t.Errorf("%d %s", status, body)
	}
	status, body = post(t, n.url, "/quota.v1.QuotaService/Report",
		fmt.Sprintf(`{"lease":%q,"fence":%q,"op":1,"signals":[{"quota":"t/core","cause":"saturated","retryAfter":"1m"}]}`,
			at(lease, "id"), at(lease, "fence")))
	if status != http.StatusOK || !strings.Contains(body, "cooldownLeft") {
		t.Errorf("%d %s", status, body)
	}
}

// event is a server-sent event.
type event struct{ id, name, data string }

// eventsFrom opens a stream of events, and returns a function that reads the next one. A bookmark has only an id.
func eventsFrom(t *testing.T, url, last string) func() event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	lines := bufio.NewScanner(res.Body)
	return func() (e event) {
		t.Helper()
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "":
				if e != (event{}) {
					return e
				}
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				e.data = value
			}
		}
		t.Fatalf("the stream ended: %v", lines.Err())
		return e
	}
}

// nextNamed reads until an event with a name.
func nextNamed(t *testing.T, next func() event) event {
	t.Helper()
	for {
		if e := next(); e.name != "" {
			return e
		}
	}
}

// TestWatch_ServerSentEvents: events have names, resume after the last id, and are filtered; the end has its reason.
func TestWatch_ServerSentEvents(t *testing.T) {
	n := newNodes(t, 1)[0]
	next := eventsFrom(t, n.url+"/watch?quota_prefix=t/&holder=me", "")
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	reserveAs(t, n, "another")
	first := reserveAs(t, n, "me")
	e := nextNamed(t, next)
	if e.name != "granted" || at(fields(t, e.data), "holder") != "me" || e.id != fmt.Sprint(first.Meta.Index) {
		t.Errorf("%+v, want the grant at %d", e, first.Meta.Index)
	}
	second := reserveAs(t, n, "me")
	if e := nextNamed(t, next); e.id != fmt.Sprint(second.Meta.Index) {
		t.Errorf("%+v, want the grant at %d", e, second.Meta.Index)
	}
	resumed := eventsFrom(t, n.url+"/watch?holder=me", e.id)
	if again := nextNamed(t, resumed); again.id != fmt.Sprint(second.Meta.Index) {
		t.Errorf("resumed behind %s: %+v", e.id, again)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := n.server.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if end := nextNamed(t, next); end.name != "ended" || at(fields(t, end.data), "reason") != "REASON_STOPPING" {
		t.Errorf("%+v", end)
	}
}

// TestWatch_Compacted: a reader that resumes at a compacted index learns so, and receives what happens from then on.
func TestWatch_Compacted(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	n.kill()
	n.config.EventEntries = 16 // the smallest valid number
	n.again(t)
	for i := range 20 {
		eventually(t, "an event", func() bool {
			status, _ := post(t, n.url, "/quota.v1.QuotaService/Reserve",
				fmt.Sprintf(`{"holder":"h%d","items":[{"quota":"t/core","amount":11}]}`, i))
			return status == http.StatusOK
		})
	}
	next := eventsFrom(t, n.url+"/watch?holder=me", "1")
	if e := nextNamed(t, next); e.name != "compacted" || e.id != "" || at(fields(t, e.data), "reason") != "REASON_COMPACTED" {
		t.Fatalf("%+v", e)
	}
	granted := reserveAs(t, n, "me")
	if e := nextNamed(t, next); e.name != "granted" || e.id != fmt.Sprint(granted.Meta.Index) {
		t.Errorf("%+v, want the grant at %d", e, granted.Meta.Index)
	}
}
