package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/config"
)

// A call that draws on one quota, by an amount that its answer does not change, needs no Reserve of its own: with batch: true it takes
// its amount from units that the gateway consumed ahead for all callers of its machine. docs/decisions/0042-batches-of-calls.md has the
// reasons.

// BatchError reports that calls of an upstream with batch: true cannot use batches of a quota. Each of them asks the cluster.
type BatchError struct {
	// Upstream and Quota are names.
	Upstream, Quota string
	// Message is the reason, Hint the way out.
	Message, Hint string
}

// Error implements error.
func (e *BatchError) Error() string { return "upstreams." + e.Upstream + ".batch: " + e.Message }

// unbatchable returns why calls cannot use batches of a quota; empty: they can.
func unbatchable(q catalog.Quota) string {
	switch {
	case q.Slots:
		return "it has slots, and each call holds its own"
	case q.Actual:
		return "each call is settled by what it used (settle: actual)"
	case q.ChargedLater:
		return "each call counts until it is settled (charged: end or during)"
	}
	return ""
}

// batchOf returns the draw that the call takes from a batch. ok is false if the call asks the cluster itself; why is the reason, if the
// configuration says batch: true.
func (c *call) batchOf() (d draw, why string, ok bool) {
	if c.upstream == nil || !c.upstream.config.Batch || len(c.draws) == 0 {
		return draw{}, "", false
	}
	d = c.draws[0]
	q, known := c.gateway.catalog.Get(d.quota.Name)
	switch {
	case !known:
		why = "the cluster has not listed " + d.quota.Name + " yet"
	case len(c.draws) > 1:
		why = "it draws on several quotas"
	case d.amount < 1 || d.amount > config.MostBatched:
		why = fmt.Sprintf("its amount is %d; a batch serves 1 to %d", d.amount, int64(config.MostBatched))
	case c.member() != "":
		why = "its key is chosen before the cluster is asked: it needs the member " + c.member() + " of " + q.Name
	default:
		if why = unbatchable(q); why != "" {
			why = q.Name + ": " + why
		}
	}
	return d, why, why == ""
}

// batchHolder is the holder of a class's batches.
func batchHolder(class config.Class, machine string) string {
	if class == config.ClassNone {
		class = config.Standard
	}
	return class.String() + "@" + machine
}

// acquireAhead takes the call's amount from a batch. nil without an error: none is at hand now, and the call has to ask the cluster.
func (c *call) acquireAhead(ctx context.Context, d draw, until time.Time) (*grant, error) {
	for late := 0; ; late++ {
		taken, err := c.takeAhead(ctx, d, until)
		if err != nil {
			if errors.Is(err, client.ReasonUnknownQuota) {
				c.gateway.refreshCatalog()
			}
			return nil, err
		}
		if taken == nil {
			return nil, nil
		}
		granted, err := c.granted(taken.Lease(), taken)
		if err != nil {
			return nil, err
		}
		granted.away = c.gateway.awaySince(taken.ConfirmedAt())
		if granted.live() {
			c.record(func(o *outcome) { o.batch = batchHolder(c.caller.Class, c.state.machine) })
			if taken.FromBatch() {
				c.gateway.metrics.batched.WithLabelValues(c.upstream.name).Inc()
			}
			return granted, nil
		}
		granted.settle(settlement{unsent: true})
		if late == maxLate {
			return nil, client.ErrLate
		}
	}
}

// errWaited is the cause of a wait that reached its deadline.
var errWaited = errors.New("the wait is over")

// takeAhead takes an amount from the batches of the call's class. nil without an error: none is at hand, and the call does not wait.
func (c *call) takeAhead(ctx context.Context, d draw, until time.Time) (*client.Taken, error) {
	limiter, asks, err := c.gateway.batches.limiter(c.gateway, c.state.machine, c.caller.Class, d.quota.Name)
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if taken := limiter.TakeAtHand(int(d.amount)); taken != nil {
		return taken, nil
	}
	// The wait ends when the gateway stops as well.
	ctx, stop := c.gateway.untilStopped(ctx)
	defer stop()
	if !time.Now().Before(until) {
		return limiter.AllowTake(int(d.amount)), nil
	}
	ctx, cancel := context.WithDeadlineCause(ctx, until, errWaited)
	defer cancel()
	ctx, done := unlessAway(ctx, asks)
	defer done()
	taken, err := limiter.WaitTake(ctx, int(d.amount))
	if errors.Is(err, errWaited) && asks.Away() == 0 {
		// The cluster is reachable, but its answer came a moment too late.
		err = &client.RefusalError{Reason: client.ReasonWaitExpired, Quota: d.quota.Name, RetryAfter: retrySoon}
	}
	return taken, err
}

// unlessAway ends a wait when the cluster turns out to be away: the wait is meant for quota only.
func unlessAway(ctx context.Context, asks *client.Client) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var poll *time.Timer
	var mu sync.Mutex // held until look is set
	mu.Lock()
	defer mu.Unlock()
	poll = time.AfterFunc(awayAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		// An attempt takes a moment to fail, and an election is shorter than this.
		if asks.Away() > awayAfter/2 {
			cancel(client.ErrClusterAway)
			return
		}
		poll.Reset(time.Second)
	})
	return ctx, func() { poll.Stop(); cancel(nil) }
}

// settleTaken ends an attempt with an amount from a batch. If it was not sent, the amount returns to the batch. If it was sent, the
// amount stays spent, and each further write is charged in addition.
func (p *grant) settleTaken(s settlement) {
	if s.unsent {
		p.taken.Cancel()
		return
	}
	g, d := p.call.gateway, p.call.draws[0]
	if p.reported {
		g.tasks.Go(func() {
			p.reports.Wait()
			p.taken.Done()
		})
	} else {
		p.taken.Done()
	}
	if extra := s.actual[d.quota.Name] - d.amount; extra > 0 {
		holder := batchHolder(p.call.caller.Class, p.call.state.machine)
		p.call.upstream.charge(g, p.call.state, map[spentKey]int64{{holder: holder, quota: p.quota(d.quota.Name), part: d.part}: extra})
	}
}

// batches are the units that the gateway has consumed ahead, by class and quota. Their holder is <class>@<machine>.
type batches struct {
	mu       sync.Mutex
	clients  map[config.Class]*client.Client
	limiters map[batchKey]*client.Limiter
}

type batchKey struct {
	class config.Class
	quota string
}

// limiter returns a class's limiter of a quota, and its client.
func (b *batches) limiter(g *Gateway, machine string, class config.Class, quota string) (*client.Limiter, *client.Client, error) {
	if class == config.ClassNone {
		class = config.Standard
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := batchKey{class, quota}
	if l := b.limiters[key]; l != nil {
		return l, b.clients[class], nil
	}
	if b.limiters == nil {
		b.clients, b.limiters = make(map[config.Class]*client.Client), make(map[batchKey]*client.Limiter)
	}
	asks := b.clients[class]
	if asks == nil {
		made, err := g.cluster.client(batchHolder(class, machine), g.logger, b.hooks())
		if err != nil {
			return nil, nil, err
		}
		asks, b.clients[class] = made, made
	}
	l := asks.Limiter(quota, client.LimiterClass(classOf(class)), client.KeepLeases())
	b.limiters[key] = l
	return l, asks, nil
}

// hooks tell all classes of a cooldown that any client of the gateway learns: they return their units of the quota.
func (b *batches) hooks() client.Hooks {
	return client.Hooks{
		Cooldown: func(r client.Reported) { b.closed(r.Quota, r.CooldownLeft) },
		Refusal: func(no *client.RefusalError) {
			if no.Reason == client.ReasonCooldown {
				b.closed(no.Quota, cmp.Or(no.ReopensIn, no.RetryAfter)) // older nodes send only RetryAfter
			}
		},
	}
}

func (b *batches) closed(quota string, left time.Duration) {
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.clients))
	b.mu.Unlock()
	for _, asks := range all {
		asks.LearnCooldown(quota, left)
	}
}

func (b *batches) close() error {
	b.mu.Lock()
	clients := slices.Collect(maps.Values(b.clients))
	b.mu.Unlock() // a closing client may still learn of a cooldown
	var all error
	for _, c := range clients {
		all = errors.Join(all, c.Close())
	}
	return all
}

// BatchStatus is what a class has consumed ahead of a quota, in the quota's units.
type BatchStatus struct {
	Class string `json:"class"`
	Quota string `json:"quota"`
	// Left: at hand now. Batches: batches fetched. Consumed: units in them and in single takes. Spent: taken by calls or being
	// returned. Returned: units returned.
	Left     int64  `json:"left"`
	Batches  uint64 `json:"batches"`
	Consumed uint64 `json:"consumed"`
	Spent    uint64 `json:"spent"`
	Returned uint64 `json:"returned"`
}

// status returns the batches of some quotas, by quota and class.
func (b *batches) status(quotas []PartStatus) []BatchStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []BatchStatus
	for _, q := range quotas {
		for class := config.Critical; class <= config.Background; class++ {
			if l := b.limiters[batchKey{class, q.Quota}]; l != nil {
				stats := l.Stats()
				// The limiter counts takes from the current batch only once that has ended.
				spent := stats.Consumed - uint64(stats.Left) - stats.Returned - stats.Forfeited
				out = append(out, BatchStatus{class.String(), q.Quota, stats.Left, stats.Batches, stats.Consumed, spent, stats.Returned})
			}
		}
	}
	return out
}

// CheckBatches checks the cluster's quotas against the upstreams with batch: true. The error joins every *BatchError, or reports that
// the cluster did not list its quotas.
func (g *Gateway) CheckBatches(ctx context.Context) error {
	return g.checkUpstreams(ctx, func(u *upstream) (all error) {
		if !u.config.Batch {
			return nil
		}
		for _, prefix := range u.prefixes() {
			for _, quota := range u.otherQuotas(prefix) {
				if q, ok := g.catalog.Get(quota); ok && unbatchable(q) != "" {
					all = errors.Join(all, &BatchError{
						u.name, quota, quota + ": " + unbatchable(q),
						"Calls on it ask for themselves. Change the quota, or remove batch: true from gateway.yaml",
					})
				}
			}
		}
		return all
	})
}

// warnUnbatched warns once for each upstream and reason that its calls ask the cluster themselves despite batch: true.
func (g *Gateway) warnUnbatched(c *call, why string) {
	if _, said := g.unbatched.LoadOrStore([2]string{c.upstream.name, why}, true); !said {
		g.logger.Warn("calls are not taken out of batches: each asks the cluster", "upstream", c.upstream.name, "why", why)
	}
}
