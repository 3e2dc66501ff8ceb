package view

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestScreen_FitsTheTerminal: in a terminal the picture fits, and at the end the cursor is visible again. Elsewhere the
// screen writes lines now and then.
func TestScreen_FitsTheTerminal(t *testing.T) {
	cluster := Cluster{IDs: []string{"n1", "n2"}, Nodes: []string{"leader", Down}, Leader: 0, Term: 3}
	show := func(s *Screen, passed time.Duration) {
		picture := func(notes []string) []string {
			return append([]string{cluster.Line(), cluster.QuotaTable(), strings.Repeat("x", 60)}, make([]string, 20)...)
		}
		s.Show(passed, picture, func() []string { return []string{"leader n1", "a second line"} })
	}
	var out bytes.Buffer
	s := NewScreen(&out)
	if s.size != nil {
		t.Fatal("a buffer is no terminal")
	}
	for _, passed := range []time.Duration{0, time.Second, 6 * time.Second} {
		show(s, passed)
	}
	if got := out.String(); got != "leader n1\na second line\nleader n1\na second line\n" {
		t.Errorf("plain: %q", got)
	}

	out.Reset()
	s.size = func() (int, int) { return 40, 10 }
	show(s, 7*time.Second)
	picture := strings.NewReplacer(hideCursor, "", home, "", clearLine, "", clearScreen, "").Replace(out.String())
	for line := range strings.SplitSeq(picture, "\n") {
		if len(line) > 40 {
			t.Errorf("too wide: %q", line)
		}
	}
	if strings.Count(picture, "\n") > 9 || !strings.Contains(picture, "n1 LEADER") {
		t.Errorf("picture:\n%s", picture)
	}
	s.End()
	if !strings.HasSuffix(out.String(), showCursor) {
		t.Error("the cursor is gone")
	}
}
