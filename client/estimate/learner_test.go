package estimate_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

var (
	picard = estimate.Key{Upstream: "openai", Model: "gpt-5", Holder: "picard"}
	data   = estimate.Key{Upstream: "openai", Model: "gpt-5", Holder: "data"}
)

// request is a call of 100 counted tokens of input.
func request(t *testing.T, members string) *estimate.Request {
	t.Helper()
	body := `{"input":"` + strings.Repeat("x", 400) + `"` + members + `}`
	r := estimate.Read(signals.OpenAI, estimate.Route{Operation: estimate.Generate}, strings.NewReader(body))
	if r.Counted() != 100 {
		t.Fatalf("counted %d, want 100", r.Counted())
	}
	return r
}

func TestLearner_LearnsOutput(t *testing.T) {
	l := estimate.NewLearner(nil)
	open, bound := request(t, ""), request(t, `,"max_output_tokens":32000`)
	check := func(when string, k estimate.Key, r *estimate.Request, otherwise int64, want estimate.Amounts) {
		t.Helper()
		if got := l.Estimate(k, r, otherwise); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	check("nothing known", picard, open, 0, estimate.Amounts{Input: 100, Bound: 4000, Likely: 4000})
	check("nothing known, with the quota's default", picard, open, 700, estimate.Amounts{Input: 100, Bound: 700, Likely: 700})
	check("nothing known, with a bound", picard, bound, 0, estimate.Amounts{Input: 100, Bound: 32000, Likely: 4000})
	for range 19 {
		l.Learn(picard, open, estimate.Said{Input: 100, Output: 500})
	}
	check("19 calls", picard, open, 0, estimate.Amounts{Input: 100, Bound: 4000, Likely: 4000})
	l.Learn(picard, open, estimate.Said{Input: 100, Output: 9000})
	check("20 calls", picard, bound, 0, estimate.Amounts{Input: 100, Bound: 32000, Likely: 500, Learnt: true})
	check("another holder", data, open, 0, estimate.Amounts{Input: 100, Bound: 500, Likely: 500, Learnt: true})
	for range 20 {
		l.Learn(data, open, estimate.Said{Input: -1, Output: 60})
	}
	check("a holder of its own", data, open, 0, estimate.Amounts{Input: 100, Bound: 60, Likely: 60, Learnt: true})
	embed := &estimate.Request{Route: estimate.Route{Operation: estimate.Embed}, Content: open.Content}
	check("embeddings", picard, embed, 0, estimate.Amounts{Input: 100})
}

func TestLearner_LearnsFactors(t *testing.T) {
	plain, cached := `,"a":0`, `,"messages":[{"cache_control":{}}]`
	for _, c := range []struct {
		name, members string
		said, want    int64
	}{
		{"more", plain, 130, 130},
		{"far more", plain, 10_000, 400},
		{"far less", plain, 1, 25},
		{"from the cache", cached, 3, 3},
		{"all from the cache", cached, 0, 2},
	} {
		l := estimate.NewLearner(nil)
		for range 20 {
			l.Learn(picard, request(t, c.members), estimate.Said{Input: c.said, Output: -1})
		}
		if got := l.Estimate(picard, request(t, c.members), 0).Input; got != c.want {
			t.Errorf("%s: estimated input %d, want %d", c.name, got, c.want)
		}
		other := plain
		if c.members == plain {
			other = cached
		}
		if got := l.Estimate(picard, request(t, other), 0).Input; got != 100 {
			t.Errorf("%s: estimated input %d of the other kind, want 100", c.name, got)
		}
	}
}

func TestLearner_LearnsFromRefusals(t *testing.T) {
	const reached = "Rate limit reached for gpt-5 in organization org-x on "
	const text = reached + "tokens_usage_based per min: Limit 10000, Used 8782, Requested 8172. Please try again in 41.724s."
	for _, c := range []struct {
		text string
		want int64
	}{
		{reached + "tokens per min (TPM): Limit 10000, Used 8782, Requested 250. Please try again in 1s.", 250},
		{text, 8172},
		{reached + "requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.", 0},
		{"no", 0},
	} {
		if n, said := estimate.Requested([]byte(c.text)); n != c.want || said != (c.want > 0) {
			t.Errorf("%s: %d, %v, want %d", c.text, n, said, c.want)
		}
	}
	l := estimate.NewLearner(nil)
	r := request(t, `,"max_tokens":100`)
	for range 20 {
		l.LearnRequested(picard, r, 250)
	}
	if got := l.Estimate(picard, r, 0); got.AtArrival() != 250 {
		t.Errorf("estimated %d, want 250: %+v", got.AtArrival(), got)
	}
}

func TestLearner_RemembersEarlierAnswers(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := estimate.NewLearner(func() time.Time { return now })
	l.Remember("openai", "resp_1", 5000)
	for _, members := range []string{
		`,"previous_response_id":"resp_1"`, `,"conversation":"resp_1"`, `,"conversation":{"id":"resp_1"}`, `,"cachedContent":"resp_1"`,
	} {
		if got := l.Estimate(picard, request(t, members), 0).Input; got != 5100 {
			t.Errorf("%s: estimated input %d, want 5100", members, got)
		}
	}
	goesOn := request(t, `,"previous_response_id":"resp_2"`)
	if got := l.Estimate(picard, goesOn, 0).Input; got != 100 {
		t.Errorf("an id that is not known: estimated input %d, want 100", got)
	}
	for range 20 {
		l.Learn(picard, goesOn, estimate.Said{Input: 3000, Output: 1})
	}
	if got := l.Estimate(picard, goesOn, 0).Input; got != 3100 {
		t.Errorf("an id that is not known: estimated input %d, want 3100", got)
	}
	now = now.Add(24 * time.Hour)
	if got := l.Estimate(picard, request(t, `,"previous_response_id":"resp_1"`), 0).Input; got != 3100 {
		t.Errorf("after a day: estimated input %d, want 3100", got)
	}
}

func TestLearner_RestoresEstimates(t *testing.T) {
	before, after := estimate.NewLearner(nil), estimate.NewLearner(nil)
	for i := range int64(250) {
		before.Learn(picard, request(t, ""), estimate.Said{Input: 100 + i, Output: i})
	}
	after.Restore(before.Learnt())
	if a, b := before.Estimate(picard, request(t, ""), 0), after.Estimate(picard, request(t, ""), 0); a != b || !b.Learnt {
		t.Errorf("%+v before, %+v after", a, b)
	}
	known := after.Learnt()
	if len(known) != 2 || known[0].Holder != "" || known[1].Holder != "picard" || known[1].Calls != 200 || known[1].Output != 239 {
		t.Errorf("%+v", known)
	}
}

// The learnt figure is the 95th percentile of the last 200 calls, independent of earlier ones.
func TestLearner_TakesThePercentileOfTheLastCalls(t *testing.T) {
	r := request(t, "")
	rapid.Check(t, func(t *rapid.T) {
		l := estimate.NewLearner(nil)
		outputs := rapid.SliceOfN(rapid.Int64Range(0, 1000), 20, 500).Draw(t, "outputs")
		for _, n := range outputs {
			l.Learn(picard, r, estimate.Said{Input: -1, Output: n})
		}
		last := outputs[max(len(outputs)-200, 0):]
		got := l.Estimate(picard, r, 0).Likely
		above, below := 0, 0
		for _, n := range last {
			if n > got {
				above++
			}
			if n < got {
				below++
			}
		}
		if above*100 > len(last)*5 || below*100 >= len(last)*95 {
			t.Fatalf("%d: of %d calls %d are above it, %d below", got, len(last), above, below)
		}
	})
}

func TestLearner_IsBounded(t *testing.T) {
	l := estimate.NewLearner(nil)
	r := request(t, "")
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for i := range 2000 {
				k := estimate.Key{Upstream: "openai", Model: strings.Repeat("m", i%700), Holder: strings.Repeat("h", i%50+caller)}
				l.Learn(k, r, estimate.Said{Input: 1, Output: 1})
				l.Remember("openai", k.Holder, 1)
				l.Estimate(k, r, 0)
			}
		})
	}
	callers.Wait()
	if n := len(l.Learnt()); n > 2500 {
		t.Errorf("%d keys are kept, want at most 2500", n)
	}
}

func FuzzScanner(f *testing.F) {
	f.Add("openai", 3, []byte(
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"max_tokens":7,"n":2}`))
	f.Add("gemini", 1, []byte(
		`{"contents":[{"parts":[{"inlineData":{"mimeType":"text/plain","data":"AAAA"}}]}],"generationConfig":{"responseSchema":{"a":1}}}`))
	f.Add("anthropic", 9, []byte(
		`{"messages":[{"content":[{"type":"document","source":{"data":"x","media_type":"application/pdf"}}],"cache_control":{}}`))
	f.Fuzz(func(t *testing.T, name string, size int, body []byte) {
		dialect, err := signals.DialectNamed(name)
		if err != nil {
			return
		}
		whole, cut := estimate.NewScanner(dialect, estimate.Route{}), estimate.NewScanner(dialect, estimate.Route{})
		_, _ = whole.Write(body)
		for rest := body; len(rest) > 0; {
			n := min(max(size, 1), len(rest))
			_, _ = cut.Write(rest[:n])
			rest = rest[n:]
		}
		a, b := whole.Request(), cut.Request()
		if a.Content != b.Content || a.Bound != b.Bound || a.Model != b.Model || a.Prior != b.Prior || a.Cached != b.Cached {
			t.Fatalf("whole %+v, in pieces of %d %+v", a, size, b)
		}
		if n := a.Counted(); n < 0 || n > estimate.MaxCount || len(body) > 0 && n == 0 || a.Bound < 0 || a.Bound > estimate.MaxCount {
			t.Fatalf("counted %d, bound %d", n, a.Bound)
		}
	})
}
