package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/keys"
)

// grant is the permission to send one attempt of a call. Its lease is nil if nothing was requested.
type grant struct {
	call  *call
	lease *client.Lease
	// taken is the take from a batch that owns the lease; nil: the lease is the attempt's own. away: it was consumed before calls found
	// the cluster away, and says nothing about the present.
	taken *client.Taken
	away  bool
	// key is the key to send the attempt with: for a pool, that of the granted member. nil: the caller's own credential passes.
	key *keys.Key
	// reports counts this attempt's reports in flight: they name the lease, so they precede the settlement. reported: there was one.
	reports  sync.WaitGroup
	reported bool
}

// maxLate is how many allowances in a row may be too old when they arrive.
const maxLate = 3

// acquire asks the cluster for the call's amounts and waits for the grant.
func (c *call) acquire(ctx context.Context, wait time.Duration) (granted *grant, err error) {
	if c.ungoverned != "" {
		return c.unasked(), nil
	}
	began := time.Now()
	until := began.Add(wait)
	g := c.gateway
	g.waiting.add(c)
	waited := c.tracedWait(ctx)
	defer func() {
		waited(granted, err)
		g.waiting.remove(c)
		c.record(func(o *outcome) { o.waited += time.Since(began) })
	}()
	if d, why, ok := c.batchOf(); ok {
		if granted, err := c.acquireAhead(ctx, d, until); granted != nil || err != nil {
			return granted, err
		}
	} else if why != "" {
		g.warnUnbatched(c, why)
	}
	// The wait ends when the gateway stops as well; an allowance granted meanwhile is returned.
	ctx, stop := g.untilStopped(ctx)
	defer stop()
	return c.reserve(ctx, until)
}

// untilStopped returns a context that also ends when the gateway stops, with errStopping.
func (g *Gateway) untilStopped(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.ctx, func() { cancel(errStopping) })
	return ctx, func() { stop(); cancel(nil) }
}

// reserve makes a Reserve for this call alone.
func (c *call) reserve(ctx context.Context, until time.Time) (*grant, error) {
	g := c.gateway
	for late := 0; ; late++ {
		lease, err := g.client.Reserve(ctx, client.ReserveRequest{
			Items: c.items(), Consume: true, Class: classOf(c.caller.Class), Holder: c.caller.Holder, Wait: max(time.Until(until), 0),
			TTL: c.state.config.Lease, Member: c.member(),
		})
		if err != nil {
			if errors.Is(err, client.ReasonUnknownQuota) {
				g.refreshCatalog()
			}
			return nil, err
		}
		granted, err := c.granted(lease, nil)
		if err != nil {
			return nil, err
		}
		if granted.live() {
			lease.KeepAlive()
			return granted, nil
		}
		granted.settle(settlement{unsent: true})
		if late == maxLate {
			return nil, client.ErrLate
		}
	}
}

// unasked returns the permission of an attempt without a request to the cluster.
func (c *call) unasked() *grant { return &grant{call: c, key: c.key} }

// live reports whether the attempt may still be sent: its consumed amounts have to arrive by their spend-by.
func (p *grant) live() bool {
	switch {
	case p.lease == nil:
		return true
	case p.taken != nil:
		return p.taken.Left() > 0
	}
	op := p.lease.Operation()
	return op == nil || op.Left() > 0
}

// context returns a context for sending the attempt. A call on slots ends with them: another holder may have them from then on.
func (p *grant) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	if p.lease == nil || !p.call.holdsSlots() {
		return ctx, cancel
	}
	running, stop := p.lease.Context(ctx)
	return running, func() { stop(); cancel() }
}

// holdsSlots reports whether the call holds anything while it is in flight.
func (c *call) holdsSlots() bool {
	return slices.ContainsFunc(c.draws, func(d draw) bool { return d.quota.Slots })
}

// classOf returns the API's class.
func classOf(class config.Class) client.Class { return client.Class(class) }

// settlement is the outcome of an attempt.
type settlement struct {
	// unsent: it certainly never reached the provider.
	unsent bool
	// actual is the actual use by quota; a missing quota was used as requested.
	actual map[string]int64
}

// settleWithin is how long the gateway tries to settle an attempt.
const settleWithin = 30 * time.Second

// settle ends an attempt in the background: it returns or corrects the consumed amounts, and frees slots.
func (p *grant) settle(s settlement) {
	switch {
	case p.lease == nil:
		return
	case p.taken != nil:
		p.settleTaken(s)
		return
	}
	g := p.call.gateway
	g.tasks.Go(func() {
		p.reports.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
		defer cancel()
		op := p.lease.Operation()
		if op == nil {
			_, _ = p.lease.Release(ctx)
			return
		}
		_, err := op.Settle(ctx, s.of(p, op))
		if err == nil {
			return
		}
		// If settling fails, release the lease all the same: it may hold a slot.
		g.logger.Debug("could not settle a call", "holder", p.call.caller.Holder, "error", err)
		_, _ = p.lease.Release(ctx)
	})
}

// handOver ends the lease of a permission that another process spends. Only that process knows when, so the amounts count as spent at
// their spend-by: a final settlement would end that early.
func (p *grant) handOver() {
	g := p.call.gateway
	g.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
		defer cancel()
		if _, err := p.lease.Release(ctx); err != nil {
			g.logger.Debug("could not release a take", "holder", p.call.caller.Holder, "error", err)
		}
	})
}

// quota returns the quota granted for a requested one: for a pool, the member's.
func (p *grant) quota(asked string) string {
	if p.lease != nil {
		if item, ok := p.lease.For(asked); ok {
			return item.Quota
		}
	}
	return asked
}

// of returns the settlement of an operation.
func (s settlement) of(p *grant, op *client.Operation) client.Settlement {
	items := op.Items()
	if s.unsent && time.Now().Before(op.SpendBy()) {
		return client.Settlement{Unspent: items, Release: true}
	}
	actual := make(map[string]int64, len(s.actual))
	for asked, used := range s.actual {
		actual[p.quota(asked)] = used
	}
	out := client.Settlement{Final: true, Release: true}
	for _, item := range items {
		if used, ok := actual[item.Quota]; ok && !s.unsent {
			out.Actual = append(out.Actual, client.Item{Quota: item.Quota, Amount: used})
		}
	}
	return out
}
