package gateway

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client"
)

// silentBody sends nothing until its context ends.
type silentBody struct{ ctx context.Context }

func (b silentBody) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

func (silentBody) Close() error { return nil }

// TestAnswer_NamesCauseOfEnd: a silent provider, a lost slot and a leaving client are distinct ends of a call.
func TestAnswer_NamesCauseOfEnd(t *testing.T) {
	for want, end := range map[string]func(client, slot context.CancelCauseFunc){
		"gone":   func(gone, _ context.CancelCauseFunc) { gone(nil) },
		"lost":   func(_, slot context.CancelCauseFunc) { slot(client.ErrLeaseExpired) },
		"silent": func(_, _ context.CancelCauseFunc) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			request, gone := context.WithCancelCause(t.Context())
			ctx, slot := context.WithCancelCause(request)
			defer gone(nil)
			c := &call{gateway: &Gateway{}}
			response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: silentBody{ctx}}
			b := c.govern(ctx, func() { slot(nil) }, response, c.unasked(), time.Now(), 1)
			time.AfterFunc(time.Second, func() { end(gone, slot) })
			if _, err := io.ReadAll(b); err == nil {
				t.Errorf("%s: the answer ended cleanly", want)
			}
			_ = b.close()
			if c.outcome.end != want {
				t.Errorf("logged as %q, want %q", c.outcome.end, want)
			}
		})
	}
}
