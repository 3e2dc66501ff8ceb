package local

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestLineReader_PassesWholeLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOf(rapid.StringMatching(`[a-z]{0,20}`)).Draw(t, "lines")
		text := strings.Join(append(lines, ""), "\n")
		var got []string
		r := &lineReader{fn: func(line []byte) { got = append(got, string(line)) }}
		for len(text) > 0 {
			n := rapid.IntRange(1, len(text)).Draw(t, "piece")
			if _, err := r.Write([]byte(text[:n])); err != nil {
				t.Fatal(err)
			}
			text = text[n:]
		}
		if !slices.Equal(got, lines) {
			t.Fatalf("%q, want %q", got, lines)
		}
	})
	r := &lineReader{fn: func([]byte) { t.Error("a line without an end") }}
	_, _ = r.Write(bytes.Repeat([]byte("x"), maxLine+1))
	if len(r.partial) > maxLine {
		t.Error("an endless line is kept")
	}
}
