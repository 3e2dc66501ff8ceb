package fsm

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
)

// amounts moves held and counted amounts within a quota's ledger: lease holdings, operation charges, and returns. It
// accesses quotas and the meters of holders, and keeps the usage of classes up to date.
type amounts struct {
	*moment
	quotas  *quotaTable
	holders *holderTables
	// busyUntil is when the last entry of a sliding log, or the last slot grace, ends (cluster time).
	busyUntil int64
}

// recordUsage records that a holder's usage of the present window changed by amount. The end is ledger.OpenEnd for held
// amounts. If the caller's budget for holder records is used up, the amount is not listed: it counts for the whole
// window.
func (am *amounts) recordUsage(q *quota, name string, class int32, window, end, amount int64) {
	if q.rule.Paced() && class == ledger.ClassCritical && q.ledger.Counts(end) {
		if u := &q.ledger.Used[class]; amount < 0 && am.featureLevel >= levels.Counted { // its cap needs this
			u.TakeBack(end, -amount)
		} else {
			u.Add(end, amount, true)
		}
	}
	if q.rule.Kind != ledger.KindWindow || window != q.ledger.Window || !q.ledger.Counts(end) {
		return
	}
	listed := q.ledger.Lists(&q.rule)
	q.ledger.Used[class].Add(end, amount, listed)
	if t := am.holders.metered(q, name); t != nil {
		was := t.size()
		t.used.Add(end, amount, listed && (amount < 0 || t.used.Has(end) || am.holders.mayGrow(t)))
		am.holders.resized(t, was)
	}
}

// moveUsage records that the exposure of a used amount ends at another time.
func (am *amounts) moveUsage(q *quota, name string, c *charge, from int64) {
	if q.rule.Paced() && c.class == int8(ledger.ClassCritical) {
		if u := &q.ledger.Used[c.class]; am.featureLevel >= levels.Counted {
			u.MoveCounted(from, c.end, c.amount)
		} else {
			u.Move(from, c.end, c.amount)
		}
	}
	if q.rule.Kind != ledger.KindWindow || c.window != q.ledger.Window || !q.ledger.Lists(&q.rule) {
		return
	}
	q.ledger.Used[c.class].Move(from, c.end, c.amount)
	if t := am.holders.metered(q, name); t != nil {
		was := t.size()
		t.used.List(from, -c.amount)
		if t.used.Has(c.end) || am.holders.mayGrow(t) {
			t.used.List(c.end, c.amount)
		}
		am.holders.resized(t, was)
	}
}

// recordTotal adds to the total consumed of a rate.
func (am *amounts) recordTotal(q *quota, amount int64) {
	if q.rule.Kind == ledger.KindRate && am.featureLevel >= levels.Overtaken {
		q.ledger.Total += uint64(amount)
	}
}

// count counts an amount until an end; left is the rest of its exposure (nanoseconds). The state is busy while anything
// in cluster time counts.
func (am *amounts) count(q *quota, end, left, amount, overrun int64) {
	var until int64
	if q.rule.Kind == ledger.KindWindow {
		until = max(fixed.AddSaturated(am.clock.Now, left), 1)
	}
	q.ledger.Add(end, amount, overrun, until)
	if q.rule.Kind != ledger.KindWindow && end != ledger.OpenEnd {
		am.busyUntil = max(am.busyUntil, fixed.AddSaturated(end, q.rule.Period))
	}
}

// chargeFor charges an amount that was held.
func (am *amounts) chargeFor(q *quota, l *lease, ancestor bool, amount, spendBy int64) charge {
	g, r := &q.ledger, &q.rule
	c := charge{
		quota: q.number, ancestor: ancestor, amount: amount, consumed: amount,
		end: ledger.OpenEnd, window: g.Window, before: g.Settled, class: int8(l.class),
	}
	if r.Kind == ledger.KindRate && am.featureLevel >= levels.Reports {
		c.before, c.total = g.Consumed(), g.Total
	}
	if !r.OpenEnded {
		c.end = g.Key(r, fixed.AddSaturated(r.At(am.clock).Late, spendBy))
	}
	am.recordTotal(q, amount)
	am.count(q, c.end, spendBy, amount, 0)
	am.moveUsage(q, l.holder, &c, ledger.OpenEnd)
	q.drawCharge(am.moment, &c)
	return c
}

// overrun charges the use beyond an estimate.
func (am *amounts) overrun(q *quota, name string, of *charge, amount int64) charge {
	end := q.ledger.Key(&q.rule, q.rule.At(am.clock).Late)
	am.recordTotal(q, amount)
	am.count(q, end, 0, amount, amount)
	if q.pay(am.moment, amount) {
		am.quotas.markDirty(q)
	}
	q.drawOpen(am.moment, end, 0, amount)
	am.recordUsage(q, name, int32(of.class), q.ledger.Window, end, amount)
	if t := am.holders.meterOf(q, name); t != nil {
		t.Overrun = fixed.AddSaturated(t.Overrun, amount)
	}
	return charge{
		quota: q.number, ancestor: of.ancestor, overrun: true, amount: amount, end: end, window: q.ledger.Window, class: of.class,
	}
}

// moveCharge moves the amount of a charge to another end; left is the rest of its exposure (nanoseconds).
func (am *amounts) moveCharge(q *quota, name string, c *charge, end, left int64) {
	if !q.ledger.Counts(c.end) || c.end == end {
		return
	}
	var overrun int64
	if c.overrun {
		overrun = c.amount
	}
	q.ledger.Take(c.end, c.amount, overrun)
	from := c.end
	if from == ledger.OpenEnd {
		q.drawOpen(am.moment, end, left, c.amount)
	}
	c.end = end
	am.count(q, end, left, c.amount, overrun)
	am.moveUsage(q, name, c, from)
}

// stillCounts reports whether anything of an operation counts.
func (am *amounts) stillCounts(o *operation) bool {
	for i := range o.charges {
		if q := am.quotas.editNow(o.charges[i].quota); q != nil && q.ledger.Counts(o.charges[i].end) {
			return true
		}
	}
	return false
}

// closeRecord closes the charges of a record that is dropped. They still count, but nothing of them can return.
func (am *amounts) closeRecord(o *operation) {
	for i := range o.charges {
		if q := am.quotas.editNow(o.charges[i].quota); q != nil {
			q.ledger.Close(o.charges[i].end, o.charges[i].amount)
		}
	}
}

// endExposure sets an end for charges whose exposure is open: the client reported that the operation is finished, but
// not how much it used.
func (am *amounts) endExposure(o *operation, left int64) {
	for i := range o.charges {
		c := &o.charges[i]
		if c.end != ledger.OpenEnd {
			continue
		}
		if q := am.quotas.editNow(c.quota); q != nil {
			longest := am.longestLeft(o, q, left)
			am.moveCharge(q, o.holder, c, q.ledger.Key(&q.rule, fixed.AddSaturated(q.rule.At(am.clock).Late, longest)), longest)
		}
	}
}

// longestLeft returns the rest of an exposure that was never settled. It ends one longest call (MaxCall) after its
// lease, which has left nanoseconds to go, and not before the spend-by.
func (am *amounts) longestLeft(o *operation, q *quota, left int64) int64 {
	return max(left+q.rule.MaxCall, o.spendBy-am.clock.Now)
}

// shortLived reports whether a detached record that has been kept for the agreed time stops counting soon.
func (am *amounts) shortLived(o *operation) bool {
	for i := range o.charges {
		if q := am.quotas.get(o.charges[i].quota); q != nil && q.ledger.Counts(o.charges[i].end) &&
			q.ledger.DropsIn(&q.rule, q.rule.At(am.clock), o.charges[i].end) > fixed.Hour {
			return false
		}
	}
	return true
}

// nextCheck returns when to check a detached record again.
func (am *amounts) nextCheck(o *operation) int64 {
	left := fixed.Second
	for i := range o.charges {
		if q := am.quotas.get(o.charges[i].quota); q != nil && q.ledger.Counts(o.charges[i].end) {
			left = max(left, q.ledger.DropsIn(&q.rule, q.rule.At(am.clock), o.charges[i].end))
		}
	}
	return fixed.AddSaturated(am.clock.Now, min(left, maxDetached))
}

// staysOn reports whether a detached record whose check is due is kept for a while longer.
func (am *amounts) staysOn(o *operation) bool { return am.stillCounts(o) && am.shortLived(o) }
