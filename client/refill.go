package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/quotad/quotad/client/pacing"
	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	// allowTimeout bounds an Allow that has to ask the cluster.
	allowTimeout = time.Second
	// refusalMemory bounds how long a refusal also answers the next takes.
	refusalMemory = pacing.RefusalMemory
	// singleTTL is the ttl of a lease that is consumed at once and then no longer needed.
	singleTTL = 10 * time.Second
)

// quotaFacts is a limiter's knowledge of its quotas.
type quotaFacts struct {
	// at is when they were read; 0: never.
	at int64
	// unit is the limiter's unit, with default estimates filled in.
	unit []Item
	// share is the most units that this holder may consume ahead, the least of all quotas (pacing.Quota).
	share int64
	// life is a batch's time from Consume to its last take, as last observed.
	life time.Duration
	// perSecond is how many units per second the whole fleet may use, burst the most of one take.
	perSecond float64
	burst     int64
	// members are the quotas of pool members.
	members []Item
}

// learnFacts ensures that the facts for sizing a batch are known. It refreshes old ones in the background.
func (l *Limiter) learnFacts(ctx context.Context) error {
	l.mu.Lock()
	at, now := l.known.at, l.now()
	l.mu.Unlock()
	if at == 0 {
		select {
		case l.learning <- struct{}{}:
			defer func() { <-l.learning }()
		case <-ctx.Done():
			return &NotAcceptedError{Err: context.Cause(ctx)}
		}
		return l.readFacts(ctx)
	}
	if now-at < int64(pacing.FactsAge) {
		return nil
	}
	select {
	case l.learning <- struct{}{}:
	default:
		return nil
	}
	refresh, done, err := l.client.begin(context.Background(), 0)
	if err != nil {
		<-l.learning
		return err
	}
	l.client.tasks.Go(func() {
		defer done()
		defer func() { <-l.learning }()
		if err := l.readFacts(refresh); err != nil {
			l.client.logger.Debug("could not read the quotas of a limiter: it uses older data", "error", err)
		}
	})
	return nil
}

// readFacts reads the quotas, unless another goroutine just did. It fails for a quota that does not exist or is of kind slots.
func (l *Limiter) readFacts(ctx context.Context) error {
	l.mu.Lock()
	fresh := l.known.at != 0 && l.now()-l.known.at < int64(pacing.FactsAge)
	l.mu.Unlock()
	if fresh {
		return nil
	}
	unit := append([]Item(nil), l.unit...)
	share, perSecond, burst := int64(mostUnits), math.Inf(1), int64(mostUnits)
	var members []Item
	for i := range unit {
		quotas, err := l.spendable(ctx, unit[i].Quota)
		if err != nil {
			l.recordUnusable(err)
			return err
		}
		for _, quota := range quotas {
			if unit[i].Amount == 0 {
				unit[i].Amount = quota.DefaultEstimate
			}
			if quota.Name != unit[i].Quota {
				members = append(members, Item{Quota: quota.Name})
			}
		}
		facts := l.factsOf(quotas, unit[i].Amount)
		share, perSecond, burst = min(share, facts.share), min(perSecond, facts.perSecond), min(burst, facts.burst)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client.cooldowns.unregister(l, l.known.members)
	l.client.cooldowns.register(l, members)
	l.known.members = members
	l.known.at, l.known.unit, l.known.share = max(l.now(), 1), unit, share
	l.known.perSecond, l.known.burst = perSecond, burst
	l.unusable, l.warned = nil, false
	return nil
}

// spendable returns the quota of that name, or for a pool the quotas of its members.
func (l *Limiter) spendable(ctx context.Context, name string) ([]Quota, error) {
	quota, err := l.client.Quota(ctx, name)
	if err != nil {
		return nil, err
	}
	quotas := []Quota{quota}
	if quota.Kind == KindPool {
		quotas = quotas[:0]
	}
	for _, member := range quota.Members {
		its, err := l.client.Quota(ctx, member.Quota)
		if err != nil {
			return nil, err
		}
		quotas = append(quotas, its)
	}
	for _, its := range quotas {
		if its.Kind == KindSlots {
			return nil, fmt.Errorf("%w: %s", ErrSlots, name)
		}
	}
	return quotas, nil
}

// factsOf returns the facts of a quota, or of a pool's members together: a batch comes from any one of them.
func (l *Limiter) factsOf(quotas []Quota, amount int64) quotaFacts {
	facts := quotaFacts{share: mostUnits}
	for _, quota := range quotas {
		facts.share = min(facts.share, l.share(quota, amount))
		facts.burst = max(facts.burst, quota.Usable/amount)
		if quota.Period > 0 {
			facts.perSecond += float64(quota.Usable) / float64(amount) / quota.Period.Seconds()
		}
	}
	if facts.perSecond == 0 && (len(quotas) == 0 || quotas[0].Period == 0) {
		facts.perSecond = math.Inf(1)
	}
	facts.burst = min(facts.burst, mostUnits)
	return facts
}

// recordUnusable records why no take can succeed, and logs it once.
func (l *Limiter) recordUnusable(err error) {
	if !errors.Is(err, ReasonUnknownQuota) && !errors.Is(err, ErrSlots) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unusable = err
	l.refusedUntil, l.refusal, l.refusedUnits = l.now()+int64(refusalMemory), err, 0
	if !l.warned {
		l.warned = true
		l.client.logger.Warn("a limiter cannot get any units", "error", err)
	}
}

// share returns the most units of a quota that this holder may consume ahead.
func (l *Limiter) share(quota Quota, amount int64) int64 {
	holders := l.settings.holders
	if holders == 0 {
		holders = quota.Leases
	}
	return pacing.Quota{
		Usable: quota.Usable, DefaultEstimate: quota.DefaultEstimate, Holders: holders, Zone: quotav1.Zone(quota.Zone),
	}.Share(amount)
}

// sizeLocked returns the size of the next batch for a take of n units; 0: no batch, since it would not last for two such takes.
func (l *Limiter) sizeLocked(n int64) int64 {
	if l.known.at == 0 {
		return 0
	}
	atHand := int64(0)
	if l.current != nil {
		atHand = l.left()
	}
	return pacing.Batch(l.demand.Units(l.elapsed(), l.known.life), l.known.share, atHand, l.settings.maxBatch, n)
}

// anticipateIfLowLocked fetches the next batch at the same mark as a take without the lock.
func (l *Limiter) anticipateIfLowLocked() {
	if l.left() <= l.low.Load() {
		l.anticipateLocked()
	}
}

// anticipateLocked fetches the next batch when most of the current one is spent.
func (l *Limiter) anticipateLocked() {
	b := l.current
	if b == nil || b.anticipated {
		return
	}
	b.anticipated = true
	l.low.Store(0)
	now := l.now()
	spent := b.size - l.left()
	l.demand.Add(time.Duration(now), spent-b.accounted, l.known.life)
	b.accounted = spent
	l.fetchLocked(l.sizeLocked(1))
}

// fetchLocked starts to fetch a batch, unless one is in flight or already there, the limiter is closed, or a refusal is recent.
func (l *Limiter) fetchLocked(size int64) {
	now := l.now()
	if size <= 0 || l.fetching != nil || l.next != nil || l.closed || l.refusedLocked(size, now) {
		return
	}
	ctx, done, err := l.client.begin(context.Background(), 0)
	if err != nil {
		return
	}
	fetching := make(chan struct{})
	l.fetching = fetching
	l.client.tasks.Go(func() {
		defer done()
		err := l.fetch(ctx, size)
		l.mu.Lock()
		l.fetching = nil
		l.mu.Unlock()
		close(fetching)
		if err != nil && !errors.As(err, new(*RefusalError)) {
			l.client.logger.Debug("no batch", "error", err)
		}
	})
}

// fetch consumes a batch ahead.
func (l *Limiter) fetch(ctx context.Context, size int64) error {
	if err := l.learnFacts(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	ttl := pacing.LeaseOf(l.known.life)
	l.mu.Unlock()
	op, err := l.consume(ctx, size, 0, ttl)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.adoptLocked(op, size)
	l.mu.Unlock()
	l.client.hooks.batch(l.unit, size)
	return nil
}

// consume reserves and consumes units in one commit.
func (l *Limiter) consume(ctx context.Context, units int64, wait, ttl time.Duration) (*Operation, error) {
	l.mu.Lock()
	items := append([]Item(nil), l.known.unit...)
	l.mu.Unlock()
	for i := range items {
		if units > maxAmount/items[i].Amount {
			return nil, &RefusalError{Reason: ReasonNeverFits, Quota: items[i].Quota, RetryAfter: -1, Advice: "request fewer units at a time"}
		}
		items[i].Amount *= units
	}
	sent := time.Now()
	lease, err := l.client.Reserve(ctx, ReserveRequest{
		Items: items, Consume: true, Class: l.settings.class, Wait: wait, TTL: min(ttl, 24*time.Hour),
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.triedAt = l.now()
	defer l.stateLocked()
	if err != nil {
		l.rememberLocked(ctx, err, units)
		return nil, err
	}
	op := lease.Operation()
	if op == nil {
		return nil, &UnknownOutcomeError{Err: errors.New("the lease lacks the requested operation")}
	}
	l.refusedUntil, l.refusal = 0, nil
	if wait == 0 {
		l.known.life = pacing.Life(0, op.LastTake().Sub(sent))
	}
	return op, nil
}

// maxAmount is the largest amount that the cluster accepts.
const maxAmount = 1<<53 - 1

// rememberLocked records a failure for a moment, so that a caller in a loop does not ask the cluster in each iteration. If only this
// caller's context ended, it records nothing: that is no answer to other callers.
func (l *Limiter) rememberLocked(ctx context.Context, err error, units int64) {
	memory := refusalMemory
	if refusal, ok := errors.AsType[*RefusalError](err); ok {
		l.stats.Refused++
		if refusal.RetryAfter >= 0 {
			memory = min(memory, refusal.RetryAfter)
		}
	} else {
		l.stats.Failed++
		if ctx.Err() != nil && !errors.Is(err, ErrClusterAway) {
			return
		}
		units = 0
	}
	l.refusedUntil, l.refusal, l.refusedUnits = l.now()+int64(memory), err, units
}

// refusedLocked reports whether as many units or fewer were refused a moment ago.
func (l *Limiter) refusedLocked(units, now int64) bool {
	return now < l.refusedUntil && units >= l.refusedUnits
}

// allowSlow serves an Allow that found too few units at hand.
func (l *Limiter) allowSlow(n int64) *Taken {
	l.mu.Lock()
	now := l.now()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	if l.refusedLocked(n, now) {
		defer l.mu.Unlock()
		return l.passUncountedLocked(l.refusal, n)
	}
	l.mu.Unlock()
	if l.client.cooldowns.left(l.unit) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), allowTimeout, ErrClusterAway)
	defer cancel()
	taken, err := l.obtain(ctx, n, 0)
	if err == nil {
		return taken
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passUncountedLocked(err, n)
}

// passUncountedLocked lets a take pass that got no answer, if the limiter fails open; nil: it does not pass.
func (l *Limiter) passUncountedLocked(err error, n int64) *Taken {
	if !l.settings.failOpen || closedError(err) || !errors.Is(err, ErrClusterAway) {
		return nil
	}
	l.stats.Uncounted += uint64(n)
	return l.uncounted()
}

// waitSlow serves a Wait that found too few units at hand.
func (l *Limiter) waitSlow(ctx context.Context, n int64) (*Taken, error) {
	for {
		wait := MaxWait
		end, bounded := ctx.Deadline()
		if bounded {
			// The answer has to arrive before the caller's deadline.
			wait = min(wait, max(time.Until(end)*9/10, 0))
		}
		taken, err := l.obtain(ctx, n, wait)
		if err == nil {
			return taken, nil
		}
		refusal, ok := errors.AsType[*RefusalError](err)
		if !ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			if taken := l.passUncountedLocked(err, n); taken != nil {
				return taken, nil
			}
			return nil, err
		}
		if bounded || refusal.RetryAfter < 0 || (refusal.Reason != ReasonCannotServeInTime && refusal.Reason != ReasonWaitExpired) {
			return nil, err
		}
		// The wait is longer than one Reserve can wait: ask again, until the caller's context ends.
		pause := time.NewTimer(max(min(refusal.RetryAfter, MaxWait)-MaxWait/2, refusalMemory))
		select {
		case <-pause.C:
		case <-l.over:
			pause.Stop()
			return nil, &NotAcceptedError{Err: ErrClosed}
		case <-ctx.Done():
			pause.Stop()
			return nil, err
		}
	}
}

// obtain gets n units from the cluster, out of a batch shared with other callers, or alone.
func (l *Limiter) obtain(ctx context.Context, n int64, wait time.Duration) (*Taken, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, &NotAcceptedError{Err: ErrClosed}
	}
	l.mu.Unlock()
	if err := l.learnFacts(ctx); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.triedAt = l.now()
		l.rememberLocked(ctx, err, 0)
		return nil, err
	}
	l.mu.Lock()
	if n <= l.known.share {
		// A take above the share never uses a batch, so it is no demand for one.
		l.demand.Add(l.elapsed(), n, l.known.life)
	}
	l.mu.Unlock()
	if taken := l.obtainShared(ctx, n); taken != nil {
		return taken, nil
	}
	for asked := 1; ; asked++ {
		op, err := l.consume(ctx, n, wait, singleTTL)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		l.stats.Consumed += uint64(n)
		l.stats.Single++
		if op.Left() > 0 {
			l.stats.Spent += uint64(n)
			l.mu.Unlock()
			if l.settings.keep {
				op.lease.KeepAlive()
			}
			return &Taken{limiter: l, single: op, lease: op.lease, units: n, ok: true}, nil
		}
		// The answer was so slow that its units can no longer be spent.
		l.settleLocked(&batch{op: op, size: n}, n)
		if asked == maxAsked {
			l.rememberLocked(ctx, ErrLate, 0)
			l.mu.Unlock()
			return nil, ErrLate
		}
		l.mu.Unlock()
		if ctx.Err() != nil {
			return nil, &NotAcceptedError{Err: context.Cause(ctx)}
		}
	}
}

// obtainShared takes units out of a batch that is fetched now or in flight; nil: it has too few.
func (l *Limiter) obtainShared(ctx context.Context, n int64) *Taken {
	l.mu.Lock()
	if l.takeCountedLocked(n) {
		defer l.mu.Unlock()
		return l.takenLocked(n)
	}
	if l.fetching == nil {
		l.fetchLocked(l.sizeLocked(n))
	}
	fetching := l.fetching
	l.mu.Unlock()
	if fetching == nil {
		return nil
	}
	select {
	case <-fetching:
	case <-ctx.Done():
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.takeCountedLocked(n) {
		return nil
	}
	return l.takenLocked(n)
}

// takeCountedLocked is takeLocked for units already recorded as demand.
func (l *Limiter) takeCountedLocked(n int64) bool {
	if !l.takeLocked(n, l.now()) {
		return false
	}
	l.current.accounted += n
	l.anticipateIfLowLocked()
	return true
}
