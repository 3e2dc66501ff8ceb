package fsm

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
)

// What an operation draws from bursts stands with its charges, so that it goes back where less was used.

// exactBurst tells whether what is drawn from bursts is remembered by when it was consumed.
func (at *moment) exactBurst() bool { return at.featureLevel >= levels.Rates }

// burstLeft returns in how long an amount passes the quota's burst; 0: now.
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

// drawCharge takes a new charge out of a quota's burst; one that the provider charges later is drawn when it is settled.
func (q *quota) drawCharge(at *moment, c *charge) {
	switch {
	case q.rule.Burst == 0:
	case !at.exactBurst():
		q.ledger.PassBurst(&q.rule, at.clock.Now, c.amount)
	case c.end != ledger.OpenEnd:
		if q.ledger.DrawnFrom == 0 && q.ledger.Arrival != 0 {
			q.ledger.DrawnFrom = c.end // what stands under ends up to this one may have been drawn before a level that remembers
		}
		q.ledger.Draw(c.end, at.clock.Now, c.amount)
	}
}

// drawOpen takes a charge that was open out of a quota's burst, now that its exposure ends, or will in so long.
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
