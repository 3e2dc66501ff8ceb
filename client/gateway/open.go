package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/config"
)

// failOpen lets calls of an upstream pass while the cluster is away: a number per period, for a limited time.
type failOpen struct {
	mu   sync.Mutex
	conf config.FailOpen
	// since is when the cluster was first found away; zero: it is not away.
	since time.Time
	// passed are the times of the last passed calls, as a ring of conf.Count.
	passed []time.Time
	next   int
	count  int
	// spent is the use of passed calls, to be charged when the cluster is back. outage counts outages.
	spent  map[spentKey]int64
	outage int
}

// spentKey identifies a quota that passed calls of a holder drew on, or, if its name is unknown, a part of a model below a prefix. For
// a pool it is the member of the key that the calls used.
type spentKey struct{ holder, quota, prefix, model, part, key string }

func newFailOpen(conf *config.FailOpen) *failOpen {
	if conf == nil {
		return nil
	}
	return &failOpen{conf: *conf, passed: make([]time.Time, conf.Count), spent: map[spentKey]int64{}}
}

// reconfigure replaces the configuration, also during an outage, which then continues with its start and its spent amounts. nil:
// nothing more passes.
func (f *failOpen) reconfigure(conf *config.FailOpen) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if conf == nil {
		conf = &config.FailOpen{}
	}
	// The newest of the last calls are last in the new ring; missing entries count as long ago.
	last := append(slices.Clone(f.passed[f.next:]), f.passed[:f.next]...)
	passed := make([]time.Time, conf.Count)
	copy(passed[max(0, len(passed)-len(last)):], last[max(0, len(last)-len(passed)):])
	f.conf, f.passed, f.next = *conf, passed, 0
}

// allow reports whether a call may pass now, and whether it is the first of this outage.
func (f *failOpen) allow(now time.Time) (ok, first bool) {
	if f == nil {
		return false, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since.IsZero() {
		f.since = now
	}
	if len(f.passed) == 0 {
		return false, false
	}
	// The oldest of the last Count calls must be a whole period ago: no period sees more.
	if now.Sub(f.since) > f.conf.For || now.Sub(f.passed[f.next]) < f.conf.Per {
		return false, false
	}
	f.passed[f.next] = now
	f.next = (f.next + 1) % len(f.passed)
	f.count++
	return true, f.count == 1
}

// passing reports whether calls have passed in this outage.
func (f *failOpen) passing() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count > 0
}

// maxSpent bounds the records of passed calls.
const maxSpent = 10_000

// spend records the draws of a passed call. It returns the outage, for correct.
func (f *failOpen) spend(spends map[spentKey]int64) (outage int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, amount := range spends {
		if _, known := f.spent[key]; known || len(f.spent) < maxSpent {
			f.spent[key] += amount
		}
	}
	return f.outage
}

// correct replaces the estimate of a passed call's use, unless it was already charged.
func (f *failOpen) correct(outage int, key spentKey, by int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, known := f.spent[key]; known && outage == f.outage {
		if f.spent[key] = max(now+by, 0); f.spent[key] == 0 {
			delete(f.spent, key) // otherwise a unit of it would be charged
		}
	}
}

// back records that the cluster answers, and returns the amounts of the calls that passed meanwhile, and their number.
func (f *failOpen) back() (spent map[spentKey]int64, count int) {
	if f == nil {
		return nil, 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == 0 {
		f.since = time.Time{}
		return nil, 0
	}
	spent, count = f.spent, f.count
	f.since, f.count, f.spent = time.Time{}, 0, map[spentKey]int64{}
	f.outage++
	return spent, count
}

// isAway reports whether an error means that the cluster did not answer; nothing of the call was sent then. A cluster without room
// answers.
func isAway(err error) bool {
	return !errors.As(err, new(*client.RefusalError)) && !errors.As(err, new(*client.RequestError)) && !errors.Is(err, errStopping) &&
		!errors.As(err, new(*PoolError)) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, client.ErrLate) && !hasNoRoom(err)
}

// heard records what an attempt to get a grant shows about the cluster. A client that left, or a grant that was too late, shows
// nothing.
func (g *Gateway) heard(err error, away bool) {
	switch {
	case err == nil:
		g.away.Store(away)
	case away:
		g.foundAway()
	case errors.As(err, new(*client.RefusalError)), errors.As(err, new(*client.RequestError)), hasNoRoom(err):
		g.away.Store(false)
	}
}

// foundAway records that the cluster did not answer a call.
func (g *Gateway) foundAway() {
	g.awayAt.Store(time.Now().UnixNano())
	g.away.Store(true)
}

// listedAt ends outages without a new call: a listing of quotas, requested at the given time, has succeeded. Calls detect a cluster
// that lists quotas but grants nothing, so the listing counts only if no call found the cluster away recently.
func (g *Gateway) listedAt(asked time.Time) {
	if asked.Sub(time.Unix(0, g.awayAt.Load())) < awayAfter {
		return
	}
	g.away.Store(false)
	s := g.state.Load()
	for _, u := range s.upstreams {
		u.clusterBack(g, s)
	}
}

// awaySince reports whether the cluster is away, as far as known, given its last answer about a lease.
func (g *Gateway) awaySince(confirmed time.Time) bool {
	return g.away.Load() && confirmed.UnixNano() <= g.awayAt.Load()
}

// hasNoRoom reports whether the cluster answered that it has no room for the request, for this caller or for all.
func hasNoRoom(err error) bool {
	for _, reason := range []client.Reason{
		client.ReasonCallerBudget, client.ReasonBudgetFull, client.ReasonOverloaded, client.ReasonTooManyInFlight,
		client.ReasonSessionsFull, client.ReasonMemoryFull, client.ReasonDiskFull,
	} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// passOpen lets a call pass without the cluster, if its upstream allows that now.
func (c *call) passOpen() bool {
	ok, first := c.upstream.open.allow(time.Now())
	if !ok {
		return false
	}
	if first {
		bounds := c.upstream.config.FailOpen
		c.gateway.logger.Warn("the cluster is away: calls pass without quotas", "upstream", c.upstream.name, "count", bounds.Count, "per",
			bounds.Per,
			"for", bounds.For)
	}
	if c.key == nil && len(c.keys) > 0 {
		c.key = c.pick() // no grant chooses a member
	}
	c.ungoverned, c.spent = "fail_open", c.spends()
	c.outage = c.upstream.open.spend(c.spent)
	return true
}

// unspend takes back the amounts of a call that passed without the cluster and then reached no provider.
func (c *call) unspend() {
	for key, amount := range c.spent {
		c.upstream.open.correct(c.outage, key, -amount)
	}
}

// clusterBack charges the amounts spent without the cluster: each quota with one unit, and with the rest as an overrun.
func (u *upstream) clusterBack(g *Gateway, s *state) {
	spent, count := u.open.back()
	if count == 0 {
		return
	}
	g.logger.Warn("the cluster is back: calls need quotas again", "upstream", u.name, "passed", count)
	u.charge(g, s, spent)
}

// charge charges in the background what calls of the upstream spent beyond their reservations.
func (u *upstream) charge(g *Gateway, s *state, spent map[spentKey]int64) {
	charging := &call{gateway: g, state: s, route: route{upstream: u}} // not the call itself, which would keep its body in memory
	g.tasks.Go(func() { g.chargeAll(spent, charging.charge) })
}

// charges is how many quotas are charged concurrently: a closed one occupies its place for settleWithin.
const charges = 16

// chargeAll charges spent amounts. A closed or full quota is charged once it opens, unless the gateway stops before.
func (g *Gateway) chargeAll(spent map[spentKey]int64, charge func(context.Context, spentKey, int64) error) {
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, charges)
	for key, amount := range spent {
		running.Go(func() {
			for {
				places <- struct{}{}
				err := charge(g.ctx, key, amount)
				<-places
				if err == nil {
					return
				}
				again, pause := chargeAgain(err)
				if !again || sleep(g.ctx, pause) != nil {
					g.logger.Warn("could not charge amounts that were spent", "quota", cmp.Or(key.quota, key.prefix),
						"part", key.part, "amount", amount, "error", err)
					return
				}
			}
		})
	}
}

// longestPause bounds the pause before a closed quota is tried again: an operator may have opened it.
const longestPause = time.Minute

// chargeAgain reports whether and when charging can be retried: the quota is closed or full, or the cluster is away again.
func chargeAgain(err error) (again bool, pause time.Duration) {
	if no, ok := errors.AsType[*client.RefusalError](err); ok {
		return true, min(max(no.RetryAfter, time.Second), longestPause)
	}
	return isAway(err) || hasNoRoom(err), retrySoon
}

// charge charges a spent amount to a quota. The error is nil if there is no quota to charge.
func (c *call) charge(ctx context.Context, key spentKey, amount int64) error {
	quota, ok := c.chargedTo(key)
	if !ok || amount == 0 {
		return nil
	}
	member := ""
	if c.isPool(quota) {
		member = key.key
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin+awayAfter)
	defer cancel()
	lease, err := c.gateway.client.Reserve(ctx, client.ReserveRequest{
		Items: []client.Item{{Quota: quota, Amount: 1}}, Consume: true, Holder: key.holder, Member: member, Wait: settleWithin,
	})
	if err != nil {
		return err
	}
	item, _ := lease.For(quota)
	item.Amount = amount
	if _, err := lease.Operation().Settle(ctx, client.Settlement{Actual: []client.Item{item}, Release: true}); err != nil {
		// The settlement may have been carried out: a second charge could count the amount twice.
		c.gateway.logger.Warn("could not settle amounts that were spent", "quota", quota, "amount", amount, "error", err)
	}
	return nil
}
