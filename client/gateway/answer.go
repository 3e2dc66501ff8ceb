package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// answerBody passes an answer's body through and settles its attempt at the end.
type answerBody struct {
	call   *call
	grant  *grant
	body   io.ReadCloser
	ctx    context.Context
	cancel context.CancelFunc
	status int
	// writes is how often the request was written, net/http's own repeats included.
	writes int64
	// limited: the provider refused the call for a limit.
	limited atomic.Bool

	// head is what was read ahead, failed how that ended.
	head   *bytes.Reader
	failed error

	once sync.Once
}

// govern returns a body that settles the attempt when it ends.
func (c *call) govern(response *http.Response, granted *grant, ctx context.Context, cancel context.CancelFunc, writes int64) *answerBody {
	return &answerBody{call: c, grant: granted, body: response.Body, ctx: ctx, cancel: cancel, status: response.StatusCode, writes: writes}
}

// peek reads up to n bytes ahead.
func (b *answerBody) peek(n int64) []byte {
	start, err := io.ReadAll(io.LimitReader(b.body, n))
	b.head, b.failed = bytes.NewReader(start), err
	return start
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	if b.head != nil && b.head.Len() > 0 {
		return b.head.Read(p)
	}
	if b.failed != nil {
		b.end(b.failed)
		return 0, b.failed
	}
	n, err := b.body.Read(p)
	if err != nil {
		b.end(err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	err := b.body.Close()
	b.end(errGone)
	b.cancel()
	return err
}

// errGone says that the client has left.
var errGone = errors.New("the client has left")

// end settles the attempt: how is how the body ended.
func (b *answerBody) end(how error) {
	b.once.Do(func() {
		b.grant.settle(settlement{actual: b.actual()})
		b.call.record(func(o *outcome) {
			o.end = endOf(how, b.ctx)
		})
	})
}

func endOf(how error, ctx context.Context) string {
	switch {
	case errors.Is(how, io.EOF):
		return "complete"
	case errors.Is(how, errGone), ctx.Err() != nil:
		return "gone"
	}
	return "broken"
}

// actual returns what the attempt really used, by quota; a quota that is not in it was used as asked.
func (b *answerBody) actual() map[string]int64 {
	used := map[string]int64{}
	for _, d := range b.call.draws {
		switch {
		case b.writes > 1 && d.amount > 0 && d.part == "requests":
			used[d.quota.Name] = d.amount * b.writes
		case b.limited.Load() && isTokens(d.part):
			used[d.quota.Name] = 0
		}
	}
	return used
}

func isTokens(part string) bool {
	return part == "tokens" || part == "input-tokens" || part == "output-tokens"
}
