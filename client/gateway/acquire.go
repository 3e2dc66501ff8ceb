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

// grant is the permission to send one attempt of a call; its lease is nil where nothing is asked.
type grant struct {
	call  *call
	lease *client.Lease
	// taken is what came out of a batch, whose lease it then is; nil: the lease is the attempt's own. away: it was consumed before calls
	// found the cluster away, and says nothing of now.
	taken *client.Taken
	away  bool
	// key is the one with which the attempt is sent: of pools, that of the granted member. nil: the caller's own credential passes.
	key *keys.Key
	// reports are those of this attempt that are on their way: they name the lease, so they precede the settlement.
	reports sync.WaitGroup
}

// maxLate is how often an allowance may be too old when it arrives.
const maxLate = 3

// acquire asks the cluster for what the call draws on and waits for it.
func (c *call) acquire(ctx context.Context, wait time.Duration) (*grant, error) {
	if c.ungoverned != "" {
		return c.unasked(), nil
	}
	began := time.Now()
	until := began.Add(wait)
	g := c.gateway
	g.waiting.add(c)
	defer func() {
		g.waiting.remove(c)
		c.record(func(o *outcome) { o.waited += time.Since(began) })
	}()
	// Waiting ends when the gateway stops as well; what is granted meanwhile is given back.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.ctx, func() { cancel(errStopping) })()
	if d, why, ok := c.batchOf(); ok {
		if granted, err := c.acquireAhead(ctx, d, until); granted != nil || err != nil {
			return granted, err
		}
	} else if why != "" {
		g.warnUnbatched(c, why)
	}
	return c.reserve(ctx, until)
}

// reserve asks for the call alone.
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

// unasked returns the permission of an attempt of which the cluster is not asked.
func (c *call) unasked() *grant { return &grant{call: c, key: c.key} }

// live reports whether the attempt may still be sent: what was consumed for it has to arrive by its spend-by.
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

// context returns a context for sending the attempt. A call on slots ends with them: from then on they are somebody else's.
func (p *grant) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	if p.lease == nil || !p.call.holdsSlots() {
		return ctx, cancel
	}
	running, stop := p.lease.Context(ctx)
	return running, func() { stop(); cancel() }
}

// holdsSlots reports whether the call draws on something that is held while it is under way.
func (c *call) holdsSlots() bool {
	return slices.ContainsFunc(c.draws, func(d draw) bool { return d.quota.Slots })
}

// classOf returns the API's class.
func classOf(class config.Class) client.Class { return client.Class(class) }

// settlement says what became of an attempt.
type settlement struct {
	// unsent: it certainly never reached the provider.
	unsent bool
	// actual is what was really used, by quota; what is not named was used as asked.
	actual map[string]int64
}

// settleWithin is how long the gateway tries to settle an attempt.
const settleWithin = 30 * time.Second

// settle ends an attempt in the background: it gives back or corrects what was consumed, and frees slots.
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
		// What cannot be settled must not keep its lease, and with it a slot.
		g.logger.Debug("could not settle a call", "holder", p.call.caller.Holder, "error", err)
		_, _ = p.lease.Release(ctx)
	})
}

// handOver ends the lease of a permission that a process outside spends. Only that process knows when, so what it got counts as
// spent at its spend-by: a final settlement would end that early.
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

// quota returns what was granted of a quota that was asked for: of a pool, the member's.
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
