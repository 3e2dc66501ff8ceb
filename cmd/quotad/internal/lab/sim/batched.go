package sim

import (
	"math"
	"time"

	"github.com/quotad/quotad/client/pacing"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// batchTTL is the length of a batch's lease, as the Go client's limiter has it.
const batchTTL = int64(2 * time.Minute)

// batched is a caller that takes its calls from a batch that was consumed ahead, and sizes it as the Go client's limiter
// does (client/pacing). A unit is one call.
type batched struct {
	*governed
	demand pacing.Demand
	life   time.Duration
	// share is the most that a batch may have; it is looked up again when it is old.
	share   int64
	shareAt int64

	batch permit
	left  int64
	// stopped: a refusal was heard of, and what is left of the batch goes back.
	stopped  bool
	fetching bool
	queue    []*call
}

func newBatched(a *agent) *batched {
	return &batched{governed: newGoverned(a), shareAt: math.MinInt64 / 2}
}

func (b *batched) call(c *call) {
	b.demand.Add(time.Duration(b.now), 1, b.life)
	if b.take(c) {
		return
	}
	size := b.size()
	if size == 0 {
		b.ask(c, 0)
		return
	}
	b.queue = append(b.queue, c)
	b.fetch(size)
}

// take makes a call from the batch at hand.
func (b *batched) take(c *call) bool {
	if b.left == 0 || b.stopped || b.now > b.batch.lastTake {
		return false
	}
	b.left--
	p := b.batch
	b.transmit(c, p.deadline, func(said provider.Answer) {
		if !said.Refused {
			b.finished(c, true)
			return
		}
		b.book.wantedAgain(c)
		b.stopped = true
		b.report(p, []*logpb.Signal{b.signal(said)}, func(answer) {
			if b.batch.lease == p.lease {
				b.end()
			}
			b.in(b.comeBack(int64(said.RetryAfter), p.class), func() { b.ask(c, 1) })
		})
	})
	return true
}

// size returns how many calls a batch should have now.
func (b *batched) size() int64 {
	if b.now-b.shareAt > int64(pacing.FactsAge) {
		b.shareAt, b.share = b.now, b.lookUpShare()
	}
	return pacing.Batch(b.demand.Units(time.Duration(b.now), b.life), b.share, b.left, pacing.MostUnits, 1)
}

// lookUpShare returns the most calls that this agent may have ahead, the least of all quotas.
func (b *batched) lookUpShare() int64 {
	share := int64(pacing.MostUnits)
	for _, use := range b.kind.Uses {
		view, ok := b.cluster.machine.State().Quota(use.Quota, b.cluster.present())
		if !ok {
			return 0
		}
		quota := pacing.Quota{
			Usable: view.Usable, DefaultEstimate: view.Definition.DefaultEstimate, Holders: view.Leases, Zone: quotav1.Zone(view.Zone),
		}
		share = min(share, quota.Share(use.Estimate))
	}
	return share
}

// fetch consumes a batch; who waits for it takes from it, or asks for itself.
func (b *batched) fetch(size int64) {
	if b.fetching {
		return
	}
	b.fetching = true
	b.end()
	reserve := &logpb.Reserve{Holder: b.name, Items: itemsFor(b.kind.Uses, size), Consume: true, TtlNs: batchTTL}
	asked := b.now
	b.client.do(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: reserve}}, func(a answer) {
		b.fetching = false
		if granted := a.result.GetGranted(); granted != nil && granted.Consumed != nil {
			b.batch, b.left, b.stopped = permitOf(granted, granted.Consumed, a), size, false
			b.life = pacing.Life(time.Duration(asked), time.Duration(b.batch.lastTake))
			lease := b.batch.lease
			b.at(b.batch.lastTake+1, func() {
				if b.batch.lease == lease {
					b.end()
				}
			})
		}
		queue := b.queue
		b.queue = nil
		for _, c := range queue {
			if c.life == b.agent.life && !b.take(c) {
				b.ask(c, 0)
			}
		}
	})
}

// end gives back what is left of the batch and ends its lease. What was taken last may still be on its way.
func (b *batched) end() {
	p, left := b.batch, b.left
	b.batch, b.left = permit{}, 0
	switch {
	case p.lease == 0 || b.client.gone:
	case left > 0 && b.now < p.deadline:
		b.settle(p, &logpb.Settle{Unspent: unspent(b.governed, itemsFor(b.kind.Uses, left)), Release: true})
	default:
		b.release(p)
	}
}
