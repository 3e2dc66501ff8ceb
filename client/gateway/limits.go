package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Bounds of silence.
const (
	// slowClient is how long a client may take no byte, slowBody how long a request's body may bring none, slowUpstream how long an
	// answer's.
	slowClient   = time.Minute
	slowBody     = time.Minute
	slowUpstream = 10 * time.Minute
)

// patientWriter gives each write to a client a deadline of its own.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func newPatientWriter(w http.ResponseWriter) *patientWriter {
	return &patientWriter{w, http.NewResponseController(w)}
}

// Write implements io.Writer.
func (w *patientWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(slowClient))
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the writer below.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// end lifts the deadline, for the connection's next request.
func (w *patientWriter) end() { _ = w.control.SetWriteDeadline(time.Time{}) }

// patientBody gives each read of a request's body a deadline of its own, until the body has ended.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
}

// Read implements io.Reader.
func (b patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(slowBody))
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// wrongTokens counts wrong tokens by peer, so that nobody can try many.
type wrongTokens struct {
	mu    sync.Mutex
	since time.Time
	count map[string]int
}

// mostWrong is how many wrong tokens a peer may show in a second.
const mostWrong = 10

// tooMany counts a wrong token of a peer, and reports whether it has shown too many lately.
func (t *wrongTokens) tooMany(peer string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.roll()
	if t.count[peer] >= mostWrong {
		return true
	}
	t.count[peer]++
	return false
}

func (t *wrongTokens) roll() {
	if now := time.Now(); t.count == nil || now.Sub(t.since) >= time.Second {
		t.since, t.count = now, map[string]int{}
	}
}
