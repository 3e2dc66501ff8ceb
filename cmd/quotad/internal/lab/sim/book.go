package sim

import (
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// stretch is an interval of time.
type stretch struct{ from, to int64 }

// book records the events of a run.
type book struct {
	w *world
	// backlog is the number of unsent calls that want some of a limit; wanting are the times in which there are any.
	backlog []int
	wanting [][]stretch
	closed  [][]stretch // by cooldowns and their ramps
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
	// holders are the agents that hold leases ahead, by lease. orphans are the leases of dead agents, with the times of the
	// deaths.
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

// wanted records that an agent wants a call.
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

// wantedAgain records that a refused call waits to be sent again.
func (b *book) wantedAgain(c *call) { b.wait(c, true) }

// wait records that a call starts or stops waiting for its limits.
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

// sent records that a call is sent.
func (b *book) sent(c *call) {
	b.attempts++
	b.wait(c, false)
	for _, chain := range c.agent.chains {
		chain.sent(c)
	}
}

// limited records that the provider refused an agent's call, when the cluster learned of it, and for how long.
func (b *book) limited(a *agent, since, length int64) {
	for _, chain := range a.chains {
		chain.limited(a.name, since, length)
	}
}

// answered records an answer.
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

// ended records that a call was made or cancelled.
func (b *book) ended(c *call, ok bool) {
	b.wait(c, false)
	delete(b.open, c)
	waited := c.sent - c.asked
	if ok {
		c.agent.tally.Served++
	} else {
		c.agent.tally.GivenUp++
		// It could not be served within its patience, whenever it learned that. No patience exceeds the run.
		patience := c.agent.kind.Patience
		if patience == fleet.Forever {
			patience = b.w.fleet.For - time.Duration(c.asked)
		}
		waited = max(b.w.now-c.asked, int64(patience))
	}
	c.agent.noteWait(waited)
}

// lost records that a call ended together with its purpose.
func (b *book) lost(c *call) {
	b.wait(c, false)
	delete(b.open, c)
	c.agent.tally.Lost++
}

// gaveUp records that a call used up its retries and starts again.
func (b *book) gaveUp(*call) { b.gaveUps++ }

// failed records an error of the state machine; nil: none. A stale fence, a window that closed while amounts were held, and
// a return after the spend-by are normal for a holder.
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

// refusedBy records a refusal by quotad.
func (b *book) refusedBy(refusal *logpb.Refusal) { b.refusals[refusal.Reason]++ }

// holds records that an agent holds a lease.
func (b *book) holds(a *agent, lease uint64) { b.holders[lease] = a }

// died records an agent's death: its leases become orphans, and its calls are lost.
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

// hear records an event of the state machine.
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

// close records that a quota is closed, and not fully open before its ramp is over.
func (b *book) close(quota string, length int64) {
	i := b.w.limits[quota]
	until := b.w.now + length + int64(b.w.quotas[i].GetPolicy().GetRamp().AsDuration())
	if n := len(b.closed[i]); n > 0 && b.closed[i][n-1].to >= b.w.now {
		b.closed[i][n-1].to = max(b.closed[i][n-1].to, until)
		return
	}
	b.closed[i] = append(b.closed[i], stretch{from: b.w.now, to: until})
}

// readQuotas records the quotas' zones and held amounts, in the middle of one part of the run.
func (b *book) readQuotas(part int) {
	for i, q := range b.w.quotas {
		if view, ok := b.w.cluster.machine.State().Quota(q.Name, b.w.cluster.present()); ok {
			b.zones[i][part], b.held[i][part] = view.Zone, view.Held
		}
	}
}
