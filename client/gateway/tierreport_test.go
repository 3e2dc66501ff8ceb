package gateway_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// reporter starts a gateway for two providers whose answers are reported by processes.
func reporter(t *testing.T) *fixture {
	t.Helper()
	c := startCluster(t, rate("github/core", 100), rate("github/search", 30), rate("one/core", 100),
		tokens("t/tokens", 10_000), slots("t/slots", 2), ratePer("t/small", 1, time.Hour))
	p := startProvider(t, speak(200, `{}`))
	one := upstreamOf(p, "github")
	one.Quotas = "one"
	return startGateway(t, c, p, configOf(c, map[string]config.Upstream{"github": upstreamOf(p, "github"), "ghe": one}), gateway.Options{})
}

// exhaustedAnswer is a refusal of GitHub whose limit resets in 30 s.
func exhaustedAnswer(limit string) string {
	at := time.Now()
	header := map[string]string{
		"Date": at.UTC().Format(http.TimeFormat), "X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "X-RateLimit-Resource": limit,
		"X-RateLimit-Reset": strconv.FormatInt(at.Add(30*time.Second).Unix(), 10),
	}
	said, _ := json.Marshal(map[string]any{
		"status": 403, "headers": header, "body": `{"message":"API rate limit exceeded for user ID 1."}`,
	})
	return string(said)
}

// reported decodes the effect of a report.
func reported(t *testing.T, got answer) []struct{ Quota, CooldownLeft string } {
	t.Helper()
	var said struct {
		Quotas []struct{ Quota, CooldownLeft string }
	}
	if err := json.Unmarshal([]byte(got.body), &said); err != nil || got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	return said.Quotas
}

func TestReport_ClosesTheQuotaOfWhichTheAnswerSpeaks(t *testing.T) {
	t.Parallel() // mostly waiting
	for name, want := range map[string]struct{ path, answer, quota string }{
		"by its upstream":                    {"/report?upstream=github", exhaustedAnswer("search"), "github/search"},
		"by an upstream with another prefix": {"/report?upstream=ghe", exhaustedAnswer("core"), "one/core"},
		"by quotas":                          {"/report?quota=github/search&quota=github/core", exhaustedAnswer("core"), "github/core"},
		"of no provider that is known":       {"/report?quota=t/tokens", `{"status":429,"headers":{"retry-after":"20"}}`, "t/tokens"},
		"for a holder":                       {"/report?upstream=github&holder=picard&class=background", exhaustedAnswer("core"), "github/core"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := reporter(t)
			quotas := reported(t, f.do(http.MethodPost, want.path, want.answer))
			closed := 0
			for _, quota := range quotas {
				if quota.CooldownLeft != "" && quota.Quota == want.quota {
					closed++
				}
			}
			if closed != 1 || len(quotas) != 1 {
				t.Errorf("reported %+v, want a cooldown of %s alone", quotas, want.quota)
			}
			f.cluster.consumed(want.quota, 0) // the unit reserved for the report is returned
			if got := f.do(http.MethodPost, "/take?wait=0&holder=riker&quota="+want.quota, ""); got.status != 429 {
				t.Errorf("a take after it: %d %s", got.status, got.body)
			}
		})
	}
}

func TestReport_OfATakeThatWaitsForItsSettlement(t *testing.T) {
	f := reporter(t)
	got := f.do(http.MethodPost, "/take?quota=t/small&settle=1", "") // the whole quota: nothing is left to reserve for a report
	var taken struct{ ID string }
	if err := json.Unmarshal([]byte(got.body), &taken); err != nil || taken.ID == "" {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	const refused = `{"status":429,"headers":{"retry-after":"20"}}`
	if got := f.do(http.MethodPost, "/report?quota=t/small", refused); got.status != 429 || got.header.Get("Retry-After") == "" {
		t.Errorf("by the quota: %d %s, want the cluster's refusal", got.status, got.body)
	}
	if quotas := reported(t, f.do(http.MethodPost, "/report?id="+taken.ID, refused)); len(quotas) != 1 || quotas[0].CooldownLeft == "" {
		t.Errorf("reported %+v", quotas)
	}
	settle := `{"id":"` + taken.ID + `","actual":[{"quota":"t/small","amount":0}]}`
	if got := f.do(http.MethodPost, "/take/settle", settle); got.status != 200 {
		t.Fatalf("settling: %d %s", got.status, got.body)
	}
	f.cluster.consumed("t/small", 0)
	if got := f.do(http.MethodPost, "/report?id="+taken.ID, refused); got.status != 404 {
		t.Errorf("after its settlement: %d %s", got.status, got.body)
	}
}

func TestReport_OfSuccessesIsSentRarely(t *testing.T) {
	f := reporter(t)
	const counts = `{"status":200,"headers":{"x-ratelimit-limit":"100","x-ratelimit-remaining":"60","x-ratelimit-resource":"core"}}`
	sent := 0
	for range 20 {
		sent += len(reported(t, f.do(http.MethodPost, "/report?upstream=github", counts)))
	}
	if sent == 0 || sent == 20 {
		t.Errorf("%d of 20 reports of the same counts reached the cluster", sent)
	}
	if quotas := reported(t, f.do(http.MethodPost, "/report?upstream=github", exhaustedAnswer("core"))); len(quotas) != 1 {
		t.Errorf("a refusal right after them: reported %+v", quotas)
	}
}

func TestReport_NamesMistake(t *testing.T) {
	f := reporter(t)
	for name, want := range map[string]struct {
		path, body string
		status     int
		says       string
	}{
		"no body":          {"/report?quota=github/core", "", 400, "the body is not JSON"},
		"a status as text": {"/report?quota=github/core", `{"status":"429"}`, 400, "status cannot be a string"},
		"no status":        {"/report?quota=github/core", `{}`, 400, "status must be"},
		"no such upstream": {"/report?upstream=gitlab", exhaustedAnswer("core"), 400, "known: ghe, github"},
		"no such dialect":  {"/report?quota=github/core", `{"status":429,"dialect":"klingon"}`, 400, "klingon"},
		"no such name":     {"/report?quotas=github/core", exhaustedAnswer("core"), 400, "id, quota, upstream, holder, class"},
		"no quota":         {"/report", exhaustedAnswer("core"), 400, "name 1 to 64 quotas"},
		"no limit's name":  {"/report?upstream=github", `{"status":429,"headers":{"retry-after":"20"}}`, 400, "name 1 to 64 quotas"},
		"unknown quota":    {"/report?quota=github/none", exhaustedAnswer("core"), 404, "the cluster has no quota"},
		"unknown take":     {"/report?id=none", exhaustedAnswer("core"), 404, "unknown take"},
		"slots":            {"/report?quota=t/slots", `{"status":429,"headers":{"retry-after":"20"}}`, 400, "of kind slots"},
		"another place":    {"/report?quota=github/core&holder=x@node-9", exhaustedAnswer("core"), 403, "*@node-7"},
		"much too large":   {"/report?quota=github/core", `{"status":429,"body":"` + strings.Repeat("x", 300<<10) + `"}`, 400, "256 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := f.do(http.MethodPost, want.path, want.body); got.status != want.status || !strings.Contains(got.body, want.says) {
				t.Errorf("got %d %s", got.status, got.body)
			}
		})
	}
	if got := f.do(http.MethodGet, "/report", ""); got.status != http.StatusMethodNotAllowed || got.header.Get("Allow") != http.MethodPost {
		t.Errorf("GET: %d", got.status)
	}
}
