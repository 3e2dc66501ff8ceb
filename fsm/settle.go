package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// settle adjusts an operation: what is unspent goes back, once, until the spend-by; what was really used is final,
// once, and ends the exposure. With the fence of a lease that has ended only an upward actual is taken.
func (m *Machine) settle(command *logpb.Settle, by string) *logpb.Result {
	if len(command.Unspent) == 0 && len(command.Actual) == 0 && !command.Final && !command.Release {
		return effect.Failed(effect.Invalid("a Settle needs unspent, actual, final or release", ""))
	}
	l, failure := m.lookupLease(command.Lease, command.Fence, by)
	if failure != nil {
		if failure.Reason != logpb.Reason_REASON_STALE_FENCE {
			return effect.Failed(failure)
		}
		return m.settleDetached(command, by, failure)
	}
	o := l.operation(command.Op)
	if o == nil || command.Op == graceOp {
		return effect.Failed(&logpb.Failure{
			Reason:  logpb.Reason_REASON_STALE_OPERATION,
			Message: fmt.Sprintf("lease %d has no record of operation %d", l.id, command.Op),
			Hint:    "it was never consumed, or is below the mark that you sent",
		})
	}
	o = m.editOperation(l, o)
	if failure := m.checkSettle(o, command); failure != nil {
		return effect.Failed(failure)
	}
	settled := &logpb.Settled{}
	costBefore, sizeBefore := m.costOfCharges(o), o.size()
	m.unspend(o, command.Unspent, settled)
	if len(command.Actual) > 0 || command.Final {
		m.finish(o, command.Actual, settled)
	}
	m.accounts.Add(o.account, accounts.Operations, o.size()-sizeBefore)
	m.addCost(l.holder, m.costOfCharges(o)-costBefore)
	m.finishBelow(l, command.DoneBelow, 0)
	if command.Release {
		m.endLease(l, effect.EventReleased, false)
		settled.Released = true
	}
	return &logpb.Result{Kind: &logpb.Result_Settled{Settled: settled}}
}

// costOfCharges returns what an operation costs in turns: its scarcest quota's.
func (m *Machine) costOfCharges(o *operation) (most int64) {
	sums := map[uint32]int64{}
	for i := range o.charges {
		sums[o.charges[i].quota] += o.charges[i].amount
	}
	for number, sum := range sums { // a maximum does not depend on the order
		if q, ok := m.quotas.byNumber.Get(number); ok {
			most = max(most, cost(q, sum))
		}
	}
	return most
}

// checkSettle checks a Settle of a live lease's operation as a whole, before anything changes.
func (m *Machine) checkSettle(o *operation, command *logpb.Settle) *logpb.Failure {
	if len(command.Unspent) > 0 {
		digest := entry.DigestItems(command.Unspent)
		switch {
		case o.unspent != 0 && o.unspent != digest, o.unspent == 0 && o.actual != 0:
			return alreadySettled(o, "unspent part")
		case o.unspent == 0 && m.pastSpendBy(o):
			return &logpb.Failure{
				Reason:  logpb.Reason_REASON_PAST_SPEND_BY,
				Message: fmt.Sprintf("the spend-by of operation %d has passed", o.op), Hint: "settle what was really used",
			}
		}
		if failure := m.checkParts(o, command.Unspent, true); failure != nil {
			return failure
		}
	}
	if len(command.Actual) > 0 || command.Final {
		if o.actual != 0 && o.actual != entry.DigestItems(command.Actual) {
			return alreadySettled(o, "actual part")
		}
		return m.checkParts(o, command.Actual, false)
	}
	return nil
}

// pastSpendBy tells whether an operation's spend-by has passed, in either time base.
func (m *Machine) pastSpendBy(o *operation) bool {
	return m.clock.Now > o.spendBy || o.spendByWall != 0 && m.clock.WallLate > o.spendByWall
}

func alreadySettled(o *operation, part string) *logpb.Failure {
	return &logpb.Failure{
		Reason:  logpb.Reason_REASON_ALREADY_SETTLED,
		Message: fmt.Sprintf("the %s of operation %d was settled before, with other amounts", part, o.op),
		Hint:    "each part counts once",
	}
}

// checkParts checks the items of a Settle: unspent names at most what was consumed, actual anything from 0.
func (m *Machine) checkParts(o *operation, items []*logpb.Item, unspent bool) *logpb.Failure {
	for i, asked := range items {
		for _, other := range items[:i] {
			if other.Quota == asked.Quota {
				return effect.Invalid(fmt.Sprintf("quota %q is named twice", asked.Quota), "add the amounts up")
			}
		}
		c := m.chargeOf(o, asked.Quota)
		switch {
		case c == nil:
			return notHeld(asked.Quota, fmt.Sprintf("operation %d consumed nothing of %q", o.op, asked.Quota))
		case asked.Amount == nil && !unspent:
			return effect.Invalid(fmt.Sprintf("actual of %q needs an amount", asked.Quota), "0 is one")
		case asked.Amount != nil && (*asked.Amount < 0 || *asked.Amount > fixed.MaxAmount || unspent && *asked.Amount == 0):
			return effect.Invalid(fmt.Sprintf("amount %d of %q is out of range", *asked.Amount, asked.Quota), "")
		case !unspent && m.overflows(o, c, *asked.Amount):
			return effect.Invalid(fmt.Sprintf("amount %d of %q is more than can be counted", *asked.Amount, asked.Quota),
				"is it in the quota's unit?")
		case asked.Amount != nil && unspent && *asked.Amount > c.consumed:
			return notHeld(asked.Quota, fmt.Sprintf("operation %d consumed %d of %q", o.op, c.consumed, asked.Quota))
		}
	}
	return nil
}

// maxCounted bounds what overruns can take a quota's count to: sums of a few such terms still fit.
const maxCounted = int64(1) << 60

// overflows tells whether an actual amount would take the count of a quota or an ancestor beyond what can be counted.
func (m *Machine) overflows(o *operation, c *charge, actual int64) (beyond bool) {
	if actual <= c.amount {
		return false
	}
	m.eachChargeShare(o, c, func(_ *charge, q *quota) {
		beyond = beyond || q.ledger.Consumed() > maxCounted-actual
	})
	return beyond
}

// chargeOf returns an operation's charge for an item, nil where it has none.
func (m *Machine) chargeOf(o *operation, name string) *charge {
	for i := range o.charges {
		c := &o.charges[i]
		if q := m.quotas.editNow(c.quota); q != nil && !c.ancestor && !c.overrun && q.name == name {
			return c
		}
	}
	return nil
}

// eachChargeShare calls fn for a charge and its ancestors' shares.
func (m *Machine) eachChargeShare(o *operation, first *charge, fn func(c *charge, q *quota)) {
	started := false
	for i := range o.charges {
		c := &o.charges[i]
		if started && (!c.ancestor || c.overrun) {
			return
		}
		if c == first || started {
			started = true
			if q := m.quotas.editNow(c.quota); q != nil {
				fn(c, q)
			}
		}
	}
}

// unspend gives back what will certainly not be spent. A repeat answers the same.
func (m *Machine) unspend(o *operation, items []*logpb.Item, settled *logpb.Settled) {
	if len(items) == 0 {
		return
	}
	repeat := o.unspent != 0
	o.unspent = entry.DigestItems(items)
	for _, asked := range items {
		own := m.chargeOf(o, asked.Quota)
		amount := own.consumed
		if asked.Amount != nil {
			amount = *asked.Amount
		}
		settled.Returned = append(settled.Returned, &logpb.GrantedItem{Quota: asked.Quota, Amount: amount})
		if repeat {
			continue
		}
		m.eachChargeShare(o, own, func(c *charge, q *quota) {
			q.repayCharge(c, amount, m.clock.Now)
			q.ledger.Take(c.end, amount, 0)
			m.recordUsage(q, o.holder, int32(c.class), c.window, c.end, -amount)
			m.holders.recordReturned(q, o.holder, amount)
			c.amount -= amount
			c.unspent = amount
			m.quotas.markDirty(q)
		})
	}
}

// repayCharge gives back to the pacer and the burst what was not used of a charge.
func (q *quota) repayCharge(c *charge, amount, now int64) {
	if q.ledger.Counts(c.end) {
		q.repay(now, amount)
	}
	q.ledger.Undraw(c.end, amount)
}

// finish settles what was really used and ends the exposure. A repeat answers the same.
func (m *Machine) finish(o *operation, items []*logpb.Item, settled *logpb.Settled) {
	if o.actual != 0 {
		m.repeatFinish(o, items, settled)
		return
	}
	o.actual = entry.DigestItems(items)
	overruns := make([]charge, 0, len(items))
	for _, asked := range items {
		own := m.chargeOf(o, asked.Quota)
		overruns = append(overruns, m.finishItem(o, own, asked, settled)...)
	}
	inTime := !m.pastSpendBy(o)
	for i := range o.charges {
		c := &o.charges[i]
		q := m.quotas.editNow(c.quota)
		if q == nil {
			continue
		}
		if c.window == q.ledger.Window {
			q.ledger.Settled = fixed.AddSaturated(q.ledger.Settled, c.amount)
		}
		if inTime || c.end == ledger.OpenEnd {
			// A settle ends the exposure, but never lengthens it.
			end := q.ledger.Key(&q.rule, q.rule.At(m.clock).Late)
			m.moveCharge(q, o.holder, c, min(end, c.end), 0)
			m.quotas.markDirty(q)
		}
	}
	o.charges = append(o.charges, overruns...)
}

// finishItem settles one item; what goes beyond the estimate is charged by entries of their own, which begin now.
func (m *Machine) finishItem(o *operation, own *charge, asked *logpb.Item, settled *logpb.Settled) []charge {
	actual := *asked.Amount
	difference := actual - own.amount
	var overruns []charge
	m.eachChargeShare(o, own, func(c *charge, q *quota) {
		switch {
		case difference > 0:
			overruns = append(overruns, m.overrun(q, o.holder, c, difference))
		case difference < 0 && !q.rule.SettleMax:
			q.repayCharge(c, -difference, m.clock.Now)
			q.ledger.Take(c.end, -difference, 0)
			m.recordUsage(q, o.holder, int32(c.class), c.window, c.end, difference)
			m.holders.recordReturned(q, o.holder, -difference)
			c.amount += difference
			m.quotas.markDirty(q)
			if !c.ancestor {
				settled.Returned = append(settled.Returned, &logpb.GrantedItem{Quota: asked.Quota, Amount: -difference})
			}
		}
	})
	if difference > 0 {
		settled.Overrun = append(settled.Overrun, &logpb.GrantedItem{Quota: asked.Quota, Amount: difference})
		m.emit(effect.Event{
			Kind: effect.EventOverrun, Quota: asked.Quota, Holder: o.holder, Lease: o.lease, Fence: o.fence, Amount: difference,
		})
	}
	return overruns
}

// overrun charges what was used beyond an estimate.
func (m *Machine) overrun(q *quota, name string, of *charge, amount int64) charge {
	end := q.ledger.Key(&q.rule, q.rule.At(m.clock).Late)
	m.recordTotal(q, amount)
	m.count(q, end, 0, amount, amount)
	q.pay(m.clock.Now, amount)
	q.drawOpen(m.moment, end, 0, amount)
	m.recordUsage(q, name, int32(of.class), q.ledger.Window, end, amount)
	if t := m.holders.meterOf(q, name); t != nil {
		t.Overrun = fixed.AddSaturated(t.Overrun, amount)
	}
	return charge{
		quota: q.number, ancestor: of.ancestor, overrun: true, amount: amount, end: end, window: q.ledger.Window, class: of.class,
	}
}

// repeatFinish answers a repeated actual part from the record.
func (m *Machine) repeatFinish(o *operation, items []*logpb.Item, settled *logpb.Settled) {
	for _, asked := range items {
		c := m.chargeOf(o, asked.Quota)
		difference := *asked.Amount - (c.consumed - c.unspent)
		switch q := m.quotas.editNow(c.quota); {
		case difference > 0:
			settled.Overrun = append(settled.Overrun, &logpb.GrantedItem{Quota: asked.Quota, Amount: difference})
		case difference < 0 && !q.rule.SettleMax:
			settled.Returned = append(settled.Returned, &logpb.GrantedItem{Quota: asked.Quota, Amount: -difference})
		}
	}
}

// settleable returns the record of an ended lease's operation, nil where there is none, or it is due to be forgotten. It must not be
// changed.
func (m *Machine) settleable(lease, op uint64) *operation {
	o := m.retiringRecord(lease, op)
	switch {
	case o == nil:
		return m.liveDetached(lease, op)
	case o.actual != 0, !m.stillCounts(o):
		return nil
	}
	return o
}

// settleDetached takes an actual that is upward in all its items, once, while the record of an ended lease's operation
// exists: a stale fence can lower what is available, once, and nothing else.
func (m *Machine) settleDetached(command *logpb.Settle, by string, stale *logpb.Failure) *logpb.Result {
	o := m.settleable(command.Lease, command.Op)
	if o == nil || command.Op == graceOp || o.fence != command.Fence || by != "" && !Match(by, o.holder) ||
		len(command.Unspent) > 0 || len(command.Actual) == 0 || command.Release {
		return effect.Failed(stale)
	}
	if o.actual != 0 && o.actual != entry.DigestItems(command.Actual) {
		return effect.Failed(alreadySettled(o, "actual part"))
	}
	if failure := m.checkParts(o, command.Actual, false); failure != nil {
		return effect.Failed(failure)
	}
	for _, asked := range command.Actual {
		if c := m.chargeOf(o, asked.Quota); *asked.Amount < c.consumed-c.unspent {
			return effect.Failed(stale)
		}
	}
	settled := &logpb.Settled{}
	if o.actual != 0 {
		m.repeatFinish(o, command.Actual, settled)
		return &logpb.Result{Kind: &logpb.Result_Settled{Settled: settled}}
	}
	m.detachNow(command.Lease, command.Op)
	if o = m.detachedOperation(command.Lease, command.Op); o == nil {
		return effect.Failed(stale)
	}
	o.actual = entry.DigestItems(command.Actual)
	before := m.costOfCharges(o)
	var overruns []charge
	for _, asked := range command.Actual {
		overruns = append(overruns, m.finishItem(o, m.chargeOf(o, asked.Quota), asked, settled)...)
	}
	o.charges = append(o.charges, overruns...)
	m.keepDetached(o)
	m.addCost(o.holder, m.costOfCharges(o)-before)
	return &logpb.Result{Kind: &logpb.Result_Settled{Settled: settled}}
}
