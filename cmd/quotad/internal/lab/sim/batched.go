package sim

import (
	"math"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/logpb"
)

// As the Go client's limiter has them.
const (
	firstLife   = int64(time.Second)
	batchTTL    = int64(2 * time.Minute)
	greenCalls  = 20
	amberCalls  = 5
	redCalls    = 1
	factsAge    = int64(10 * time.Second)
	mostOfBatch = 1 << 20
)

// batched is a caller that takes its calls from a batch that was consumed ahead, as a limiter does: at most its demand of
// one batch's life, and half of usable between all holders.
type batched struct {
	*governed
	// demand is what was asked for lately: a sum that fades at the pace of a batch's life.
	demand   float64
	demandAt int64
	life     int64
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
	return &batched{governed: newGoverned(a), life: firstLife, shareAt: math.MinInt64 / 2}
}

func (b *batched) call(c *call) {
	b.fade()
	b.demand++
	if b.take(c) {
		return
	}
	size := b.size()
	if size < 2 {
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
			b.in(int64(said.RetryAfter)+b.dice.span(retryWindows[p.class]), func() { b.ask(c, 1) })
		})
	})
	return true
}

func (b *batched) fade() {
	b.demand *= math.Exp(-float64(b.now-b.demandAt) / float64(b.life))
	b.demandAt = b.now
}

// size returns how many calls a batch should have now.
func (b *batched) size() int64 {
	if b.now-b.shareAt > factsAge {
		b.shareAt, b.share = b.now, b.lookUpShare()
	}
	return min(int64(b.demand), b.share, mostOfBatch)
}

// lookUpShare returns usable / (2 x holders) in calls, the least of all quotas, and less where little is left.
func (b *batched) lookUpShare() int64 {
	share := int64(mostOfBatch)
	for _, use := range b.kind.Uses {
		view, ok := b.cluster.machine.State().Quota(use.Quota, b.cluster.present())
		if !ok {
			return 0
		}
		most := view.Usable / 2 / max(view.Leases, 1) / use.Estimate
		switch view.Zone {
		case logpb.Zone_ZONE_GREEN:
			most = min(most, greenCalls)
		case logpb.Zone_ZONE_AMBER:
			most = min(most, amberCalls)
		case logpb.Zone_ZONE_RED:
			most = min(most, redCalls)
		case logpb.Zone_ZONE_UNSPECIFIED:
		}
		share = min(share, most)
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
			b.life = max(b.batch.lastTake-asked, firstLife/10)
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
