package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/internal/ahead"
	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// answerBody passes an answer's body through, reads its stated use from a copy, and settles its attempt at the end.
type answerBody struct {
	call   *call
	grant  *grant
	body   io.ReadCloser
	header http.Header
	ctx    context.Context
	cancel context.CancelFunc
	status int
	// sent is when the request was sent, streams that the answer is a stream, begun that a part of it arrived.
	sent           time.Time
	streams, begun bool
	// writes is how often the request was written, including net/http's own repeats.
	writes int64
	// limited: the provider refused the call for a limit.
	limited atomic.Bool
	// meter reads the stated use; nil: the use is not settled by it.
	meter *usage.Meter
	// filter withholds the one event that the client did not request; nil: no filter.
	filter *usageFilter

	// silence ends the call once the provider has sent nothing for slowUpstream, and sets silent.
	silence *time.Timer
	silent  atomic.Bool
	// drained: the client has left, and the rest is read in the background.
	drained atomic.Bool

	// head was read ahead; failed is the error that ended that.
	head   *bytes.Reader
	failed error

	once sync.Once
	// ended: the attempt is settled.
	ended atomic.Bool
}

// govern returns a body that settles the attempt when it ends.
func (c *call) govern(
	ctx context.Context, cancel context.CancelFunc, response *http.Response, granted *grant, sent time.Time, writes int64,
) *answerBody {
	b := &answerBody{
		call: c, grant: granted, body: response.Body, header: response.Header, ctx: ctx, cancel: cancel, status: response.StatusCode,
		sent: sent, streams: isStream(response.Header), writes: writes,
	}
	b.silence = time.AfterFunc(slowUpstream, func() { b.silent.Store(true); cancel() })
	if c.ask != nil {
		b.meter = usage.NewMeter(response.Header)
	}
	if c.injected {
		b.filter = filterFor(response.Header)
	}
	return b
}

// peekWithin bounds the wait for the beginning of a refusal; the status line is delayed as long.
const peekWithin = 2 * time.Second

// peek reads up to n bytes ahead.
func (b *answerBody) peek(n int64) []byte {
	start, rest, err := ahead.Read(b.body, n, peekWithin)
	b.head, b.body, b.failed = bytes.NewReader(start), rest, err
	return start
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	if b.filter == nil {
		return b.read(p)
	}
	return b.filter.read(p, b.read)
}

// read reads the provider's data.
func (b *answerBody) read(p []byte) (int, error) {
	if b.head != nil && b.head.Len() > 0 {
		n, err := b.head.Read(p)
		b.measure(p[:n])
		return n, err
	}
	if b.failed != nil {
		b.end(b.failed)
		return 0, b.failed
	}
	b.silence.Reset(slowUpstream)
	n, err := b.body.Read(p)
	b.measure(p[:n])
	if err != nil {
		b.end(err)
	}
	return n, err
}

// isStream reports whether an answer is a stream of events.
func isStream(header http.Header) bool {
	kind := mediaType(header)
	return kind == "text/event-stream" || kind == "application/vnd.amazon.eventstream"
}

func (b *answerBody) measure(p []byte) {
	if len(p) == 0 {
		return
	}
	if b.streams && !b.begun {
		b.begun = true
		b.call.record(func(o *outcome) { o.chunk = time.Since(b.sent) })
	}
	if b.meter != nil {
		_, _ = b.meter.Write(p)
	}
}

// Close implements io.Closer. If a client leaves an answer that is paid for in any case, the rest is read in the background. A refusal
// costs nothing.
func (b *answerBody) Close() error {
	if b.status < http.StatusBadRequest && b.call.drains() && b.drain() {
		return nil
	}
	return b.close()
}

func (b *answerBody) close() error {
	err := b.body.Close()
	b.end(errGone)
	b.cancel()
	return err
}

// errGone: the client has left.
var errGone = errors.New("the client disconnected")

// end settles the attempt. how is the error that ended the body.
func (b *answerBody) end(how error) {
	b.once.Do(func() {
		b.ended.Store(true)
		b.silence.Stop()
		ended := b.endOf(how)
		var said usage.Said
		if b.meter != nil {
			b.meter.End()
			said = b.meter.Said()
		}
		b.call.learned(b, said, ended)
		actual := b.actual(said, ended)
		if b.meter != nil && b.status < http.StatusBadRequest {
			b.call.gateway.metrics.used(b.call, said, actual)
			b.call.spentMoney(b, said, ended)
		}
		b.grant.settle(settlement{actual: actual})
		b.correctSpent(said, ended)
		if b.drained.Load() {
			ended = endGone // whatever the provider did after that
		}
		b.call.record(func(o *outcome) { o.end, o.said = ended, said })
	})
}

// The ends of an answer.
const (
	endComplete = "complete"
	// endGone: the client left. endSilent: the provider sent nothing for slowUpstream. endLost: the call's slot was lost to another
	// holder.
	endGone   = "gone"
	endSilent = "silent"
	endLost   = "lost"
	endBroken = "broken"
)

// endOf classifies the end of an answer.
func (b *answerBody) endOf(how error) string {
	cause := context.Cause(b.ctx)
	switch {
	case errors.Is(how, io.EOF):
		return endComplete
	case errors.Is(how, errGone):
		return endGone
	case b.silent.Load():
		return endSilent
	case errors.Is(cause, context.Canceled):
		return endGone
	case cause != nil:
		return endLost
	}
	return endBroken
}

// actual returns the attempt's actual use by quota; a missing quota was used as requested.
func (b *answerBody) actual(said usage.Said, ended string) map[string]int64 {
	used := map[string]int64{}
	for _, d := range b.call.draws {
		if !settles(d.part) {
			// Parts counted per call, such as GitHub's limits, were used by each write.
			if b.writes > 1 && !d.quota.Slots {
				used[d.quota.Name] = d.amount * b.writes
			}
			continue
		}
		n, ok := b.amount(d.part, said, ended)
		if ok {
			used[d.quota.Name] = n
		}
	}
	return used
}

// correctSpent corrects the record of a call that passed while the cluster was away.
func (b *answerBody) correctSpent(said usage.Said, ended string) {
	for key, amount := range b.call.spent {
		if !settles(key.part) {
			continue
		}
		if n, ok := b.amount(key.part, said, ended); ok {
			b.call.upstream.open.correct(b.call.outage, key, n-amount)
		}
	}
}

// amount returns the attempt's use of a part that answers state; ok is false if it is unknown.
func (b *answerBody) amount(part string, said usage.Said, ended string) (n int64, ok bool) {
	switch {
	case b.status >= http.StatusBadRequest && b.status < http.StatusInternalServerError && !said.Known():
		return 0, true // the provider refused it, so it generated nothing
	case b.limited.Load() && !said.Known():
		return 0, true
	case ended != endComplete, said.Failure != nil && said.Known():
		return b.call.floor(part, said)
	}
	return b.call.used(part, said)
}

// learned teaches the estimates, and reports a limit that the answer stated after its status.
func (c *call) learned(b *answerBody, said usage.Said, ended string) {
	if ended == endComplete && said.Failure == nil && b.status < http.StatusBadRequest {
		c.learn(said)
		for _, id := range []string{said.ID, said.Conversation} {
			if id != "" {
				c.usedKey(answerOf(id), b.grant.key)
			}
		}
	}
	if said.Failure == nil || b.status >= http.StatusBadRequest {
		return
	}
	status := said.Failure.Status()
	if status == http.StatusInternalServerError {
		return // no limit
	}
	seen := c.op.Signals().ObserveAnswer(time.Now(), status, b.header, said.Failure.Body)
	if verdict, refused := signals.Verdict(seen); refused && verdict.Class != signals.NotALimit {
		c.report(b.grant, seen, verdict, false)
	}
}

// settles reports whether answers state the use of a part.
func settles(part string) bool { return config.SettledByAnswer(part) }

func isTokens(part string) bool {
	return part == "tokens" || part == "input-tokens" || part == "output-tokens"
}
