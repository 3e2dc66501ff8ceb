package taskrun

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/rpc/signals"
)

const (
	plan      = "You've hit your session limit · resets 3:45pm"
	throttle  = "API Error: Server is temporarily limiting requests (not your usage limit) · Rate limited"
	overload  = "API Error: Repeated 529 Overloaded errors. The API is at capacity"
	unpaid    = "Credit balance is too low"
	spendings = "spend limit reached (daily; resets 2026-01-02 00:00 UTC)"
	soon      = "Rate limit reached for gpt-4 in organization org-x on tokens per min: Limit 10, Used 8, Requested 9. Please try again in " +
		"41.724s."
	talk = `Done: the banner now shows "You've hit your session limit".`
)

var newYear = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// said classifies the given output of a child through a listener. Lines that begin with 2> are standard error.
func said(code int, pattern string, lines ...string) client.Ending {
	l := &listener{texts: signals.BuiltinTexts(), now: func() time.Time { return newYear }}
	if pattern != "" {
		l.done = regexp.MustCompile(pattern)
	}
	if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "2>") }) {
		return Judge(l.texts, l.done, lines, code, newYear)
	}
	for _, line := range lines {
		if rest, onErr := strings.CutPrefix(line, "2>"); onErr {
			l.hearErr([]byte(rest))
		} else {
			l.hearOut([]byte(line))
		}
	}
	return verdict(code, fmt.Sprintf("exit code %d", code), l.heard())
}

// TestVerdict_OfExitCodesAndMessages: exit codes, messages about limits and the done pattern determine the outcome.
func TestVerdict_OfExitCodesAndMessages(t *testing.T) {
	const done = "^TASK_COMPLETE$"
	work := strings.Split(strings.Repeat("work,", 30), ",")[:25]
	for _, c := range []struct {
		name    string
		code    int
		pattern string
		lines   []string
		want    client.Outcome
		wait    time.Duration // -1: unknown
		report  client.Cause
	}{
		{"ended with 0", 0, "", []string{"hello"}, client.OutcomeDone, -1, 0},
		{"ended with 1", 1, "", []string{"hello"}, client.OutcomeFailed, -1, 0},
		{"said nothing at all", 1, "", nil, client.OutcomeFailed, -1, 0},
		{"a plan is used up", 1, "", []string{plan}, client.OutcomePlanExhausted, 15*time.Hour + 45*time.Minute, client.CauseExhausted},
		{
			"a plan is used up, and the tool ends with 0", 0, "",
			[]string{plan},
			client.OutcomePlanExhausted, 15*time.Hour + 45*time.Minute,
			client.CauseExhausted,
		},
		{
			"on standard error", 1, "",
			[]string{"2>" + plan, "bye"},
			client.OutcomePlanExhausted, 15*time.Hour + 45*time.Minute,
			client.CauseExhausted,
		},
		{"throttled", 1, "", []string{throttle}, client.OutcomeSaturated, -1, client.CauseSaturated},
		{"throttled with a time", 1, "", []string{soon}, client.OutcomeSaturated, 41724 * time.Millisecond, client.CauseSaturated},
		{"overloaded", 1, "", []string{overload}, client.OutcomeSaturated, -1, client.CauseOverloaded},
		{"throttled, and got over it", 0, "", []string{throttle, "done"}, client.OutcomeDone, -1, 0},
		{"throttled long ago, and then it crashed", 1, "", append([]string{throttle}, work...), client.OutcomeFailed, -1, 0},
		{
			"the last of two limits", 1, "",
			[]string{throttle, plan},
			client.OutcomePlanExhausted, 15*time.Hour + 45*time.Minute,
			client.CauseExhausted,
		},
		{"not paid", 1, "", []string{unpaid}, client.OutcomeFailed, -1, client.CausePlan},
		{"not paid until tomorrow", 1, "", []string{spendings}, client.OutcomePlanExhausted, 24 * time.Hour, client.CausePlan},
		{"talk about limits", 1, "", []string{talk}, client.OutcomeFailed, -1, 0},
		{"finished", 0, done, []string{"TASK_COMPLETE"}, client.OutcomeDone, -1, 0},
		{
			"finished, then limited", 1, done,
			[]string{"TASK_COMPLETE", plan},
			client.OutcomeFinishedThenLimited, 15*time.Hour + 45*time.Minute,
			client.CauseExhausted,
		},
		{"limited, then finished", 0, done, []string{throttle, "TASK_COMPLETE"}, client.OutcomeDone, -1, 0},
		{"finished, then crashed", 1, done, []string{"TASK_COMPLETE"}, client.OutcomeFailed, -1, 0},
		{"not finished", 0, done, []string{"I will print TASK_COMPLETE"}, client.OutcomeFailed, -1, 0},
		{"not finished, and politely limited", 0, done, []string{throttle}, client.OutcomeSaturated, -1, client.CauseSaturated},
		{"the pattern on standard error", 0, done, []string{"2>TASK_COMPLETE"}, client.OutcomeFailed, -1, 0},
	} {
		got := said(c.code, c.pattern, c.lines...)
		if got.Outcome != c.want || got.Report != c.report || (got.Wait == nil) != (c.wait < 0) || got.Wait != nil && *got.Wait != c.wait {
			t.Errorf("%s: %+v, wait %v", c.name, got, got.Wait)
		}
		if (got.Detail == "") != (c.want == client.OutcomeDone) {
			t.Errorf("%s: %q", c.name, got.Detail)
		}
	}
}

// TestListener_WaitCountsFromItsLine: the time that has passed since the message is subtracted from the wait.
func TestListener_WaitCountsFromItsLine(t *testing.T) {
	now := newYear
	l := &listener{texts: signals.BuiltinTexts(), now: func() time.Time { return now }}
	l.hearOut([]byte(soon))
	now = now.Add(40 * time.Second)
	if wait := l.heard().limit.wait; wait == nil || *wait != 1724*time.Millisecond {
		t.Errorf("%v", wait)
	}
	now = now.Add(time.Hour)
	if wait := l.heard().limit.wait; wait == nil || *wait != 0 {
		t.Errorf("%v", wait)
	}
}

// failingWriter accepts left bytes.
type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return w.left, errors.New("nobody reads")
	}
	w.left -= len(p)
	return len(p), nil
}

// TestTee_PassesEverything: output in any pieces is relayed unchanged, and split into the right lines.
func TestTee_PassesEverything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SliceOfN(rapid.SampledFrom([]byte("ab \r\n\x1b\xff")), 0, 200).Draw(rt, "text")
		var out bytes.Buffer
		var lines []string
		through := &tee{to: &out, each: func(line []byte) { lines = append(lines, string(line)) }}
		for rest := text; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "piece")
			if wrote, err := through.Write(rest[:n]); wrote != n || err != nil {
				rt.Fatalf("%d %v", wrote, err)
			}
			rest = rest[n:]
		}
		through.end()
		var want []string
		for _, line := range strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' || r == '\r' }) {
			if strings.TrimSpace(line) != "" {
				want = append(want, line)
			}
		}
		if !bytes.Equal(out.Bytes(), text) || fmt.Sprintf("%q", lines) != fmt.Sprintf("%q", want) {
			rt.Fatalf("%q came as %q, in lines %q", text, out.Bytes(), lines)
		}
	})
}

// TestTee_BoundsLongLines: only its beginning is read, its memory is bounded, and all of it is relayed.
func TestTee_BoundsLongLines(t *testing.T) {
	var seen []int
	out := new(bytes.Buffer)
	through := &tee{to: out, each: func(line []byte) { seen = append(seen, len(line)) }}
	piece := bytes.Repeat([]byte("x"), 32<<10)
	for range 320 {
		if _, err := through.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := through.Write([]byte("\nshort")); err != nil {
		t.Fatal(err)
	}
	through.end()
	if len(seen) != 2 || seen[0] != maxLine || seen[1] != 5 || cap(through.line) > 2*maxLine || out.Len() != 10<<20+6 {
		t.Errorf("lines of %v, %d bytes kept, %d passed", seen, cap(through.line), out.Len())
	}
}

// TestTee_ReportsFailedWriter: if the reader goes away, the write error reaches the child.
func TestTee_ReportsFailedWriter(t *testing.T) {
	through := &tee{to: &failingWriter{left: 3}, each: func([]byte) {}}
	if n, err := through.Write([]byte("four")); n != 3 || err == nil {
		t.Errorf("%d %v", n, err)
	}
}

// FuzzTidy: any output of a child becomes a short line of valid characters without control sequences.
func FuzzTidy(f *testing.F) {
	for _, seed := range []string{"", plan, "\x1b[31mred\x1b[0m", strings.Repeat("ä", 150), "\xff\x00\u202e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got := tidy(line)
		if len(got) > maxReported || !utf8.ValidString(got) || strings.ContainsAny(got, "\x1b\r\n\u202e") {
			t.Fatalf("%q", got)
		}
		_ = said(1, "x", line, "2>"+line)
	})
}
