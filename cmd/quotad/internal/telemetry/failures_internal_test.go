package telemetry

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestFailures_OneLineAMinute: a collector that is away fails each batch, and its answer is part of the error.
func TestFailures_OneLineAMinute(t *testing.T) {
	var out strings.Builder
	now := time.Unix(1_000, 0)
	f := &failures{logger: slog.New(slog.NewTextHandler(&out, nil)), now: func() time.Time { return now }}
	for range 100 {
		f.Handle(errors.New(strings.Repeat("x", 10_000)))
		now = now.Add(time.Second)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 || !strings.Contains(out.String(), "not_logged=59") {
		t.Errorf("%d lines: %s", lines, out.String())
	}
	if n := strings.Count(out.String(), "x"); n != 2*mostFailure {
		t.Errorf("%d bytes of the errors", n)
	}
}
