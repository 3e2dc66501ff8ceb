package signals

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// received is the reference time of all vectors.
var received = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func known(n int64) Count       { return Count{N: n, Known: true} }
func span(d time.Duration) Span { return Span{D: d, Known: true} }
func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestObserve_HeaderVectors(t *testing.T) {
	tests := []struct {
		name    string
		dialect Dialect
		header  http.Header
		want    Signal
	}{
		{"H01 limit", GitHub, headers("x-ratelimit-limit", "5000"), Signal{Scope: ScopeResource, Limit: known(5000)}},
		{"H02 nothing left", GitHub, headers("x-ratelimit-remaining", "0"), Signal{Scope: ScopeResource, Remaining: known(0), Exact: true}},
		{"H03 used", GitHub, headers("x-ratelimit-used", "5000"), Signal{Scope: ScopeResource, Used: known(5000)}},
		{
			"H04 reset", GitHub, headers("x-ratelimit-reset", "1767229200"),
			Signal{Scope: ScopeResource, ResetIn: span(time.Hour), ResetResolution: time.Second},
		},
		{
			"H05 reset in the past makes remaining stale", GitHub, headers("x-ratelimit-reset", "1767225599", "x-ratelimit-remaining", "7"),
			Signal{Scope: ScopeResource, ResetIn: span(0), ResetResolution: time.Second},
		},
		{
			"H06 resource", GitHub, headers("x-ratelimit-resource", "code_search", "x-ratelimit-limit", "10"),
			Signal{Scope: ScopeResource, Resource: "code_search", Limit: known(10)},
		},
		{
			"H07 token limit", OpenAI, headers("x-ratelimit-limit-tokens", "150000"),
			Signal{Scope: ScopeResource, Resource: "tokens", Limit: known(150000)},
		},
		{
			"H08 commas", OpenAI, headers("x-ratelimit-limit-tokens", "30,000"),
			Signal{Scope: ScopeResource, Resource: "tokens", Limit: known(30000)},
		},
		{
			"H09 refill", OpenAI, headers("x-ratelimit-reset-requests", "1s"),
			Signal{Scope: ScopeResource, Resource: "requests", RefillIn: span(time.Second)},
		},
		{
			"H10 refill", OpenAI, headers("x-ratelimit-reset-tokens", "6m0s"),
			Signal{Scope: ScopeResource, Resource: "tokens", RefillIn: span(6 * time.Minute)},
		},
		{
			"H11 refill", OpenAI, headers("x-ratelimit-reset-tokens", "12ms"),
			Signal{Scope: ScopeResource, Resource: "tokens", RefillIn: span(12 * time.Millisecond)},
		},
		{
			"H12 project", OpenAI, headers("x-ratelimit-reset-project-tokens", "1m"),
			Signal{Scope: ScopeResource, Resource: "project-tokens", RefillIn: span(time.Minute)},
		},
		{
			"H13 fraction", OpenAI, headers("x-ratelimit-reset-requests", "2m59.56s"),
			Signal{Scope: ScopeResource, Resource: "requests", RefillIn: span(179560 * time.Millisecond)},
		},
		{
			"H14 plain seconds", Azure, headers("x-ratelimit-reset-tokens", "60"),
			Signal{Scope: ScopeResource, Resource: "tokens", RefillIn: span(time.Minute)},
		},
		{
			"H15 unknown next to a limit", Azure, headers("x-ratelimit-limit-tokens", "10", "x-ratelimit-remaining-tokens", "-1"),
			Signal{Scope: ScopeResource, Resource: "tokens", Limit: known(10)},
		},
		{
			"H17 requests are exact", Anthropic, headers("anthropic-ratelimit-requests-remaining", "999"),
			Signal{Scope: ScopeResource, Resource: "requests", Remaining: known(999), Exact: true},
		},
		{
			"H18 tokens are rounded", Anthropic, headers("anthropic-ratelimit-input-tokens-remaining", "80000"),
			Signal{Scope: ScopeResource, Resource: "input-tokens", Remaining: known(80000)},
		},
		{
			"H19 full at", Anthropic, headers("anthropic-ratelimit-output-tokens-reset", "2026-01-01T00:00:30Z"),
			Signal{Scope: ScopeResource, Resource: "output-tokens", RefillIn: span(30 * time.Second)},
		},
		{
			"H20 full already", Anthropic, headers("anthropic-ratelimit-input-tokens-reset", "2025-12-31T23:59:59Z"),
			Signal{Scope: ScopeResource, Resource: "input-tokens", RefillIn: span(0)},
		},
		{
			"H21 priority", Anthropic, headers("anthropic-priority-output-tokens-reset", "2025-01-12T23:12:21Z"),
			Signal{Scope: ScopeResource, Resource: "priority-output-tokens", RefillIn: span(0)},
		},
		{
			"H23 share of a plan", Anthropic, headers("anthropic-ratelimit-unified-5h-utilization", "0.42"),
			Signal{Scope: ScopePlan, Resource: "5h", Window: span(5 * time.Hour), UsedShare: known(420_000)},
		},
		{
			"H24 end of a plan's window", Anthropic, headers("anthropic-ratelimit-unified-5h-reset", "1776649200"),
			Signal{
				Scope: ScopePlan, Resource: "5h", Window: span(5 * time.Hour), ResetIn: span(1776649200*time.Second - 1767225600*time.Second),
				ResetResolution: time.Second,
			},
		},
		{
			"H25 percent", Codex, headers("x-codex-primary-used-percent", "42.5"),
			Signal{Scope: ScopePlan, Resource: "codex/primary", UsedShare: known(425_000)},
		},
		{
			"H26 minutes", Codex, headers("x-codex-primary-window-minutes", "300"),
			Signal{Scope: ScopePlan, Resource: "codex/primary", Window: span(5 * time.Hour)},
		},
		{
			"H27 window in the past", Codex, headers("x-codex-secondary-reset-at", "1704069000", "x-codex-secondary-used-percent", "80"),
			Signal{Scope: ScopePlan, Resource: "codex/secondary", ResetIn: span(0), ResetResolution: time.Second},
		},
		{
			"H28 older form", Codex, headers("x-codex-primary-reset-after-seconds", "120"),
			Signal{Scope: ScopePlan, Resource: "codex/primary", ResetIn: span(2 * time.Minute), ResetResolution: time.Second},
		},
		{
			"H29 another family", Codex, headers("x-codex-bengalfox-primary-used-percent", "100", "x-codex-active-limit", "codex_bengalfox"),
			Signal{Scope: ScopePlan, Resource: "codex_bengalfox/primary", UsedShare: known(1_000_000)},
		},
		{"H30 small number", Generic, headers("x-ratelimit-reset", "30"), Signal{ResetIn: span(30 * time.Second), ResetResolution: time.Second}},
		{
			"H31 milliseconds", Generic, headers("x-ratelimit-reset", "1767225660000"),
			Signal{ResetIn: span(time.Minute), ResetResolution: time.Second},
		},
		{
			"H34 duplicates: the smaller remaining, the later reset", GitHub,
			headers("x-ratelimit-remaining", "5", "x-ratelimit-remaining", "0", "x-ratelimit-reset", "1767225700", "x-ratelimit-reset",
				"1767229200"),
			Signal{Scope: ScopeResource, Remaining: known(0), Exact: true, ResetIn: span(time.Hour), ResetResolution: time.Second},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.dialect.Observe(received, 200, tt.header, nil)
			if len(got) != 1 {
				t.Fatalf("got %d signals, want 1: %+v", len(got), got)
			}
			tt.want.Class, tt.want.Rule = OK, got[0].Rule
			if got[0] != tt.want {
				t.Errorf("got  %+v\nwant %+v", got[0], tt.want)
			}
		})
	}
}

func TestObserve_CountsMalformedHeaders(t *testing.T) {
	for name, value := range map[string]string{
		"letters": "abc", "empty": "", "float": "1e999", "negative": "-5", "boolean": "true", "overflow": "99999999999999999999",
		"comma in the wrong place": "3,00", "hexadecimal": "0x10", "space inside": "1 0", "not ASCII": "٣",
	} {
		t.Run("H33 "+name, func(t *testing.T) {
			got := GitHub.Observe(received, 200, headers("x-ratelimit-remaining", value), nil)
			want := Signal{Class: OK, Malformed: 1, Rule: "malformed"}
			if len(got) != 1 || got[0] != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	t.Run("H32 a date in words", func(t *testing.T) {
		got := Generic.Observe(received, 200, headers("x-ratelimit-reset", "Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)"),
			nil)
		if len(got) != 1 || got[0].ResetIn.Known || got[0].Malformed != 1 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("H15 unknown alone", func(t *testing.T) {
		if got := Azure.Observe(received, 200, headers("x-ratelimit-remaining-tokens", "-1"), nil); len(got) != 0 {
			t.Errorf("got %+v, want none", got)
		}
	})
	t.Run("H22 the status of a plan", func(t *testing.T) {
		for status, want := range map[string]Class{"rejected": Exhausted, "allowed_warning": Throttled, "allowed": Throttled, "": Throttled} {
			got, _ := Verdict(Anthropic.Observe(received, 429, headers("anthropic-ratelimit-unified-status", status), nil))
			if got.Class != want {
				t.Errorf("%q is %v, want %v", status, got.Class, want)
			}
		}
	})
	t.Run("H16 a limit of -1 makes its family unknown", func(t *testing.T) {
		if got := Azure.Observe(received, 200, headers("x-ratelimit-limit-tokens", "-1", "x-ratelimit-reset-tokens", "0"), nil); len(got) != 0 {
			t.Errorf("got %+v, want none", got)
		}
	})
	t.Run("a reset in more than 366 days", func(t *testing.T) {
		got := GitHub.Observe(received, 200, headers("x-ratelimit-reset", "9223372036854775807"), nil)
		if len(got) != 1 || got[0].ResetIn.Known || got[0].Malformed != 1 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestObserve_RetryAfterVectors(t *testing.T) {
	tests := []struct {
		name    string
		header  http.Header
		want    Span
		clamped bool
	}{
		{"R01", headers("Retry-After", "120"), span(120 * time.Second), false},
		{"R02", headers("Retry-After", "0"), span(0), false},
		{"R03", headers("Retry-After", "1.5"), span(1500 * time.Millisecond), false},
		{"R04", headers("Retry-After", "Thu, 01 Jan 2026 00:02:00 GMT"), span(120 * time.Second), false},
		{"R05", headers("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"), span(0), false},
		{"R06", headers("Retry-After", "Thursday, 01-Jan-26 00:02:00 GMT"), span(120 * time.Second), false},
		{"R07", headers("Retry-After", "-1"), Span{}, false},
		{"R08 NaN", headers("Retry-After", "NaN"), Span{}, false},
		{"R08 Inf", headers("Retry-After", "Inf"), Span{}, false},
		{"R08 1e400", headers("Retry-After", "1e400"), Span{}, false},
		{"R10", headers("Retry-After", "1000000"), span(MaxWait), true},
		{"R10 beyond int64", headers("Retry-After", "99999999999999999999"), span(MaxWait), true},
		{"R11", headers("Retry-After-Ms", "1250", "Retry-After", "2"), span(1250 * time.Millisecond), false},
		{"R12", headers("Retry-After-Ms", "-5", "Retry-After", "2"), span(2 * time.Second), false},
		{"R13", headers("Date", "Thu, 01 Jan 2026 00:01:00 GMT", "Retry-After", "Thu, 01 Jan 2026 00:01:30 GMT"), span(30 * time.Second), false},
		{"two lines: the longer", headers("Retry-After", "3", "Retry-After", "2"), span(3 * time.Second), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Verdict(Generic.Observe(received, 429, tt.header, nil))
			if !ok || got.Class != Throttled || got.RetryAfter != tt.want || got.Clamped != tt.clamped {
				t.Errorf("got %+v, want %+v clamped %v", got, tt.want, tt.clamped)
			}
		})
	}
	t.Run("R09", func(t *testing.T) {
		got, _ := Verdict(GitHub.Observe(received, 403, headers("Retry-After", ""),
			[]byte(`{"message":"You have exceeded a secondary rate limit."}`)))
		if got.Class != Throttled || got.RetryAfter != span(time.Minute) {
			t.Errorf("got %+v", got)
		}
	})
	for _, dialect := range Dialects() {
		t.Run("R14 "+dialect.Name(), func(t *testing.T) {
			got, ok := Verdict(dialect.Observe(received, 429, headers("X-Should-Retry", "false"), nil))
			if !ok || !got.NoRetry {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestResponseVectors(t *testing.T) {
	const limited = `{"error":{"message":"Rate limit reached for gpt-4 in organization org-x on tokens_usage_based per min: ` +
		`Limit 10000, Used 8782, Requested 8172. Please try again in 41.724s. Visit ` +
		`somewhere.","type":"tokens_usage_based","code":"rate_limit_exceeded"}}`
	github := func(remaining string, more ...string) http.Header {
		return headers(append([]string{
			"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", remaining, "X-RateLimit-Reset", "1767229200", "X-RateLimit-Resource", "core",
		}, more...)...)
	}
	core := Signal{
		Scope: ScopeResource, Resource: "core", Limit: known(5000), ResetIn: span(time.Hour), ResetResolution: time.Second, Exact: true,
	}
	tests := []struct {
		name    string
		dialect Dialect
		status  int
		header  http.Header
		body    string
		signals int
		want    Signal
	}{
		{"S01", GitHub, 403, github("0"), `{"message":"API rate limit exceeded"}`, 1, func() Signal {
			s := core
			s.Class, s.Remaining, s.RetryAfter, s.Rule = Exhausted, known(0), span(time.Hour+time.Second), "github/primary"
			return s
		}()},
		{
			"S02", GitHub, 429, github("4800", "Retry-After", "60"), `{"documentation_url":"https://docs.github.com/x#about-secondary-rate-limits"}`,
			2,
			Signal{Class: Throttled, Scope: ScopeKey, RetryAfter: span(time.Minute), Rule: "github/secondary"},
		},
		{
			"S03", GitHub, 403, github("4800"),
			`{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`, 2,
			Signal{Class: Throttled, Scope: ScopeKey, RetryAfter: span(time.Minute), Rule: "github/secondary"},
		},
		{
			"S04", GitHub, 403, github("4990"), `{"message":"Resource not accessible by integration"}`, 2,
			Signal{Class: NotALimit, Rule: "github/forbidden"},
		},
		{
			"S05", GitHub, 200, headers("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1767229200"),
			`{"data":null,"errors":[{"type":"RATE_LIMITED"}]}`, 1,
			Signal{
				Class: Exhausted, Scope: ScopeResource, Resource: "graphql", Remaining: known(0), ResetIn: span(time.Hour),
				ResetResolution: time.Second,
				RetryAfter:      span(time.Hour + time.Second), Exact: true, Rule: "github/graphql",
			},
		},
		{
			"S06", GitHub, 403, github("4800"), `{"message":"You have triggered an abuse detection mechanism. Please wait."}`, 2,
			Signal{Class: Throttled, Scope: ScopeKey, RetryAfter: span(time.Minute), Rule: "github/secondary"},
		},
		{"S07", OpenAI, 429, nil, limited, 1, Signal{
			Class: Throttled, Scope: ScopeResource, Resource: "tokens", Limit: known(10000), Used: known(8782), Requested: known(8172),
			RetryAfter: span(41724 * time.Millisecond), Rule: "openai/rate_limit",
		}},
		{
			"S08", OpenAI, 429, headers("Retry-After", "7"), `{"error":{"type":"rate_limit_error","code":"slow_down"}}`, 1,
			Signal{Class: Throttled, Scope: ScopeOrg, RetryAfter: span(7 * time.Second), Rule: "openai/slow_down"},
		},
		{
			"S09", OpenAI, 429, nil, `{"error":{"type":"insufficient_quota","code":"project_spend_limit_exceeded"}}`, 1,
			Signal{Class: Billing, Scope: ScopeProject, NoRetry: true, Rule: "openai/insufficient_quota"},
		},
		{
			"S10", OpenAI, 429, headers("Retry-After", "1"), `{"error":{"type":"insufficient_quota","code":null}}`, 1,
			Signal{Class: Billing, Scope: ScopeOrg, NoRetry: true, Rule: "openai/insufficient_quota"},
		},
		{
			"S11", OpenAI, 503, nil, `{"error":{"code":"server_is_overloaded"}}`, 1,
			Signal{Class: Overloaded, Scope: ScopeProvider, Rule: "openai/overloaded"},
		},
		{
			"S12", OpenAI, 200, nil, "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.failed\ndata: " +
				`{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"... Please try again in 11.054s."}}}` + "\n\n",
			1,
			Signal{Class: Throttled, RetryAfter: span(11054 * time.Millisecond), Rule: "openai/rate_limit"},
		},
		{"S37", Generic, 429, nil, "", 1, Signal{Class: Throttled, Rule: "generic/429"}},
		{
			"S38", Generic, 503, headers("Retry-After", "5"), "", 1,
			Signal{Class: Overloaded, Scope: ScopeProvider, RetryAfter: span(5 * time.Second), Rule: "generic/unavailable"},
		},
		{
			"401 with a limit of 60 belongs to another key", GitHub, 401, headers("X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "0"), "", 1,
			Signal{Class: NotALimit, Rule: "github/unauthorized"},
		},
		{
			"a wait in words", OpenAI, 429, nil,
			`{"error":{"code":"rate_limit_exceeded","message":"on requests per min (RPM): Limit: 3. Please try again in 20 seconds."}}`, 1,
			Signal{
				Class: Throttled, Scope: ScopeResource, Resource: "requests", Limit: known(3), RetryAfter: span(20 * time.Second),
				Rule: "openai/rate_limit",
			},
		},
		{
			"a wait with minutes", OpenAI, 429, nil, `{"error":{"message":"Please try again in 6m0s."}}`, 1,
			Signal{Class: Throttled, RetryAfter: span(6 * time.Minute), Rule: "openai/rate_limit"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := tt.dialect.Observe(received, tt.status, tt.header, []byte(tt.body))
			got, ok := Verdict(all)
			if !ok || len(all) != tt.signals || got != tt.want {
				t.Errorf("%d signals, verdict\n%+v, want %d and\n%+v", len(all), got, tt.signals, tt.want)
			}
		})
	}
	t.Run("S03 leaves the primary counts alone", func(t *testing.T) {
		all := GitHub.Observe(received, 403, github("4800"), []byte("You have exceeded a secondary rate limit"))
		want := core
		want.Class, want.Remaining, want.Rule = OK, known(4800), "github/counts"
		if len(all) != 2 || all[0] != want {
			t.Errorf("got %+v", all)
		}
	})
}

func TestObserve_NothingWithoutHeaders(t *testing.T) {
	for _, dialect := range append(Dialects(), Dialect{}) {
		if got := dialect.Observe(received, 200, nil, []byte(`{"error":{"code":"rate_limit_exceeded"}}`)); len(got) != 0 {
			t.Errorf("%s: got %+v", dialect.Name(), got)
		}
	}
}

// checkSignal checks what must hold for every signal, and that the response contains its numbers.
func checkSignal(t *testing.T, s Signal, said string) {
	t.Helper()
	for _, span := range []Span{s.ResetIn, s.RefillIn, s.RetryAfter, s.Window} {
		if span.D < 0 || span.D > maxSpan || (!span.Known && span.D != 0) {
			t.Fatalf("impossible duration in %+v", s)
		}
	}
	if s.RetryAfter.D > MaxPlanWait || (s.RetryAfter.D > MaxWait && s.Scope != ScopePlan) {
		t.Fatalf("a wait above the bound in %+v", s)
	}
	for _, count := range []Count{s.Limit, s.Remaining, s.Used, s.Requested, s.UsedShare} {
		if count.N < 0 || (!count.Known && count.N != 0) {
			t.Fatalf("impossible count in %+v", s)
		}
		if count.Known && !strings.ContainsAny(said, "0123456789") {
			t.Fatalf("an invented number in %+v", s)
		}
	}
	if s.Class < OK || s.Class > NotALimit || s.Rule == "" {
		t.Fatalf("a signal without class or rule: %+v", s)
	}
}
