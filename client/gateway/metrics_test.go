package gateway_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// sample returns a metric's value; ok is false if there is no such metric.
func (f *fixture) sample(tb testing.TB, name string) (value float64, ok bool) {
	tb.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(f.do(http.MethodGet, "/metrics", "").body)
	if found == nil {
		return 0, false
	}
	value, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		tb.Fatal(err)
	}
	return value, true
}

// TestMetrics_OverheadLeavesOutQueueAndProvider: a call's time in the queue, at its provider, or waiting for the end of a provider's
// limit is not overhead.
func TestMetrics_OverheadLeavesOutQueueAndProvider(t *testing.T) {
	t.Parallel()        // mostly waiting
	const outside = 1.0 // seconds: each call below takes longer than that
	queued := ratePer("openai/queued/requests", 1, 2*time.Second)
	queued.SpendBy = durationpb.New(2 * time.Second) // a busy machine delays grants
	c := startCluster(t, rate("openai/slow/requests", 100), queued, rate("openai/limited/requests", 100))
	var limits atomic.Int64
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/slow/v1/responses":
			<-time.After(time.Second)
		case r.URL.Path == "/limited/v1/responses" && limits.Add(1) == 1:
			w.Header().Set("Retry-After", "1")
			speak(429, `{"error":{"message":"Slow down","type":"requests","code":"rate_limit_exceeded"}}`)(w, r)
			return
		}
		speak(200, chatAnswer)(w, r)
	})
	upstreams := map[string]config.Upstream{}
	for _, name := range []string{"slow", "queued", "limited", "refused"} {
		upstreams[name] = config.Upstream{Dialect: "openai", Base: p.URL + "/" + name, Plain: true, Quotas: "openai"}
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	ask := func(upstream, model string) {
		f.do(http.MethodPost, "/"+upstream+"/v1/responses", `{"model":"`+model+`","input":"x"}`, "X-Quotad-Class", "critical")
	}
	ask("slow", "slow")
	ask("queued", "queued")
	ask("queued", "queued")
	ask("limited", "limited")
	ask("refused", "unknown")
	for model, calls := range map[string]float64{"slow": 1, "queued": 2, "limited": 1} {
		label := fmt.Sprintf(`{upstream=%q}`, model)
		eventually(t, model+" is counted", func() bool {
			n, _ := f.sample(t, "quotad_gateway_overhead_seconds_count"+label)
			return n == calls
		})
		took, _ := f.sample(t, fmt.Sprintf(`quotad_gateway_duration_seconds_sum{model=%q,upstream=%q}`, model, model))
		over, _ := f.sample(t, "quotad_gateway_overhead_seconds_sum"+label)
		if over <= 0 || took < outside || over > took-outside*0.9 {
			t.Errorf("%s: %v s of %v s are overhead", model, over, took)
		}
	}
	if _, counted := f.sample(t, `quotad_gateway_overhead_seconds_count{upstream="refused"}`); counted {
		t.Error("a refused call has no overhead")
	}
}

// TestMetrics_KeyAgeFollowsKeysAndConfiguration: each injected key has an age, by its name.
func TestMetrics_KeyAgeFollowsKeysAndConfiguration(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": injecting(t, p), "plain": upstreamOf(p, "openai")})
	conf.Trust = true
	f := startGateway(t, c, p, conf, gateway.Options{})
	const (
		main  = `quotad_gateway_key_age_seconds{key="main",upstream="openai"}`
		other = `quotad_gateway_key_age_seconds{key="main",upstream="other"}`
	)
	first, ok := f.sample(t, main)
	if !ok || first < 0 {
		t.Fatalf("the age is %v, %v", first, ok)
	}
	eventually(t, "it grows", func() bool {
		age, _ := f.sample(t, main)
		return age > first
	})
	conf.Upstreams = map[string]config.Upstream{"other": conf.Upstreams["openai"]}
	if err := f.gateway.Reload(conf); err != nil {
		t.Fatal(err)
	}
	_, was := f.sample(t, main)
	if _, is := f.sample(t, other); was || !is {
		t.Errorf("after a reload: the old key %v, the new one %v", was, is)
	}
}

// TestMetrics_CountEachRefusalByItsReason: also the gateway's own refusals. None of them counts as a grant or as an ungoverned call.
func TestMetrics_CountEachRefusalByItsReason(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), rate("openai/gpt-5/cost", 1_000_000))
	release := make(chan struct{})
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		speak(200, chatAnswer)(w, r)
	})
	var once sync.Once
	free := func() { once.Do(func() { close(release) }) }
	t.Cleanup(free)
	u := upstreamOf(p, "openai")
	u.Paths = "refuse"
	priced := upstreamOf(p, "openai")
	priced.Quotas, priced.Unpriced = "openai", "free"
	conf := configOf(c, map[string]config.Upstream{"openai": u, "priced": priced})
	conf.Limits.Calls, conf.Limits.Body, conf.Limits.Memory = 1, 1<<10, 1<<20
	f := startGateway(t, c, p, conf, gateway.Options{})
	const responses = "/openai/v1/responses"
	for _, call := range []struct {
		reason, method, path, body string
		headers                    []string
	}{
		{"UNKNOWN_MODEL", http.MethodPost, responses, `{"model":"gpt-6","input":"x"}`, nil},
		{"UNPRICED", http.MethodPost, responses, `{"model":"gpt-5","input":"x"}`, nil},
		{"PATHS_CLOSED", http.MethodGet, "/openai/v1/models", "", nil},
		{"BAD_REQUEST", http.MethodPost, responses, `{"model":"gpt-5","model":"gpt-6"}`, nil},
		{"REQUEST_ENTITY_TOO_LARGE", http.MethodPost, responses, `{"model":"` + strings.Repeat("x", 1<<10) + `"}`, nil},
		{"UNSUPPORTED_MEDIA_TYPE", http.MethodPost, responses, `{"model":"gpt-5"}`, []string{"Content-Encoding", "br"}},
		{"UPGRADE_REQUIRED", http.MethodGet, responses, "", []string{"Upgrade", "websocket", "Connection", "upgrade"}},
		{"TOO_MANY_CALLS", http.MethodPost, responses, `{"model":"gpt-5","input":"x"}`, nil},
	} {
		if call.reason == "TOO_MANY_CALLS" {
			go f.do(http.MethodPost, "/priced/v1/responses", `{"model":"gpt-5","input":"x"}`)
			eventually(t, "a call is in flight", func() bool { return len(p.seen()) == 1 })
		}
		if got := f.do(call.method, call.path, call.body, call.headers...); got.status < 400 {
			t.Errorf("%s: %d %s", call.reason, got.status, got.body)
		}
		f.metric(t, fmt.Sprintf(`quotad_gateway_refused_total{class="",reason=%q,upstream="openai"} 1`, call.reason))
	}
	f.metric(t, `quotad_gateway_calls_total{class="",code="503",model="other",upstream="openai"} 1`)
	all := f.do(http.MethodGet, "/metrics", "").body
	for _, wrong := range []string{`outcome="granted",upstream="openai"`, `quotad_gateway_ungoverned_total{upstream="openai"`} {
		if strings.Contains(all, wrong) {
			t.Errorf("the metrics have %s", wrong)
		}
	}
	free()
}
