package sim

import (
	"time"

	"github.com/quotad/quotad/client/pacing"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The same as the Go client's defaults.
const (
	maxWait = int64(10 * time.Minute)
	// leastPause is the minimum pause after a refusal.
	leastPause = int64(250 * time.Millisecond)
	// reportEvery is the shortest time between two reports of a quota's ordinary counts.
	reportEvery = int64(time.Second)
	// resetResolution is the resolution of reported resets.
	resetResolution = int64(time.Second)
	// retries is the maximum number of retries of a call that the provider refuses, in one sequence.
	retries = 3
)

// governed is a caller that asks quotad before each call: Reserve and consume in one step, call, settle, report.
type governed struct {
	*agent
	client *client
	// items are the amounts that one call reserves.
	items []*logpb.Item
	// reported is when the counts of a limit were last reported.
	reported map[int]int64
}

func newGoverned(a *agent) *governed {
	return &governed{
		agent: a, client: &client{cluster: a.cluster, holder: a.name}, items: itemsFor(a.kind.Uses, 1), reported: map[int]int64{},
	}
}

// itemsFor returns the items of a number of calls.
func itemsFor(uses []fleet.Use, calls int64) []*logpb.Item {
	items := make([]*logpb.Item, len(uses))
	for i, use := range uses {
		items[i] = &logpb.Item{Quota: use.Quota, Amount: new(use.Estimate * calls)}
	}
	return items
}

// reach cuts the agent off from the cluster, or reconnects it.
func (g *governed) reach(cut bool) {
	if cut {
		g.client.cut = true
		return
	}
	g.client.heal()
}

func (g *governed) die() { g.client.gone = true }

// permit is the grant under which a call may be sent.
type permit struct {
	lease, fence, op uint64
	// slotsOnly: nothing is consumed, so there is no operation.
	slotsOnly bool
	// deadline is when it must have reached the provider, lastTake when it must be sent.
	deadline, lastTake int64
	class              quotav1.Class
	// member is the granted member of the pools; empty: no pool.
	member string
}

func (g *governed) call(c *call) { g.ask(c, 0) }

// ask asks for one call, after a number of refusals by the provider in this sequence.
func (g *governed) ask(c *call, refusals int) {
	if c.life != g.life {
		return
	}
	items := g.items
	if c.load || c.asks != nil {
		items = itemsFor(c.uses, 1)
	}
	reserve := &logpb.Reserve{Holder: g.name, Items: items, Consume: true, WaitNs: max(min(c.patienceLeft(), maxWait), 0)}
	g.client.do(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: reserve}}, func(a answer) {
		granted := a.result.GetGranted()
		if granted == nil {
			g.denied(c, a, func() { g.ask(c, refusals) })
			return
		}
		p := permitOf(granted, granted.Consumed, a)
		if g.now > p.lastTake {
			g.book.tooLate++
			g.giveBack(p, c.uses)
			g.ask(c, refusals)
			return
		}
		c.granted = a.at
		c.draws(p.member)
		g.transmit(c, p.deadline, func(said provider.Answer) { g.said(c, p, said, refusals) })
	})
}

// permitOf returns the permit of a grant.
func permitOf(granted *logpb.Granted, consumed *logpb.Consumed, a answer) permit {
	p := permit{lease: granted.Lease, fence: granted.Fence, class: quotav1.Class(granted.Class + 1), member: memberOf(granted)}
	if consumed == nil {
		p.slotsOnly, p.deadline = true, a.from+granted.DeadlineNs-a.clock.Now
		p.lastTake = p.deadline
		return p
	}
	p.op = consumed.Op
	p.deadline, p.lastTake = spendUntil(consumed, a)
	return p
}

// spendUntil returns the deadlines for an operation's arrival at the provider and for its sending.
func spendUntil(consumed *logpb.Consumed, a answer) (deadline, lastTake int64) {
	left := consumed.SpendByNs - a.clock.Now
	if consumed.SpendByWallNs != 0 {
		left = min(left, consumed.SpendByWallNs-a.clock.WallLate)
	}
	return a.from + left, a.from + left - consumed.TransitNs
}

// denied waits as long as a refusal says, or cancels the call.
func (g *governed) denied(c *call, a answer, again func()) {
	refusal := a.result.GetRefusal()
	if refusal == nil {
		g.book.failed(a.result.GetFailure())
		g.finished(c, false)
		return
	}
	g.book.refusedBy(refusal)
	pause := refusal.RetryAtNs - a.clock.Now
	if refusal.Reason == logpb.Reason_REASON_CANNOT_SERVE_IN_TIME || refusal.Reason == logpb.Reason_REASON_WAIT_EXPIRED {
		// The wait exceeds that of one Reserve: return to the queue some time before.
		pause = min(pause, maxWait) - maxWait/2
	}
	pause = max(pause, leastPause)
	if refusal.RetryAtNs == 0 || pause >= c.patienceLeft() {
		g.finished(c, false)
		return
	}
	g.in(pause, func() {
		if c.life == g.life {
			again()
		}
	})
}

// giveBack returns a permit that arrived too late to be used.
func (g *governed) giveBack(p permit, uses []fleet.Use) {
	switch {
	case p.slotsOnly:
		g.release(p)
	case g.now < p.deadline:
		g.settle(p, &logpb.Settle{Unspent: unspent(g, itemsFor(g.usesAt(uses, p.member), 1)), Release: true})
	default:
		g.settle(p, &logpb.Settle{Final: true, Release: true})
	}
}

// unspent omits slots, which cannot be consumed.
func unspent(g *governed, items []*logpb.Item) []*logpb.Item {
	var all []*logpb.Item
	for _, item := range items {
		if g.provider.Meters()[g.limits[item.Quota]].Rule().Kind != provider.Slots {
			all = append(all, item)
		}
	}
	return all
}

// said processes the provider's answer.
func (g *governed) said(c *call, p permit, said provider.Answer, refusals int) {
	if c.stops(said) {
		g.cutShort(c)
		g.end(p)
		return
	}
	if said.Refused {
		g.refused(c, p, said, refusals)
		return
	}
	g.finished(c, true)
	if signals := g.counts(said); len(signals) > 0 {
		g.report(p, signals, func(answer) { g.done(c, p) })
		return
	}
	g.done(c, p)
}

// done settles a served call.
func (g *governed) done(c *call, p permit) {
	if p.slotsOnly {
		g.release(p)
		return
	}
	g.settle(p, &logpb.Settle{Actual: g.actual(c), Final: true, Release: true})
}

// end ends a permit under which the provider refused.
func (g *governed) end(p permit) {
	if p.slotsOnly {
		g.release(p)
		return
	}
	g.settle(p, &logpb.Settle{Final: true, Release: true})
}

// actual returns the amounts that a call really used, where they may differ from the estimate.
func (g *governed) actual(c *call) []*logpb.Item {
	var items []*logpb.Item
	for i, use := range c.drawn {
		if use.Actual != (fleet.Range{}) {
			items = append(items, &logpb.Item{Quota: use.Quota, Amount: new(c.actual[i])})
		}
	}
	return items
}

func (g *governed) settle(p permit, settle *logpb.Settle) {
	settle.Lease, settle.Fence, settle.Op = p.lease, p.fence, p.op
	g.client.do(&logpb.Command{Kind: &logpb.Command_Settle{Settle: settle}}, func(a answer) {
		failure := a.result.GetFailure()
		g.book.failed(failure)
		if failure.GetReason() == logpb.Reason_REASON_PAST_SPEND_BY { // the leader was away: the amount is forfeited, but the lease must end
			g.release(p)
		}
	})
}

func (g *governed) release(p permit) {
	release := &logpb.Release{Lease: p.lease, Fence: p.fence}
	g.client.do(&logpb.Command{Kind: &logpb.Command_Release{Release: release}}, func(a answer) { g.book.failed(a.result.GetFailure()) })
}

func (g *governed) report(p permit, signals []*logpb.Signal, then func(answer)) {
	report := &logpb.Report{Lease: p.lease, Fence: p.fence, Op: max(p.op, 1), Signals: signals}
	g.client.do(&logpb.Command{Kind: &logpb.Command_Report{Report: report}}, func(a answer) {
		g.book.failed(a.result.GetFailure())
		then(a)
	})
}

// refused reports a refusal by the provider, and schedules the call again in its class's window after the cooldown.
func (g *governed) refused(c *call, p permit, said provider.Answer, refusals int) {
	g.book.wantedAgain(c)
	g.report(p, []*logpb.Signal{g.signal(said)}, func(a answer) {
		left := int64(said.RetryAfter)
		if reported := a.result.GetReported(); reported != nil {
			left = 0
			for _, q := range reported.Quotas {
				left = max(left, q.CooldownUntilNs-a.clock.Now)
			}
		}
		g.book.limited(g.agent, a.at, left)
		g.end(p)
		delay := g.comeBack(left, p)
		if g.kind.Patience != fleet.Forever && (refusals >= retries || delay >= c.patienceLeft()) {
			g.finished(c, false)
			return
		}
		g.in(delay, func() { g.ask(c, refusals+1) })
	})
}

// comeBack returns the delay after which a call refused under a permit is made again, after the given cooldown. The delay
// is 0 for a call on a pool: another member may serve it.
func (g *governed) comeBack(cooldown int64, p permit) int64 {
	if p.member != "" {
		return 0
	}
	draw := func(below time.Duration) time.Duration { return time.Duration(g.dice.below(int64(below) + 1)) }
	return int64(pacing.DefaultWindows.Delay(time.Duration(cooldown), p.class, draw))
}

// signal describes a refusal.
func (g *governed) signal(said provider.Answer) *logpb.Signal {
	signal := &logpb.Signal{Quota: g.quotaOf(said.Limit), Cause: logpb.Cause_CAUSE_SATURATED}
	if said.RetryAfter > 0 {
		signal.RetryAfterNs = new(int64(said.RetryAfter))
	}
	if said.Exhausted {
		signal.Cause = logpb.Cause_CAUSE_EXHAUSTED
	}
	for _, count := range said.Counts {
		if count.Limit == said.Limit {
			g.addCount(signal, count)
		}
	}
	return signal
}

// counts returns the counts in the provider's headers that are worth a report: when nothing is left, or after a while.
func (g *governed) counts(said provider.Answer) []*logpb.Signal {
	var signals []*logpb.Signal
	for _, count := range said.Counts {
		last, had := g.reported[count.Limit]
		if had && g.now-last < reportEvery && count.Left > 0 {
			continue
		}
		g.reported[count.Limit] = g.now
		signal := &logpb.Signal{Quota: g.quotaOf(count.Limit), Cause: logpb.Cause_CAUSE_OK}
		g.addCount(signal, count)
		signals = append(signals, signal)
	}
	return signals
}

func (g *governed) quotaOf(limit int) string { return g.provider.Meters()[limit].Rule().Quota }

// addCount adds a count to a signal. A reset is reported as a whole second of Unix time.
func (g *governed) addCount(signal *logpb.Signal, count provider.Count) {
	signal.Limit, signal.Remaining = new(g.provider.Meters()[count.Limit].Rule().Limit), new(count.Left)
	if count.ResetAt > g.now {
		signal.ResetAfterNs, signal.ResetResolutionNs = new(count.ResetAt-g.now), resetResolution
	}
}
