package fsm

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
)

// Each charge records what an operation draws from a burst, so that unused amounts return to it.

// exactBurst reports whether burst draws are recorded by the time of consumption.
func (at *moment) exactBurst() bool { return at.featureLevel >= levels.Rates }

// burstLeft returns how long until an amount passes the quota's burst (nanoseconds); 0: now.
func (q *quota) burstLeft(at *moment, amount int64) int64 {
	if q.rule.Burst == 0 {
		return 0
	}
	if !at.exactBurst() {
		return q.ledger.BurstLeft(&q.rule, at.clock.Now, amount)
	}
	g := &q.ledger
	uncharged := g.Open
	for _, e := range g.Loose {
		uncharged += e.Amount
	}
	need := fixed.AddSaturated(amount, uncharged)
	left := g.BurstLeft(&q.rule, at.clock.Now, need)
	if left > 0 && need > q.rule.Burst && amount <= q.rule.Burst {
		return max(left, unknownRetry) // until something of it is settled
	}
	return left
}

// drawCharge draws a new charge from a quota's burst. A charge that the provider makes later is drawn when it is
// settled.
func (q *quota) drawCharge(at *moment, c *charge) {
	switch {
	case q.rule.Burst == 0:
	case !at.exactBurst():
		q.ledger.PassBurst(&q.rule, at.clock.Now, c.amount)
	case c.end != ledger.OpenEnd:
		if q.ledger.DrawnFrom == 0 && q.ledger.Arrival != 0 {
			q.ledger.DrawnFrom = c.end // charges with ends up to this one may predate the level that records draws
		}
		q.ledger.Draw(c.end, at.clock.Now, c.amount)
	}
}

// drawOpen draws an open charge from a quota's burst when its exposure ends: now, or in left nanoseconds.
func (q *quota) drawOpen(at *moment, end, left, amount int64) {
	switch {
	case q.rule.Burst == 0 || !at.exactBurst():
	case left > 0:
		ends := fixed.AddSaturated(at.clock.Now, left)
		i, found := slices.BinarySearchFunc(q.ledger.Loose, ends, func(e ledger.Ending, ends int64) int { return cmp.Compare(e.End, ends) })
		if !found {
			q.ledger.Loose = slices.Insert(q.ledger.Loose, i, ledger.Ending{End: ends})
		}
		q.ledger.Loose[i].Amount += amount
	default:
		q.ledger.Draw(end, at.clock.Now, amount)
	}
}
