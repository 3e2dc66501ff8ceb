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
	// dialect is what Speak said; the zero Dialect: nothing.
	dialect signals.Dialect
	// match is what Match said; nil: nothing.
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

// RetryWindow is when a class comes back after a cooldown: between From and To after its end.
type RetryWindow = pacing.Window

// Match sets which quotas a request draws on, to any host. It comes before the providers, which are asked about requests for which it
// names no items. It is called once per request, and must not read its body; GetBody may be used. MatchOpenAI and its like are
// parts for it.
func Match(match func(*http.Request) Call) TransportOption {
	return func(s *transportSettings) { s.match = match }
}

// Speak sets how responses are read, where a Call does not say. The default is the dialect of the provider whose host it is, and else
// signals.Auto, which finds it out.
func Speak(dialect signals.Dialect) TransportOption {
	return func(s *transportSettings) { s.dialect = dialect }
}

// Adjust is called with each call before the cluster is asked, estimates included. It may change all of it: another holder, other
// quotas, other amounts, none.
func Adjust(adjust func(*http.Request, *Call)) TransportOption {
	return func(s *transportSettings) { s.adjust = adjust }
}

// Granted is called with each lease before its request is sent, and returns the request to be sent: the same, or a changed copy.
// That is where a call gets smaller by Lease.Forecast, and where it goes to the model whose quota a fallback was granted of, by
// Lease.For. If it returns an error, nothing is sent, and everything goes back.
func Granted(granted func(*http.Request, *Lease) (*http.Request, error)) TransportOption {
	return func(s *transportSettings) { s.granted = granted }
}

// AnswerRefusals answers a call that the cluster refuses with status 429 in the provider's own form, instead of a *RefusalError, for
// programs that know what to do with that. Its header X-Quotad-Refusal has the reason and the quota.
func AnswerRefusals() TransportOption { return func(s *transportSettings) { s.answers = true } }

// Learner sets where the Transport learns what calls of models use, to share it with others or to keep it. The default is one of
// its own.
func Learner(learner *estimate.Learner) TransportOption {
	return func(s *transportSettings) { s.learner = learner }
}

// MaxBody bounds how much of a request's body without GetBody is read into memory, in bytes, so that the call can be estimated and
// sent again. A longer one is sent once, and counts by its length. The default is 32 MiB.
func MaxBody(bytes int64) TransportOption {
	return func(s *transportSettings) { s.maxBody = max(bytes, 0) }
}

// QueueWait bounds how long a request waits in the cluster's queue, besides its context; 0: it does not wait. The
// default is 30 s.
func QueueWait(d time.Duration) TransportOption {
	return func(s *transportSettings) { s.wait = min(max(d, 0), MaxWait) }
}

// Retries sets how often a request that the provider refused for its limits is sent again; 0: never. The default is 3.
func Retries(n int) TransportOption { return func(s *transportSettings) { s.retries = max(n, 0) } }

// RetryWait bounds how long a retry is waited for. Where the provider's limit lasts longer, the response is passed
// through. The default is 1 min.
func RetryWait(d time.Duration) TransportOption {
	return func(s *transportSettings) { s.retryWait = min(max(d, 0), signals.MaxWait) }
}

// RetryWindows sets when the classes critical, standard and background come back after a cooldown. They should not
// overlap. The default is 0 to 0.5 s, 0.5 to 3.5 s, and 3.5 to 9.5 s.
func RetryWindows(critical, standard, background RetryWindow) TransportOption {
	return func(s *transportSettings) { s.windows = pacing.Windows{critical, standard, background} }
}

// MaxCall bounds how long a call keeps what it holds, slots for instance, while nobody reads its body or closes it. The
// default is 10 min.
func MaxCall(d time.Duration) TransportOption {
	return func(s *transportSettings) { s.maxCall = max(d, time.Second) }
}

// Transport is an http.RoundTripper that asks the cluster before each call, settles after it, tells the cluster what the
// provider said, and sends what was refused for a limit again when it is its turn. Each time that a request is really
// written has an allowance of its own, also where net/http repeats it by itself or a redirect is followed.
//
// It hides no response: what it does not send again, it passes through. A response that was refused for a limit then
// says X-Should-Retry: false, which clients of the common vendors obey, and Retry-After in the cluster's own time.
//
// A call on slots ends with them: where their lease is lost, because the cluster was away for too long or ended it, the
// request's context ends with the reason as its cause.
//
// An attempt that ended before it had a connection goes back. One that had a connection counts as spent, whatever became
// of it. A base with HTTP2.StrictMaxConcurrentRequests is not supported: a request then waits for its turn on a connection
// that it already has, and may be written after its allowance's spend-by.
type Transport struct {
	client   *Client
	base     http.RoundTripper
	settings transportSettings

	mu sync.Mutex
	// reported is when ordinary counts of a quota were reported last.
	reported map[string]time.Time
	facts    quotaMemory
	// warned: it was said that a request is not governed.
	warned sync.Once

	calls, ungoverned, written, refused, limited, retried, passed, overrun, malformed, cut atomic.Uint64
}

// NewTransport returns a Transport over base; nil: http.DefaultTransport. It governs the calls to the hosts of the providers among
// options, such as GitHub and OpenAI, of which there may be several, and those that Match says. Everything else passes. One that
// has neither fails all calls, since it would govern nothing.
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
	// Calls is how many requests were governed, Ungoverned how many were not.
	Calls, Ungoverned uint64
	// Written is how many attempts were really written to the provider.
	Written uint64
	// Refused is how many attempts the cluster did not allow.
	Refused uint64
	// Limited is how many responses were refused for a limit, Retried how many of those were sent again, Passed how many
	// were passed through.
	Limited, Retried, Passed uint64
	// Overrun is how many writes had no allowance; those were settled as overruns.
	Overrun uint64
	// Malformed is how many values in responses could not be read and were left out.
	Malformed uint64
	// Cut is how many estimates were above what a quota ever grants, and were cut to it.
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

// RoundTrip implements http.RoundTripper. A *RefusalError is the cluster's no; then nothing was sent.
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
		// The caller gets its own request back.
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

// limit is what a response that was refused for a limit comes to.
type limit struct {
	verdict signals.Signal
	// delay is how long until it is this caller's turn again.
	delay time.Duration
}

// mark tells whoever gets the response when to come back, and that it is no use to come back by itself before.
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
	delay := min(max(l.delay, 0), signals.MaxWait)
	response.Header.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(delay.Seconds())), 10))
	response.Header.Set("Retry-After-Ms", strconv.FormatInt(delay.Milliseconds(), 10))
}

// delay returns when a class comes back after a cooldown that lasts for so long.
func (s *transportSettings) delay(cooldown time.Duration, class Class) time.Duration {
	return min(s.windows.Delay(cooldown, quotav1.Class(class), rand.N[time.Duration]), signals.MaxWait)
}

// replay returns the request for another try, if there may be one: the provider did not forbid it, the wait is within
// its bound and the caller's deadline, and the body can be had again.
func (t *Transport) replay(request *http.Request, response *http.Response, l limit, tries int) (*http.Request, bool) {
	if l.verdict.Class == signals.Billing || l.verdict.NoRetry || tries >= t.settings.retries || l.delay > t.settings.retryWait || response.StatusCode < 400 {
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

// discard reads what is left of a short body, so that its connection can be used again, and closes it.
func discard(body io.ReadCloser) {
	if body == nil {
		return // a base of one's own may leave it out
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
