package gateway_test

import (
	"net/http"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// A provider reads a percent-encoded letter as the letter, so it must not take a call out of its quotas.
func TestPath_IsGovernedInEachSpelling(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), rate("jira/searches", 100))
	p := startProvider(t, speak(200, `{}`))
	jira := upstreamOf(p, "generic")
	jira.Rules = []config.Rule{{Path: "/search/*", Use: map[string]int64{"jira/searches": 1}}}
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai"), "jira": jira}), gateway.Options{})
	for path, want := range map[string]string{
		"/openai/v1/chat/%63ompletions": "/v1/chat/%63ompletions",
		"/jira/s%65arch/a%2Fb":          "/s%65arch/a%2Fb",
	} {
		before := len(p.seen())
		if got := f.do(http.MethodPost, path, `{"model":"gpt-5","messages":[]}`); got.status != http.StatusOK {
			t.Fatalf("%s: got %d %s", path, got.status, got.body)
		}
		if sent := p.seen()[before].uri; sent != want {
			t.Errorf("%s was sent as %s", path, sent)
		}
	}
	c.consumed("openai/gpt-5/requests", 1)
	c.consumed("jira/searches", 1)
}
