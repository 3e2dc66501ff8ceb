package gateway_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The tests of this file bound durations exactly, by a virtual clock.

// TestA13_ClusterAwayForHalfAMinute: each dialect reports it in time, nothing is sent meanwhile, and calls pass soon afterwards.
func TestA13_ClusterAwayForHalfAMinute(t *testing.T) {
	const within, backWithin = 6 * time.Second, 3 * time.Second
	dialects := make([]string, 0, len(forms))
	quotas := make([]*quotav1.Quota, 0, len(forms))
	for name, form := range forms {
		dialects, quotas = append(dialects, name), append(quotas, quotatest.Rate(form.quota, 100, time.Minute))
	}
	inBubble(t, setting{dialects: dialects, quotas: quotas, answer: speak(200, `{}`)}, func(t *testing.T, b *bubble) {
		ask := func(name string) answer {
			method := http.MethodPost
			if forms[name].body == "" {
				method = http.MethodGet
			}
			return b.do(method, forms[name].path, forms[name].body, "Content-Type", "application/json")
		}
		for name := range forms {
			if got := ask(name); got.status != 200 {
				t.Fatalf("%s: %d %s", name, got.status, got.body)
			}
		}
		b.nodes.cut(true)
		began, sent := time.Now(), len(b.provider.seen())
		for time.Since(began) < 30*time.Second {
			for name, form := range forms {
				asked := time.Now()
				got := ask(name)
				if got.status != 503 || !strings.Contains(got.body, form.away) || got.header.Get("Retry-After") != "5" {
					t.Errorf("%s: %d %s, %v", name, got.status, got.body, got.header)
				}
				if took := time.Since(asked); took > within {
					t.Errorf("%s: refused after %v", name, took)
				}
			}
			b.after(time.Second)
		}
		if n := len(b.provider.seen()); n != sent {
			t.Errorf("%d calls were sent while the cluster was away", n-sent)
		}
		b.nodes.cut(false)
		for name := range forms {
			b.until(name+" passes again", backWithin, func() bool { return ask(name).status == 200 })
		}
	})
}

// TestA22_ClientThatLeavesAStreamEndsIt: with each form of stream the provider sees the end at once, the slot is freed, and the charge
// is at least what the client saw.
func TestA22_ClientThatLeavesAStreamEndsIt(t *testing.T) {
	const within = 100 * time.Millisecond
	text := strings.Repeat("four", 100)
	for name, c := range map[string]struct {
		path, body, model string
		events            []string
		// charged is the final charge of each part.
		charged map[string]int64
	}{
		"anthropic": {
			"/anthropic/v1/messages", messageBody, "claude-opus-4", messageEvents[:3],
			map[string]int64{"requests": 1, "input-tokens": 25, "output-tokens": 100},
		},
		"openai": {
			"/openai/v1/responses", `{"model":"m","stream":true,"max_output_tokens":9000,"input":"` + strings.Repeat("word", 50) + `"}`, "m",
			[]string{
				"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"usage\":null}}\n\n",
				"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"" + text + "\"}\n\n",
				"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"" + text + "\"}\n\n",
			},
			map[string]int64{"requests": 1, "tokens": 50 + 200},
		},
		"gemini": {
			"/gemini/v1beta/models/m:streamGenerateContent?alt=sse", `{"contents":[{"parts":[{"text":"` + strings.Repeat("word", 50) + `"}]}]}`, "m",
			[]string{
				"data: {\"candidates\":[],\"usageMetadata\":{\"promptTokenCount\":80,\"candidatesTokenCount\":3}}\n\n",
				"data: {}\n\n", "data: {}\n\n",
			},
			map[string]int64{"requests": 1, "tokens": 80},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var ended chan time.Time // created in the bubble
			quotas := []*quotav1.Quota{quotatest.Slots(name+"/"+c.model+"/streams", 2)}
			for part := range c.charged {
				quota := quotatest.Rate(name+"/"+c.model+"/"+part, 100_000, time.Minute)
				quota.Settle = quotav1.SettleMode_SETTLE_MODE_ACTUAL
				quotas = append(quotas, quota)
			}
			answers := func(w http.ResponseWriter, r *http.Request) {
				events(nil, c.events...)(w, r)
				<-r.Context().Done()
				ended <- time.Now()
			}
			inBubble(t, setting{dialects: []string{name}, quotas: quotas, answer: answers}, func(t *testing.T, b *bubble) {
				ended = make(chan time.Time, 1)
				connection := b.send(http.MethodPost, c.path, c.body, "Content-Type", "application/json")
				response, err := http.ReadResponse(bufio.NewReader(connection), nil)
				if err != nil || response.StatusCode != http.StatusOK {
					t.Fatal(response, err)
				}
				all := strings.Join(c.events, "")
				got := make([]byte, len(all))
				if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != all {
					t.Fatalf("got %q, %v", got, err)
				}
				left := time.Now()
				_ = connection.Close()
				if took := (<-ended).Sub(left); took > within {
					t.Errorf("the provider saw the end after %v", took)
				}
				b.until("the slot is free", within, func() bool { return b.cluster.Available(name+"/"+c.model+"/streams") == 2 })
				for part, want := range c.charged {
					b.consumed(name+"/"+c.model+"/"+part, want)
				}
			})
		})
	}
}

// TestA22_DrainedCallIsLoggedAtItsEnd: its one log line has the use, and its client counts as having left.
func TestA22_DrainedCallIsLoggedAtItsEnd(t *testing.T) {
	first := frame("contentBlockDelta", `{"contentBlockIndex":0,"delta":{"text":"Hi"}}`)
	last := frame("metadata", `{"usage":{"inputTokens":12,"outputTokens":7,"totalTokens":19}}`)
	answers := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
		for _, piece := range []string{first, first, first, first, last} {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
			<-time.After(time.Second) // by the bubble's clock
		}
	}
	quota := quotatest.Rate("bedrock/m/tokens", 100_000, time.Minute)
	quota.Settle = quotav1.SettleMode_SETTLE_MODE_ACTUAL
	with := setting{dialects: []string{"bedrock"}, quotas: []*quotav1.Quota{quota}, answer: answers}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		connection := b.send(http.MethodPost, "/bedrock/model/m/converse-stream", `{"messages":[]}`, "Content-Type", "application/json")
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(response.Body, make([]byte, len(first))); err != nil {
			t.Fatal(err)
		}
		_ = connection.Close()
		b.after(8 * time.Second)
		b.consumed("bedrock/m/tokens", 19)
		line := b.log.String()
		if strings.Count(line, "msg=call") != 1 || !strings.Contains(line, "end=gone") || !strings.Contains(line, "out=7 ") {
			t.Errorf("a drained call is logged as %q", line)
		}
		counts := b.do(http.MethodGet, "/metrics", "").body
		if !strings.Contains(counts, `quotad_gateway_disconnects_total{upstream="bedrock"} 1`) {
			t.Error("the client that left is not counted")
		}
	})
}

// TestA26_ClientThatLeavesTheQueueDrawsNothing: its place is withdrawn at once, and no part of its call is taken.
func TestA26_ClientThatLeavesTheQueueDrawsNothing(t *testing.T) {
	const within = time.Second
	quotas := []*quotav1.Quota{
		quotatest.Slots("anthropic/m/streams", 1), quotatest.Rate("anthropic/m/requests", 100, time.Minute),
		quotatest.Rate("anthropic/m/input-tokens", 100_000, time.Minute),
	}
	var release chan struct{} // created in the bubble
	answers := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		speak(200, `{"type":"message","usage":{"input_tokens":13,"output_tokens":1}}`)(w, r)
	}
	inBubble(t, setting{dialects: []string{"anthropic"}, quotas: quotas, answer: answers}, func(t *testing.T, b *bubble) {
		release = make(chan struct{})
		form := forms["anthropic"]
		first := make(chan int, 1)
		go func() { first <- b.do(http.MethodPost, form.path, form.body).status }()
		b.until("the slot is held", within, func() bool { return len(b.provider.seen()) == 1 })
		waits := func() int64 { return b.cluster.Quota("anthropic/m/streams").Waiting }
		for _, stays := range []time.Duration{0, time.Millisecond, 20 * time.Second} {
			connection := b.send(http.MethodPost, form.path, form.body)
			if stays > 0 {
				b.until("a call waits", within, func() bool { return waits() == 1 })
			}
			b.after(stays)
			_ = connection.Close()
			b.until("its place is withdrawn", within, func() bool { return waits() == 0 })
		}
		release <- struct{}{}
		if status := <-first; status != 200 {
			t.Errorf("the first call: %d", status)
		}
		b.until("the slot is free", within, func() bool { return b.cluster.Available("anthropic/m/streams") == 1 })
		b.consumed("anthropic/m/requests", 1)
		b.consumed("anthropic/m/input-tokens", 13)
		if n := len(b.provider.seen()); n != 1 {
			t.Errorf("the provider saw %d calls", n)
		}
	})
}

// TestA9_GeminiWaitsAsLongAsItsClientStands: a wait of 30 s is waited out. One of 90 s is refused, with the time, before the client
// leaves.
func TestA9_GeminiWaitsAsLongAsItsClientStands(t *testing.T) {
	const stands = 60 * time.Second
	for _, c := range []struct {
		opens time.Duration
		want  int
	}{{30 * time.Second, http.StatusOK}, {90 * time.Second, http.StatusTooManyRequests}} {
		opens, want := c.opens, c.want
		form := forms["gemini"]
		with := setting{
			dialects: []string{"gemini"}, quotas: []*quotav1.Quota{quotatest.Rate(form.quota, 1, opens)},
			answer: speak(200, `{"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":3}}`),
		}
		inBubble(t, with, func(t *testing.T, b *bubble) {
			ask := func() answer {
				return b.do(http.MethodPost, form.path, form.body, "User-Agent", "GeminiCLI/0.30.0 (linux; x64)")
			}
			if got := ask(); got.status != 200 {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			asked := time.Now()
			got := ask()
			if took := time.Since(asked); got.status != want || took > stands {
				t.Errorf("a quota that opens in %v: %d after %v, %s", opens, got.status, took, got.body)
			}
			if want == 429 && (!strings.Contains(got.body, "RetryInfo") || got.header.Get("Retry-After") == "") {
				t.Errorf("refused with %s, %v", got.body, got.header)
			}
		})
	}
}

// TestA10_CopilotWaitsInsteadOfRetryingAtOnce: its five retries take 0.15 s, the quota opens after 8 s.
func TestA10_CopilotWaitsInsteadOfRetryingAtOnce(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1, 8*time.Second)},
		answer: speak(200, chatAnswer),
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for i := range 2 {
			asked := time.Now()
			got := b.do(http.MethodPost, "/as/worf/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, "User-Agent", "copilot/1.0")
			if got.status != 200 {
				t.Fatalf("call %d: %d after %v: %s", i, got.status, time.Since(asked), got.body)
			}
		}
		if n := len(b.provider.seen()); n != 2 {
			t.Errorf("the provider saw %d calls", n)
		}
	})
}

// TestA14_FailOpenIsBoundedByRateAndTime: without the cluster at most two calls pass in any second, and none after the time limit.
func TestA14_FailOpenIsBoundedByRateAndTime(t *testing.T) {
	const length = 20 * time.Second
	var mu sync.Mutex
	var passed []time.Time
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1000, time.Minute)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			passed = append(passed, time.Now())
			mu.Unlock()
			speak(200, chatAnswer)(w, r)
		},
		change: func(conf *config.Config) {
			u := conf.Upstreams["openai"]
			u.FailOpen = &config.FailOpen{Count: 2, Per: time.Second, For: length}
			conf.Upstreams["openai"] = u
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		b.nodes.cut(true)
		began := time.Now()
		var calls sync.WaitGroup
		for time.Since(began) < 2*length {
			calls.Go(func() {
				got := b.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`)
				if got.status != 503 && (got.status != 200 || got.header.Get("X-Quotad") != "open") {
					t.Errorf("got %d %s %v", got.status, got.body, got.header)
				}
			})
			b.after(100 * time.Millisecond)
		}
		calls.Wait()
		for i, at := range passed {
			if i >= 2 && at.Sub(passed[i-2]) < time.Second {
				t.Errorf("three calls passed within %v", at.Sub(passed[i-2]))
			}
			if open := at.Sub(passed[0]); open > length {
				t.Errorf("a call passed %v after the first", open)
			}
		}
		if want := 2*int(length/time.Second) - 2; len(passed) < want {
			t.Errorf("%d calls passed, want at least %d", len(passed), want)
		}
	})
}

// TestFailOpen_EndsWithoutACall: uncounted calls are charged once the quotas can be listed again, even without a new call, and the next
// outage has its own time limit.
func TestFailOpen_EndsWithoutACall(t *testing.T) {
	const length = 40 * time.Second
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1000, time.Hour)},
		answer: speak(200, chatAnswer),
		change: func(conf *config.Config) {
			u := conf.Upstreams["openai"]
			u.FailOpen = &config.FailOpen{Count: 2, Per: time.Second, For: length}
			conf.Upstreams["openai"] = u
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for outage := range int64(3) {
			b.nodes.cut(true)
			got := b.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`)
			if got.status != 200 || got.header.Get("X-Quotad") != "open" || !b.gateway.Status().Away {
				t.Errorf("outage %d: got %d %s %v", outage, got.status, got.body, got.header)
			}
			b.nodes.cut(false)
			b.after(length)
			b.consumed("openai/gpt-5/requests", outage+1)
			if status := b.gateway.Status(); status.Away || status.Upstreams[0].Passing {
				t.Errorf("after outage %d: %+v", outage, status)
			}
		}
		b.compare(map[string]float64{`quotad_gateway_ungoverned_total{upstream="openai",why="fail_open"}`: 3})
		for _, line := range []string{
			`level=WARN msg="the cluster is away: calls pass without quotas" upstream=openai count=2 per=1s for=40s`,
			`level=WARN msg="the cluster is back: calls need quotas again" upstream=openai passed=1`,
		} {
			if n := strings.Count(b.log.String(), line); n != 3 {
				t.Errorf("%d lines, want 3: %s", n, line)
			}
		}
	})
}

// TestAway_OnlyAnswersOfTheClusterEndIt: a client that leaves, while its call waits for an unresponsive cluster, proves nothing.
func TestAway_OnlyAnswersOfTheClusterEndIt(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1000, time.Hour)},
		answer: speak(200, chatAnswer),
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		const path, body = "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`
		b.nodes.cut(true)
		if got := b.do(http.MethodPost, path, body); got.status != 503 || !b.gateway.Status().Away {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		impatient := b.send(http.MethodPost, path, body)
		b.until("the call waits", time.Second, func() bool { return b.gateway.Status().Waiting == 1 })
		_ = impatient.Close()
		b.until("its client has left", time.Second, func() bool { return b.gateway.Status().InFlight == 0 })
		if !b.gateway.Status().Away {
			t.Error("a client that left ended the outage")
		}
		b.nodes.cut(false)
		if got := b.do(http.MethodPost, path, body); got.status != 200 || b.gateway.Status().Away {
			t.Errorf("the cluster is back: %d %s", got.status, got.body)
		}
	})
}

// TestA15_QuotaOfAModelIsFoundInTime: without a restart.
func TestA15_QuotaOfAModelIsFoundInTime(t *testing.T) {
	with := setting{dialects: []string{"openai"}, answer: speak(200, chatAnswer)}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ask := func() answer {
			return b.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-6","messages":[]}`)
		}
		if got := ask(); got.status != 403 || !strings.Contains(got.body, "quotad quota apply") {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		b.after(time.Minute)
		b.cluster.Apply(quotatest.Rate("openai/gpt-6/requests", 10, time.Minute))
		b.after(10 * time.Second) // without a call, so that no call triggers the listing
		if got := ask(); got.status != 200 {
			t.Errorf("10 s after the quota was applied: %d %s", got.status, got.body)
		}
	})
}

// TestA27_OldKeyIsNotUsedForLong: the gateway notices a replaced key without a restart.
func TestA27_OldKeyIsNotUsedForLong(t *testing.T) {
	path := secret(t, "key", "old")
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1000, time.Minute)},
		answer: speak(200, chatAnswer),
		change: func(conf *config.Config) {
			u := conf.Upstreams["openai"]
			u.Auth, u.Keys = "inject", []config.Key{{Name: "prod", From: config.Source{File: path}}}
			conf.Upstreams["openai"], conf.Trust = u, true
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ask := func() string {
			if got := b.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`); got.status != 200 {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			seen := b.provider.seen()
			return seen[len(seen)-1].header.Get("Authorization")
		}
		if used := ask(); used != "Bearer old" {
			t.Fatalf("used %s", used)
		}
		b.after(11 * time.Second)
		if err := os.Rename(secret(t, "key", "new"), path); err != nil {
			t.Fatal(err)
		}
		b.after(6 * time.Second)
		if used := ask(); used != "Bearer new" {
			t.Errorf("6 s after the swap: used %s", used)
		}
	})
}

// TestA32_SlotIsFreeSoonAfterItsConnection: even if its holder vanished silently.
func TestA32_SlotIsFreeSoonAfterItsConnection(t *testing.T) {
	const within = 2 * time.Second
	with := setting{dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Slots("t/slots", 1)}, answer: speak(200, `{}`)}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for _, held := range []time.Duration{0, 25 * time.Second} {
			connection := b.send(http.MethodPost, "/slots?quota=t/slots", "")
			in := bufio.NewReader(connection)
			response, err := http.ReadResponse(in, nil)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatal(response, err)
			}
			lines := bufio.NewReader(response.Body)
			if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"lease":"`) {
				t.Fatalf("got %q, %v", line, err)
			}
			go func() { _, _ = io.Copy(io.Discard, lines) }()
			b.after(held)
			if n := b.cluster.Available("t/slots"); n != 0 {
				t.Fatalf("%d slots are free", n)
			}
			_ = connection.Close()
			b.until("the slot is free", within, func() bool { return b.cluster.Available("t/slots") == 1 })
		}
	})
}

// TestA11_NineClientsOnOneKeyForFiveMinutes: the provider, which checks every interval of a minute, refuses none of their calls and is
// well used. In the second run the cluster is away for 20 s (A12), which costs no more than that time.
func TestA11_NineClientsOnOneKeyForFiveMinutes(t *testing.T) {
	const limit, clients, length, away = 60, 9, 5 * time.Minute, 20 * time.Second
	for name, outage := range map[string]time.Duration{"in peace": 0, "without the cluster for a while": away} {
		t.Run(name, func(t *testing.T) {
			counted := &slidingMinute{limit: limit}
			with := setting{
				dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", limit, time.Minute)},
				answer: counted.answer,
			}
			inBubble(t, with, func(t *testing.T, b *bubble) {
				began := time.Now()
				var calls sync.WaitGroup
				for i := range clients {
					path := "/as/client-" + string(rune('a'+i)) + "/openai/v1/chat/completions"
					calls.Go(func() {
						for time.Since(began) < length {
							got := b.do(http.MethodPost, path, `{"model":"gpt-5","messages":[]}`)
							if got.status != 200 && (outage == 0 || got.status != 503) && time.Since(began) < length {
								t.Errorf("after %v: %d %s", time.Since(began), got.status, got.body)
							}
						}
					})
				}
				if outage > 0 {
					b.after(length / 2)
					b.nodes.cut(true)
					b.after(outage)
					b.nodes.cut(false)
				}
				calls.Wait()
				possible := float64(limit) * (length - outage).Minutes()
				admitted, refused := counted.within(began, length)
				t.Logf("the provider admitted %d of %.0f, and refused %d", admitted, possible, refused)
				if refused > 0 || float64(admitted) < 0.95*possible {
					t.Errorf("the provider admitted %d of %.0f, and refused %d", admitted, possible, refused)
				}
			})
		})
	}
}

// slidingMinute is a provider that admits limit calls in any minute.
type slidingMinute struct {
	limit    int
	mu       sync.Mutex
	admitted []time.Time
	refused  int
}

func (s *slidingMinute) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if n := len(s.admitted); n >= s.limit && now.Sub(s.admitted[n-s.limit]) < time.Minute {
		s.refused++
		speak(429, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`)(w, r)
		return
	}
	s.admitted = append(s.admitted, now)
	speak(200, chatAnswer)(w, r)
}

// within counts the calls admitted in an interval, and all refused ones.
func (s *slidingMinute) within(began time.Time, length time.Duration) (admitted, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.admitted {
		if at.Sub(began) < length {
			admitted++
		}
	}
	return admitted, s.refused
}

// TestClose_SavesEstimatesBeforeItSettles: a supervisor may kill a gateway that tries to settle while its cluster is away.
func TestClose_SavesEstimatesBeforeItSettles(t *testing.T) {
	state := filepath.Join(t.TempDir(), "learnt.json")
	var nodes *links
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1000, time.Hour)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			nodes.cut(true)
			speak(200, chatAnswer)(w, r)
		},
		change: func(conf *config.Config) { conf.State = state },
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		nodes = b.nodes
		if got := b.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		began := time.Now()
		closed := make(chan time.Duration, 1)
		go func() { _ = b.gateway.Close(); closed <- time.Since(began) }()
		b.until("what was learnt is saved", time.Second, func() bool { _, err := os.Stat(state); return err == nil })
		if took := <-closed; took < time.Second {
			t.Errorf("nothing was to be settled: it took %v", took)
		}
	})
}

// TestA24_OpenBodyOfARefusalIsWaitedForOnce: the beginning of a refusal is waited for 2 s, and the retry takes its second from then on.
func TestA24_OpenBodyOfARefusalIsWaitedForOnce(t *testing.T) {
	var calls atomic.Int64
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1000, time.Minute)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			if calls.Add(1) > 1 {
				speak(200, chatAnswer)(w, r)
				return
			}
			w.Header().Set("Retry-After", "1")
			speak(429, `{"error":{"message":"Rate limit reached. Please try again in 1s.",`)(w, r)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		asked := time.Now()
		got := b.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, "X-Quotad-Class", "critical")
		if took := time.Since(asked); got.status != 200 || took > 4500*time.Millisecond {
			t.Errorf("got %d after %v: %s", got.status, took, got.body)
		}
	})
}
