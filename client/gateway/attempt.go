package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/internal/unpack"
	"github.com/quotad/quotad/rpc/signals"
)

// maxRetries is how often a call is sent again that the provider refused for its limits.
const maxRetries = 3

// sender is the Transport below the proxy: it asks, sends and reports, and sends again what the provider refused for a limit when
// it is the turn of its class.
type sender struct{}

// RoundTrip implements http.RoundTripper.
func (sender) RoundTrip(request *http.Request) (*http.Response, error) {
	c := callOf(request.Context())
	for try := 0; ; try++ {
		granted, err := c.acquireAny(request.Context())
		away := err != nil && isAway(err) || err == nil && granted.away
		if c.ungoverned == "" {
			c.gateway.heard(err, away)
		}
		switch {
		case err == nil:
			if granted.lease != nil && !away {
				c.upstream.clusterBack(c.gateway, c.state)
			}
		case away && c.passOpen():
			granted = c.unasked()
		default:
			return nil, err
		}
		sent := time.Now()
		response, err := c.send(request, granted)
		if err != nil {
			c.wasOutside(sent)
			once := errors.Is(err, errUnsent) && try == 0           // more on another connection
			late := errors.Is(err, client.ErrLate) && try < maxLate // while a connection was looked for
			if (once || late) && c.replayable(request) {
				continue
			}
			return nil, err
		}
		again, delay := c.observe(response, granted, try)
		if !again {
			c.wasOutside(sent)
			return response, nil
		}
		c.record(func(o *outcome) { o.retries++ })
		if err := c.pause(request.Context(), delay); err != nil {
			return nil, err
		}
		c.wasOutside(sent)
	}
}

// wasOutside notes that a call waited for its provider since a time.
func (c *call) wasOutside(since time.Time) {
	c.record(func(o *outcome) { o.outside += time.Since(since) })
}

// pause waits for the turn of the call's class. It ends when the client leaves or the gateway stops.
func (c *call) pause(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.gateway.ctx, func() { cancel(errStopping) })()
	return sleep(ctx, d)
}

// errSwitched says that a provider left HTTP: no request asks for that, and what follows is no answer.
var errSwitched = errors.New("the provider switched to another protocol (101), which no request asks for")

// errUnsent says that nothing reached the provider.
var errUnsent = errors.New("nothing was sent")

// upstreamError is that a provider was not reached or did not answer.
type upstreamError struct {
	err error
	// sent: it may have been written.
	sent bool
}

// Error implements error.
func (e *upstreamError) Error() string { return e.err.Error() }

// Unwrap returns what errors.Is may ask for.
func (e *upstreamError) Unwrap() []error {
	if e.sent {
		return []error{e.err}
	}
	return []error{e.err, errUnsent}
}

// replayable reports whether the request can be sent again: it has no body, or the body is in memory.
func (c *call) replayable(request *http.Request) bool {
	return c.body != nil || request.Body == nil || request.Body == http.NoBody
}

// send makes one attempt. Where it fails, the grant is settled.
func (c *call) send(request *http.Request, granted *grant) (*http.Response, error) {
	var handed atomic.Bool
	var writes atomic.Int64
	from := request.Context()
	if c.drains() {
		// A client that leaves ends the call only until its answer begins.
		from = context.WithoutCancel(from)
	}
	ctx, cancel := granted.context(from)
	defer context.AfterFunc(request.Context(), cancel)()
	sending, prevent := context.WithCancelCause(ctx)
	attempt := request.WithContext(httptrace.WithClientTrace(sending, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if granted.live() {
				handed.Store(true)
				return
			}
			prevent(client.ErrLate)
			closeUnlessShared(info.Conn)
		},
		WroteHeaders: func() { writes.Add(1) },
	}))
	c.authorize(attempt, granted)
	if c.insteadOf != "" {
		attempt.URL = c.url(c.path, request.URL.RawQuery)
	}
	if c.body != nil {
		attempt.Body = io.NopCloser(bytes.NewReader(c.body.data))
		attempt.ContentLength = int64(len(c.body.data))
		if !repeatable(attempt.Method) {
			// net/http may need it again where nothing of the request was written. Where something was, it sends no body again.
			attempt.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(c.body.data)), nil }
		}
	}
	attempt.Header = onceOnly(attempt.Header)
	sent := time.Now()
	response, err := c.upstream.transport.RoundTrip(attempt)
	if err != nil {
		cause := context.Cause(sending)
		prevent(nil)
		cancel()
		granted.settle(settlement{unsent: !handed.Load()})
		if cause != nil {
			return nil, cause
		}
		return nil, &upstreamError{err: err, sent: handed.Load()}
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		// The body is the connection itself, which nobody else closes. What the provider did is not known: nothing goes back.
		_ = response.Body.Close()
		prevent(nil)
		cancel()
		granted.settle(settlement{})
		return nil, &upstreamError{err: errSwitched, sent: true}
	}
	c.record(func(o *outcome) { o.first = time.Since(sent) })
	if response.StatusCode == http.StatusUnauthorized && granted.key != nil {
		c.upstream.keys.Reread(granted.key)
	}
	response.Body = c.govern(ctx, func() { prevent(nil); cancel() }, response, granted, max(writes.Load(), 1))
	return response, nil
}

// repeatable reports whether net/http sends a request of a method again by itself, although the provider may have read it: where it can get
// the body once more, that too.
func repeatable(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// onceOnly returns a header with which net/http does not take a request for one that may be sent again. It does so by the canonical names
// of these fields. A name means the same in small letters, which is how HTTP/2 writes it anyway.
func onceOnly(header http.Header) http.Header {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := header[name]; ok {
			header = maps.Clone(header) // the request's own may be sent once more
			delete(header, name)
			header[strings.ToLower(name)] = values
		}
	}
	return header
}

// closeUnlessShared closes a connection on which nothing may be written, unless others use it as well: over HTTP/2 the end of the attempt's
// context is enough.
func closeUnlessShared(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok && secure.ConnectionState().NegotiatedProtocol == "h2" {
		return
	}
	_ = conn.Close()
}

// observe reports what the provider said of its limits, and returns whether to send the call again, and in how long.
func (c *call) observe(response *http.Response, granted *grant, try int) (again bool, delay time.Duration) {
	reads := c.op.Signals()
	start := peek(response, reads)
	said := reads.ObserveAnswer(time.Now(), response.StatusCode, response.Header, start)
	verdict, refused := signals.Verdict(said)
	limited := refused && verdict.Class.Limited()
	cooldown := c.report(granted, said, verdict, limited)
	if !limited {
		return c.overloaded(response, verdict, try)
	}
	if body, ok := response.Body.(*answerBody); ok {
		body.limited.Store(true)
	}
	c.learnRefused(verdict)
	delay = retryIn(cooldown, c.caller.Class)
	noRetry := verdict.Class == signals.Billing || verdict.NoRetry || response.Header.Get("X-Should-Retry") == "false"
	passes := noRetry || try >= maxRetries || c.ungoverned == "fail_open" || response.StatusCode < http.StatusBadRequest
	// What one member's key was refused, another one may serve at once: the cluster knows which are closed, and has the call wait if all are.
	moves := granted.moves()
	if passes || !c.replayable(response.Request) || !moves && time.Now().Add(delay).After(c.until) {
		c.gateway.metrics.limited(c, verdict.Rule, "passed")
		markRetryAfter(response, verdict, cooldown, delay)
		return false, 0
	}
	c.gateway.metrics.limited(c, verdict.Rule, "retried")
	discard(response.Body)
	if moves {
		delay = 0
	}
	return true, delay
}

// overloaded decides whether a call is sent again that the provider was too busy for.
func (c *call) overloaded(response *http.Response, verdict signals.Signal, try int) (again bool, delay time.Duration) {
	if verdict.Class != signals.Overloaded || try >= c.upstream.config.Overloaded || c.ungoverned == "fail_open" ||
		!c.replayable(response.Request) {
		return false, 0
	}
	delay = time.Second << min(try, 5)
	if verdict.RetryAfter.Known {
		delay = max(delay, verdict.RetryAfter.D)
	}
	if time.Now().Add(delay).After(c.until) {
		return false, 0
	}
	discard(response.Body)
	return true, delay
}

// peek returns the beginning of a body that says what the answer means; the client still gets it whole.
func peek(response *http.Response, reads signals.Dialect) []byte {
	body, ok := response.Body.(*answerBody)
	if !ok || !reads.NeedsBody(response.StatusCode, response.Header) {
		return nil
	}
	return unpack.Start(response.Header, body.peek(signals.MaxBody), signals.MaxBody)
}

// discard reads what is left of a short body, so that its connection can be used again, and closes it.
func discard(body io.ReadCloser) {
	if answer, ok := body.(*answerBody); ok {
		answer.peek(signals.MaxBody)
	}
	_ = body.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
