package live

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/rpc/signals"
)

// TestServer_SpeaksAsGitHub: the client recognises the provider's answers as GitHub's.
func TestServer_SpeaksAsGitHub(t *testing.T) {
	began := time.Now()
	hour := int64(time.Hour)
	p := provider.New([]*provider.Meter{
		provider.NewMeter(provider.Rule{Quota: "github/core", Kind: provider.Anchored, Limit: 2, Period: time.Hour}, began.UnixNano(), hour, 1),
		provider.NewMeter(provider.Rule{Quota: "writes", Kind: provider.Sliding, Limit: 1, Period: time.Hour}, began.UnixNano(), hour, 1),
		provider.NewMeter(provider.Rule{Quota: "down", Kind: provider.Sliding, Limit: 1, Period: time.Hour}, began.UnixNano(), hour, 1),
	}, []provider.Outage{{Limit: 2, From: 0, To: hour}}, false)
	s, err := serve(t.Context(), p, began, fleet.Span{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var none signals.Class
	core, writes, down := `[{"Limit":0,"N":1}]`, `[{"Limit":1,"N":1}]`, `[{"Limit":2,"N":1}]`
	for i, c := range []struct {
		amounts string
		status  int
		class   signals.Class
		known   bool // whether the answer says when to retry
		body    string
	}{
		{core, 200, none, false, `{"total_github_core":1}`},
		{writes, 200, none, false, `{"total_writes":1}`},
		{`[{"Limit":0,"N":1},{"Limit":1,"N":1}]`, 429, signals.Throttled, true, "secondary rate limit"},
		{core, 200, none, false, "total_github_core"},
		{core, 403, signals.Exhausted, true, "API rate limit exceeded"},
		{writes, 429, signals.Throttled, true, "secondary rate limit"},
		{down, 429, signals.Throttled, true, "secondary rate limit"},
		{`[{"Limit":3,"N":1}]`, 400, signals.NotALimit, false, ""},
		{`[]`, 400, signals.NotALimit, false, ""},
		{`{`, 400, signals.NotALimit, false, ""},
	} {
		response, body := post(t, s.url, `{"amounts":`+c.amounts+`}`)
		if response.StatusCode != c.status || !strings.Contains(body, c.body) ||
			(response.Header.Get(outageHeader) != "") != (c.amounts == down) {
			t.Errorf("%d: %d %s %v", i, response.StatusCode, body, response.Header)
		}
		heard := signals.GitHub.Observe(time.Now(), response.StatusCode, response.Header, []byte(body))
		if c.amounts == core && (heard[0].Resource != "github_core" || heard[0].Limit.N != 2 || !heard[0].ResetIn.Known) {
			t.Errorf("%d: the window is understood as %+v", i, heard[0])
		}
		verdict, _ := signals.Verdict(heard)
		if verdict.Class != c.class || verdict.RetryAfter.Known != c.known {
			t.Errorf("%d: understood as %+v", i, verdict)
		}
		if said := answerOf(response); said.Refused != (c.status != 200) || (said.RetryAfter > 0) != c.known {
			t.Errorf("%d: %+v", i, said)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := s.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.attempts) != 7 || !s.attempts[2].Refused || s.attempts[2].Limit != 1 || !s.attempts[6].Outage {
		t.Errorf("it saw %+v", s.attempts)
	}
}

func post(t *testing.T, url, body string) (*http.Response, string) {
	t.Helper()
	response, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response, string(said)
}
