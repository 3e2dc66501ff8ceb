package main

import (
	"os"
	"strings"
	"testing"
)

// TestCheck_WantsAreaVerbAndObject: the parts of a subject, and the reason for each missing one.
func TestCheck_WantsAreaVerbAndObject(t *testing.T) {
	tests := []struct {
		subject, want string // want is a part of the reason; empty: it is valid
	}{
		{subject: "fsm: skip waiters of exhausted quotas"},
		{subject: "fsm, raftnode, rpc: reset the clock on an operator's word"},
		{subject: "cmd/quotad: say 0.1.0"},
		{subject: "docs: link to RFC 9110: its dates"},
		{subject: "rpc: " + strings.Repeat("é", 31) + " " + strings.Repeat("é", 35)},
		{subject: "rpc: " + strings.Repeat("é", 31) + " " + strings.Repeat("é", 36), want: "73 characters"},
		{subject: "Skip waiters of exhausted quotas", want: "area"},
		{subject: "FSM: skip waiters", want: "area"},
		{subject: "fsm:skip waiters", want: "area"},
		{subject: "the state machine: skip waiters", want: "area"},
		{subject: "fsm: Skip waiters", want: "lower case"},
		{subject: "fsm:  skip waiters", want: "lower case"},
		{subject: "fsm: ", want: "lower case"},
		{subject: "fsm: cleanup", want: "object"},
		{subject: "fsm: adds a test", want: "imperative"},
		{subject: "fsm: moved the queue", want: "imperative"},
		{subject: "fsm: fixing the queue", want: "imperative"},
		{subject: "fsm: skip waiters.", want: "full stop"},
	}
	for _, test := range tests {
		got := check(test.subject)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%q: %q, want %q", test.subject, got, test.want)
		}
	}
}

// TestCheckSince_ChecksOnlyNewCommits: earlier commits do not count, and an unknown commit is an error.
func TestCheckSince_ChecksOnlyNewCommits(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, value := range map[string]string{
		"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
		"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	commit := func(subject string) {
		t.Helper()
		if _, err := git("commit", "--quiet", "--allow-empty", "--message", subject); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := git("init", "--quiet"); err != nil {
		t.Fatal(err)
	}
	commit("Everything before")
	since, err := git("rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	since = strings.TrimSpace(since)
	expect := func(what string, count int) {
		t.Helper()
		problems, err := checkSince(since)
		if err != nil || len(problems) != count {
			t.Errorf("%s: %q, %v; want %d", what, problems, err, count)
		}
	}
	expect("nothing is new", 0)
	commit("fsm: skip waiters of exhausted quotas")
	expect("all is well", 0)
	commit("Skip waiters")
	expect("one is wrong", 1)
	if problems, err := checkSince(strings.Repeat("0", 40)); err == nil {
		t.Errorf("a commit that is not there: %q", problems)
	}
}
