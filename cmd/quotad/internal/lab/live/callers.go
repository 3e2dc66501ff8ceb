package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/rpc/signals"
)

// callers are the outside of a fleet's agents. Each agent has its own client of quotad, as if it were a process of its own.
type callers struct {
	server *server
	base   *http.Transport
	quotad []*client.Client
	// through has clients that call through quotad, by holder; straight calls without quotad.
	through  map[string]*http.Client
	straight *http.Client
	// numbers is the counter that numbers attempts.
	numbers atomic.Int64
}

// newCallers returns the callers of a fleet; without nodes of quotad they call the provider directly.
func newCallers(f *fleet.Fleet, nodes []string) (*callers, error) {
	base := &http.Transport{MaxIdleConnsPerHost: fleet.MaxAgents, DisableCompression: true}
	c := &callers{base: base, through: map[string]*http.Client{}}
	c.straight = &http.Client{Transport: attempts{c}}
	if len(nodes) == 0 {
		return c, nil
	}
	for _, kind := range f.Agents {
		for _, holder := range kind.Holders() {
			q, err := client.New(nodes, client.WithHolder(holder))
			if err != nil {
				return nil, errors.Join(err, c.close())
			}
			c.quotad = append(c.quotad, q)
			c.through[holder] = &http.Client{Transport: client.NewTransport(q, attempts{c},
				client.Match(c.match), client.Speak(signals.GitHub), client.QueueWait(client.MaxWait))}
		}
	}
	return c, nil
}

// close closes the clients, which returns unspent amounts.
func (c *callers) close() error {
	var errs []error
	for _, q := range c.quotad {
		errs = append(errs, q.Close())
	}
	c.base.CloseIdleConnections()
	return errors.Join(errs...)
}

// outgoingKey is the context key of a request's call.
type outgoingKey struct{}

func outgoing(r *http.Request) *sim.Outgoing {
	out, _ := r.Context().Value(outgoingKey{}).(*sim.Outgoing)
	return out
}

// match returns the amounts that a request draws.
func (c *callers) match(r *http.Request) client.Call {
	out := outgoing(r)
	call := client.Call{Resources: map[string]string{}, Usage: map[string]string{}}
	for _, use := range out.Uses {
		call.Items = append(call.Items, client.Item{Quota: use.Quota, Amount: use.Estimate})
		for i, m := range c.server.provider.Meters() {
			if m.Rule().Quota != use.Quota {
				continue
			}
			call.Resources[c.server.names[i]] = use.Quota
			if use.Actual != (fleet.Range{}) {
				call.Usage[usageField(c.server.names[i])] = use.Quota
			}
		}
	}
	return call
}

// Send implements sim.Outside.
func (c *callers) Send(ctx context.Context, out *sim.Outgoing) (provider.Answer, error) {
	return c.post(ctx, c.straight, out)
}

// The pauses before a caller asks quotad again.
const (
	// afterNothing is the pause if no answer arrived; leastPause is the minimum pause after a refusal.
	afterNothing = 200 * time.Millisecond
	leastPause   = 250 * time.Millisecond
)

// Call implements sim.Outside. After a refusal by quotad the agent asks again when that may succeed.
func (c *callers) Call(ctx context.Context, out *sim.Outgoing) (bool, error) {
	if !out.GiveUp.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, out.GiveUp)
		defer cancel()
	}
	for {
		said, err := c.post(ctx, c.through[out.Holder], out)
		if err == nil && !said.Refused {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, nil // its time is over
		}
		// The transport has made its own retries after refusals of the provider.
		wait, again := said.RetryAfter, out.GiveUp.IsZero()
		if err != nil {
			if wait, again = worthAnother(err); !again && !errors.As(err, new(*client.RefusalError)) {
				return false, err
			}
		}
		if !again || !out.GiveUp.IsZero() && time.Until(out.GiveUp) <= wait || !pause(ctx, wait) {
			return false, nil
		}
	}
}

// worthAnother reports whether a call that quotad did not allow should be tried again, and after which pause.
func worthAnother(err error) (wait time.Duration, again bool) {
	var refusal *client.RefusalError
	var unknown *client.UnknownOutcomeError
	switch {
	case errors.As(err, &refusal) && refusal.RetryAfter < 0:
		return 0, false
	case errors.Is(err, client.ReasonCannotServeInTime), errors.Is(err, client.ReasonWaitExpired):
		// The wait exceeds that of one Reserve: return to the queue some time before.
		return max(min(refusal.RetryAfter, client.MaxWait)-client.MaxWait/2, leastPause), true
	case refusal != nil:
		return max(refusal.RetryAfter, leastPause), true
	case errors.Is(err, client.ErrClusterAway), errors.Is(err, client.ErrLate), errors.As(err, &unknown):
		return afterNothing, true
	}
	return 0, false
}

// post sends a call and returns the provider's last answer.
func (c *callers) post(ctx context.Context, through *http.Client, out *sim.Outgoing) (said provider.Answer, err error) {
	body, err := json.Marshal(order{Holder: out.Holder, Amounts: out.Charged, Work: out.Work})
	if err != nil {
		return said, err
	}
	request, err := http.NewRequestWithContext(context.WithValue(ctx, outgoingKey{}, out), http.MethodPost, c.server.url,
		bytes.NewReader(body))
	if err != nil {
		return said, err
	}
	response, err := through.Do(request)
	if err != nil {
		return said, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return said, err
	}
	switch response.StatusCode {
	case http.StatusOK, http.StatusForbidden, http.StatusTooManyRequests:
		return answerOf(response), nil
	}
	return said, fmt.Errorf("the provider answered %s to %s", response.Status, body)
}

// answerOf returns the content of a response. If a refusal has no Retry-After, RetryAfter is the time until the provider's
// reset.
func answerOf(response *http.Response) provider.Answer {
	said := provider.Answer{Refused: response.StatusCode != http.StatusOK, Outage: response.Header.Get(outageHeader) != ""}
	if !said.Refused {
		return said
	}
	if seconds, err := strconv.ParseInt(response.Header.Get("Retry-After"), 10, 64); err == nil {
		said.RetryAfter = time.Duration(seconds) * time.Second
	} else if reset, err := strconv.ParseInt(response.Header.Get("X-Ratelimit-Reset"), 10, 64); err == nil {
		said.RetryAfter = max(time.Until(time.Unix(reset, 0)), 0)
	}
	return said
}

// attempts is the transport to the provider, below quotad's transport: it reports each written attempt to the run.
type attempts struct{ *callers }

// RoundTrip implements http.RoundTripper.
func (a attempts) RoundTrip(r *http.Request) (*http.Response, error) {
	out, number := outgoing(r), strconv.FormatInt(a.numbers.Add(1), 10)
	var written atomic.Bool
	sent := func() {
		if written.CompareAndSwap(false, true) {
			a.server.wrote(number)
			out.Sent()
		}
	}
	traced := r.Clone(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{WroteHeaders: sent}))
	traced.Header.Set(attemptHeader, number)
	response, err := a.base.RoundTrip(traced)
	if err != nil {
		return nil, err
	}
	sent() // the base may report the write later than the answer
	out.Answered(answerOf(response))
	return response, nil
}
