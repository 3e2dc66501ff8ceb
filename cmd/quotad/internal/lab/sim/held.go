package sim

import (
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/logpb"
)

// renewPart: a lease is renewed when two fifths of it have passed, such as every 2 min for a lease of 5 min.
const renewParts, renewOf = 2, 5

// held is a caller that reserves some calls ahead and consumes them one by one, as a holder with a round of work does.
type held struct {
	*governed
	lease, fence uint64
	// member is the granted member of the pools; empty: no pool.
	member string
	// ends is the lease's deadline by the agent's own clock.
	ends int64
	// left is the number of held calls; underWay is the number of operations that are consumed and not yet known to be
	// settled.
	left, underWay int
	op             uint64
	asking         bool
	queue          []*call
}

func newHeld(a *agent) *held { return &held{governed: newGoverned(a)} }

func (h *held) call(c *call) {
	h.queue = append(h.queue, c)
	h.pump()
}

// pump consumes for the queued calls, and reserves the next round when nothing is left.
func (h *held) pump() {
	for len(h.queue) > 0 {
		switch {
		case h.lease != 0 && h.now >= h.ends:
			h.drop()
		case h.lease == 0 || h.left == 0:
			h.reserve()
			return
		default:
			c := h.queue[0]
			h.queue = h.queue[1:]
			h.left--
			h.consume(c)
		}
	}
}

// reserve asks for the next round, on behalf of the first queued call.
func (h *held) reserve() {
	if h.asking {
		return
	}
	h.asking = true
	if h.lease != 0 && h.underWay == 0 {
		h.release(permit{lease: h.lease, fence: h.fence})
	}
	h.drop()
	first, life := h.queue[0], h.life
	reserve := &logpb.Reserve{
		Holder: h.name, Items: itemsFor(h.kind.Uses, int64(h.kind.Hold)), TtlNs: int64(h.kind.HoldTTL),
		WaitNs: max(min(first.patienceLeft(), maxWait), 0),
	}
	h.client.do(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: reserve}}, func(a answer) {
		h.asking = false
		granted := a.result.GetGranted()
		if granted == nil {
			h.queue = h.queue[1:]
			h.denied(first, a, func() { h.call(first) })
			if len(h.queue) > 0 {
				h.pump()
			}
			return
		}
		h.lease, h.fence, h.left, h.op = granted.Lease, granted.Fence, h.kind.Hold, 0
		h.member = memberOf(granted)
		h.ends = a.from + granted.DeadlineNs - a.clock.Now
		h.book.holds(h.agent, h.lease)
		if granted.AskedTtlNs > granted.DeadlineNs-a.clock.Now+int64(h.kind.HoldTTL)/10 {
			h.renew(h.lease, h.fence) // provisional after a wait: confirm it
		}
		h.renewLater(h.lease, life)
		h.pump()
	})
}

// drop forgets the lease; unless released, it ends at its deadline.
func (h *held) drop() { h.lease, h.left = 0, 0 }

// renewLater renews the lease repeatedly, while it is this process's.
func (h *held) renewLater(lease uint64, life int) {
	h.in(int64(h.kind.HoldTTL)*renewParts/renewOf, func() {
		if h.life == life && h.lease == lease {
			h.renew(lease, h.fence)
			h.renewLater(lease, life)
		}
	})
}

func (h *held) renew(lease, fence uint64) {
	renew := &logpb.Renew{Lease: lease, Fence: fence, TtlNs: int64(h.kind.HoldTTL)}
	h.client.do(&logpb.Command{Kind: &logpb.Command_Renew{Renew: renew}}, func(a answer) {
		if renewed := a.result.GetRenewed(); renewed != nil && h.lease == lease {
			h.ends = a.from + renewed.DeadlineNs - a.clock.Now
		}
		h.ended(a, lease)
	})
}

// ended drops a lease that an answer reports as ended, and reports whether it does.
func (h *held) ended(a answer, lease uint64) bool {
	failure := a.result.GetFailure()
	if failure == nil {
		return false
	}
	h.book.failed(failure)
	if h.lease == lease {
		h.drop()
	}
	return true
}

// consume makes one held call spendable, and makes it.
func (h *held) consume(c *call) {
	h.op++
	h.underWay++
	lease, fence, op := h.lease, h.fence, h.op
	c.draws(h.member)
	mark := op
	if h.underWay > 1 {
		mark = 0 // earlier operations are not settled
	}
	consume := &logpb.Consume{Lease: lease, Fence: fence, Op: op, Items: itemsFor(c.drawn, 1), DoneBelow: mark}
	h.client.do(&logpb.Command{Kind: &logpb.Command_Consume{Consume: consume}}, func(a answer) {
		consumed := a.result.GetConsumed()
		if consumed == nil {
			h.underWay--
			if h.ended(a, lease) {
				h.call(c)
				return
			}
			if h.lease == lease {
				h.left++
			}
			h.denied(c, a, func() { h.call(c) })
			return
		}
		p := permit{lease: lease, fence: fence, op: op, class: h.kind.Class}
		p.deadline, p.lastTake = spendUntil(consumed, a)
		if h.now > p.lastTake {
			h.book.tooLate++
			h.finish(p, &logpb.Settle{Final: true})
			h.call(c)
			return
		}
		h.transmit(c, p.deadline, func(said provider.Answer) { h.answered(c, p, said) })
	})
}

// answered settles a served call, and repeats a refused one later.
func (h *held) answered(c *call, p permit, said provider.Answer) {
	if !said.Refused {
		h.finished(c, true)
		h.finish(p, &logpb.Settle{Actual: h.actual(c), Final: true})
		return
	}
	h.book.wantedAgain(c)
	h.report(p, []*logpb.Signal{h.signal(said)}, func(answer) {
		h.finish(p, &logpb.Settle{Final: true})
		h.in(h.comeBack(int64(said.RetryAfter), p), func() {
			if c.life == h.life {
				h.call(c)
			}
		})
	})
}

// finish settles an operation; after the answer its record can go.
func (h *held) finish(p permit, settle *logpb.Settle) {
	settle.Lease, settle.Fence, settle.Op = p.lease, p.fence, p.op
	h.client.do(&logpb.Command{Kind: &logpb.Command_Settle{Settle: settle}}, func(a answer) {
		h.underWay--
		h.book.failed(a.result.GetFailure())
	})
}
