package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestRefusal_OfGitHubHasItsHeaders: a refusal by one of GitHub's primary limits states the limit, its use and its reset as GitHub does.
// A refusal by a secondary limit states none of them.
func TestRefusal_OfGitHubHasItsHeaders(t *testing.T) {
	with := setting{
		dialects: []string{"github"}, answer: speak(200, `{}`),
		quotas: []*quotav1.Quota{
			quotatest.Rate("github/core", 2, time.Hour), quotatest.Rate("github/search", 1, time.Minute),
			quotatest.Rate("github/content", 1, time.Minute), quotatest.Slots("github/concurrent", 10),
			quotatest.Rate("github/points", 1000, time.Minute),
		},
		change: func(conf *config.Config) {
			u := conf.Upstreams["github"]
			u.Secondary = true
			conf.Upstreams["github"] = u
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for _, call := range []struct {
			method, path, resource string
			limit                  int
		}{
			{http.MethodPost, "/github/repos/o/r/issues", "", 1},
			{http.MethodGet, "/github/user", "core", 2},
			{http.MethodGet, "/github/search/issues?q=x", "search", 1},
		} {
			var got answer
			for range 3 {
				if got = b.do(call.method, call.path, "", "X-Quotad-Wait", "0"); got.status != 200 {
					break
				}
			}
			after, err := strconv.Atoi(got.header.Get("Retry-After"))
			if got.status != 429 || err != nil || after < 1 {
				t.Fatalf("%s: got %d %s, %v", call.path, got.status, got.body, got.header)
			}
			want := map[string]string{"Limit": "", "Used": "", "Remaining": "", "Resource": call.resource}
			if call.resource != "" {
				want["Limit"], want["Used"], want["Remaining"] = strconv.Itoa(call.limit), strconv.Itoa(call.limit), "0"
			}
			for name, value := range want {
				if said := got.header.Get("X-Ratelimit-" + name); said != value {
					t.Errorf("%s: %s is %q, want %q", call.path, name, said, value)
				}
			}
			reset, _ := strconv.ParseInt(got.header.Get("X-Ratelimit-Reset"), 10, 64)
			in := reset - time.Now().Unix()
			if call.resource == "" && reset != 0 || call.resource != "" && (in < int64(after) || in > int64(after)+1) {
				t.Errorf("%s: the limit resets in %d s, and Retry-After is %d", call.path, in, after)
			}
		}
		b.consumed("github/core", 2)
		b.consumed("github/search", 1)
	})
}

// TestA7_SignedCallOfBedrockIsRefused: a call signed with SigV4 is refused before it is sent, and the refusal names both variables that
// help.
func TestA7_SignedCallOfBedrockIsRefused(t *testing.T) {
	c := startCluster(t, rate("bedrock/m/requests", 100))
	p := startProvider(t, speak(200, `{}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"bedrock": upstreamOf(p, "bedrock")}), gateway.Options{})
	form := forms["bedrock"]
	got := f.do(http.MethodPost, form.path, form.body, "Authorization",
		"AWS4-HMAC-SHA256 Credential=made-up/20261127/eu-west-1/bedrock/aws4_request, SignedHeaders=host, Signature=00")
	if got.status != http.StatusBadRequest || !strings.Contains(got.body, "AWS_BEARER_TOKEN_BEDROCK") ||
		!strings.Contains(got.body, "CLAUDE_CODE_SKIP_BEDROCK_AUTH") || !strings.HasPrefix(got.body, `{"message":`) {
		t.Errorf("signed: got %d %s", got.status, got.body)
	}
	if n := len(p.seen()); n != 0 {
		t.Errorf("%d signed calls were sent", n)
	}
	if got := f.do(http.MethodPost, form.path, form.body, "Authorization", "Bearer made-up"); got.status != 200 {
		t.Errorf("with a key: got %d %s", got.status, got.body)
	}
}

// throttles answers the first n calls with 429, and records when calls arrive.
type throttles struct {
	n      int
	header map[string]string

	mu sync.Mutex
	at []time.Time
}

const limitAnswer = `{"error":{"message":"Slow down","type":"requests","param":null,"code":"rate_limit_exceeded"}}`

func (l *throttles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	l.at = append(l.at, time.Now())
	limited := len(l.at) <= l.n
	l.mu.Unlock()
	if !limited {
		speak(200, chatAnswer)(w, r)
		return
	}
	for name, value := range l.header {
		w.Header().Set(name, value)
	}
	speak(429, limitAnswer)(w, r)
}

func (l *throttles) arrivals() []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]time.Time(nil), l.at...)
}

// throttled tests one call to a provider that refuses.
func throttled(t *testing.T, by *throttles, test func(*testing.T, *bubble, func(headers ...string) answer)) {
	t.Helper()
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 100, time.Minute)}, answer: by.ServeHTTP,
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		test(t, b, func(headers ...string) answer {
			return b.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`, headers...)
		})
		b.consumed("openai/gpt-5/requests", int64(len(by.arrivals()))) // refused calls count as well
	})
}

// TestObserve_ObeysShouldRetry: the gateway does not retry a call whose provider says x-should-retry: false. The client gets the answer
// unchanged.
func TestObserve_ObeysShouldRetry(t *testing.T) {
	for value, want := range map[string]struct{ status, calls int }{"false": {429, 1}, "true": {200, 2}} {
		by := &throttles{n: 1, header: map[string]string{"Retry-After": "2", "X-Should-Retry": value}}
		throttled(t, by, func(t *testing.T, _ *bubble, ask func(...string) answer) {
			got := ask()
			if n := len(by.arrivals()); got.status != want.status || n != want.calls {
				t.Errorf("X-Should-Retry: %s: got %d after %d calls: %s", value, got.status, n, got.body)
			}
			said := [2]string{got.header.Get("X-Should-Retry"), got.header.Get("Retry-After")}
			if got.status == 429 && (got.body != limitAnswer || said != [2]string{"false", "2"}) {
				t.Errorf("got %s, %v", got.body, got.header)
			}
		})
	}
}

// windows are the times after a cooldown's end in which the classes retry.
var windows = map[string]struct{ from, to time.Duration }{
	"critical": {0, 500 * time.Millisecond}, "standard": {500 * time.Millisecond, 3500 * time.Millisecond},
	"background": {3500 * time.Millisecond, 9500 * time.Millisecond},
}

// TestA24_RetryLiesInTheWindowOfItsClass: after a provider's refusal, the gateway retries a call in its class's window after the cooldown.
func TestA24_RetryLiesInTheWindowOfItsClass(t *testing.T) {
	const after = 2 * time.Second
	for class, window := range windows {
		by := &throttles{n: 1, header: map[string]string{"Retry-After": "2"}}
		throttled(t, by, func(t *testing.T, _ *bubble, ask func(...string) answer) {
			got, at := ask("X-Quotad-Class", class), by.arrivals()
			if got.status != 200 || len(at) != 2 {
				t.Fatalf("%s: got %d after %d calls: %s", class, got.status, len(at), got.body)
			}
			if waited := at[1].Sub(at[0]) - after; waited < window.from || waited > window.to+100*time.Millisecond {
				t.Errorf("%s: retried %v after the cooldown's end, want %v to %v", class, waited, window.from, window.to)
			}
		})
	}
}

// TestA24_RetryAfterLiesInTheWindowOfItsClass: a refusal that the gateway does not retry, and that has no Retry-After, gets one in the
// class's window after the cluster's cooldown.
func TestA24_RetryAfterLiesInTheWindowOfItsClass(t *testing.T) {
	for class, window := range windows {
		by := &throttles{n: 1}
		throttled(t, by, func(t *testing.T, b *bubble, ask func(...string) answer) {
			got := ask("X-Quotad-Class", class, "X-Quotad-Wait", "0")
			left := b.cluster.Quota("openai/gpt-5/requests").CooldownLeft
			after, err := strconv.Atoi(got.header.Get("Retry-After"))
			if got.status != 429 || got.body != limitAnswer || err != nil || left < time.Second {
				t.Fatalf("%s: got %d %s, %v; the cooldown is %v", class, got.status, got.body, got.header, left)
			}
			said := time.Duration(after) * time.Second
			if said < left+window.from || said > left+window.to+time.Second+100*time.Millisecond {
				t.Errorf("%s: Retry-After is %v and the cooldown %v, want %v to %v later", class, said, left, window.from, window.to)
			}
		})
	}
}

// TestSend_RepeatsACallThatWasNotSentOnce: if no connection is made, the gateway tries one more, and asks the cluster again. A second
// failure is a 502, and nothing is drawn. It cannot repeat a body that it does not keep.
func TestSend_RepeatsACallThatWasNotSentOnce(t *testing.T) {
	for name, want := range map[string]struct {
		fails, dials, status, sent int64
		kind                       string
	}{
		"one failure":          {1, 2, 200, 1, "application/json"},
		"two failures":         {2, 2, 502, 0, "application/json"},
		"a body not in memory": {1, 1, 502, 0, "multipart/form-data; boundary=b"},
	} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, rate("openai/gpt-5/requests", 100))
			p := startProvider(t, speak(200, chatAnswer))
			var dials atomic.Int64
			transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if dials.Add(1) <= want.fails {
					return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New(syscall.ECONNREFUSED.Error())}
				}
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}}
			defer transport.CloseIdleConnections()
			conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
			f := startGateway(t, c, p, conf, gateway.Options{Transport: transport})
			path, body := "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`
			if want.kind != "application/json" {
				path = "/openai/v1/images/edits"
				body = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ngpt-5\r\n--b--\r\n"
			}
			got := f.do(http.MethodPost, path, body, "Content-Type", want.kind)
			if int64(got.status) != want.status || dials.Load() != want.dials || int64(len(p.seen())) != want.sent {
				t.Fatalf("got %d after %d connections and %d requests: %s", got.status, dials.Load(), len(p.seen()), got.body)
			}
			if got.status == 502 && (got.header.Get("X-Quotad") != "upstream" || !strings.Contains(got.body, "nothing was sent")) {
				t.Errorf("got %s, %v", got.body, got.header)
			}
			if got.status == 200 && got.body != chatAnswer {
				t.Errorf("got %s", got.body)
			}
			f.logs(t, fmt.Sprintf("code=%d", want.status), 1)
			c.consumed("openai/gpt-5/requests", want.sent)
		})
	}
}
