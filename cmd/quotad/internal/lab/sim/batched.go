package sim

import (
	"math"
	"time"

	"github.com/quotad/quotad/client/pacing"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// batched is a caller that takes its calls from batches that are consumed ahead. It sizes, fetches and returns batches as
// the Go client's limiter does, by the rules of client/pacing. A unit is one call.
type batched struct {
	*governed
	demand pacing.Demand
	life   time.Duration
	// share is the maximum size of a batch; it is computed again when it is old.
	share   int64
	shareAt int64

	// current is the batch in use; next replaces it.
	current, next *batch
	fetching      bool
	// queue waits for the batch that is being fetched.
	queue []*call
	// refusedUntil: until then, no batch of refusedUnits or more is requested.
	refusedUntil, refusedUnits int64
}

// batch is a number of calls that were consumed ahead.
type batch struct {
	permit
	size, left int64
	// accounted is the spent part that the demand already includes.
	accounted int64
	// anticipated: the next batch has been considered.
	anticipated bool
	// stopped: the provider refused a call, and the rest is returned.
	stopped bool
}

func newBatched(a *agent) *batched {
	return &batched{governed: newGoverned(a), shareAt: math.MinInt64 / 2}
}

func (b *batched) call(c *call) {
	if b.take(c) {
		b.anticipateIfLow()
		return
	}
	if b.readShare(); b.share >= 1 {
		b.demand.Add(time.Duration(b.now), 1, b.life)
	}
	b.fetch(b.size())
	if !b.fetching {
		b.ask(c, 0)
		return
	}
	b.queue = append(b.queue, c)
}

// take makes a call from the current batch, or from the next one.
func (b *batched) take(c *call) bool {
	for {
		if p := b.current; p != nil && !p.stopped && p.left > 0 && b.now < p.lastTake {
			p.left--
			b.sendFrom(p, c)
			return true
		}
		if !b.advance() {
			return false
		}
	}
}

// sendFrom sends a call that was taken from a batch.
func (b *batched) sendFrom(p *batch, c *call) {
	c.draws(p.member)
	b.transmit(c, p.deadline, func(said provider.Answer) {
		if !said.Refused {
			b.finished(c, true)
			return
		}
		b.book.wantedAgain(c)
		p.stopped = true
		b.report(p.permit, []*logpb.Signal{b.signal(said)}, func(answer) {
			b.end(p)
			b.in(b.comeBack(int64(said.RetryAfter), p.permit), func() { b.ask(c, 1) })
		})
	})
}

// advance replaces the current batch by the next one, if there is one.
func (b *batched) advance() bool {
	if b.next == nil {
		return false
	}
	if b.current != nil {
		b.giveUp(b.current)
	}
	b.current, b.next = b.next, nil
	return true
}

// size returns the size that a batch should have now.
func (b *batched) size() int64 {
	b.readShare()
	atHand := int64(0)
	if b.current != nil {
		atHand = b.current.left
	}
	return pacing.Batch(b.demand.Units(time.Duration(b.now), b.life), b.share, atHand, pacing.MostUnits, 1)
}

// readShare updates share if it is old: the number of calls that this agent may have ahead, the minimum over all quotas.
func (b *batched) readShare() {
	if b.now-b.shareAt < int64(pacing.FactsAge) {
		return
	}
	b.shareAt, b.share = b.now, pacing.MostUnits
	for _, use := range b.spendable() {
		view, ok := b.cluster.machine.State().Quota(use.Quota, b.cluster.present())
		if !ok {
			b.share = 0
			return
		}
		quota := pacing.Quota{
			Usable: view.Usable, DefaultEstimate: view.Definition.DefaultEstimate, Holders: view.Leases, Zone: quotav1.Zone(view.Zone),
		}
		b.share = min(b.share, quota.Share(use.Estimate))
	}
}

// spendable returns the uses at each member of the pools, because a batch may come from any of them.
func (b *batched) spendable() []fleet.Use {
	members := b.membersOf(b.kind.Uses)
	if len(members) == 0 {
		return b.kind.Uses
	}
	var all []fleet.Use
	for _, member := range members {
		all = append(all, b.usesAt(b.kind.Uses, member)...)
	}
	return all
}

// anticipateIfLow fetches the next batch when most of the present one is spent.
func (b *batched) anticipateIfLow() {
	p := b.current
	if p == nil || p.anticipated || p.left > pacing.RefillAt(p.size) {
		return
	}
	p.anticipated = true
	spent := p.size - p.left
	b.demand.Add(time.Duration(b.now), spent-p.accounted, b.life)
	p.accounted = spent
	b.fetch(b.size())
}

// fetch consumes a batch, unless one is in flight or ready, it would be useless, or the cluster has just refused. Calls
// that wait for the batch then take from it, or ask individually.
func (b *batched) fetch(size int64) {
	if size <= 0 || b.fetching || b.next != nil || b.now < b.refusedUntil && size >= b.refusedUnits {
		return
	}
	b.fetching = true
	reserve := &logpb.Reserve{Holder: b.name, Items: itemsFor(b.kind.Uses, size), Consume: true, TtlNs: int64(pacing.LeaseOf(b.life))}
	asked := b.now
	b.client.do(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: reserve}}, func(a answer) {
		b.fetching = false
		if granted := a.result.GetGranted(); granted != nil && granted.Consumed != nil {
			b.adopt(permitOf(granted, granted.Consumed, a), size, asked, a)
		} else if refusal := a.result.GetRefusal(); refusal != nil {
			b.refusedUntil = b.now + min(int64(pacing.RefusalMemory), max(refusal.RetryAtNs-a.clock.Now, 0))
			b.refusedUnits = size
		}
		queue := b.queue
		b.queue = nil
		for _, c := range queue {
			if c.life != b.agent.life {
				continue
			}
			if !b.take(c) {
				b.ask(c, 0)
				continue
			}
			b.current.accounted++
			b.anticipateIfLow()
		}
	})
}

// adopt adopts a batch that was requested at a given time. Its last take is a little early, as in the client.
func (b *batched) adopt(p permit, size, asked int64, a answer) {
	p.lastTake -= int64(pacing.Margin(time.Duration(p.deadline - a.from)))
	b.life = pacing.Life(time.Duration(asked), time.Duration(p.lastTake))
	fresh := &batch{permit: p, size: size, left: size}
	if b.next != nil {
		b.giveUp(b.next)
	}
	b.next = fresh
	if b.current == nil || b.now >= b.current.lastTake {
		b.advance()
	}
	b.at(p.lastTake, func() { b.end(fresh) })
}

// end ends a batch whose time is over.
func (b *batched) end(p *batch) {
	switch p {
	case b.current:
		b.current = nil
		b.giveUp(p)
		b.advance()
	case b.next:
		b.next = nil
		b.giveUp(p)
	}
}

// giveUp returns the rest of a batch and ends its lease. The last calls may still be in flight.
func (b *batched) giveUp(p *batch) {
	b.demand.Add(time.Duration(b.now), p.size-p.left-p.accounted, b.life)
	switch {
	case b.client.gone:
	case p.left > 0 && b.now < p.deadline:
		b.settle(p.permit, &logpb.Settle{Unspent: unspent(b.governed, itemsFor(b.usesAt(b.kind.Uses, p.member), p.left)), Release: true})
	default:
		b.release(p.permit)
	}
}
