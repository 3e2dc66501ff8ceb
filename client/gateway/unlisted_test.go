package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

const responseBody = `{"model":"gpt-5-2025-08-07","max_output_tokens":500,"input":"Hello"}`

// startAway starts a gateway before a fake OpenAI while its cluster is away.
func startAway(t *testing.T, open *config.FailOpen, answer http.HandlerFunc) *fixture {
	t.Helper()
	c := startCluster(t, rate("openai/gpt-5/requests", 100), tokens("openai/gpt-5/tokens", 100_000))
	c.stop()
	p := startProvider(t, answer)
	u := upstreamOf(p, "openai")
	u.FailOpen = open
	return startUnready(t, c, p, configOf(c, map[string]config.Upstream{"openai": u}), gateway.Options{})
}

// governedAgain waits until calls ask the cluster again.
func (f *fixture) governedAgain(tb testing.TB) {
	tb.Helper()
	eventually(tb, "calls are governed again", func() bool {
		got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","input":"x"}`)
		return got.status == http.StatusOK && got.header.Get("X-Quotad") == ""
	})
}

func TestA14_FailOpenHelpsAGatewayThatStartsWhileTheClusterIsAway(t *testing.T) {
	f := startAway(t, &config.FailOpen{Count: 2, Per: time.Hour, For: time.Hour}, speak(200,
		`{"object":"response","status":"completed","usage":{"input_tokens":7000,"output_tokens":1186}}`))
	results := make(chan answer, 4)
	for range 4 {
		go func() { results <- f.do(http.MethodPost, "/openai/v1/responses", responseBody) }()
	}
	passed := 0
	for range 4 {
		switch got := <-results; true {
		case got.status == http.StatusOK && got.header.Get("X-Quotad") == "open":
			passed++
		case got.status == http.StatusServiceUnavailable && got.header.Get("Retry-After") == "5":
		default:
			t.Errorf("got %d %s, %v", got.status, got.body, got.header)
		}
	}
	if sent := len(f.provider.seen()); passed != 2 || sent != 2 {
		t.Fatalf("%d calls passed, the provider saw %d; want 2", passed, sent)
	}
	f.cluster.start()
	f.governedAgain(t)
	// What passed is charged to the quotas that the model has, by what the answers said, though they were not known then. The call
	// that was governed used 8186 as well.
	eventually(t, "what passed is charged", func() bool { return f.cluster.quota("openai/gpt-5/requests").Consumed >= 3 })
	eventually(t, "its tokens are charged", func() bool {
		calls := f.cluster.quota("openai/gpt-5/requests").Consumed
		q := f.cluster.quota("openai/gpt-5/tokens")
		return q.Leases == 0 && q.Consumed == calls*8186
	})
}

func TestA13_AGatewayThatStartsWhileTheClusterIsAwayRefusesUntilItIsBack(t *testing.T) {
	f := startAway(t, nil, speak(200, chatAnswer))
	if got := f.do(http.MethodGet, "/readyz", ""); got.status != http.StatusServiceUnavailable {
		t.Errorf("/readyz says %d while the quotas are not known", got.status)
	}
	got := f.do(http.MethodPost, "/openai/v1/responses", responseBody)
	if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "5" || len(f.provider.seen()) != 0 {
		t.Fatalf("got %d %s, %v", got.status, got.body, got.header)
	}
	// A call that waits is served as soon as the quotas are known.
	waits := make(chan answer, 1)
	go func() { waits <- f.do(http.MethodPost, "/openai/v1/responses", responseBody) }()
	f.cluster.start()
	eventually(t, "calls pass", func() bool {
		return f.do(http.MethodPost, "/openai/v1/responses", responseBody).status == http.StatusOK
	})
	if got := <-waits; got.status != http.StatusOK && got.status != http.StatusServiceUnavailable {
		t.Errorf("a call that waited got %d %s", got.status, got.body)
	}
}
