package signals

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"
)

const day = 24 * time.Hour

// said makes the message of a vector, with the confidence Sure.
func said(rule string, class Class, scope Scope, resource string, wait Span) Message {
	return Message{Rule: rule, Class: class, Scope: scope, Confidence: Sure, Resource: resource, Wait: wait}
}

func clamped(m Message) Message {
	m.Clamped = true
	return m
}

func TestMatch_TextVectors(t *testing.T) {
	const openai = "Rate limit reached for gpt-4 in organization org-x on tokens_usage_based per min: Limit 10000, Used 8782, Requested " +
		"8172. Please try again in "
	warning := said("claude-code/event-warning", OK, ScopePlan, "", Span{})
	warning.UsedShare = known(910_000)
	tests := []struct {
		id, text string
		want     Message
	}{
		{
			"M01", "You've hit your session limit · resets 3:45pm",
			said("claude-code/plan", Exhausted, ScopePlan, "session", span(56700*time.Second)),
		},
		{
			"M02", "You've hit your session limit · resets 10:10pm (Europe/Moscow)",
			said("claude-code/plan", Exhausted, ScopePlan, "session", span(69000*time.Second)),
		},
		{
			"M03", "You've hit your weekly limit · resets Mon 12:00am",
			said("claude-code/plan", Exhausted, ScopePlan, "weekly", span(345600*time.Second)),
		},
		{
			"M04", "You've hit your weekly limit · resets Aug 29 at 11am (America/Los_Angeles)",
			clamped(said("claude-code/plan", Exhausted, ScopePlan, "weekly", span(8*day))),
		},
		{
			"M05", "You've hit your weekly limit · resets Jul 7, 2pm (Europe/Berlin)",
			clamped(said("claude-code/plan", Exhausted, ScopePlan, "weekly", span(8*day))),
		},
		{
			"M06", "You've hit your Opus limit · resets 3:45pm",
			said("claude-code/model-plan", Exhausted, ScopeModel, "opus", span(56700*time.Second)),
		},
		{"M07", "Claude AI usage limit reached|1767240000", said("claude-code/plan-old", Exhausted, ScopePlan, "", span(14400*time.Second))},
		{
			"M08", "Claude usage limit reached. Your limit will reset at 1pm (Etc/GMT+5)",
			said("claude-code/plan-old", Exhausted, ScopePlan, "", span(64800*time.Second)),
		},
		{"M09", "5-hour limit reached ∙ resets 5am", said("claude-code/window-old", Exhausted, ScopePlan, "5-hour", span(18000*time.Second))},
		{
			"M10", "API Error: Server is temporarily limiting requests (not your usage limit) · Rate limited",
			said("claude-code/busy", Throttled, ScopeKey, "", Span{}),
		},
		{
			"M11", "API Error: Request rejected (429) · this may be a temporary capacity issue. If it persists, check https://status.claude.com.",
			said("claude-code/429", Throttled, ScopeKey, "", Span{}),
		},
		{
			"M12", "API Error: Repeated 529 Overloaded errors. The API is at capacity ...",
			said("claude-code/529", Overloaded, ScopeProvider, "", Span{}),
		},
		{"M13", "Credit balance is too low", said("claude-code/credit", Billing, ScopeOrg, "", Span{})},
		{"M14", "spend limit reached (daily; resets 2026-01-02 00:00 UTC)", said("claude-code/spend", Billing, ScopeOrg, "", span(day))},
		{
			"M15", "You've hit your usage limit. Upgrade to Pro (https://...), visit https://... to purchase more credits or try again at 8:40 PM.",
			said("codex/plan", Exhausted, ScopePlan, "", span(74400*time.Second)),
		},
		{
			"M16", "You've hit your usage limit. Try again at Jul 22nd, 2026 10:42 AM.",
			clamped(said("codex/plan", Exhausted, ScopePlan, "", span(8*day))),
		},
		{"M17", "You've hit your usage limit. Try again later.", said("codex/plan", Exhausted, ScopePlan, "", Span{})},
		{"M18", "Quota exceeded. Check your plan and billing details.", said("codex/credits", Billing, ScopeOrg, "", Span{})},
		{"M19", openai + "41.724s.", said("openai/rate-limit", Throttled, ScopeResource, "tokens", span(41724*time.Millisecond))},
		{"M20", openai + "6m0s.", said("openai/rate-limit", Throttled, ScopeResource, "tokens", span(6*time.Minute))},
		{"M21", "exceeded retry limit, last status: 429 Too Many Requests, request id: abc", said("codex/429", Throttled, ScopeKey, "", Span{})},
		{
			"M22",
			"Sorry, you've hit a rate limit that restricts the number of Copilot model requests you can make within a specific time period. " +
				"Please try again in 58 hours.",
			said("copilot/plan", Exhausted, ScopePlan, "", span(208800*time.Second)),
		},
		{
			"M23", "Sorry, you have been rate-limited. Please wait 2 minutes before trying again or consider switching to Auto.",
			said("copilot/throttled", Throttled, ScopeKey, "", span(2*time.Minute)),
		},
		{
			"M24", "You've hit your global rate limit. Please upgrade your plan or wait 6 seconds for your limit to reset.",
			said("copilot/global", Throttled, ScopeKey, "global", span(6*time.Second)),
		},
		{
			"M25",
			"You've reached your weekly rate limit. Please wait for your limit to reset on April 20, 2026 at 2:00 AM or switch to auto model to " +
				"continue.",
			clamped(said("copilot/weekly", Exhausted, ScopePlan, "weekly", span(8*day))),
		},
		{
			"M26", "Sorry, your request was rate-limited. Please wait 587 hours 33 minutes before trying again.",
			clamped(said("copilot/throttled", Throttled, ScopeKey, "", span(MaxWait))),
		},
		{"M27", `{"message":"rate limit exceeded","code":"rate_limited"}`, said("copilot/object", Throttled, ScopeKey, "", Span{})},
		{
			"M28", "RESOURCE_EXHAUSTED (code 429): Individual quota reached. ... Resets in 87h35m9s.",
			said("gemini-cli/plan", Exhausted, ScopePlan, "", span(315309*time.Second)),
		},
		{
			"M29", "You have exhausted your capacity on this model. Your quota will reset after 10m.",
			said("gemini-cli/model", Exhausted, ScopeModel, "", span(10*time.Minute)),
		},
		{
			"M30", `{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1767240000,"rateLimitType":"five_hour"}}`,
			said("claude-code/event-rejected", Exhausted, ScopePlan, "five_hour", span(14400*time.Second)),
		},
		{"M31", `{"type":"rate_limit_event","rate_limit_info":{"status":"allowed_warning","utilization":0.91}}`, warning},
		{
			"M32",
			`{"type":"system","subtype":"api_retry","attempt":2,"max_retries":10,"retry_delay_ms":4000,"error_status":429,"error":"rate_limit"}`,
			said("claude-code/retry-429", Throttled, ScopeKey, "", span(4*time.Second)),
		},
		{
			"Python, long",
			"openai.RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached for gpt-4o " +
				"in organization org-abcdefghijklmnopqrstuvwx on " +
				"tokens per min (TPM): Limit 30000, Used 28000, Requested 5000. Please try again in 6s. " +
				"Visit https://platform.openai.com/account/rate-limits to " +
				"learn more.', 'type': 'tokens', 'param': None, 'code': 'rate_limit_exceeded'}}" + strings.Repeat(" ", 100),
			said("openai/library-wait", Throttled, ScopeResource, "tokens", span(6*time.Second)),
		},
		{"Python, bare", "openai.RateLimitError: Error code: 429 - {'error': {'code': 'rate_limit_exceeded'}}", said("any/library-429",
			Throttled, ScopeKey, "", Span{})},
		{
			"Python, paid up",
			"openai.RateLimitError: Error code: 429 - {'error': {'message': 'You exceeded your current quota', 'type': 'insufficient_quota'}}",
			said("openai/insufficient-quota", Billing, ScopeOrg, "", Span{}),
		},
		{"Node, paid up", "RateLimitError: 429 You exceeded your current quota, please check your plan", said("openai/insufficient-quota",
			Billing, ScopeOrg, "", Span{})},
		{
			"a status and a body", `API Error: 429 {"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed"}}`,
			said("any/api-error-429", Throttled, ScopeKey, "", Span{}),
		},
		{
			"a status and a body, paid up", `API Error: 429 {"error":{"message":"check your plan","type":"insufficient_quota"}}`,
			said("openai/insufficient-quota", Billing, ScopeOrg, "", Span{}),
		},
		{"gh", "gh: API rate limit exceeded for user ID 1234. If you reach out to GitHub Support (HTTP 403)", said("github/core", Exhausted,
			ScopeKey, "", Span{})},
		{"gh, GraphQL", "GraphQL: API rate limit already exceeded for user ID 1234.", said("github/core", Exhausted, ScopeKey, "", Span{})},
		{
			"gh, secondary", "gh: You have exceeded a secondary rate limit. Please wait a few minutes before you try again. (HTTP 403)",
			said("github/secondary", Throttled, ScopeKey, "", Span{}),
		},
		{"a billing period", "You have exhausted your plan for this billing period.", said("any/plan-period", Exhausted, ScopePlan, "", Span{})},
		{
			"without a word", "You've hit your limit · resets 2am (Asia/Shanghai)",
			said("claude-code/plan", Exhausted, ScopePlan, "", span(18*time.Hour)),
		},
		{
			"a length of time", "You've hit your usage limit. Try again in 2 days 3 hours.",
			said("codex/plan", Exhausted, ScopePlan, "", span(51*time.Hour)),
		},
		{
			"a result's text", `{"type":"result","is_error":true,"result":"You've hit your weekly limit · resets Mon 12:00am\nmore"}`,
			said("claude-code/plan", Exhausted, ScopePlan, "weekly", span(4*day)),
		},
		{
			"a result's status", `{"type":"result","is_error":true,"api_error_status":429,"result":"no words that we know"}`,
			said("claude-code/result-429", Throttled, ScopeKey, "", Span{}),
		},
		{
			"a time that cannot be read", "You've hit your session limit · resets soon",
			said("claude-code/plan", Exhausted, ScopePlan, "session", Span{}),
		},
		{
			"a zone that cannot be known", "You've hit your session limit · resets 3:45pm PST",
			said("claude-code/plan", Exhausted, ScopePlan, "session", Span{}),
		},
	}
	for _, tt := range tests {
		t.Run(tt.id, func(t *testing.T) {
			got, ok := BuiltinTexts().Match(tt.text, received)
			if !ok || got != tt.want {
				t.Errorf("got  %+v (%v)\nwant %+v", got, ok, tt.want)
			}
		})
	}
}

func TestMatch_IgnoresTalkAboutLimits(t *testing.T) {
	for id, text := range map[string]string{
		"M33":                     `Done: the banner now shows "You've hit your session limit".`,
		"M34":                     "Implemented rate limit middleware, 429 tests pass.",
		"quoted":                  `"You've hit your session limit"`,
		"a line of a diff":        "+  You've hit your session limit · resets 3pm",
		"an item of a quote":      "> You've hit your session limit · resets 3pm",
		"code":                    "`You've hit your session limit`",
		"a long line":             "You've hit your session limit · resets 3pm" + strings.Repeat(" and so on", 30),
		"a test's name":           "--- PASS: TestRateLimitExceeded (0.00s)",
		"a result that went well": `{"type":"result","is_error":false,"result":"You've hit your session limit · resets 3:45pm"}`,
		"talk in an object":       `{"type":"assistant","message":{"content":[{"type":"text","text":"rate limit exceeded"}]}}`,
		"an event that is fine":   `{"type":"rate_limit_event","rate_limit_info":{"status":"allowed"}}`,
		"half an object":          `{"code":"rate_limited"`,
		"an error's name":         "RateLimitError: raised when the provider says 429",
		"a test of an error":      "assert openai.RateLimitError: Error code: 429 - {'error': {}}",
		"talk about a plan":       "Users who exhausted your plan for this billing period see a banner.",
		"talk about a code":       "The code insufficient_quota means that nobody paid.",
		"a very long body":        "openai.RateLimitError: Error code: 429 - {'error': {'message': '" + strings.Repeat("x", 2_000) + "'}}",
		"nothing":                 "",
		"only dress":              "\x1b[31m⠋ • \x1b[0m\r",
	} {
		if got, ok := BuiltinTexts().Match(text, received); ok {
			t.Errorf("%s: got %+v", id, got)
		}
	}
}

func TestMatch_StripsPrefixes(t *testing.T) {
	const text = "You've hit your session limit · resets 3:45pm"
	for name, line := range map[string]string{
		"colours":           "\x1b[1;31m" + text + "\x1b[0m\r\n",
		"a spinner":         "⠙ " + text,
		"a bullet":          "● " + text,
		"an item":           "- " + text,
		"a branch":          "  ⎿  " + text,
		"a warning":         "⚠️ " + text,
		"an error":          "API Error: " + text,
		"all of them":       "⏺ ⎿ Error: " + text,
		"an overwritten":    "thinking ...\r" + text,
		"typographic marks": "You’ve hit your session limit • resets 3:45pm",
		"capitals":          strings.ToUpper(text),
	} {
		got, ok := BuiltinTexts().Match(line, received)
		if !ok || got.Rule != "claude-code/plan" || got.Wait != span(56700*time.Second) {
			t.Errorf("%s: got %+v, %v", name, got, ok)
		}
	}
}

func TestMatch_BroadPhrasesAreOnlyLikely(t *testing.T) {
	for _, line := range []string{"Error: rate limit exceeded", "429 Too Many Requests", "quota exceeded"} {
		if got, ok := BuiltinTexts().Match(line, received); !ok || got.Confidence != Likely {
			t.Errorf("%s: got %+v, %v", line, got, ok)
		}
	}
}

func TestMoment(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	evening := time.Date(2026, 3, 28, 23, 30, 20, 0, berlin) // a Saturday; clocks go forward at 2 in the morning
	for _, tt := range []struct {
		text string
		now  time.Time
		want string
	}{
		{"11:45pm", evening, "2026-03-28T23:45:00+01:00"},
		{"11:30pm", evening, "2026-03-28T23:30:20+01:00"}, // within the minute: now
		{"11:29pm", evening, "2026-03-29T23:29:00+02:00"},
		{"5am", evening, "2026-03-29T05:00:00+02:00"},
		{"17:05", evening, "2026-03-29T17:05:00+02:00"},
		{"Sat 11pm", evening, "2026-04-04T23:00:00+02:00"},
		{"Saturday, 11:45 PM.", evening, "2026-03-28T23:45:00+01:00"},
		{"Mon 12:00am", evening, "2026-03-30T00:00:00+02:00"},
		{"12pm", evening, "2026-03-29T12:00:00+02:00"},
		{"Mar 1 at 8am", evening, "2027-03-01T08:00:00+01:00"},
		{"Apr 2nd, 2026 10:42 AM", evening, "2026-04-02T10:42:00+02:00"},
		{"2026-04-02 00:00 UTC", evening, "2026-04-02T02:00:00+02:00"},
		{"2026-04-02T00:00:00Z", evening, "2026-04-02T02:00:00+02:00"},
		{"2026-04-02T00:00:00-05:00", evening, "2026-04-02T07:00:00+02:00"},
		{"3am (Asia/Shanghai)", evening, "2026-03-29T21:00:00+02:00"},
		{"Feb 29, 2024 8am", evening, "2026-03-28T23:30:20+01:00"}, // past
		{"3:20am (America/New_York)", evening, "2026-03-29T09:20:00+02:00"},
	} {
		got, ok := moment(tt.text, tt.now)
		if at := tt.now.Add(got).Format(time.RFC3339); !ok || at != tt.want {
			t.Errorf("%s: got %s, %v, want %s", tt.text, at, ok, tt.want)
		}
	}
	for _, text := range []string{
		"", "5", "13pm", "0am", "25:00", "12:60", "3pm (Mars/Olympus)", "3pm EST", "Feb 30 3pm", "2026-13-01 00:00", "Feb 29, 2026 8am",
		"2026-02-30 08:00", "3pmish", "soon", "Jan 1, 2036 8am", "3pm (../../etc/passwd)", "Feb 29 8am", "٣pm",
	} {
		if got, ok := moment(text, evening); ok {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

func TestSpoken(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"41.724s": 41724 * time.Millisecond, "6m0s. Visit": 6 * time.Minute, "900.2ms.": 900200 * time.Microsecond, "2 minutes": 2 * time.Minute,
		"58 hours.": 58 * time.Hour, "587 hours 33 minutes before": 587*time.Hour + 33*time.Minute,
		"1 day, 2 hours and 5 min": 26*time.Hour + 5*time.Minute,
		"10h17m5.723541104s.":      10*time.Hour + 17*time.Minute + 5723541104, "3 s 2 h": 3 * time.Second, "5s, 7 s": 5 * time.Second,
		"37 SECONDS":                37 * time.Second,
		"99999999999999999999 days": maxSpan, "0s": 0, "1d": day, "2 secs": 2 * time.Second,
	} {
		if got, ok := spoken(text); !ok || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "5", "s", "5months", "-5s", "in 5s", "five minutes", "5 fortnights", "1e3s", "NaN s"} {
		if got, ok := spoken(text); ok {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

const ownRule = `rules:
  - id: my-tool/plan
    source: its output
    date: 2026-11-20
    class: exhausted
    scope: plan
    pattern: no tokens left, back in (?P<for>.+)
    examples: [No tokens left, "no tokens left, back in 5 min"]
`

func TestWith_AddsOwnRules(t *testing.T) {
	file := strings.Replace(ownRule, "[No tokens left, ", "[", 1)
	texts, err := BuiltinTexts().With([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	got, ok := texts.Match("No tokens left, back in 5 minutes", received)
	if want := said("my-tool/plan", Exhausted, ScopePlan, "", span(5*time.Minute)); !ok || got != want {
		t.Errorf("got %+v, %v, want %+v", got, ok, want)
	}
	if _, ok := texts.Match("Credit balance is too low", received); !ok {
		t.Error("the built-in rules are gone")
	}
	if _, ok := BuiltinTexts().Match("No tokens left, back in 5 minutes", received); ok {
		t.Error("the built-in rules have changed")
	}
	replaced, err := texts.With([]byte(strings.Replace(file, "class: exhausted", "class: throttled", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := replaced.Match("no tokens left, back in 5 minutes", received); got.Class != Throttled ||
		len(replaced.rules) != len(texts.rules) {
		t.Errorf("a rule with the same id does not replace the older one: %+v", got)
	}
}

func TestWith_RefusesMistakes(t *testing.T) {
	good := strings.Replace(ownRule, "[No tokens left, ", "[", 1)
	for name, tt := range map[string]struct {
		file    string
		line    int
		message string
	}{
		"an example that does not fit": {ownRule, 8, "does not match its example"},
		"not YAML":                     {"rules: [", 2, "is not YAML"},
		"nothing":                      {"", 0, "is empty"},
		"no rules":                     {"rules: []", 1, "list of 1 to"},
		"an unknown key":               {"rulez: []", 1, "unknown key"},
		"a broken pattern":             {strings.Replace(good, "(?P<for>.+)", "(?P<for>.+", 1), 7, "pattern: "},
		"parentheses that escape":      {strings.Replace(good, "(?P<for>.+)", "x)|(?:.*", 1), 7, "pattern: "},
		"looking ahead":                {strings.Replace(good, "(?P<for>.+)", "(?=x)", 1), 7, "pattern: "},
		"fits everything":              {strings.Replace(good, "no tokens left, back in (?P<for>.+)", ".*", 1), 7, "matches every line"},
		"an unknown group":             {strings.Replace(good, "P<for>", "P<fur>", 1), 7, "unknown group"},
		"an unknown class":             {strings.Replace(good, "exhausted", "exausted", 1), 5, "class cannot be"},
		"an unknown scope":             {strings.Replace(good, "scope: plan", "scope: planet", 1), 6, "scope cannot be"},
		"no date":                      {strings.Replace(good, "2026-11-20", "yesterday", 1), 4, "is not a date"},
		"no source":                    {strings.Replace(good, "    source: its output\n", "", 1), 2, "source is missing"},
		"a bad id":                     {strings.Replace(good, "my-tool/plan", "My Tool", 1), 2, "cannot be an id"},
		"twice":                        {good + strings.TrimPrefix(good, "rules:\n"), 9, "already used on line 2"},
		"neither pattern nor object":   {strings.Replace(good, "    pattern:", "    patern:", 1), 2, "needs either"},
		"a key twice":                  {good + "    scope: org\n", 9, "duplicate key"},
		"a list for a rule":            {"rules: [[]]", 1, "must be a mapping"},
		"an object without fields": {
			strings.Replace(good, "pattern: no tokens left, back in (?P<for>.+)", "object: {}", 1), 7, "at least one field",
		},
		"an object's unknown part": {strings.Replace(good, "pattern: no tokens left, back in (?P<for>.+)",
			"object: {a: b}\n    fields: {until: x}", 1), 8, "unknown key"},
		"no examples": {strings.Replace(good, "[\"no", "[] # ", 1), 2, "needs a list of 1 to"},
		"too large":   {strings.Repeat("#", maxRuleFile+1), 0, "the maximum is"},
	} {
		t.Run(name, func(t *testing.T) {
			texts, err := BuiltinTexts().With([]byte(tt.file))
			if err == nil || texts != nil {
				t.Fatal("accepted")
			}
			joined, ok := err.(interface{ Unwrap() []error })
			if !ok {
				t.Fatalf("%T: %v", err, err)
			}
			for _, problem := range joined.Unwrap() {
				e, ok := errors.AsType[*RuleError](problem)
				if !ok {
					t.Fatalf("%T: %v", problem, problem)
				}
				if e.Line == tt.line && strings.Contains(e.Message, tt.message) {
					return
				}
			}
			t.Errorf("no problem on line %d that says %q:\n%v", tt.line, tt.message, err)
		})
	}
}

func TestBuiltinTexts_FitTheirExamplesFirst(t *testing.T) {
	var file struct {
		Rules []struct {
			ID       string   `yaml:"id"`
			Examples []string `yaml:"examples"`
			Fields   map[string]string
		} `yaml:"rules"`
	}
	if err := yaml.Load(builtinFile, &file); err != nil {
		t.Fatal(err)
	}
	for _, rule := range file.Rules {
		for _, example := range rule.Examples {
			got, ok := BuiltinTexts().Match(example, received)
			if !ok || (got.Rule != rule.ID && rule.Fields[partText] == "") {
				t.Errorf("%s: %q is matched by %s", rule.ID, example, got.Rule)
			}
		}
	}
}

func FuzzMatch(f *testing.F) {
	var file struct {
		Rules []struct{ Examples []string } `yaml:"rules"`
	}
	if err := yaml.Load(builtinFile, &file); err != nil {
		f.Fatal(err)
	}
	for _, rule := range file.Rules {
		for _, example := range rule.Examples {
			f.Add(example)
		}
	}
	f.Add("You've hit your session limit · resets Feb 29 at 11:59pm (Asia/Kolkata)")
	f.Add("⠋ \x1b[31mError: quota exceeded\x1b]0;title\x07")
	f.Fuzz(func(t *testing.T, line string) {
		m, ok := BuiltinTexts().Match(line, received)
		again, _ := BuiltinTexts().Match(line, received)
		if m != again {
			t.Fatalf("%+v, then %+v", m, again)
		}
		if !ok {
			return
		}
		most := MaxWait
		if m.Class == Exhausted {
			most = MaxPlanWait
		}
		if m.Rule == "" || m.Class == 0 || m.Confidence == 0 || m.Wait.D < 0 || m.Wait.D > most ||
			(!m.Wait.Known && (m.Wait.D != 0 || m.Clamped)) {
			t.Fatalf("impossible message %+v", m)
		}
		if (m.Wait.Known || m.UsedShare.Known) && !strings.ContainsAny(line, "0123456789") {
			t.Fatalf("an invented number in %+v", m)
		}
	})
}

func FuzzRuleFile(f *testing.F) {
	f.Add([]byte("rules: [{id: a/b, source: s, date: 2026-11-20, class: ok, pattern: x (?P<at>.+), examples: [x 3pm]}]"))
	f.Add([]byte(ownRule))
	f.Add([]byte("rules: [{id: a, object: {a: [b, {}]}, examples: [&x x, *x]}]"))
	f.Fuzz(func(t *testing.T, file []byte) {
		texts, err := BuiltinTexts().With(file)
		if (err == nil) == (texts == nil) {
			t.Fatalf("%v with %v", texts, err)
		}
		if texts != nil {
			texts.Match("no tokens left", received)
		}
	})
}
