package sim

import (
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// stretch is a time from one moment to another.
type stretch struct{ from, to int64 }

// book notes what happens in a run.
type book struct {
	w *world
	// backlog is how many calls want something of a limit and are not sent; wanting are the times in which there are any.
	backlog []int
	wanting [][]stretch
	closed  [][]stretch // by cooldowns and what follows them
	zones   [][]logpb.Zone
	held    [][]int64
	open    map[*call]struct{}
	opened  []*call // the same, in order; compacted now and then

	attempts, refusedCalls, outageCalls int64
	late, tooLate, gaveUps, stale       int64
	failures                            map[logpb.Reason]int64
	refusals                            map[logpb.Reason]int64
	latencies                           []int64
	finish                              int64
	// holders are the agents that hold leases ahead; orphans are the leases of the dead, with the moment of the death.
	holders map[uint64]*agent
	orphans map[uint64]int64
	reclaim int64
	// chains are the workflows.
	chains []*chain
}

func newBook(w *world) *book {
	n := len(w.quotas)
	b := &book{
		w: w, backlog: make([]int, n), wanting: make([][]stretch, n), closed: make([][]stretch, n), zones: make([][]logpb.Zone, n),
		open: map[*call]struct{}{}, failures: make(map[logpb.Reason]int64), refusals: make(map[logpb.Reason]int64),
		holders: map[uint64]*agent{}, orphans: map[uint64]int64{}, held: make([][]int64, n),
	}
	for i := range b.zones {
		b.zones[i], b.held[i] = make([]logpb.Zone, Parts), make([]int64, Parts)
	}
	return b
}

// wanted notes that a call is wanted.
func (b *book) wanted(c *call) {
	b.open[c] = struct{}{}
	b.opened = append(b.opened, c)
	if len(b.opened) > 1024 && len(b.opened) > 4*len(b.open) {
		kept := b.opened[:0]
		for _, o := range b.opened {
			if _, ok := b.open[o]; ok {
				kept = append(kept, o)
			}
		}
		clear(b.opened[len(kept):])
		b.opened = kept
	}
	b.wait(c, true)
}

// wantedAgain notes that a call that was refused wants to be sent again.
func (b *book) wantedAgain(c *call) { b.wait(c, true) }

// wait notes that a call waits for its limits, or does so no more.
func (b *book) wait(c *call, waits bool) {
	if c.waiting == waits {
		return
	}
	c.waiting = waits
	for _, i := range c.wants {
		if waits {
			if b.backlog[i]++; b.backlog[i] == 1 {
				b.wanting[i] = append(b.wanting[i], stretch{from: b.w.now, to: -1})
			}
			continue
		}
		if b.backlog[i]--; b.backlog[i] == 0 {
			last := &b.wanting[i][len(b.wanting[i])-1]
			if last.to = b.w.now; last.to == last.from {
				b.wanting[i] = b.wanting[i][:len(b.wanting[i])-1]
			}
		}
	}
}

// sent notes that a call is sent.
func (b *book) sent(c *call) {
	b.attempts++
	b.wait(c, false)
	for _, chain := range c.agent.chains {
		chain.sent(c)
	}
}

// limited notes that the provider refused an agent's call, which the cluster knows since a moment, and for how long.
func (b *book) limited(a *agent, since, length int64) {
	for _, chain := range a.chains {
		chain.limited(a.name, since, length)
	}
}

// answered notes an answer.
func (b *book) answered(c *call, said provider.Answer) {
	switch {
	case said.Outage:
		b.outageCalls++
	case said.Refused:
		b.refusedCalls++
		c.agent.tally.Refused++
	default:
		b.latencies = append(b.latencies, b.w.now-c.sent)
		if attempt := c.task.attempt; attempt != nil {
			attempt.drew(c)
		}
	}
	for _, chain := range c.agent.chains {
		chain.answered(c)
	}
}

// ended notes that a call was made, or given up.
func (b *book) ended(c *call, ok bool) {
	b.wait(c, false)
	delete(b.open, c)
	waited := c.sent - c.asked
	if ok {
		c.agent.tally.Served++
	} else {
		c.agent.tally.GivenUp++
		// It could not be served for as long as it was patient, whenever it learnt that; nobody is so longer than a run lasts.
		patience := c.agent.kind.Patience
		if patience == fleet.Forever {
			patience = b.w.fleet.For - time.Duration(c.asked)
		}
		waited = max(b.w.now-c.asked, int64(patience))
	}
	c.agent.noteWait(waited)
}

// lost notes that a call is over with what it was made for.
func (b *book) lost(c *call) {
	b.wait(c, false)
	delete(b.open, c)
	c.agent.tally.Lost++
}

// gaveUp notes that a call used up its retries and begins anew.
func (b *book) gaveUp(*call) { b.gaveUps++ }

// failed notes an error that the state machine answered; nil: none. A dead fence, a window that closed over what was held, or
// to give back too late, is what a holder has to expect.
func (b *book) failed(failure *logpb.Failure) {
	if failure == nil {
		return
	}
	switch failure.Reason {
	case logpb.Reason_REASON_STALE_FENCE:
		b.stale++
	case logpb.Reason_REASON_ITEM_CLOSED, logpb.Reason_REASON_PAST_SPEND_BY:
		b.refusals[failure.Reason]++
	default:
		b.failures[failure.Reason]++
	}
}

// refusedBy notes a refusal by quotad.
func (b *book) refusedBy(refusal *logpb.Refusal) { b.refusals[refusal.Reason]++ }

// holds notes which lease an agent holds.
func (b *book) holds(a *agent, lease uint64) { b.holders[lease] = a }

// died notes an agent's end: what it holds is nobody's now, and its calls are over.
func (b *book) died(a *agent) {
	for lease, holder := range b.holders { // the order does not matter
		if holder == a {
			b.orphans[lease] = b.w.now
		}
	}
	for _, c := range b.opened {
		if _, ok := b.open[c]; ok && c.agent == a {
			b.lost(c)
		}
	}
}

// hear takes in what the state machine tells.
func (b *book) hear(event effect.Event) {
	for _, chain := range b.chains {
		chain.hear(event)
	}
	switch event.Kind {
	case effect.EventReleased:
		delete(b.holders, event.Lease)
	case effect.EventExpired:
		delete(b.holders, event.Lease)
		if died, ok := b.orphans[event.Lease]; ok {
			b.reclaim = max(b.reclaim, b.w.now-died)
			delete(b.orphans, event.Lease)
		}
	case effect.EventCooldown:
		b.close(event.Quota, event.Duration)
	default:
	}
}

// close notes that a quota is closed for a while, and not fully open before its ramp is over.
func (b *book) close(quota string, length int64) {
	i := b.w.limits[quota]
	until := b.w.now + length + int64(b.w.quotas[i].GetPolicy().GetRamp().AsDuration())
	if n := len(b.closed[i]); n > 0 && b.closed[i][n-1].to >= b.w.now {
		b.closed[i][n-1].to = max(b.closed[i][n-1].to, until)
		return
	}
	b.closed[i] = append(b.closed[i], stretch{from: b.w.now, to: until})
}

// lookAtQuotas notes the quotas' zones, and what is held, in the middle of one part of the run.
func (b *book) lookAtQuotas(part int) {
	for i, q := range b.w.quotas {
		if view, ok := b.w.cluster.machine.State().Quota(q.Name, b.w.cluster.present()); ok {
			b.zones[i][part], b.held[i][part] = view.Zone, view.Held
		}
	}
}
