package fsm

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// A burst is the provider's bucket (the generic cell rate algorithm, ITU-T I.371). Where it charges when a call
// starts, what was drawn is remembered
// by when it was consumed for as long as it counts, and Settle takes what was not used out there: so what flowed in meanwhile is not
// given out twice. Where it charges later, what is open may be charged in any interval, and counts in each until it is settled.

// draw is an amount drawn from a burst.
type draw struct {
	// end is under what it counts in the log; at is when the last of it was consumed.
	end, at, amount int64
}

// exactBurst tells whether what is drawn from bursts is remembered by when it was consumed.
func (m *Machine) exactBurst() bool { return m.featureLevel >= levelRates }

// burstLeft returns in how long an amount passes a quota's burst; 0: now.
func (m *Machine) burstLeft(q *quota, amount int64) int64 {
	if q.rule.burst == 0 {
		return 0
	}
	if !m.exactBurst() {
		return q.ledger.burstLeft(&q.rule, m.clock.Now, amount)
	}
	g := &q.ledger
	uncharged := g.open
	for _, e := range g.loose {
		uncharged += e.amount
	}
	need := addSaturated(amount, uncharged)
	left := g.burstLeft(&q.rule, m.clock.Now, need)
	if left > 0 && need > q.rule.burst && amount <= q.rule.burst {
		return max(left, unknownRetry) // until something of it is settled
	}
	return left
}

// drawn returns the theoretical arrival time after all that was drawn.
func (g *ledger) drawn(r *rule) int64 {
	arrival := g.arrival
	for _, d := range g.draws {
		arrival = addSaturated(max(arrival, d.at), mulDivCeil(d.amount, r.period, r.usable))
	}
	return arrival
}

// burstLeft returns in how long an amount passes the burst; 0: now. A full burst always passes whole:
// computed as a time it would stay short of the rounding error.
func (g *ledger) burstLeft(r *rule, now, amount int64) int64 {
	if r.burst == 0 {
		return 0
	}
	drawn := g.drawn(r)
	if amount <= r.burst && drawn <= now {
		return 0
	}
	arrival := addSaturated(max(drawn, now), mulDivCeil(amount, r.period, r.usable))
	return max(0, arrival-now-mulDivFloor(r.burst, r.period, r.usable))
}

// passBurst takes an amount out of the burst. Nothing of it can go back.
func (g *ledger) passBurst(r *rule, now, amount int64) {
	if r.burst > 0 {
		g.arrival = addSaturated(max(g.drawn(r), now), mulDivCeil(amount, r.period, r.usable))
		g.draws = nil
	}
}

// draw takes an amount that counts until an end out of the burst at a moment.
func (g *ledger) draw(end, at, amount int64) {
	i, found := g.findDraw(end)
	if !found {
		g.draws = slices.Insert(g.draws, i, draw{end: end})
	}
	g.draws[i].at = max(g.draws[i].at, at)
	g.draws[i].amount += amount
}

// undraw gives back what was not used of an amount.
func (g *ledger) undraw(end, amount int64) {
	if i, found := g.findDraw(end); found && end > g.drawnFrom {
		if g.draws[i].amount -= amount; g.draws[i].amount <= 0 {
			g.draws = slices.Delete(g.draws, i, i+1)
		}
	}
}

func (g *ledger) findDraw(end int64) (int, bool) {
	return slices.BinarySearchFunc(g.draws, end, func(d draw, end int64) int { return cmp.Compare(d.end, end) })
}

// advanceBurst draws what nobody settled when its exposure has ended, and forgets when it was that something was
// drawn which does not count any more.
func (g *ledger) advanceBurst(r *rule, now int64) {
	n := 0
	for n < len(g.loose) && g.loose[n].end <= now {
		g.draw(roundUp(g.loose[n].end, r.width), g.loose[n].end, g.loose[n].amount)
		n++
	}
	g.loose = slices.Delete(g.loose, 0, n)
	n = 0
	for n < len(g.draws) && g.draws[n].end < g.cutoff {
		g.arrival = addSaturated(max(g.arrival, g.draws[n].at), mulDivCeil(g.draws[n].amount, r.period, r.usable))
		n++
	}
	g.draws = slices.Delete(g.draws, 0, n)
}

// rescaleBurst carries what was drawn from a burst over to another rule. A burst that is new may have been drawn already.
func (g *ledger) rescaleBurst(from, to *rule, now int64, exact bool) {
	if exact && to.burst > 0 && (from.burst == 0 || to.usable != from.usable) {
		g.drawnFrom = roundUp(addSaturated(now, max(from.spendBy, to.spendBy)), to.width)
	}
	switch {
	case to.burst == 0:
		g.draws, g.loose = nil, nil
	case from.burst == 0:
		g.arrival = addSaturated(now, mulDivCeil(to.burst, to.period, to.usable))
	case to.usable != from.usable:
		drawn := mulDivCeil(max(g.drawn(from)-now, 0), from.usable, from.period)
		g.arrival, g.draws = addSaturated(now, mulDivCeil(drawn, to.period, to.usable)), nil
	}
}

// drawCharge takes a new charge out of a quota's burst; one that the provider charges later is drawn when it is settled.
func (m *Machine) drawCharge(q *quota, c *charge) {
	switch {
	case q.rule.burst == 0:
	case !m.exactBurst():
		q.ledger.passBurst(&q.rule, m.clock.Now, c.amount)
	case c.end != openEnd:
		if q.ledger.drawnFrom == 0 && q.ledger.arrival != 0 {
			q.ledger.drawnFrom = c.end // what stands under ends up to this one may have been drawn before a level that remembers
		}
		q.ledger.draw(c.end, m.clock.Now, c.amount)
	}
}

// drawOpen takes a charge that was open out of a quota's burst, now that its exposure ends, or will in so long.
func (m *Machine) drawOpen(q *quota, end, left, amount int64) {
	switch {
	case q.rule.burst == 0 || !m.exactBurst():
	case left > 0:
		at := addSaturated(m.clock.Now, left)
		i, found := slices.BinarySearchFunc(q.ledger.loose, at, func(e ending, at int64) int { return cmp.Compare(e.end, at) })
		if !found {
			q.ledger.loose = slices.Insert(q.ledger.loose, i, ending{end: at})
		}
		q.ledger.loose[i].amount += amount
	default:
		q.ledger.draw(end, m.clock.Now, amount)
	}
}

// encodeDraws leaves out what was not drawn.
func encodeDraws(g *ledger) (draws []*logpb.SnapshotDraw) {
	for _, d := range g.draws {
		draws = append(draws, &logpb.SnapshotDraw{EndNs: d.end, AtNs: d.at, Amount: d.amount})
	}
	return draws
}

// encodeLoose is what nobody settled, by the end of its exposure.
func encodeLoose(g *ledger) (loose []*logpb.SnapshotDraw) {
	for _, e := range g.loose {
		loose = append(loose, &logpb.SnapshotDraw{EndNs: e.end, Amount: e.amount})
	}
	return loose
}

// takeDraws enters both.
func (g *ledger) takeDraws(encoded *logpb.SnapshotQuota) {
	g.drawnFrom = encoded.DrawnFromNs
	for _, d := range encoded.Draws {
		g.draws = append(g.draws, draw{end: d.EndNs, at: d.AtNs, amount: d.Amount})
	}
	for _, d := range encoded.Loose {
		g.loose = append(g.loose, ending{end: d.EndNs, amount: d.Amount})
	}
}
