package signals

import (
	"testing"
	"time"
)

// Bugs of others: what junk in headers did to limiters that believed it.
func TestObserve_JunkIsNoLimit(t *testing.T) {
	for name, values := range map[string][2]string{
		"booleans":     {"true", "false"},
		"negatives":    {"-5000", "-1"},
		"overflow":     {"92233720368547758070", "1e30"},
		"hexadecimal":  {"0x1388", "0x0"},
		"a list":       {"[5000]", "0;"},
		"words":        {"unlimited", "none"},
		"not a number": {"NaN", "Infinity"},
		"quotes":       {`"5000"`, `"0"`},
	} {
		for _, dialect := range []Dialect{GitHub, Generic} {
			got := dialect.Observe(received, 200, headers("X-Ratelimit-Limit", values[0], "X-Ratelimit-Remaining", values[1], "X-Ratelimit-Resource",
				"core"), nil)
			for _, s := range got {
				if s.Class != OK || s.Limit.Known || s.Remaining.Known {
					t.Errorf("%s: %s believes %+v", name, dialect.Name(), s)
				}
			}
		}
	}
	if got := GitHub.Observe(received, 200, headers("X-Ratelimit-Limit", "5000", "X-Ratelimit-Resource", "../core\r\n"),
		nil); got[0].Resource != "" {
		t.Errorf("a resource of %q", got[0].Resource)
	}
}

// Bugs of others: a wait that is only in the body was not found, and became a guess.
func TestObserve_WaitsInBodyAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		dialect Dialect
		body    string
		want    time.Duration
	}{
		"RetryInfo": {Gemini, gemini("", `{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"56s"}`), 56 * time.Second},
		"RetryInfo, by anyone": {
			Generic, gemini("", `{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"56s"}`), 56 * time.Second,
		},
		"a number of seconds": {OpenAI, `{"error":{"message":"Rate limit reached. Please try again in 20s. Visit ..."}}`, 20 * time.Second},
		"hours and minutes":   {Gemini, gemini("Please retry in 4m5.5s."), 245500 * time.Millisecond},
		"an epoch":            {Codex, `{"error":{"type":"usage_limit_reached","resets_at":1767225660}}`, time.Minute},
		"seconds from now":    {Codex, `{"error":{"type":"usage_limit_reached","resets_in_seconds":61}}`, 61 * time.Second},
	} {
		got, _ := Verdict(tt.dialect.Observe(received, 429, nil, []byte(tt.body)))
		if got.RetryAfter != span(tt.want) {
			t.Errorf("%s: %+v, want %v", name, got, tt.want)
		}
	}
	for text, want := range map[string]time.Duration{
		"You've hit your session limit · resets 3:20am (America/New_York)":              8*time.Hour + 20*time.Minute,
		"You've hit your weekly limit · resets 2026-01-03 08:00 (Asia/Shanghai)":        48 * time.Hour,
		"You've hit your weekly limit · resets 2026-01-03T08:00:00+08:00":               48 * time.Hour,
		"Claude AI usage limit reached|1767225660":                                      time.Minute,
		"You've hit your usage limit. Try again at Jan 2nd, 2026 12:00 AM.":             24 * time.Hour,
		"You've hit your session limit · resets 12:00am":                                0,
		"You've hit your session limit · resets 11:59pm":                                24*time.Hour - time.Minute,
		"You've hit your weekly limit · resets Thu 12:00am":                             0,
		"You've hit your weekly limit · resets Wed 11:59pm":                             7*24*time.Hour - time.Minute,
		"You've hit your weekly limit · resets Jan 1 at 12am (America/Los_Angeles)":     8 * time.Hour,
		"You've hit your weekly limit · resets Dec 31 at 5pm (America/Los_Angeles)":     time.Hour,
		"You've hit your session limit · resets 5:45am (Asia/Kathmandu)":                0,
		"You've hit your session limit · resets 12am (Etc/GMT+5)":                       5 * time.Hour,
		"You've hit your usage limit. Try again at Jan 1st, 2024 10:42 AM.":             0,
		"You've hit your weekly limit · resets Jan 8, 11pm":                             7*24*time.Hour + 23*time.Hour,
		"RESOURCE_EXHAUSTED (code 429): Individual quota reached. Resets in 7d 12h":     7*24*time.Hour + 12*time.Hour,
		"You've hit your global rate limit. Please wait 1 minute and 30 seconds, sorry": 90 * time.Second,
	} {
		got, ok := BuiltinTexts().Match(text, received)
		if !ok || got.Wait != span(want) {
			t.Errorf("%s: %+v, want %v", text, got, want)
		}
	}
}
