package client

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Client is a holder's connection to a cluster. It is safe for concurrent use; a process needs one for each holder that
// it speaks for.
type Client struct {
	settings
	nodes    *nodes
	sessions *sessions
	queue    *queue
	keeper   *keeper
	closures *closures
	counters counters

	// ctx ends when the client stops for good.
	ctx    context.Context
	cancel context.CancelFunc
	// tasks are all goroutines of the client; calls are the calls in progress, which may start tasks.
	tasks sync.WaitGroup

	// away is why the cluster did not answer the last time; nil: it did.
	away atomic.Pointer[absence]

	mu       sync.Mutex
	calls    sync.WaitGroup
	closed   bool
	limiters map[*Limiter]struct{}
	over     chan struct{}
}

// New returns a client of the cluster whose nodes' API addresses (host:port, or URLs) are given; one that answers is
// enough to find the leader. It does not touch the network: the first request does.
func New(addresses []string, options ...Option) (*Client, error) {
	s := defaults()
	for _, option := range options {
		if err := option(&s); err != nil {
			return nil, err
		}
	}
	if s.http == nil {
		s.own = newReacher()
		// A node never redirects; whatever does is not one.
		s.http = &http.Client{Transport: s.own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	known, err := newNodes(addresses, s.http, s.token)
	if err != nil {
		return nil, err
	}
	c := &Client{settings: s, nodes: known, sessions: newSessions(), closures: newClosures(), limiters: map[*Limiter]struct{}{}, over: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.queue = &queue{client: c}
	c.keeper = newKeeper(c)
	return c, nil
}

// Holder returns the name under which the client asks.
func (c *Client) Holder() string { return c.holder }

// Close gives back what limiters hold and did not spend, closes the sessions and ends all goroutines, within the close
// timeout. Leases that callers hold are left alone: they end when released or at their deadlines. Calls in progress
// end with ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.over
		return nil
	}
	c.closed = true
	// A limiter that its owner closes meanwhile leaves the map.
	limiters := maps.Clone(c.limiters)
	c.mu.Unlock()
	defer close(c.over)

	ctx, cancel := context.WithTimeout(context.Background(), c.closeTimeout)
	defer cancel()
	c.keeper.stop()
	for limiter := range limiters {
		limiter.shut(ctx)
	}
	err := c.flush(ctx)
	c.queue.close()
	c.closeSessions(ctx)
	c.cancel()
	c.calls.Wait()
	c.tasks.Wait()
	if c.own != nil {
		c.own.Close()
	}
	return err
}

// flush waits until nothing is queued or on its way.
func (c *Client) flush(ctx context.Context) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !c.queue.idle() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return errors.New("quotad: closed before all unspent amounts were returned")
		}
	}
	return nil
}

func (c *Client) closeSessions(ctx context.Context) {
	for _, id := range c.sessions.drain() {
		a, _ := race(ctx, c, c.prompt(), func(ctx context.Context, to *node) (*quotav1.CloseSessionResponse, error) {
			return to.api.CloseSession(ctx, &quotav1.CloseSessionRequest{Session: id})
		})
		if a.err != nil {
			c.logger.Debug("could not close a session; it expires when it is idle", slog.Uint64("session", id), slog.Any("error", a.err))
		}
	}
}

// begin lets a call in, unless the client is closed. The call ends with the returned function, and its context by its
// own deadline, after the call timeout and extra where it has none, or with the client.
func (c *Client) begin(ctx context.Context, extra time.Duration) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, &NotAcceptedError{Err: ErrClosed}
	}
	c.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	met := c.introduce(cancel)
	release := func() {
		stop()
		met()
		cancel(nil)
		c.calls.Done()
	}
	if _, ok := ctx.Deadline(); ok {
		return ctx, release, nil
	}
	bounded, cancelBounded := context.WithTimeoutCause(ctx, c.callTimeout+extra, ErrClusterAway)
	return bounded, func() { cancelBounded(); release() }, nil
}

// prompt is how long nodes are waited for in calls that are answered at once.
func (c *Client) prompt() patience {
	return patience{leader: 250 * time.Millisecond, others: 50 * time.Millisecond, each: c.attemptTimeout}
}

// openSession opens a session. Should its answer get lost, the session expires unused.
func (c *Client) openSession(ctx context.Context) (uint64, error) {
	a, _ := race(ctx, c, c.prompt(), func(ctx context.Context, to *node) (*quotav1.OpenSessionResponse, error) {
		return to.api.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: c.holder})
	})
	if a.err != nil {
		return 0, a.err
	}
	c.counters.sessions.Add(1)
	return a.value.GetSession(), nil
}

// absence is since when the cluster is away, and the last reason.
type absence struct {
	since time.Time
	err   error
}

// note remembers whether the cluster answered.
func (c *Client) note(err error) {
	if err == nil {
		if c.away.Swap(nil) != nil {
			c.logger.Info("the cluster is back")
		}
		return
	}
	now := &absence{since: time.Now(), err: c.absent(err)}
	if before := c.away.Load(); before != nil {
		now.since = before.since
	}
	if c.away.Swap(now) == nil {
		c.logger.Warn("the cluster is away", slog.Any("error", now.err))
	}
}

// absent says that the cluster is away: nobody answers, or those who do say why.
func (c *Client) absent(err error) error {
	if reasonIn(err) != 0 {
		return joined(ErrClusterAway, err)
	}
	_, away := c.nodes.unreachable()
	return away
}

// trouble returns why the cluster is away; nil: it is there, as far as the client knows.
func (c *Client) trouble() error {
	if away := c.away.Load(); away != nil {
		return away.err
	}
	return nil
}

// Away returns for how long the cluster has been away; 0: it is there, as far as the client knows.
func (c *Client) Away() time.Duration {
	if away := c.away.Load(); away != nil {
		return time.Since(away.since)
	}
	return 0
}

// probe notes whether the cluster answers at all, for a caller that waits for something else. What it reads does not
// matter.
func (c *Client) probe(ctx context.Context) {
	a, _ := race(ctx, c, c.prompt(), func(ctx context.Context, to *node) (*quotav1.CheckFenceResponse, error) {
		return to.api.CheckFence(ctx, &quotav1.CheckFenceRequest{Lease: 1, Fence: 1})
	})
	switch {
	case a.outcome == answered:
		c.note(nil)
	case ctx.Err() == nil:
		c.note(a.err)
	}
}

// counters count what happened since the client was made.
type counters struct {
	batches, commands, retries, redirects, unknown, sessions, returned atomic.Uint64
}

// Stats are a client's counters since it was made.
type Stats struct {
	// Batches is how many batches were sent, Commands how many requests travelled in them, repeats included.
	Batches, Commands uint64
	// Retries is how often a batch had to be sent again, in part or whole.
	Retries uint64
	// Redirects is how often a node pointed at another one as the leader.
	Redirects uint64
	// UnknownOutcomes is how many requests ended without a known outcome.
	UnknownOutcomes uint64
	// Sessions is how many sessions were opened.
	Sessions uint64
	// Returned is how many leases were given back because their caller had left before they were granted.
	Returned uint64
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	return Stats{
		Batches: c.counters.batches.Load(), Commands: c.counters.commands.Load(), Retries: c.counters.retries.Load(),
		Redirects: c.counters.redirects.Load(), UnknownOutcomes: c.counters.unknown.Load(), Sessions: c.counters.sessions.Load(),
		Returned: c.counters.returned.Load(),
	}
}

var _ connect.HTTPClient = (*http.Client)(nil)
