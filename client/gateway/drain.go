package gateway

import (
	"io"
	"time"
)

// Bounds of reading answers after their clients have left: for how long, and how many at the same time.
const (
	drainFor   = time.Minute
	mostDrains = 64
)

// drains reports whether the provider bills the whole answer even if nobody reads it.
func (c *call) drains() bool { return c.upstream.config.OnDisconnect == "drain" }

// drain reads the rest of an answer in the background, to learn its use; false: too many are being drained.
func (b *answerBody) drain() bool {
	g := b.call.gateway
	if b.ended.Load() {
		return false
	}
	if g.drains.Add(1) > mostDrains {
		g.drains.Add(-1)
		return false
	}
	b.drained.Store(true)
	b.call.open.Add(1)
	g.tasks.Go(func() {
		defer g.finished(b.call)
		defer g.drains.Add(-1)
		late := time.AfterFunc(drainFor, func() { _ = b.body.Close() })
		defer late.Stop()
		_, _ = io.Copy(io.Discard, readerOf(b.read))
		_ = b.close()
	})
	return true
}

// readerOf makes a reader of a function.
type readerOf func([]byte) (int, error)

// Read implements io.Reader.
func (r readerOf) Read(p []byte) (int, error) { return r(p) }
