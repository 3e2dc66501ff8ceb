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

// State is what a limiter has in its hands.
type State int

// The states.
const (
	// NoLease: it has not had a batch yet. It ends with the first take for which one is worth it.
	NoLease State = 1
	// Live: it has a batch. It ends at the last take of that batch at the latest, which is the spend-by less transit.
	Live State = 2
	// Expired: its last batch is over or spent, and none was needed since.
	Expired State = 3
	// ClusterAway: the cluster did not take its last request. It ends with the first answer; the client asks at least
	// every 250 ms while anybody waits.
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
	// keep: a lease lives until all that was taken of it is done.
	keep bool
}

// LimiterClass lowers the class of a limiter's takes; the default is the client's.
func LimiterClass(class Class) LimiterOption { return func(s *limiterSettings) { s.class = class } }

// FailOpen lets takes pass uncounted while the cluster is away. The default is to fail closed: only what was consumed
// before may be spent. Uncounted takes can break the provider's limit; Stats counts them.
func FailOpen() LimiterOption { return func(s *limiterSettings) { s.failOpen = true } }

// Holders says how many holders spend the quota at the same time. A batch is at most usable / (2 x holders). The
// default is what the cluster sees: its live leases of the quota.
func Holders(n int) LimiterOption {
	return func(s *limiterSettings) { s.holders = int64(max(n, 1)) }
}

// MaxBatch bounds a batch, in units; 1: every take asks the cluster. The default is no bound besides those of demand,
// spend-by and share.
func MaxBatch(units int64) LimiterOption {
	return func(s *limiterSettings) { s.maxBatch = min(max(units, 1), mostUnits) }
}

// KeepLeases keeps a lease alive until Done was called for every Taken that came out of it, also when its batch is over: what
// the provider answers can be reported on it (Taken.Lease). Every Taken then needs a Done or a Cancel.
func KeepLeases() LimiterOption { return func(s *limiterSettings) { s.keep = true } }

// Limiter paces calls by a quota that a whole fleet shares. It spends a batch that it has consumed ahead where demand
// makes one worth it, at the cost of an atomic addition; without one, each take asks the cluster. It is safe for
// concurrent use. Make one per quota, not one per call.
//
// It has the forms of golang.org/x/time/rate without a time of the caller's (AllowN at t, TokensAt): when a take counts, the cluster's
// clock decides. Nor does it have SetLimit: the limit is the quota's, for all holders.
//
// A take that succeeds is a permission to call the provider now: the call should be on its way within the quota's
// transit time. After a sleep of the machine, takes of the first 10 ms may still come from a batch from before.
type Limiter struct {
	store
	client   *Client
	settings limiterSettings
	unit     []Item

	mu      sync.Mutex
	current *batch
	next    *batch
	// fetching is closed when the batch that is being fetched is there or was refused; nil: none is.
	fetching   chan struct{}
	generation uint64
	closed     bool
	// over is closed when the limiter is.
	over   chan struct{}
	demand pacing.Demand
	known  quotaFacts
	// learning is held by whoever reads what is known.
	learning chan struct{}
	// lastWall and lastMono are the clocks at the last look.
	lastWall time.Time
	lastMono int64
	// refusedUntil, refusal and refusedUnits are the last no, which is remembered for a moment for as many units or more.
	refusedUntil int64
	refusal      error
	refusedUnits int64
	triedAt      int64
	// unusable is why no take can succeed, warned says that it was logged.
	unusable error
	warned   bool
	hadBatch bool
	stats    LimiterStats
}

// Limiter returns a limiter of one quota; a unit is one of the quota's own.
func (c *Client) Limiter(quota string, options ...LimiterOption) *Limiter {
	return c.LimiterOf([]Item{{Quota: quota, Amount: 1}}, options...)
}

// LimiterOf returns a limiter of several quotas together: each unit takes all the items' amounts, or none. An amount of
// 0 is the quota's default estimate.
func (c *Client) LimiterOf(unit []Item, options ...LimiterOption) *Limiter {
	l := &Limiter{client: c, unit: append([]Item(nil), unit...), learning: make(chan struct{}, 1), over: make(chan struct{}), settings: limiterSettings{class: c.class, maxBatch: mostUnits}}
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
	c.closures.register(l, l.unit)
	return l
}

// Allow reports whether one call may be made now. With a batch at hand it takes nanoseconds; without one it asks the
// cluster and waits for its answer, one second at most. While the quota was just refused or the cluster is away, it
// says no at once. Where no take can succeed, Err says why.
func (l *Limiter) Allow() bool { return l.take(1) || l.allowSlow(1) != nil }

// AllowN is Allow for n units. 0 units are always allowed, fewer never.
func (l *Limiter) AllowN(n int) bool {
	if n <= 0 {
		return n == 0
	}
	return l.take(int64(n)) || l.allowSlow(int64(n)) != nil
}

// AllowTake is AllowN for a call that has to know what was taken. It is nil where AllowN is false.
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

// Wait waits until one call may be made: in the cluster's queue, by class and turn. It returns nil then, a
// *RefusalError where waiting does not help or ctx ends too early for it, ErrLate where units arrive too late to be spent,
// and an error that is ErrClusterAway where the cluster did not answer in time. With a context without a deadline it waits as long as it takes, but not for a cluster
// that is away for longer than the call timeout.
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN is Wait for n units. For 0 units it returns at once; fewer are an error.
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

// WaitTake is WaitN for a call that has to know what was taken: of pools, Member names the key, the deployment or the region to use.
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

// takeAtHand takes units of the batch at hand, or of the next one; nil: there are not as many.
func (l *Limiter) takeAtHand(n int64) *Taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.lookLocked(now)
	if !l.takeLocked(n, now) {
		return nil
	}
	l.anticipateIfLowLocked()
	return l.takenLocked(n)
}

// takenLocked says that units of the batch at hand were taken.
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

// uncounted is a take that draws on nothing.
func (l *Limiter) uncounted() *Taken { return &Taken{limiter: l, until: math.MaxInt64, ok: true} }

// Taken is what TryTake, AllowTake and WaitTake return.
type Taken struct {
	limiter    *Limiter
	generation uint64
	// single is the operation of a take without a batch; nil: it came out of a batch.
	single *Operation
	// until is the last take of the batch, in nanoseconds since the limiter's base.
	until int64
	// lease is what the units draw on; nil: nothing counts them.
	lease *Lease
	// kept is the batch whose lease is kept for the call; nil: none is.
	kept     *batch
	units    int64
	ok       bool
	delay    time.Duration
	err      error
	canceled atomic.Bool
	done     atomic.Bool
}

// OK reports whether the units were taken: the call may be made now. Otherwise nothing was taken.
func (t *Taken) OK() bool { return t.ok }

// Left returns what is left until the call must be made at the latest, 0 if that has passed or nothing was taken. It is the longest
// duration where nothing counts the call: 0 units, or one that FailOpen let pass.
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

// Delay returns 0 if OK, and otherwise when it is worth trying again; where it never is, the longest duration.
func (t *Taken) Delay() time.Duration { return t.delay }

// Err returns why it is never worth trying again, such as a quota that does not exist; nil: it may be.
func (t *Taken) Err() error { return t.err }

// Member returns the name of the member on which the units draw where the limiter's quotas are pools, such as the key to use; empty: none
// is.
func (t *Taken) Member() string {
	if t.lease == nil {
		return ""
	}
	return t.lease.Member()
}

// FromBatch reports whether the units came out of a batch: then the cluster was not asked for this call alone.
func (t *Taken) FromBatch() bool { return t.ok && t.lease != nil && t.single == nil }

// Lease returns the lease that the units draw on, and with it the operation to report on; nil: nothing counts them. It belongs to the
// limiter, which ends it: see KeepLeases.
func (t *Taken) Lease() *Lease { return t.lease }

// Heard returns when the cluster was last heard of about the lease of the units; the zero time: nothing counts them.
func (t *Taken) Heard() time.Time {
	if t.lease == nil {
		return time.Time{}
	}
	t.lease.mu.Lock()
	defer t.lease.mu.Unlock()
	return t.lease.renewed
}

// Done says that nothing more will be reported on the lease of the units.
func (t *Taken) Done() {
	if !t.limiter.settings.keep || t.lease == nil || !t.done.CompareAndSwap(false, true) {
		return
	}
	if t.kept != nil {
		t.limiter.letGo(t.kept)
		return
	}
	t.limiter.client.keeper.forget(t.lease) // of a take without a batch: it ends by itself
}

// Forecast returns what was predicted of the limiter's quotas when the batch that the units came out of was leased; nil: nothing.
func (t *Taken) Forecast() *Forecast {
	if t.lease == nil {
		return nil
	}
	return t.lease.Forecast()
}

// Cancel gives the units back, for a call that certainly was not made. It should come early: what comes back after the
// batch's last take is forfeited. It is a Done as well.
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

// TryTake takes one unit from the batch at hand. It never waits and never asks the cluster itself, but where there is
// nothing at hand, it sees to it that there will be. It is not the Reserve of golang.org/x/time/rate, which takes from the future:
// only the cluster's queue does that, and Wait stands in it.
func (l *Limiter) TryTake() *Taken { return l.TryTakeN(1) }

// TryTakeN is TryTake for n units. 0 units are OK; fewer, and more than a batch may have (MaxBatch), never.
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
	delay := l.client.closures.left(l.unit)
	return &Taken{limiter: l, delay: max(delay, time.Duration(l.refusedUntil-now), shortestBackoff)}
}

// Err returns why no take can succeed: a quota that does not exist, or is of kind slots; nil: there is no such reason, as far as the
// cluster has been asked.
func (l *Limiter) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unusable
}

// Tokens returns how many units are at hand, without asking the cluster. Waiting calls may get more.
func (l *Limiter) Tokens() float64 { return float64(max(l.Stats().Left, 0)) }

// Limit returns how many units a second the whole fleet may use, the least of all quotas; +Inf: none of them counts over time, or
// the cluster was not asked so far.
func (l *Limiter) Limit() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known.at == 0 {
		return math.Inf(1)
	}
	return l.known.perSecond
}

// Burst returns the most units that one take can have, 0 where the cluster was not asked so far.
func (l *Limiter) Burst() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.known.burst)
}

// Close gives back what is not spent. Later takes fail with ErrClosed.
func (l *Limiter) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.client.closeTimeout)
	defer cancel()
	l.shut(ctx)
	l.client.mu.Lock()
	delete(l.client.limiters, l)
	l.client.mu.Unlock()
	l.client.closures.unregister(l, l.unit)
	l.mu.Lock()
	members := l.known.members
	l.mu.Unlock()
	l.client.closures.unregister(l, members)
}

func (l *Limiter) endLocked() {
	if !l.closed {
		l.closed = true
		close(l.over)
	}
}

// shut ends the limiter and waits for a batch that is being fetched, so that it goes back as well.
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
	l.giveBack()
}

// LimiterStats are a limiter's counters since it was made, in units where nothing else is said.
type LimiterStats struct {
	// State is the present state, Entered how often each state was entered (by State).
	State   State
	Entered [5]uint64
	// Batches is how many batches were had, Consumed how much was in them and in single takes, Single how many takes had
	// no batch.
	Batches, Consumed, Single uint64
	// Spent is what was taken. It does not count what is being spent from the batch at hand.
	Spent uint64
	// Returned is what went back unspent, Forfeited what was neither spent nor went back in time.
	Returned, Forfeited uint64
	// Refused is how many takes were refused, Failed how many found no answer.
	Refused, Failed uint64
	// Uncounted is what FailOpen let pass.
	Uncounted uint64
	// Left is what is left of the batch at hand, and in the next one if that is there already.
	Left int64
}

// State returns what the limiter has in its hands.
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
