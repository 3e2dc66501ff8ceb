package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/rpc/quotav1"
)

func TestStatus_ShowsUpstreamsQueueSessionsModelsAndRefusals(t *testing.T) {
	f := messages(t, events(nil, messageEvents...), nil)
	f.do(http.MethodPost, "/anthropic/v1/messages", messageBody, "User-Agent", "claude-cli/2.1.0 (external, cli)",
		"X-Claude-Code-Session-Id", "session-a")
	f.logs(t, "holder=claude-1@node-7", 1)
	f.do(http.MethodPost, "/anthropic/v1/messages", `{"model":"<b>none</b>","messages":[]}`)
	// No slot is free, so that this call waits while the page is read.
	held := f.open(t.Context(), "/slots?quota=anthropic/claude-opus-4/streams&amount=20", "")
	waits := make(chan answer, 1)
	go func() {
		waits <- f.do(http.MethodPost, "/anthropic/v1/messages", messageBody, "X-Quotad-Holder", "data", "X-Quotad-Class", "background")
	}()
	var status gateway.Status
	eventually(t, "the call waits", func() bool {
		status = gateway.Status{}
		err := json.Unmarshal([]byte(f.do(http.MethodGet, "/status?format=json", "").body), &status)
		return err == nil && len(status.Queue) == 1
	})
	page := f.do(http.MethodGet, "/status", "")
	_ = held.Body.Close()
	if got := <-waits; got.status != http.StatusOK {
		t.Errorf("the call that waited got %d %s", got.status, got.body)
	}
	if w := status.Queue[0]; w.Holder != "data@node-7" || w.Class != "background" || w.Left <= 0 || status.Classes[2].Waiting != 1 {
		t.Errorf("the queue is %+v, %+v", w, status.Classes)
	}
	u := status.Upstreams[0]
	if len(u.Models) != 1 || len(u.Models[0].Parts) != 4 || u.Passing || len(u.Closed) != 0 {
		t.Fatalf("the upstream is %+v", u)
	}
	if l := u.Models[0].Learnt; l == nil || l.Calls != 1 || l.Output != 150 || l.Input != 25 {
		t.Errorf("learnt is %+v", l)
	}
	if u.Models[0].NoTokens || strings.Contains(page.body, "tokens not counted") {
		t.Error("a model with quotas of tokens counts as one without")
	}
	if len(status.Seats) != 1 || len(status.Refusals) != 1 {
		t.Errorf("seats %+v, refusals %+v", status.Seats, status.Refusals)
	}
	for _, text := range []string{
		"anthropic/claude-opus-4", "output-tokens", "100\u00a0000", "data@node-7", "background 1", "session-a",
		"&lt;b&gt;none&lt;/b&gt;", "ready",
		`content="width=device-width`, "prefers-color-scheme: dark",
	} {
		if !strings.Contains(page.body, text) {
			t.Errorf("the page has no %q", text)
		}
	}
	if strings.Contains(page.body, "<script") || strings.Contains(page.body, "<b>none") ||
		!strings.Contains(page.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the page could load or run something: %v", page.header)
	}
}

// TestStatus_KeepsTheLastRefusals: fifty of them, the newest first.
func TestStatus_KeepsTheLastRefusals(t *testing.T) {
	inBubble(t, setting{dialects: []string{"openai"}, answer: speak(200, `{}`)}, func(t *testing.T, b *bubble) {
		for i := range 60 {
			b.do(http.MethodPost, "/openai/v1/responses", fmt.Sprintf(`{"model":"gpt-%d","input":"x"}`, i))
			b.after(time.Second)
		}
		kept := b.gateway.Status().Refusals
		if len(kept) != 50 || !strings.Contains(kept[0].Message, `"gpt-59"`) || !strings.Contains(kept[49].Message, `"gpt-10"`) {
			t.Errorf("%d refusals are kept: %+v", len(kept), kept)
		}
	})
}

// TestStatus_ShowsEveryQuotaThatCallsDrawOn: and which are closed, for each kind of upstream.
func TestStatus_ShowsEveryQuotaThatCallsDrawOn(t *testing.T) {
	t.Parallel() // mostly waiting
	child := rate("bedrock/m/tokens", 1000)
	child.Parent = "bedrock/m/tokens-per-day"
	c := startCluster(t, rate("github/core", 100), rate("github/search", 100), rate("ghe/core", 100), rate("ghe/points", 100),
		rate("jira/searches", 100), rate("openai/m/requests", 100), rate("openai/unmapped/requests", 100), rate("team/red/requests", 100),
		ratePer("bedrock/m/tokens-per-day", 10_000, 24*time.Hour))
	c.apply(child)
	p := startProvider(t, speak(200, `{}`))
	jira, openai, ghe := upstreamOf(p, "generic"), upstreamOf(p, "openai"), upstreamOf(p, "github")
	jira.Rules = []config.Rule{{Path: "/search/*", Use: map[string]int64{"jira/searches": 1}}}
	openai.Unknown, openai.Also = "observe", []config.Also{{Holder: "red-*", Use: map[string]string{"team/red/requests": "requests"}}}
	ghe.Secondary = true
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{
		"github": upstreamOf(p, "github"), "ghe": ghe, "jira": jira, "openai": openai, "bedrock": upstreamOf(p, "bedrock"),
	}), gateway.Options{})
	closed := map[string]string{
		"github/core": "github", "ghe/points": "ghe", "jira/searches": "jira", "openai/unmapped/requests": "openai",
		"team/red/requests": "openai", "bedrock/m/tokens-per-day": "bedrock",
	}
	status := func() map[string]gateway.UpstreamStatus {
		var said gateway.Status
		if err := json.Unmarshal([]byte(f.do(http.MethodGet, "/status?format=json", "").body), &said); err != nil {
			t.Fatal(err)
		}
		out := map[string]gateway.UpstreamStatus{}
		for _, u := range said.Upstreams {
			out[u.Name] = u
		}
		return out
	}
	for name, quotas := range map[string]int{"github": 2, "ghe": 2, "jira": 1, "openai": 1, "bedrock": 0} {
		if u := status()[name]; len(u.Quotas) != quotas || len(u.Closed) != 0 {
			t.Errorf("%s is %+v", name, u)
		}
	}
	for quota := range closed {
		if got := f.do(http.MethodPost, "/report?quota="+quota, `{"status":429,"headers":{"retry-after":"250"}}`); got.status != http.StatusOK {
			t.Fatalf("%s: %d %s", quota, got.status, got.body)
		}
	}
	eventually(t, "each of them is shown as closed", func() bool {
		now := status()
		for quota, upstream := range closed {
			if quota == "bedrock/m/tokens-per-day" {
				quota = child.Name // whose charges include it
			}
			if !slices.Contains(now[upstream].Closed, quota) {
				return false
			}
		}
		return true
	})
	page := f.do(http.MethodGet, "/status", "").body
	if m := status()["openai"].Models; len(m) != 2 || !m[0].NoTokens || !m[1].NoTokens || strings.Count(page, "tokens not counted") != 2 {
		t.Errorf("models whose requests alone count are %+v", m)
	}
	if strings.Contains(page, `tag good">open`) || strings.Count(page, "2 closed") != 1 {
		t.Errorf("the page calls an upstream open, or counts the closed quotas of openai wrong: %s", page[strings.Index(page, "<h1>"):])
	}
	for quota := range closed {
		model, _ := strings.CutSuffix(quota, "/requests") // the part has a separate column
		if quota != "bedrock/m/tokens-per-day" && !strings.Contains(page, model) {
			t.Errorf("the page has no %s", quota)
		}
	}
}

// TestStatus_NamesCauseOfRefusals: an upstream without quotas and an away cluster are not shown as open.
func TestStatus_NamesCauseOfRefusals(t *testing.T) {
	with := setting{dialects: []string{"gemini", "openai"}, quotas: []*quotav1.Quota{rate("openai/m/requests", 10)}, answer: speak(200, `{}`)}
	with.change = func(c *config.Config) {
		openai := c.Upstreams["openai"]
		openai.FailOpen = &config.FailOpen{Count: 1, Per: time.Second, For: time.Minute}
		c.Upstreams["openai"] = openai
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		shows := func(when string, want, not []string) {
			t.Helper()
			page := b.do(http.MethodGet, "/status", "").body
			for _, text := range want {
				if !strings.Contains(page, text) {
					t.Errorf("%s: the page has no %q: %s", when, text, page[strings.Index(page, "<h1>"):])
				}
			}
			for _, text := range not {
				if strings.Contains(page, text) {
					t.Errorf("%s: the page has %q", when, text)
				}
			}
		}
		const none, away, passes, open = `tag warn">no quotas`, `tag bad">cluster away`, `tag warn">passes without`, `tag good">open`
		const lost = "No node of the cluster answered"
		shows("with the cluster", []string{none, open, "The cluster has no quota of its models", "No call was refused"},
			[]string{away, passes, lost, "the last 0"})
		b.nodes.cut(true)
		call := func() answer {
			return b.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"m","messages":[]}`)
		}
		if got := call(); got.status != http.StatusOK {
			t.Errorf("a call that may pass got %d %s", got.status, got.body)
		}
		shows("without it", []string{away, passes, lost}, []string{none, open})
		b.nodes.cut(false)
		b.until("the cluster is back", time.Minute, func() bool { call(); return !b.gateway.Status().Away })
		shows("with it again", []string{none, open}, []string{away, passes, lost})
	})
}
