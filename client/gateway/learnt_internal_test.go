package gateway

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/config"
)

// TestSaveLearnt_TriesAgainAfterAFailure: learned estimates that could not be written, as on a full disk, are written by the next save.
func TestSaveLearnt_TriesAgainAfterAFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	g := &Gateway{logger: slog.New(slog.DiscardHandler), learner: estimate.NewLearner(nil)}
	g.state.Store(&state{config: config.Config{State: filepath.Join(dir, "learnt.json")}})
	g.learnt.Store(true)
	g.saveLearnt() // no such folder
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	g.saveLearnt()
	if _, err := readLearnt(filepath.Join(dir, "learnt.json")); err != nil {
		t.Errorf("nothing was written after the disk had recovered: %v", err)
	}
}

// TestCut_EndsAtACharacter: a caller's text is truncated without breaking a character.
func TestCut_EndsAtACharacter(t *testing.T) {
	for _, text := range []string{
		strings.Repeat("a", 200), "a" + strings.Repeat("é", 100), "ab" + strings.Repeat("語", 100), strings.Repeat("🖖", 60),
	} {
		got := cut(text)
		if !utf8.ValidString(got) || len(got) > maxShown || len(got) <= maxShown-utf8.UTFMax || !strings.HasPrefix(text, got) {
			t.Errorf("%q (%d bytes)", got, len(got))
		}
	}
	if got := cut(strings.Repeat("\x80", 200)); len(got) < maxShown-utf8.UTFMax {
		t.Errorf("of what is no text, %d bytes are left", len(got))
	}
}
