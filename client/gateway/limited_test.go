package gateway_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestObserve_RetriesAtMostThreeTimes: the client then gets the provider's fourth refusal unchanged, and each attempt has consumed a
// request of its own.
func TestObserve_RetriesAtMostThreeTimes(t *testing.T) {
	by := &throttles{n: 10, header: map[string]string{"Retry-After": "1"}}
	throttled(t, by, func(t *testing.T, b *bubble, ask func(...string) answer) {
		got := ask()
		if n := len(by.arrivals()); n != 4 || got.status != 429 || got.body != limitAnswer {
			t.Errorf("got %d after %d calls: %s", got.status, n, got.body)
		}
		b.compare(map[string]float64{
			`quotad_gateway_upstream_limited_total{action="retried",rule="openai/rate_limit",upstream="openai"}`: 3,
			`quotad_gateway_upstream_limited_total{action="passed",rule="openai/rate_limit",upstream="openai"}`:  1,
		})
	})
}

// TestObserve_ABodyThatIsNotKeptIsNotSentAgain: a streamed form is gone once it was sent.
func TestObserve_ABodyThatIsNotKeptIsNotSentAgain(t *testing.T) {
	by := &throttles{n: 1, header: map[string]string{"Retry-After": "1"}}
	throttled(t, by, func(t *testing.T, b *bubble, _ func(...string) answer) {
		const form = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ngpt-5\r\n--b--\r\n"
		got := b.do(http.MethodPost, "/openai/v1/images/edits", form, "Content-Type", "multipart/form-data; boundary=b")
		if n := len(by.arrivals()); n != 1 || got.status != 429 || got.body != limitAnswer || got.header.Get("Retry-After") != "1" {
			t.Errorf("got %d after %d calls: %s, %v", got.status, n, got.body, got.header)
		}
	})
}

// TestObserve_ALongerCooldownReplacesRetryAfter: the provider's 2 s would lead the client into the cluster's cooldown, which another
// call's answer has made a minute long.
func TestObserve_ALongerCooldownReplacesRetryAfter(t *testing.T) {
	const quota = "openai/gpt-5/requests"
	var shuts func()
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate(quota, 100, time.Minute)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			shuts()
			w.Header().Set("Retry-After", "2")
			speak(429, limitAnswer)(w, r)
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		shuts = func() { b.cluster.Cooldown(quota, time.Minute) }
		got := b.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`, "X-Quotad-Wait", "0")
		left := b.cluster.Quota(quota).CooldownLeft
		after, err := strconv.Atoi(got.header.Get("Retry-After"))
		if got.status != 429 || got.body != limitAnswer || err != nil || left < 50*time.Second || time.Duration(after)*time.Second < left {
			t.Errorf("got %d %s, %v; the cooldown lasts %v", got.status, got.body, got.header, left)
		}
	})
}

// TestObserve_FailuresOfTheProviderPassOnce: the client decides about another attempt. They close no quota.
func TestObserve_FailuresOfTheProviderPassOnce(t *testing.T) {
	for _, status := range []int{500, 502, 503, 504, 529} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			body := fmt.Sprintf(`{"error":{"message":"no. %d",  "type":"server_error"}}`, status)
			with := setting{
				dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 100, time.Minute)},
				answer: speak(status, body),
			}
			inBubble(t, with, func(t *testing.T, b *bubble) {
				got := b.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`)
				if n := len(b.provider.seen()); n != 1 || got.status != status || got.body != body || got.header.Get("Retry-After") != "" {
					t.Errorf("got %d after %d calls: %s, %v", got.status, n, got.body, got.header)
				}
				b.consumed("openai/gpt-5/requests", 1)
				if q := b.cluster.Quota("openai/gpt-5/requests"); q.CooldownLeft != 0 {
					t.Errorf("a cooldown of %v", q.CooldownLeft)
				}
			})
		})
	}
}

// TestObserve_CountsAreReportedOnceASecond: the cluster learns the provider's count of what remains, but not from each answer. That
// nothing remains is reported at once.
func TestObserve_CountsAreReportedOnceASecond(t *testing.T) {
	remaining := 600
	with := setting{
		dialects: []string{"github"}, quotas: []*quotav1.Quota{quotatest.Rate("github/core", 1000, time.Hour)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			for name, value := range map[string]int{"Limit": 1000, "Remaining": remaining, "Reset": int(time.Now().Add(time.Hour).Unix())} {
				w.Header().Set("X-Ratelimit-"+name, strconv.Itoa(value))
			}
			w.Header().Set("X-Ratelimit-Resource", "core")
			speak(200, `{}`)(w, r)
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ask := func(remains int) {
			remaining = remains
			if got := b.do(http.MethodGet, "/github/user", ""); got.status != 200 {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			b.after(200 * time.Millisecond)
		}
		ask(600)
		b.until("the first count is reported", time.Second, func() bool { return b.cluster.Available("github/core") <= 600 })
		known := b.cluster.Available("github/core")
		ask(300)
		if now := b.cluster.Available("github/core"); now < known-1 {
			t.Errorf("within a second: %d are available, %d before", now, known)
		}
		b.after(time.Second)
		ask(200)
		b.until("a later count is reported", time.Second, func() bool { return b.cluster.Available("github/core") <= 200 })
		ask(0)
		b.until("that nothing remains is reported", time.Second, func() bool { return b.cluster.Available("github/core") <= 0 })
	})
}
