package strictyaml

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute, "7d": 7 * day, "1d12h": 36 * time.Hour, "0s": 0,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5", "d", "-1d", "1d-1h", "1d24h", "99999999999d", "1.5d", "5 s", "1d1d"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
	for _, c := range []struct {
		length time.Duration
		want   string
	}{
		{time.Hour, "1h"},
		{90 * time.Minute, "1h30m"},
		{time.Minute, "1m"},
		{10 * time.Second, "10s"},
		{7 * day, "7d"},
		{36 * time.Hour, "1d12h"},
		{time.Hour + time.Second, "1h0m1s"},
		{350 * time.Millisecond, "350ms"},
		{0, "0s"},
		{10 * time.Minute, "10m"},
	} {
		if got := FormatDuration(c.length); got != c.want {
			t.Errorf("%v is written %q, want %q", c.length, got, c.want)
		}
	}
}

func TestFormatDuration_SurvivesParsing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "nanoseconds"))
		if got, err := ParseDuration(FormatDuration(length)); err != nil || got != length {
			t.Fatalf("%v was written %q and read as %v, %v", length, FormatDuration(length), got, err)
		}
	})
}

func TestProblems_AreCut(t *testing.T) {
	doc, err := Parse("f", []byte("{"+strings.Repeat("z: 1, ", 100)+"}"))
	if err != nil {
		t.Fatal(err)
	}
	doc.Mapping(doc.Root, "the file", "known")
	var problems Problems
	if !errors.As(doc.Err(), &problems) || len(problems) != maxProblems+1 {
		t.Fatalf("%d problems: %v", len(problems), doc.Err())
	}
	if last := problems[maxProblems].Message; last != "and 80 more problems" {
		t.Error(last)
	}
}

func TestParse_RefusesTooLarge(t *testing.T) {
	if _, err := Parse("f", make([]byte, MaxSize+1)); err == nil {
		t.Error("accepted")
	}
}
