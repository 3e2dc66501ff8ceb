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

// maxRetries is how often a call is retried that the provider refused for its limits.
const maxRetries = 3

// sender is the Transport below the proxy: it asks, sends and reports, and retries calls that the provider refused for a limit in the
// retry window of their class.
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
			once := errors.Is(err, errUnsent) && try == 0           // retry on another connection
			late := errors.Is(err, client.ErrLate) && try < maxLate // while looking for a connection
			if (once || late) && c.replayable(request) {
				continue
			}
			if errors.Is(err, errUnsent) {
				c.unspend()
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

// wasOutside records that a call waited for its provider since a time.
func (c *call) wasOutside(since time.Time) {
	c.record(func(o *outcome) { o.outside += time.Since(since) })
}

// pause waits for the call's retry. It ends early when the client leaves or the gateway stops.
func (c *call) pause(ctx context.Context, d time.Duration) error {
	ctx, stop := c.gateway.untilStopped(ctx)
	defer stop()
	return sleep(ctx, d)
}

// errSwitched: a provider left HTTP. No request asks for that, and the following data is no answer.
var errSwitched = errors.New("the provider switched to another protocol (101), which no request asks for")

// errUnsent: nothing reached the provider.
var errUnsent = errors.New("nothing was sent")

// upstreamError: a provider was not reached or did not answer.
type upstreamError struct {
	err error
	// sent: the request may have been written.
	sent bool
}

// Error implements error.
func (e *upstreamError) Error() string { return e.err.Error() }

// Unwrap returns the error, and errUnsent if nothing was sent, for errors.Is.
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

// send makes one attempt. If the attempt fails, send settles the grant.
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
			// net/http may need it to repeat a request of which it wrote nothing. Once something was written, it does not repeat a
			// request with a body.
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
		// The body is the connection itself, which nobody else closes. The provider's use is unknown, so nothing is returned.
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
	response.Body = c.govern(ctx, func() { prevent(nil); cancel() }, response, granted, sent, max(writes.Load(), 1))
	return response, nil
}

// repeatable reports whether net/http itself repeats requests of this method although the provider may have read them. It does so even
// with a body, if it can get the body again.
func repeatable(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// onceOnly returns a header that does not make net/http treat the request as idempotent. net/http recognises the canonical names of
// these fields. Lower-case names mean the same, and HTTP/2 sends them in lower case anyway.
func onceOnly(header http.Header) http.Header {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := header[name]; ok {
			header = maps.Clone(header) // the request's own header may be sent again
			delete(header, name)
			header[strings.ToLower(name)] = values
		}
	}
	return header
}

// closeUnlessShared closes a connection on which nothing may be written, unless other calls share it: over HTTP/2 the end of the
// attempt's context is enough.
func closeUnlessShared(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok && secure.ConnectionState().NegotiatedProtocol == "h2" {
		return
	}
	_ = conn.Close()
}

// observe reports the provider's statements about its limits, and returns whether and when to retry the call.
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
	// If one member's key was refused, another may serve the call at once: the cluster knows the closed ones, and queues the call if
	// all are.
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

// overloaded decides whether to retry a call after the provider reported an overload.
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

// peek returns the beginning of a body that determines the meaning of the answer; the client still gets the whole body.
func peek(response *http.Response, reads signals.Dialect) []byte {
	body, ok := response.Body.(*answerBody)
	if !ok || !reads.NeedsBody(response.StatusCode, response.Header) {
		return nil
	}
	return unpack.Start(response.Header, body.peek(signals.MaxBody), signals.MaxBody)
}

// discard reads the rest of a short body, so that its connection can be reused, and closes it.
func discard(body io.ReadCloser) {
	if answer, ok := body.(*answerBody); ok && answer.head == nil { // what was found silent before is not waited for again
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
