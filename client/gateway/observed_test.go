package gateway_test

import (
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// samples returns the value of each line of the metrics.
func (b *bubble) samples() map[string]float64 {
	b.t.Helper()
	out := map[string]float64{}
	for line := range strings.Lines(b.do(http.MethodGet, "/metrics", "").body) {
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err == nil {
			out[line[:at]] = value
		}
	}
	return out
}

// compare waits until the samples have their values, to within 50 ms of a virtual clock.
func (b *bubble) compare(want map[string]float64) {
	b.t.Helper()
	differs := func() (names []string, all map[string]float64) {
		all = b.samples()
		for name, value := range want {
			if got, ok := all[name]; !ok || math.Abs(got-value) > 0.05 {
				names = append(names, name)
			}
		}
		return names, all
	}
	for range 100 {
		if names, _ := differs(); len(names) == 0 {
			return
		}
		b.after(time.Millisecond) // a call is counted when it ends, after its caller has the whole answer
	}
	names, all := differs()
	for _, name := range names {
		b.t.Errorf("%s is %v, want %v", name, all[name], want[name])
	}
}

// settledByUse returns a quota of tokens that answers settle.
func settledByUse(name string, limit int64) *quotav1.Quota {
	quota := quotatest.Rate(name, limit, time.Minute)
	quota.Settle = quotav1.SettleMode_SETTLE_MODE_ACTUAL
	return quota
}

// settledByEstimate returns a quota of tokens from which nothing returns.
func settledByEstimate(name string, limit int64) *quotav1.Quota {
	quota := quotatest.Rate(name, limit, time.Minute)
	quota.Settle = quotav1.SettleMode_SETTLE_MODE_MAX
	return quota
}

const (
	// responseAnswer and messageAnswer state every kind of tokens.
	responseAnswer = `{"object":"response","status":"completed","usage":{"input_tokens":1200,"input_tokens_details":{"cached_tokens":1024},` +
		`"output_tokens":300,"output_tokens_details":{"reasoning_tokens":128},"total_tokens":1500}}`
	messageAnswer = `{"type":"message","usage":{"input_tokens":13,"cache_creation_input_tokens":4384,"cache_read_input_tokens":21408,` +
		`"output_tokens":178}}`
)

// TestMetrics_MeasureWaitsTokensAndEstimates: the metrics have how long calls waited by outcome, the provider's first byte, the stated
// tokens, and how the estimates compare with them.
func TestMetrics_MeasureWaitsTokensAndEstimates(t *testing.T) {
	const opens, first = 3 * time.Second, 2 * time.Second
	with := setting{
		dialects: []string{"openai", "anthropic"},
		quotas: []*quotav1.Quota{
			quotatest.Rate("openai/gpt-5/requests", 1, opens), settledByUse("openai/gpt-5/tokens", 100_000),
			settledByUse("openai/small/tokens", 4_000), quotatest.Rate("openai/mute/requests", 10, time.Minute),
			settledByUse("anthropic/claude/input-tokens", 100_000),
		},
		answer: func(w http.ResponseWriter, r *http.Request) {
			<-time.After(first)
			body, _ := io.ReadAll(r.Body)
			switch {
			case r.URL.Path == "/v1/messages":
				speak(200, messageAnswer)(w, r)
			case strings.Contains(string(body), "mute"):
				speak(200, `{"object":"response","status":"completed"}`)(w, r)
			default:
				speak(200, responseAnswer)(w, r)
			}
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ask := func(model, bound string, headers ...string) answer {
			return b.do(http.MethodPost, "/openai/v1/responses", `{"model":"`+model+`","max_output_tokens":`+bound+`,"input":"`+
				strings.Repeat("word", 1000)+`"}`, headers...)
		}
		ask("gpt-5", "1000")
		asked := time.Now()
		ask("gpt-5", "1000", "X-Stainless-Retry-Count", "2") // waits for the rest of the period
		waited := time.Since(asked) - first
		ask("small", "9000") // above what can ever be granted
		ask("mute", "1000")
		b.do(http.MethodPost, "/anthropic/v1/messages", `{"model":"claude","max_tokens":10,"messages":"`+strings.Repeat("word", 8794)+`"}`)
		ask("gpt-5", "1000") // the next one is refused
		if got := ask("gpt-5", "1000", "X-Quotad-Wait", "0"); got.status != 429 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		leaves := b.send(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`)
		b.until("the call waits", time.Second, func() bool { return b.cluster.Quota("openai/gpt-5/requests").Waiting == 1 })
		_ = leaves.Close()
		b.until("its place is withdrawn", time.Second, func() bool { return b.cluster.Quota("openai/gpt-5/requests").Waiting == 0 })
		b.nodes.cut(true)
		ask("small", "10")
		b.nodes.cut(false)
		if waited < opens-first {
			t.Errorf("the second call waited for %v", waited)
		}
		wait := func(what, outcome string) string {
			return `quotad_gateway_wait_seconds_` + what + `{class="",outcome="` + outcome + `",upstream="openai"}`
		}
		of := func(metric, labels string) string { return "quotad_gateway_" + metric + "{" + labels + "}" }
		const gpt, claude = `model="gpt-5",`, `model="claude",`
		b.compare(map[string]float64{
			wait("count", "granted"): 5, wait("sum", "granted"): waited.Seconds(),
			wait("count", "refused"): 1, wait("sum", "refused"): 0, wait("count", "gone"): 1, wait("count", "away"): 1,
			of("first_byte_seconds_count", gpt+`upstream="openai"`):     3,
			of("first_byte_seconds_sum", gpt+`upstream="openai"`):       3 * first.Seconds(),
			of("tokens_total", `kind="input",`+gpt+`upstream="openai"`): 3600, of("tokens_total", `kind="cached",`+gpt+`upstream="openai"`): 3072,
			of("tokens_total", `kind="output",`+gpt+`upstream="openai"`): 900, of("tokens_total", `kind="reasoning",`+gpt+`upstream="openai"`): 384,
			of("tokens_total", `kind="cache_write",`+claude+`upstream="anthropic"`):     4384,
			of("estimate_ratio_count", gpt+`part="tokens",upstream="openai"`):           3,
			of("estimate_ratio_sum", gpt+`part="tokens",upstream="openai"`):             3 * 0.75,
			of("estimate_ratio_sum", claude+`part="input-tokens",upstream="anthropic"`): 0.5,
			of("usage_unknown_total", `model="mute",upstream="openai"`):                 1,
			of("estimates_cut_total", `model="small",upstream="openai"`):                1,
			of("client_retries_total", `upstream="openai"`):                             1,
		})
	})
}

// TestMetrics_GaugesFollowCalls: calls in flight, waiting ones, taken seats, and whether the cluster is away.
func TestMetrics_GaugesFollowCalls(t *testing.T) {
	var release chan struct{} // created in the bubble
	with := setting{
		dialects: []string{"anthropic"}, quotas: []*quotav1.Quota{quotatest.Slots("anthropic/m/streams", 1)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			<-release
			speak(200, messageAnswer)(w, r)
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		release = make(chan struct{})
		gauges := func(flight, waiting, seats, away float64) {
			t.Helper()
			b.compare(map[string]float64{
				"quotad_gateway_open_streams": flight, "quotad_gateway_waiting": waiting, "quotad_gateway_seats_used": seats,
				"quotad_gateway_cluster_away": away,
			})
		}
		gauges(0, 0, 0, 0)
		answers := make(chan int, 2)
		ask := func(session string) {
			answers <- b.do(http.MethodPost, forms["anthropic"].path, forms["anthropic"].body, "X-Claude-Code-Session-Id", session).status
		}
		go ask("a")
		b.until("a call is sent", time.Second, func() bool { return len(b.provider.seen()) == 1 })
		go ask("b")
		b.until("a call waits", time.Second, func() bool { return b.cluster.Quota("anthropic/m/streams").Waiting == 1 })
		gauges(2, 1, 2, 0)
		close(release)
		for range 2 {
			if status := <-answers; status != 200 {
				t.Errorf("got %d", status)
			}
		}
		gauges(0, 0, 2, 0)
		b.nodes.cut(true)
		ask("a")
		gauges(0, 0, 2, 1)
		b.nodes.cut(false)
		b.after(31 * time.Minute)
		ask("c")
		gauges(0, 0, 1, 0)
	})
}

// TestLog_HasOneLineForACall: with its caller, its times, its use and its end, and no content.
func TestLog_HasOneLineForACall(t *testing.T) {
	with := setting{
		dialects: []string{"anthropic"}, quotas: []*quotav1.Quota{settledByUse("anthropic/claude-opus-4/input-tokens", 100_000)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			<-time.After(2 * time.Second)
			speak(200, messageAnswer)(w, r)
		},
		change: func(conf *config.Config) {
			u := conf.Upstreams["anthropic"]
			u.Auth, u.Keys = "inject", []config.Key{{Name: "prod", From: config.Source{File: secret(t, "key", "sk-made-up")}}}
			conf.Upstreams["anthropic"], conf.Trust = u, true
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		got := b.do(http.MethodPost, "/anthropic/v1/messages", `{"model":"claude-opus-4-20250929","max_tokens":10,"messages":"`+
			strings.Repeat("word", 100)+`"}`, "User-Agent", "claude-cli/2.1.0 (external, cli)", "X-Claude-Code-Session-Id", "9f3c",
			"X-Claude-Code-Agent-Id", "sub-1", "X-Quotad-Class", "background")
		b.until("the call is logged", time.Second, func() bool { return strings.Contains(b.log.String(), "msg=call") })
		var lines []string
		for line := range strings.Lines(b.log.String()) {
			if strings.Contains(line, "msg=call") {
				lines = append(lines, " "+strings.TrimSpace(line)+" ")
			}
		}
		if len(lines) != 1 {
			t.Fatalf("the lines are %q", lines)
		}
		for _, field := range []string{
			"level=INFO", "upstream=anthropic", "model=claude-opus-4", "holder=claude-1@node-7", "session=9f3c", "agent=sub-1", "class=background",
			"key=prod", "wait=0s", "first=2s", "took=2s", "code=200", "in=25805", "cached=21408", "out=178", "asked=100", "end=complete",
			"retries=0", "id=" + got.header.Get("X-Quotad-Request-Id"),
		} {
			if !strings.Contains(lines[0], " "+field+" ") {
				t.Errorf("the line has no %s: %s", field, lines[0])
			}
		}
		if strings.Contains(b.log.String(), "wordword") {
			t.Error("the log has content")
		}
		if all := b.do(http.MethodGet, "/metrics", "").body; strings.Contains(all, "9f3c") || strings.Contains(all, "sub-1") {
			t.Error("the metrics have ids of a session or an agent")
		}
	})
}

// TestRefusals_WarnOnceAMinute: refusals by one quota for one reason write at most one warning a minute, with their number. Another
// reason has its own warning.
func TestRefusals_WarnOnceAMinute(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/gpt-5/requests", 1, time.Hour)},
		answer: speak(200, chatAnswer),
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ask := func(model string, want int) {
			got := b.do(http.MethodPost, "/openai/v1/responses", `{"model":"`+model+`","input":"x"}`, "X-Quotad-Wait", "0")
			if got.status != want {
				t.Fatalf("%s: got %d %s", model, got.status, got.body)
			}
		}
		warned := func() (out []string) {
			for line := range strings.Lines(b.log.String()) {
				if strings.Contains(line, "level=WARN msg=refused") {
					_, fields, _ := strings.Cut(line, "quota=")
					fields, _, _ = strings.Cut(fields, " message=")
					out = append(out, fields)
				}
			}
			return out
		}
		compare := func(want ...string) {
			if got := warned(); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("the warnings are %q, want %q", got, want)
			}
		}
		ask("gpt-5", 200)
		for range 3 {
			ask("gpt-5", 429)
			b.after(15 * time.Second)
		}
		const exhausted = "openai/gpt-5/requests reason=EXHAUSTED code=429 count="
		compare(exhausted + "1")
		ask("gpt-6", 403)
		const unknown = `"" reason=UNKNOWN_MODEL code=403 count=1`
		compare(exhausted+"1", unknown)
		b.after(15 * time.Second)
		ask("gpt-5", 429)
		compare(exhausted+"1", unknown, exhausted+"3")
		ask("gpt-5", 429)
		compare(exhausted+"1", unknown, exhausted+"3")
	})
}

// TestOwn_AnswersAreNotStored: no cache may store the gateway's own pages. It leaves the provider's Cache-Control alone.
func TestOwn_AnswersAreNotStored(t *testing.T) {
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		speak(200, chatAnswer)(w, r)
	}, nil)
	for path, want := range map[string]string{
		"/status": "no-store", "/status?format=json": "no-store", "/metrics": "no-store", "/openai/v1/models": "max-age=60",
	} {
		got := f.do(http.MethodGet, path, "")
		if said := got.header.Values("Cache-Control"); got.status != 200 || len(said) != 1 || said[0] != want {
			t.Errorf("%s: %d with Cache-Control %q, want %q", path, got.status, said, want)
		}
	}
}

// TestEstimate_CountsThePreviousAnswer: a call that continues an answer asks for the tokens that the gateway saw of that answer.
func TestEstimate_CountsThePreviousAnswer(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{settledByUse("openai/gpt-5/tokens", 100_000)},
		answer: speak(200, strings.Replace(responseAnswer, `{`, `{"id":"resp_1",`, 1)),
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for i, call := range []struct{ prior, want string }{
			{"", "asked=150 "}, {`,"previous_response_id":"resp_1"`, "asked=1650 "}, {`,"conversation":"resp_1"`, "asked=1650 "},
		} {
			b.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","max_output_tokens":100,"input":"`+strings.Repeat("word", 50)+`"`+
				call.prior+`}`)
			b.until("the call is logged", time.Second, func() bool { return strings.Count(b.log.String(), "msg=call") == i+1 })
			lines := strings.Split(strings.TrimSpace(b.log.String()), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(last, call.want) {
				t.Errorf("a call with %q is logged as %s, want %s", call.prior, last, call.want)
			}
		}
	})
}
