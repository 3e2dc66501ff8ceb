package gateway_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/price"
	"github.com/quotad/quotad/rpc/quotav1"
)

// money returns a quota of micro-dollars per day.
func money(name string, limit int64) *quotav1.Quota {
	return &quotav1.Quota{
		Name: name, Rule: &quotav1.Quota_Window{Window: &quotav1.Window{Limit: limit, Every: "day"}},
		Settle: quotav1.SettleMode_SETTLE_MODE_ACTUAL, SpendBy: durationpb.New(2 * time.Second),
	}
}

func rateOf(t *testing.T, text string) price.Rate {
	t.Helper()
	r, err := price.ParseRate(text, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// priced starts a gateway for a fake OpenAI whose gpt-5 has a price and a quota of money.
func priced(t *testing.T, answer http.HandlerFunc, change func(*config.Config), quotas ...*quotav1.Quota) *fixture {
	t.Helper()
	c := startCluster(t, append(quotas, rate("openai/gpt-5/requests", 100), money("openai/gpt-5/cost", 100_000_000))...)
	p := startProvider(t, answer)
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	cached := rateOf(t, "0.125")
	conf.Prices = []price.Line{{
		Model: "gpt-5", Input: rateOf(t, "1.25"), Cached: &cached, Output: rateOf(t, "10"), Source: "made up", Date: time.Now(),
		Times: map[string]price.Times{"flex": price.Scale / 2, "priority": 2 * price.Scale},
	}}
	if change != nil {
		change(&conf)
	}
	return startGateway(t, c, p, conf, gateway.Options{})
}

func TestA20_CostOfAStreamIsExactAndItsUsageIsWithheld(t *testing.T) {
	first := "data: {\"choices\":[],\"prompt_filter_results\":[{}]}\n\n"
	text := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n"
	said := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1200,\"completion_tokens\":300," +
		"\"prompt_tokens_details\":{\"cached_tokens\":1024}}}\n\n"
	done := "data: [DONE]\n\n"
	f := priced(t, events(nil, first, text, said, done), nil)
	got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5-2025-08-07","stream":true,"messages":[]}`)
	if got.status != http.StatusOK || got.body != first+text+done {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	if sent := f.provider.one(t).body; !strings.Contains(sent, `"include_usage":true`) {
		t.Errorf("the provider was not asked for usage: %s", sent)
	}
	// 176 at 1.25, 1024 at 0.125, 300 at 10 micro-dollars a token.
	f.cluster.consumed("openai/gpt-5/cost", 220+128+3000)
	f.logs(t, "cost=0.003348", 1)
	eventually(t, "the metric counts it", func() bool {
		return strings.Contains(f.do(http.MethodGet, "/metrics", "").body,
			`quotad_gateway_cost_microdollars_total{model="gpt-5",upstream="openai"} 3348`)
	})
}

func TestCost_FollowsTheServiceTierThatTheAnswerNames(t *testing.T) {
	usage := `"usage":{"input_tokens":100,"output_tokens":10}}`
	for _, c := range []struct {
		name, request, answer string
		want                  int64
	}{
		{"no tier", ``, `{"object":"response",` + usage, 225},
		{"as asked", `"service_tier":"flex",`, `{"object":"response",` + usage, 113},
		{"as served", `"service_tier":"auto",`, `{"object":"response","service_tier":"priority",` + usage, 450},
		{"not as asked", `"service_tier":"priority",`, `{"object":"response","service_tier":"default",` + usage, 225},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := priced(t, speak(200, c.answer), nil)
			f.do(http.MethodPost, "/openai/v1/responses", `{`+c.request+`"model":"gpt-5","input":"Hello"}`)
			f.cluster.consumed("openai/gpt-5/cost", c.want)
		})
	}
}

func TestCost_IsAskedAheadByTheEstimate(t *testing.T) {
	f := priced(t, speak(200, chatAnswer), func(conf *config.Config) {
		u := conf.Upstreams["openai"]
		u.Also = []config.Also{{Holder: "red-*", Use: map[string]string{"team/red/cost": "cost"}}}
		conf.Upstreams["openai"] = u
	}, money("team/red/cost", 10_000))
	explain := func(body, holder string) map[string]int64 {
		request, err := http.NewRequest(http.MethodPost, "http://localhost/openai/v1/responses", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Quotad-Holder", holder)
		explained, err := f.gateway.Explain(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		draws := map[string]int64{}
		for _, d := range explained.Draws {
			draws[d.Quota] = d.Amount
		}
		return draws
	}
	body := `{"model":"gpt-5","max_output_tokens":200,"input":"` + strings.Repeat("four", 100) + `"}`
	// 100 tokens at 1.25, 200 at 10.
	if got := explain(body, "blue-1"); got["openai/gpt-5/cost"] != 2125 || got["team/red/cost"] != 0 {
		t.Errorf("blue-1 draws %v", got)
	}
	if got := explain(body, "red-1"); got["openai/gpt-5/cost"] != 2125 || got["team/red/cost"] != 2125 {
		t.Errorf("red-1 draws %v", got)
	}
	// A team that has spent its budget is refused in the provider's form for an exhausted budget.
	dear := `{"model":"gpt-5","max_output_tokens":900,"input":"x"}`
	if got := f.do(http.MethodPost, "/openai/v1/chat/completions", dear, "X-Quotad-Holder", "red-1"); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	f.cluster.consumed("team/red/cost", 32) // 9 and 2 tokens, 31.25
	f.cluster.apply(money("team/red/cost", 5_000))
	eventually(t, "the smaller budget is known", func() bool { return f.cluster.quota("team/red/cost").Usable == 5_000 })
	got := f.do(http.MethodPost, "/openai/v1/chat/completions", dear, "X-Quotad-Holder", "red-1", "X-Quotad-Wait", "0")
	if got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "team/red/cost") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// TestCost_SpentBudgetAnswersAsProvider: agents stop at a budget, instead of retrying for hours.
func TestCost_SpentBudgetAnswersAsProvider(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, `{}`))
	says := map[string][]string{
		"openai": {`"type":"insufficient_quota"`, `"code":"insufficient_quota"`}, "azure": {`"code":"insufficient_quota"`},
		"codex": {`"type":"insufficient_quota"`}, "anthropic": {`"type":"billing_error"`, "spend limit reached (resets "},
		"gemini": {"QuotadPerDay", `"status":"RESOURCE_EXHAUSTED"`}, "bedrock": {"Too many requests", "bedrock/m/cost is "},
	}
	upstreams := map[string]config.Upstream{}
	for name := range says {
		upstreams[name] = upstreamOf(p, name)
		budget := money(name+"/m/cost", 0)
		budget.Rule = ratePer("", 1_000_000, 6*time.Hour).Rule
		c.apply(rate(name+"/m/requests", 100), budget)
	}
	conf := configOf(c, upstreams)
	conf.Prices = []price.Line{{Model: "m", Input: rateOf(t, "1"), Output: rateOf(t, "10"), Source: "made up", Date: time.Now()}}
	f := startGateway(t, c, p, conf, gateway.Options{})
	for name, words := range says {
		if got := f.do(http.MethodPost, "/take?holder=x&amount=1000000&quota="+name+"/m/cost", ""); got.status != http.StatusOK {
			t.Fatalf("%s: the budget was not spent: %d %s", name, got.status, got.body)
		}
		for _, agent := range []string{"claude-cli/2.1.0 (external, cli)", "python-httpx/1.0"} {
			got := f.do(http.MethodPost, forms[name].path, forms[name].body, "User-Agent", agent, "X-Quotad-Wait", "0")
			after, err := strconv.Atoi(got.header.Get("Retry-After"))
			if got.status != http.StatusTooManyRequests || got.header.Get("X-Should-Retry") != "false" || err != nil || after < 3600 {
				t.Errorf("%s: %d %s, %v", name, got.status, got.body, got.header)
			}
			for _, word := range words {
				if !strings.Contains(got.body, word) {
					t.Errorf("%s does not say %s: %s", name, word, got.body)
				}
			}
			if strings.Contains(got.body, "try again in") || strings.Contains(got.body, "retry after") {
				t.Errorf("%s tells agents to come back: %s", name, got.body)
			}
		}
	}
	if n := len(p.seen()); n != 0 {
		t.Errorf("%d calls were sent", n)
	}
}

func TestCost_CallsWithoutAPriceAreRefusedOrFree(t *testing.T) {
	for _, c := range []struct {
		unpriced string
		status   int
	}{{"", http.StatusForbidden}, {"free", http.StatusOK}} {
		f := priced(t, speak(200, chatAnswer), func(conf *config.Config) {
			conf.Prices = nil
			u := conf.Upstreams["openai"]
			u.Unpriced = c.unpriced
			conf.Upstreams["openai"] = u
		})
		got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`)
		if got.status != c.status || c.status != http.StatusOK && !strings.Contains(got.body, "quotad preset show prices") {
			t.Errorf("unpriced %q: got %d %s", c.unpriced, got.status, got.body)
		}
		sent := int64(len(f.provider.seen()))
		f.cluster.consumed("openai/gpt-5/requests", sent)
		f.cluster.consumed("openai/gpt-5/cost", 0)
		if (sent == 1) != (c.status == http.StatusOK) {
			t.Errorf("unpriced %q: %d calls were sent", c.unpriced, sent)
		}
	}
}

func TestCost_OfAnAnswerThatBrokeOffIsAFloor(t *testing.T) {
	c := startCluster(t, rate("anthropic/claude-opus-5/requests", 100), money("anthropic/claude-opus-5/cost", 100_000_000))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		events(nil, messageEvents[0], messageEvents[2])(w, r)
		panic(http.ErrAbortHandler)
	})
	conf := configOf(c, map[string]config.Upstream{"anthropic": upstreamOf(p, "anthropic")})
	conf.Prices = []price.Line{{Model: "claude-opus-*", Input: rateOf(t, "5"), Output: rateOf(t, "25"), Date: time.Now()}}
	f := startGateway(t, c, p, conf, gateway.Options{})
	response := f.open(t.Context(), "/anthropic/v1/messages", `{"model":"claude-opus-5","max_tokens":900,"stream":true,"messages":[]}`)
	buffer := make([]byte, 64<<10)
	for {
		if _, err := response.Body.Read(buffer); err != nil {
			break
		}
	}
	// The answer stated 25 input tokens, and 400 bytes of text passed.
	c.consumed("anthropic/claude-opus-5/cost", 25*5+100*25)
}
