package signals

import (
	"net/http"
	"testing"
	"time"
)

// TestObserve_CountsFromDateOfAnswer: an agent whose clock is 20 minutes ahead, or behind, finds the same reset and the same wait as
// all others. Without a Date, neither a reset nor a wait that is a moment is known.
func TestObserve_CountsFromDateOfAnswer(t *testing.T) {
	sent := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	dated := func(pairs ...string) http.Header {
		h := headers(pairs...)
		h.Set("Date", sent.Format(http.TimeFormat))
		return h
	}
	const reset, later = "1767265200", "Thu, 01 Jan 2026 10:30:00 GMT" // 11:00, 10:30
	github := []string{"X-Ratelimit-Limit", "5000", "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", reset}
	some := []string{"X-Ratelimit-Limit", "5000", "X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", reset}
	general := []string{"X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", reset}
	plan := []string{anthropicPlan + "Status", "rejected", anthropicPlan + "Reset", reset}
	window := []string{"X-Codex-Primary-Used-Percent", "100", "X-Codex-Primary-Reset-At", reset}
	const usedUp = `{"error":{"type":"usage_limit_reached","resets_at":1767265200`
	const daily = `{"error":{"status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure",` +
		`"violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel"}]}]}}`
	for name, c := range map[string]struct {
		dialect     Dialect
		header      http.Header
		status      int
		body        string
		reset, wait time.Duration // 0: unknown
	}{
		"GitHub":                    {GitHub, dated(some...), 200, "", time.Hour, 0},
		"GitHub, used up":           {GitHub, dated(github...), 403, "", time.Hour, time.Hour + githubResetMargin},
		"GitHub, used up, no Date":  {GitHub, headers(github...), 403, "", 0, 0},
		"GitHub, a date, no Date":   {GitHub, headers("Retry-After", later), 403, "", 0, githubSecondaryWait},
		"GitHub, a date":            {GitHub, dated("Retry-After", later), 403, "", 0, time.Hour / 2},
		"any provider":              {Generic, dated(some...), 200, "", time.Hour, 0},
		"any provider, a 429":       {Generic, dated(general...), 429, "", time.Hour, time.Hour},
		"any provider, no Date":     {Generic, headers(general...), 429, "", 0, 0},
		"a date":                    {Generic, dated("Retry-After", later), 429, "", 0, time.Hour / 2},
		"a date, no Date":           {Generic, headers("Retry-After", later), 429, "", 0, 0},
		"a plan":                    {Anthropic, dated(plan...), 429, "", time.Hour, time.Hour},
		"a plan, no Date":           {Anthropic, headers(plan...), 429, "", 0, 0},
		"Codex":                     {Codex, dated(window...), 429, usedUp + `}}`, time.Hour, time.Hour},
		"Codex, no Date":            {Codex, headers(window...), 429, usedUp + `}}`, 0, 0},
		"Codex, a length, no Date":  {Codex, headers(window...), 429, usedUp + `,"resets_in_seconds":600}}`, 0, 10 * time.Minute},
		"Gemini's day":              {Gemini, dated(), 429, daily, 22 * time.Hour, 22 * time.Hour},
		"Gemini's day, no Date":     {Gemini, headers(), 429, daily, 0, 0},
		"no Date":                   {GitHub, headers(some...), 200, "", 0, 0},
		"a Date that is none":       {GitHub, headers(append(some, "Date", "yesterday")...), 200, "", 0, 0},
		"a duration has no Date":    {Generic, headers("X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", "3600"), 200, "", time.Hour, 0},
		"a wait in seconds, a 429":  {Generic, headers(append(general[:3:3], "60")...), 429, "", time.Minute, time.Minute},
		"its reset is a moment too": {Generic, headers(append(general, "Retry-After", "60")...), 429, "", 0, time.Minute},
	} {
		for _, off := range []time.Duration{0, 20 * time.Minute, -20 * time.Minute, 300 * 24 * time.Hour} {
			said := c.dialect.ObserveAnswer(sent.Add(off), c.status, c.header, []byte(c.body))
			if len(said) == 0 {
				t.Fatalf("%s: nothing is said", name)
			}
			last := said[len(said)-1]
			if got := last.ResetIn; got.Known != (c.reset > 0) || got.D != c.reset {
				t.Errorf("%s, a clock that is %v off: the reset is in %v (known: %t), want %v", name, off, got.D, got.Known, c.reset)
			}
			if got := last.RetryAfter; got.Known != (c.wait > 0) || got.D != c.wait {
				t.Errorf("%s, a clock that is %v off: the wait is %v (known: %t), want %v", name, off, got.D, got.Known, c.wait)
			}
			if c.status != http.StatusOK && !last.Class.Limited() {
				t.Errorf("%s: it is no refusal any more but %v", name, last.Class)
			}
			if precise := last.ResetResolution; last.ResetIn.Known && c.header.Get("Date") != "" && precise < 2*time.Second {
				t.Errorf("%s: two moments in whole seconds give a reset within %v", name, precise)
			}
			if last.Malformed != 0 {
				t.Errorf("%s: %d values are malformed", name, last.Malformed)
			}
		}
	}
}
