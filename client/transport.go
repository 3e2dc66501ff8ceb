package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/pacing"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/signals"
)

// TransportOption changes how a Transport works.
type TransportOption func(*transportSettings)

type transportSettings struct {
	// dialect was set with Speak; the zero Dialect: not set.
	dialect signals.Dialect
	// match was set with Match; nil: not set.
	match     func(*http.Request) Call
	providers []*upstream
	adjust    func(*http.Request, *Call)
	granted   func(*http.Request, *Lease) (*http.Request, error)
	answers   bool
	learner   *estimate.Learner
	maxBody   int64
	wait      time.Duration
	retries   int
	retryWait time.Duration
	windows   pacing.Windows
	maxCall   time.Duration
}

// RetryWindow is when the retries of a class start after a cooldown: between From and To after its end.
type RetryWindow = pacing.Window

// Match sets the quotas that a request draws on, for any host. It precedes the providers, which handle requests for which it returns no
// items. It is called once per request and must not read the body; it may use GetBody. MatchOpenAI and similar functions are building
// blocks for it.
func Match(match func(*http.Request) Call) TransportOption {
	return func(s *transportSettings) { s.match = match }
}

// Speak sets the dialect for reading responses, if the Call has none. The default is the dialect of the provider that owns the host, or
// else signals.Auto, which detects it.
func Speak(dialect signals.Dialect) TransportOption {
	return func(s *transportSettings) { s.dialect = dialect }
}

// Adjust is called with each call before the cluster is asked, with its estimates. It may change the holder, the quotas and the
// amounts, or remove all items.
func Adjust(adjust func(*http.Request, *Call)) TransportOption {
	return func(s *transportSettings) { s.adjust = adjust }
}

// Granted is called with each lease before its request is sent. It returns the request to send, unchanged or as a changed copy. It is
// the place to shrink a call according to Lease.Forecast, or to choose the model of a granted fallback, see Lease.For. If it returns an
// error, nothing is sent and all amounts are returned.
func Granted(granted func(*http.Request, *Lease) (*http.Request, error)) TransportOption {
	return func(s *transportSettings) { s.granted = granted }
}

// AnswerRefusals answers a refused call with status 429 in the provider's own form, instead of a *RefusalError, for programs that
// handle that form. The header X-Quotad-Refusal has the reason and the quota.
func AnswerRefusals() TransportOption { return func(s *transportSettings) { s.answers = true } }

// Learner sets the learner of models' token use, to share it with other Transports or to save it. By default each Transport has its
// own.
func Learner(learner *estimate.Learner) TransportOption {
	return func(s *transportSettings) { s.learner = learner }
}

// MaxBody bounds, in bytes, how much of a request's body without GetBody is read into memory, in order to estimate and repeat the call.
// A longer body is sent once and counts by its length. The default is 32 MiB.
func MaxBody(bytes int64) TransportOption {
	return func(s *transportSettings) { s.maxBody = max(bytes, 0) }
}

// QueueWait bounds a request's wait in the cluster's queue, in addition to its context; 0: no wait. The default is 30 s.
func QueueWait(d time.Duration) TransportOption {
	return func(s *transportSettings) { s.wait = min(max(d, 0), MaxWait) }
}

// Retries sets how often to retry a request that the provider refused for its limits; 0: never. The default is 3.
func Retries(n int) TransportOption { return func(s *transportSettings) { s.retries = max(n, 0) } }

// RetryWait bounds the wait for a retry. If the provider's limit lasts longer, the response is passed through. The default is 1 min.
func RetryWait(d time.Duration) TransportOption {
	return func(s *transportSettings) { s.retryWait = min(max(d, 0), signals.MaxWait) }
}

// RetryWindows sets when the classes critical, standard and background retry after a cooldown. They should not overlap. The default is
// 0 to 0.5 s, 0.5 to 3.5 s, and 3.5 to 9.5 s.
func RetryWindows(critical, standard, background RetryWindow) TransportOption {
	return func(s *transportSettings) { s.windows = pacing.Windows{critical, standard, background} }
}

// MaxCall bounds how long a call keeps its held amounts, such as slots, while nobody reads or closes its body. The default is 10 min.
func MaxCall(d time.Duration) TransportOption {
	return func(s *transportSettings) { s.maxCall = max(d, time.Second) }
}

// Transport is an http.RoundTripper that asks the cluster before each call, settles after it, and reports the provider's answer to the
// cluster. It retries calls that were refused for a limit, in the retry window of their class. Each actual write of a request has its
// own allowance, also when net/http repeats it or a redirect is followed.
//
// It hides no response: one that is not retried is passed through. A response that was refused for a limit then has X-Should-Retry:
// false, which clients of the common vendors obey, and Retry-After according to the cluster.
//
// A call on slots ends with them: if their lease is lost, because the cluster was away for too long or ended it, the request's context
// is cancelled with that cause.
//
// An attempt that ended before it had a connection is returned. One that had a connection counts as spent, in any case. A base with
// HTTP2.StrictMaxConcurrentRequests is not supported: a request then waits on a connection that it already has, and may be written
// after its allowance's spend-by.
type Transport struct {
	client   *Client
	base     http.RoundTripper
	settings transportSettings

	mu sync.Mutex
	// reported is when ordinary counts of each quota were last reported.
	reported map[string]time.Time
	facts    quotaMemory
	// warned: the warning about ungoverned requests was logged.
	warned sync.Once

	calls, ungoverned, written, refused, limited, retried, passed, overrun, malformed, cut atomic.Uint64
}

// NewTransport returns a Transport over base; nil: http.DefaultTransport. It governs calls to the hosts of the given providers, such as
// GitHub and OpenAI, and calls that Match selects. Other calls pass ungoverned. Without providers and Match it fails all calls, since
// it would govern nothing.
func NewTransport(c *Client, base http.RoundTripper, options ...TransportOption) *Transport {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &Transport{client: c, base: base, reported: map[string]time.Time{}, settings: transportSettings{
		wait: 30 * time.Second, retries: 3, retryWait: time.Minute, maxCall: 10 * time.Minute, maxBody: maxModelBody,
		windows: pacing.DefaultWindows,
	}}
	for _, option := range options {
		option(&t.settings)
	}
	if t.settings.learner == nil {
		t.settings.learner = estimate.NewLearner(nil)
	}
	return t
}

// TransportStats are a Transport's counters since it was made.
type TransportStats struct {
	// Calls: governed requests. Ungoverned: the others.
	Calls, Ungoverned uint64
	// Written: attempts actually written to the provider.
	Written uint64
	// Refused: attempts that the cluster refused.
	Refused uint64
	// Limited: responses refused for a limit. Retried: those that were retried. Passed: those that were passed through.
	Limited, Retried, Passed uint64
	// Overrun: writes without an allowance, settled as overruns.
	Overrun uint64
	// Malformed: values in responses that could not be parsed and were ignored.
	Malformed uint64
	// Cut: estimates above what a quota can ever grant, which were reduced.
	Cut uint64
}

// Stats returns the counters.
func (t *Transport) Stats() TransportStats {
	return TransportStats{
		Calls: t.calls.Load(), Ungoverned: t.ungoverned.Load(), Written: t.written.Load(), Refused: t.refused.Load(),
		Limited: t.limited.Load(), Retried: t.retried.Load(), Passed: t.passed.Load(), Overrun: t.overrun.Load(),
		Malformed: t.malformed.Load(), Cut: t.cut.Load(),
	}
}

// RoundTrip implements http.RoundTripper. If the cluster refuses the call, the error is a *RefusalError and nothing was sent.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	repeatable, call, err := t.call(request)
	if err != nil {
		return nil, err
	}
	var response *http.Response
	if len(call.Items) == 0 {
		t.ungoverned.Add(1)
		response, err = t.base.RoundTrip(repeatable)
	} else {
		t.calls.Add(1)
		response, err = t.carry(repeatable, call)
	}
	if err == nil && response.Request == repeatable {
		// The caller gets its own request.
		response.Request = request
	}
	return response, err
}

// carry makes attempts at a call until one is not refused for a limit, or has to be passed through.
func (t *Transport) carry(request *http.Request, call Call) (*http.Response, error) {
	for tries := 0; ; tries++ {
		response, limit, err := t.attempt(request, call)
		if refusal, refused := errors.AsType[*RefusalError](err); refused && t.settings.answers {
			return refusal.response(request, call.Dialect, call.holder(t.client)), nil
		}
		if err != nil || limit == nil {
			return response, err
		}
		t.limited.Add(1)
		next, ok := t.replay(request, response, *limit, tries)
		if !ok {
			t.passed.Add(1)
			limit.mark(response)
			return response, nil
		}
		discard(response.Body)
		t.client.hooks.retry(request, limit.delay)
		if err := sleep(request.Context(), limit.delay); err != nil {
			if next.Body != nil {
				_ = next.Body.Close()
			}
			return nil, err
		}
		t.retried.Add(1)
		request = next
	}
}

// limit is the limit that refused a response.
type limit struct {
	verdict signals.Signal
	// delay is the time until this caller's retry, reopens until it may use the same quota again.
	delay, reopens time.Duration
}

// mark sets in the response when to retry, and that an earlier retry is useless.
func (l limit) mark(response *http.Response) {
	if response.StatusCode < 400 {
		return
	}
	if response.Header == nil {
		response.Header = http.Header{}
	}
	response.Header.Set("X-Should-Retry", "false")
	if l.verdict.Class == signals.Billing {
		return
	}
	delay := min(max(l.reopens, 0), signals.MaxWait)
	response.Header.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(delay.Seconds())), 10))
	response.Header.Set("Retry-After-Ms", strconv.FormatInt(delay.Milliseconds(), 10))
}

// delay returns when a class may retry after a cooldown of this length.
func (s *transportSettings) delay(cooldown time.Duration, class Class) time.Duration {
	return min(s.windows.Delay(cooldown, quotav1.Class(class), rand.N[time.Duration]), signals.MaxWait)
}

// replay returns the request for a retry, if one is possible: the provider did not forbid it, the wait is within its bound and the
// caller's deadline, and the body can be read again.
func (t *Transport) replay(request *http.Request, response *http.Response, l limit, tries int) (*http.Request, bool) {
	if l.verdict.Class == signals.Billing || l.verdict.NoRetry || tries >= t.settings.retries || l.delay > t.settings.retryWait ||
		response.StatusCode < 400 {
		return nil, false
	}
	if end, ok := request.Context().Deadline(); ok && time.Until(end) <= l.delay {
		return nil, false
	}
	again := request.Clone(request.Context())
	if request.Body == nil || request.Body == http.NoBody {
		return again, true
	}
	if request.GetBody == nil {
		return nil, false
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, false
	}
	again.Body = body
	return again, true
}

// discard reads the rest of a short body, so that its connection can be reused, and closes it.
func discard(body io.ReadCloser) {
	if body == nil {
		return // a custom base may leave it out
	}
	_, _ = io.CopyN(io.Discard, body, signals.MaxBody)
	_ = body.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("quotad: waiting for the provider's limit: %w", context.Cause(ctx))
	}
}
