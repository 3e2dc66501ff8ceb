package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/pacing"
)

// State is the state of a limiter's batch.
type State int

// The states.
const (
	// NoLease: it has not had a batch yet, until the first take that makes a batch worthwhile.
	NoLease State = 1
	// Live: it has a batch, until the batch's last take at the latest: the spend-by less the transit.
	Live State = 2
	// Expired: its last batch has ended or is spent, and it has needed none since.
	Expired State = 3
	// ClusterAway: the cluster did not accept its last request, until the first answer. The client asks at least every 250 ms while a
	// call waits.
	ClusterAway State = 4
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case NoLease:
		return "no-lease"
	case Live:
		return "live"
	case Expired:
		return "expired"
	case ClusterAway:
		return "cluster-away"
	}
	return "unknown"
}

// LimiterOption changes how a Limiter works.
type LimiterOption func(*limiterSettings)

type limiterSettings struct {
	class    Class
	failOpen bool
	holders  int64
	maxBatch int64
	// keep: a lease lives until Done or Cancel was called for all its takes.
	keep bool
}

// LimiterClass lowers the class of a limiter's takes; the default is the client's.
func LimiterClass(class Class) LimiterOption { return func(s *limiterSettings) { s.class = class } }

// FailOpen lets takes pass uncounted while the cluster is away. The default is to fail closed: only amounts consumed before may be
// spent. Uncounted takes can break the provider's limit; Stats counts them.
func FailOpen() LimiterOption { return func(s *limiterSettings) { s.failOpen = true } }

// Holders sets how many holders spend the quota at the same time. A batch is at most usable / (2 x holders). The default is the number
// of live leases of the quota in the cluster.
func Holders(n int) LimiterOption {
	return func(s *limiterSettings) { s.holders = int64(max(n, 1)) }
}

// MaxBatch bounds a batch, in units; with 1, every take asks the cluster. By default only demand, spend-by and share bound it.
func MaxBatch(units int64) LimiterOption {
	return func(s *limiterSettings) { s.maxBatch = min(max(units, 1), mostUnits) }
}

// KeepLeases keeps a lease alive until Done was called for every Taken of it, even after its batch has ended. So answers of the
// provider can be reported on it (Taken.Lease). Every Taken then needs a Done or a Cancel.
func KeepLeases() LimiterOption { return func(s *limiterSettings) { s.keep = true } }

// Limiter paces calls by a quota that a whole fleet shares. If demand makes it worthwhile, it consumes a batch ahead and spends it, at
// the cost of an atomic addition per take; otherwise each take asks the cluster. It is safe for concurrent use. Make one per quota, not
// one per call.
//
// It has the methods of golang.org/x/time/rate except those with a time (AllowN at t, TokensAt): the cluster's clock decides when a
// take counts. Nor does it have SetLimit: the limit is the quota's, for all holders.
//
// A successful take permits calling the provider now: start the call within the quota's transit time. After the machine slept, takes
// may use a batch from before for up to 10 ms.
type Limiter struct {
	store
	client   *Client
	settings limiterSettings
	unit     []Item

	mu      sync.Mutex
	current *batch
	next    *batch
	// fetching is closed when the batch being fetched has arrived or was refused; nil: no fetch is in flight.
	fetching   chan struct{}
	generation uint64
	closed     bool
	// over is closed when the limiter is closed.
	over   chan struct{}
	demand pacing.Demand
	known  quotaFacts
	// learning is held by the goroutine that reads the quotas.
	learning chan struct{}
	// lastWall and lastMono are the clocks at the last check.
	lastWall time.Time
	lastMono int64
	// refusedUntil, refusal and refusedUnits are the last refusal, which also answers takes of as many units or more for a moment.
	refusedUntil int64
	refusal      error
	refusedUnits int64
	triedAt      int64
	// unusable is why no take can succeed; warned: it was logged.
	unusable error
	warned   bool
	hadBatch bool
	stats    LimiterStats
}

// Limiter returns a limiter of one quota; a unit of the limiter is one unit of the quota.
func (c *Client) Limiter(quota string, options ...LimiterOption) *Limiter {
	return c.LimiterOf([]Item{{Quota: quota, Amount: 1}}, options...)
}

// LimiterOf returns a limiter of several quotas together: each unit takes the amounts of all items, or none. An amount of 0 is the
// quota's default estimate.
func (c *Client) LimiterOf(unit []Item, options ...LimiterOption) *Limiter {
	l := &Limiter{
		client: c, unit: append([]Item(nil), unit...), learning: make(chan struct{}, 1), over: make(chan struct{}),
		settings: limiterSettings{class: c.class, maxBatch: mostUnits},
	}
	for _, option := range options {
		option(&l.settings)
	}
	l.base = time.Now()
	l.lastWall = c.wall()
	c.mu.Lock()
	if c.closed {
		l.endLocked()
	} else {
		c.limiters[l] = struct{}{}
	}
	c.mu.Unlock()
	c.cooldowns.register(l, l.unit)
	return l
}

// Allow reports whether one call may be made now. With a batch at hand it takes nanoseconds. Without one it asks the cluster and waits
// for the answer, at most one second. Shortly after a refusal, or while the cluster is away, it returns false at once. If no take can
// succeed, Err returns why.
func (l *Limiter) Allow() bool { return l.take(1) || l.allowSlow(1) != nil }

// AllowN is Allow for n units. It is true for 0 units and false for fewer.
func (l *Limiter) AllowN(n int) bool {
	if n <= 0 {
		return n == 0
	}
	return l.take(int64(n)) || l.allowSlow(int64(n)) != nil
}

// AllowTake is AllowN for a caller that needs the Taken. It returns nil if AllowN returns false.
func (l *Limiter) AllowTake(n int) *Taken {
	switch {
	case n < 0:
		return nil
	case n == 0:
		return l.uncounted()
	}
	if taken := l.takeAtHand(int64(n)); taken != nil {
		return taken
	}
	return l.allowSlow(int64(n))
}

// Wait waits in the cluster's queue until one call may be made, and then returns nil. The error is a *RefusalError if waiting does not
// help or ctx ends too early, and ErrLate if units arrive too late to be spent. It is ErrClusterAway to errors.Is if the cluster did
// not answer in time. Without a deadline in ctx it waits without bound, but not for a cluster that is away for longer than the call
// timeout.
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN is Wait for n units. For 0 units it returns at once; a negative n is an error.
func (l *Limiter) WaitN(ctx context.Context, n int) error {
	if n < 0 {
		return &RequestError{Reason: ReasonInvalid, Message: fmt.Sprintf("%d units were requested", n)}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if n == 0 || l.take(int64(n)) {
		return nil
	}
	_, err := l.waitSlow(ctx, int64(n))
	return err
}

// WaitTake is WaitN for a caller that needs the Taken. With pools, Member names the key, the deployment or the region to use.
func (l *Limiter) WaitTake(ctx context.Context, n int) (*Taken, error) {
	if n < 0 {
		return nil, &RequestError{Reason: ReasonInvalid, Message: fmt.Sprintf("%d units were requested", n)}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if n == 0 {
		return l.uncounted(), nil
	}
	if taken := l.takeAtHand(int64(n)); taken != nil {
		return taken, nil
	}
	return l.waitSlow(ctx, int64(n))
}

// TakeAtHand takes n units, at least 1, that the limiter has consumed ahead. nil: it has not so many; the cluster was not asked, and
// WaitTake asks it.
func (l *Limiter) TakeAtHand(n int) *Taken {
	if n < 1 {
		return nil
	}
	return l.takeAtHand(int64(n))
}

// takeAtHand takes units of the current batch, or of the next one; nil: neither has enough.
func (l *Limiter) takeAtHand(n int64) *Taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.checkLocked(now)
	if !l.takeLocked(n, now) {
		return nil
	}
	l.anticipateIfLowLocked()
	return l.takenLocked(n)
}

// takenLocked returns the Taken of n units of the current batch.
func (l *Limiter) takenLocked(n int64) *Taken {
	taken := &Taken{
		limiter: l, generation: l.current.generation, until: l.current.until, units: n, ok: true, lease: l.current.op.lease,
	}
	if l.settings.keep {
		taken.kept = l.current
		l.current.keepLocked(l)
	}
	return taken
}

// uncounted returns a take that draws on no quota.
func (l *Limiter) uncounted() *Taken { return &Taken{limiter: l, until: math.MaxInt64, ok: true} }

// Taken is the result of TryTake, AllowTake and WaitTake.
type Taken struct {
	limiter    *Limiter
	generation uint64
	// single is the operation of a take without a batch; nil: the units are from a batch.
	single *Operation
	// until is the batch's last take, in nanoseconds since the limiter's base.
	until int64
	// lease is the lease that the units draw on; nil: they are not counted.
	lease *Lease
	// kept is the batch whose lease is kept alive for the call; nil: none.
	kept     *batch
	units    int64
	ok       bool
	delay    time.Duration
	err      error
	canceled atomic.Bool
	done     atomic.Bool
}

// OK reports whether the units were taken: the call may be made now. If not, nothing was taken.
func (t *Taken) OK() bool { return t.ok }

// Left returns the time until the latest start of the call; 0 if that has passed or nothing was taken. It is the maximum duration for
// calls that are not counted: 0 units, or a call that FailOpen let pass.
func (t *Taken) Left() time.Duration {
	switch {
	case !t.ok:
		return 0
	case t.single != nil:
		return t.single.Left()
	case t.until == math.MaxInt64:
		return math.MaxInt64
	}
	return time.Duration(max(t.until-t.limiter.now(), 0))
}

// Delay returns 0 if OK, and otherwise the time after which to try again; the maximum duration: never.
func (t *Taken) Delay() time.Duration { return t.delay }

// Err returns why trying again is useless, such as an unknown quota; nil: it may help.
func (t *Taken) Err() error { return t.err }

// Member returns the name of the pool member that the units draw on, such as the key to use; empty: the limiter has no pool.
func (t *Taken) Member() string {
	if t.lease == nil {
		return ""
	}
	return t.lease.Member()
}

// FromBatch reports whether the units are from a batch: then the cluster was not asked for this call alone.
func (t *Taken) FromBatch() bool { return t.ok && t.lease != nil && t.single == nil }

// Lease returns the lease that the units draw on, and with it the operation to report on; nil: they are not counted. The lease belongs
// to the limiter, which ends it: see KeepLeases.
func (t *Taken) Lease() *Lease { return t.lease }

// ConfirmedAt returns when the cluster last confirmed the lease of the units; the zero time: they are not counted.
func (t *Taken) ConfirmedAt() time.Time {
	if t.lease == nil {
		return time.Time{}
	}
	t.lease.mu.Lock()
	defer t.lease.mu.Unlock()
	return t.lease.renewed
}

// Done declares that no more reports on the lease of the units will follow.
func (t *Taken) Done() {
	if !t.limiter.settings.keep || t.lease == nil || !t.done.CompareAndSwap(false, true) {
		return
	}
	if t.kept != nil {
		t.limiter.letGo(t.kept)
		return
	}
	t.limiter.client.keeper.forget(t.lease) // a take without a batch: its lease expires
}

// Forecast returns the prediction for the limiter's quotas at the grant of the units' lease; nil: none.
func (t *Taken) Forecast() *Forecast {
	if t.lease == nil {
		return nil
	}
	return t.lease.Forecast()
}

// Cancel returns the units, for a call that certainly was not made. Call it early: units returned after the batch's last take are
// forfeited. Cancel implies Done.
func (t *Taken) Cancel() {
	defer t.Done()
	switch {
	case !t.ok || t.units == 0 || !t.canceled.CompareAndSwap(false, true):
	case t.single != nil:
		t.limiter.settleSingle(t.single, t.units)
	default:
		t.limiter.putBack(t.generation, t.units)
	}
}

// TryTake takes one unit from the batch at hand. It never waits and never asks the cluster itself; if no unit is at hand, it starts to
// fetch a batch. Unlike Reserve of golang.org/x/time/rate it takes nothing from the future: only the cluster's queue does that, which
// Wait uses.
func (l *Limiter) TryTake() *Taken { return l.TryTakeN(1) }

// TryTakeN is TryTake for n units. 0 units are OK; negative numbers, and more than a batch may have (MaxBatch), never.
func (l *Limiter) TryTakeN(n int) *Taken {
	if n == 0 {
		return l.uncounted()
	}
	if most := min(mostUnits, l.settings.maxBatch); n < 0 || int64(n) > most {
		wrong := &RequestError{Reason: ReasonInvalid, Message: fmt.Sprintf("%d units were requested; allowed are 0 to %d", n, most)}
		return &Taken{limiter: l, delay: math.MaxInt64, err: wrong}
	}
	if taken := l.takeAtHand(int64(n)); taken != nil {
		return taken
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.unusable != nil && now < l.refusedUntil {
		return &Taken{limiter: l, delay: math.MaxInt64, err: l.unusable}
	}
	l.demand.Add(time.Duration(now), int64(n), l.known.life)
	l.fetchLocked(max(l.sizeLocked(int64(n)), int64(n)))
	delay := l.client.cooldowns.left(l.unit)
	return &Taken{limiter: l, delay: max(delay, time.Duration(l.refusedUntil-now), shortestBackoff)}
}

// Err returns why no take can succeed: a quota that does not exist, or is of kind slots; nil: the cluster has reported no such reason
// so far.
func (l *Limiter) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unusable
}

// Tokens returns the number of units at hand, without asking the cluster. A Wait may get more.
func (l *Limiter) Tokens() float64 { return float64(max(l.Stats().Left, 0)) }

// Limit returns the units per second that the whole fleet may use, the least of all quotas; +Inf: none of them has a period, or the
// cluster was not asked so far.
func (l *Limiter) Limit() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known.at == 0 {
		return math.Inf(1)
	}
	return l.known.perSecond
}

// Burst returns the most units of one take; 0 if the cluster was not asked so far.
func (l *Limiter) Burst() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.known.burst)
}

// Close returns unspent units. Later takes fail with ErrClosed.
func (l *Limiter) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.client.closeTimeout)
	defer cancel()
	l.shut(ctx)
	l.client.mu.Lock()
	delete(l.client.limiters, l)
	l.client.mu.Unlock()
	l.client.cooldowns.unregister(l, l.unit)
	l.mu.Lock()
	members := l.known.members
	l.mu.Unlock()
	l.client.cooldowns.unregister(l, members)
}

func (l *Limiter) endLocked() {
	if !l.closed {
		l.closed = true
		close(l.over)
	}
}

// shut ends the limiter and waits for a batch that is being fetched, so that it is returned as well.
func (l *Limiter) shut(ctx context.Context) {
	l.mu.Lock()
	l.endLocked()
	fetching := l.fetching
	l.mu.Unlock()
	if fetching != nil {
		select {
		case <-fetching:
		case <-ctx.Done():
		}
	}
	l.releaseBatches()
}

// LimiterStats are a limiter's counters since it was made, in units except where noted.
type LimiterStats struct {
	// State is the present state; Entered counts the entries into each state, indexed by State.
	State   State
	Entered [5]uint64
	// Batches: batches fetched. Consumed: units in them and in single takes. Single: takes without a batch.
	Batches, Consumed, Single uint64
	// Spent: units taken, except those of the current batch so far.
	Spent uint64
	// Returned: units returned unspent. Forfeited: units neither spent nor returned in time.
	Returned, Forfeited uint64
	// Refused: takes refused. Failed: takes that got no answer.
	Refused, Failed uint64
	// Uncounted: units that FailOpen let pass.
	Uncounted uint64
	// Left: units left of the current batch and of a next one that has arrived.
	Left int64
}

// State returns the present state.
func (l *Limiter) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stateLocked()
}

func (l *Limiter) stateLocked() State {
	now := l.now()
	state := NoLease
	switch {
	case l.current != nil && now < l.current.until, l.next != nil && now < l.next.until:
		state = Live
	case l.client.trouble() != nil && l.triedAt > 0:
		state = ClusterAway
	case l.hadBatch:
		state = Expired
	}
	if state != l.stats.State {
		l.stats.State = state
		l.stats.Entered[state]++
	}
	return state
}

// Stats returns the counters.
func (l *Limiter) Stats() LimiterStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stateLocked()
	stats := l.stats
	if l.current != nil {
		stats.Left = l.left()
	}
	if l.next != nil {
		stats.Left += l.next.size
	}
	return stats
}

// closedError reports whether a take failed because the limiter or its client was closed.
func closedError(err error) bool { return errors.Is(err, ErrClosed) }
