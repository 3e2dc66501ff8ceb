package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of silence.
const (
	// slowClient is how long a client may accept no byte. slowBody and slowUpstream are how long a request's and an answer's body may
	// be silent.
	slowClient   = time.Minute
	slowBody     = time.Minute
	slowUpstream = 10 * time.Minute
)

// renewals is how often within its patience a deadline is moved at most, over HTTP/1: one for each write would cost more than a short
// write itself. So the patience is up to one part in renewals shorter there.
const renewals = 60

// patientWriter bounds how long a client may accept no byte. Over HTTP/2 each write has its own deadline, with none between writes: it
// would reset a stream on which the provider is silent. Over HTTP/1 a deadline that passes between writes has no effect.
type patientWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	// between: deadlines have an effect between writes.
	between bool
	renewed time.Time
}

// newPatientWriter returns a writer for an answer. It replaces the deadline that the previous answer on the connection left.
func newPatientWriter(w http.ResponseWriter, r *http.Request, patience time.Duration) *patientWriter {
	patient := &patientWriter{ResponseWriter: w, control: http.NewResponseController(w), patience: patience, between: r.ProtoMajor != 1}
	patient.begin()
	patient.lift()
	return patient
}

// Write implements io.Writer.
func (w *patientWriter) Write(p []byte) (int, error) {
	w.begin()
	defer w.lift()
	return w.ResponseWriter.Write(p)
}

// WriteHeader implements http.ResponseWriter. An informational answer is written at once.
func (w *patientWriter) WriteHeader(status int) {
	w.begin()
	defer w.lift()
	w.ResponseWriter.WriteHeader(status)
}

// FlushError sends buffered data.
func (w *patientWriter) FlushError() error {
	w.begin()
	defer w.lift()
	return w.control.Flush()
}

// Unwrap lets http.ResponseController find the underlying writer.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// begin sets the deadline of a write; called last, that of the server's writes after the handler.
func (w *patientWriter) begin() {
	if now := time.Now(); w.between || now.Sub(w.renewed) > w.patience/renewals {
		w.renewed = now
		_ = w.control.SetWriteDeadline(now.Add(w.patience))
	}
}

func (w *patientWriter) lift() {
	if w.between {
		_ = w.control.SetWriteDeadline(time.Time{})
	}
}

// patientBody bounds how long a request's body may be silent.
type patientBody struct {
	io.ReadCloser
	control  *http.ResponseController
	patience time.Duration
	// ended: the body was read to its end.
	ended atomic.Bool
}

// Read implements io.Reader.
func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.patience))
	defer func() { _ = b.control.SetReadDeadline(time.Time{}) }()
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// wrongTokens counts wrong tokens by peer, so that no peer can try many.
type wrongTokens struct {
	mu    sync.Mutex
	since time.Time
	count map[string]int
}

// mostWrong is how many wrong tokens a peer may present per second.
const mostWrong = 10

// tooMany counts a wrong token of a peer, and reports whether it has recently presented too many.
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
