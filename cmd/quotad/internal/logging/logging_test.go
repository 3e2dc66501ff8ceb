package logging

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a writer that blocks until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(p)
}

func TestAsyncWriter_BlockedReaderStopsNobody(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := NewAsyncWriter(g)
	logger := New(w, "info", "text")
	const lines = queueLines + 500
	for range lines {
		logger.Info("one line") // with a plain writer this would block
	}
	dropped := w.Dropped()
	if dropped < 499 || dropped > 500 { // the goroutine may hold one line in addition to the queue
		t.Errorf("%d lines dropped", dropped)
	}
	close(g.open)
	w.Close(nil)
	if got := uint64(strings.Count(g.got.String(), "one line")); got+dropped != lines {
		t.Errorf("%d written and %d dropped of %d", got, dropped, lines)
	}
}

func TestAsyncWriter_CloseStopsWaiting(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := NewAsyncWriter(g)
	_, _ = w.Write([]byte("stuck\n"))
	giveUp := make(chan struct{})
	close(giveUp)
	w.Close(giveUp)
	close(g.open)
	w.Close(nil)
}

func TestAsyncWriter_CutsLongLines(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	w := NewAsyncWriter(g)
	_, _ = w.Write(bytes.Repeat([]byte("x"), 2*maxLine))
	w.Close(nil)
	if g.got.Len() != maxLine+4 {
		t.Errorf("%d bytes", g.got.Len())
	}
}

func TestNew_LevelsAndJSON(t *testing.T) {
	var out bytes.Buffer
	logger := New(&out, "warn", "json")
	logger.Info("quiet")
	logger.Warn("loud", "quota", "a\nb")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["@message"] != "loud" || line["quota"] != "a\nb" {
		t.Errorf("%s: %v", out.String(), err)
	}
}
