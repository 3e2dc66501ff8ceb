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

	"github.com/quotad/quotad/client/internal/connpool"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Client is a holder's connection to a cluster. It is safe for concurrent use; a process needs one Client for each
// holder name it uses.
type Client struct {
	settings
	nodes     *nodes
	sessions  *sessions
	queue     *queue
	keeper    *keeper
	cooldowns *cooldowns
	counters  counters

	// ctx ends when the client is closed.
	ctx    context.Context
	cancel context.CancelFunc
	// tasks counts all goroutines of the client, calls the calls in progress, which may start tasks.
	tasks sync.WaitGroup

	// away is why the cluster did not answer the last request; nil: it did.
	away atomic.Pointer[absence]

	mu       sync.Mutex
	calls    sync.WaitGroup
	closed   bool
	limiters map[*Limiter]struct{}
	over     chan struct{}
}

// New returns a client of the cluster with nodes at these API addresses (host:port, or URLs). One node that answers is
// enough to find the leader. New makes no connection: the first request does.
func New(addresses []string, options ...Option) (*Client, error) {
	s := defaults()
	for _, option := range options {
		if err := option(&s); err != nil {
			return nil, err
		}
	}
	if s.http != nil && s.tls != nil {
		return nil, errors.New("quotad: WithTLS and WithHTTPClient exclude each other: set up TLS in the HTTP client")
	}
	if s.http == nil {
		var own *connpool.Pool
		own, s.leave = connpool.Acquire(s.tls)
		// A quotad node never redirects; a server that does is not one.
		s.http = &http.Client{Transport: own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	known, err := newNodes(addresses, s.scheme(), s.http, s.token)
	if err != nil {
		if s.leave != nil {
			s.leave()
		}
		return nil, err
	}
	c := &Client{
		settings: s, nodes: known, sessions: newSessions(), cooldowns: newCooldowns(), limiters: map[*Limiter]struct{}{},
		over: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.queue = &queue{client: c}
	c.keeper = newKeeper(c)
	return c, nil
}

// Holder returns the client's holder name.
func (c *Client) Holder() string { return c.holder }

// Close returns the unspent amounts of limiters, closes the sessions and ends all goroutines, within the close timeout.
// Leases that callers hold stay: they end by Release or at their deadlines. Calls in progress fail with ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.over
		return nil
	}
	c.closed = true
	// Closing a limiter meanwhile removes it from the map.
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
	if c.leave != nil {
		c.leave()
	}
	return err
}

// flush waits until no command is queued or in flight.
func (c *Client) flush(ctx context.Context) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !c.queue.idle() {
		select {
		case <-poll.C:
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

// begin admits a call, unless the client is closed. The returned function ends the call. The context ends at its own
// deadline, or without one after the call timeout plus extra, and when the client closes.
func (c *Client) begin(ctx context.Context, extra time.Duration) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, &NotAcceptedError{Err: ErrClosed}
	}
	c.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	stopTimers := c.failIfUnreached(cancel)
	release := func() {
		stop()
		stopTimers()
		cancel(nil)
		c.calls.Done()
	}
	if _, ok := ctx.Deadline(); ok {
		return ctx, release, nil
	}
	bounded, cancelBounded := context.WithTimeoutCause(ctx, c.callTimeout+extra, ErrClusterAway)
	return bounded, func() { cancelBounded(); release() }, nil
}

// prompt returns how long to wait for nodes in calls that they answer at once.
func (c *Client) prompt() patience {
	return patience{leader: 250 * time.Millisecond, others: 50 * time.Millisecond, each: c.attemptTimeout}
}

// openSession opens a session. If the answer is lost, the session expires unused.
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

// absence is when the cluster went away, and the latest reason.
type absence struct {
	since time.Time
	err   error
}

// note records whether the cluster answered.
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

// absent returns the error for an absent cluster: the nodes' reason, or that no node answers.
func (c *Client) absent(err error) error {
	if reasonIn(err) != 0 {
		return joined(ErrClusterAway, err)
	}
	_, away := c.nodes.unreachable()
	return away
}

// trouble returns why the cluster is away; nil if it answers, as far as the client knows.
func (c *Client) trouble() error {
	if away := c.away.Load(); away != nil {
		return away.err
	}
	return nil
}

// Away returns for how long the cluster has been away; 0 if it answers, as far as the client knows.
func (c *Client) Away() time.Duration {
	if away := c.away.Load(); away != nil {
		return time.Since(away.since)
	}
	return 0
}

// probe records whether the cluster answers at all, for a caller that waits for another answer. The content of the
// answer is ignored.
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

// counters count events since the client was made.
type counters struct {
	batches, commands, retries, redirects, unknown, sessions, returned atomic.Uint64
}

// Stats are a client's counters since it was made.
type Stats struct {
	// Batches: batches sent. Commands: requests sent in them, repeats included.
	Batches, Commands uint64
	// Retries: batches sent again, in part or whole.
	Retries uint64
	// Redirects: hints of a node that another one is the leader.
	Redirects uint64
	// UnknownOutcomes: requests that ended without a known outcome.
	UnknownOutcomes uint64
	// Sessions: sessions opened.
	Sessions uint64
	// Returned: leases released because the caller had left before the grant.
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
