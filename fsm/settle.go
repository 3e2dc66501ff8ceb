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

// settling is the Settle of one operation, for update; settled becomes its answer.
type settling struct {
	*amounts
	o       *operation
	settled *logpb.Settled
}

// settle adjusts an operation. The unspent part returns, once, until the spend-by. The actual use is final, once, and
// ends the exposure. With the fence of an ended lease only an upward actual is accepted.
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
	st := settling{amounts: m.amounts, o: o}
	if failure := st.check(command); failure != nil {
		return effect.Failed(failure)
	}
	st.settled = &logpb.Settled{}
	costBefore, sizeBefore := st.cost(), o.size()
	st.unspend(command.Unspent)
	if len(command.Actual) > 0 || command.Final {
		st.finish(command.Actual)
	}
	m.accounts.Add(o.account, accounts.Operations, o.size()-sizeBefore)
	m.queue.addCost(l.holder, st.cost()-costBefore)
	m.finishBelow(l, command.DoneBelow, 0)
	if command.Release {
		m.endLease(l, effect.EventReleased, false)
		st.settled.Released = true
	}
	return &logpb.Result{Kind: &logpb.Result_Settled{Settled: st.settled}}
}

// cost returns the cost of the operation in virtual time, at weight 1: that of its scarcest quota.
func (st *settling) cost() (most int64) {
	sums := map[uint32]int64{}
	for i := range st.o.charges {
		sums[st.o.charges[i].quota] += st.o.charges[i].amount
	}
	for number, sum := range sums { // a maximum does not depend on the order
		if q, ok := st.quotas.byNumber.Get(number); ok {
			most = max(most, cost(q, sum))
		}
	}
	return most
}

// check validates a Settle of a live lease's operation as a whole, before anything changes.
func (st *settling) check(command *logpb.Settle) *logpb.Failure {
	if len(command.Unspent) > 0 {
		digest := entry.DigestItems(command.Unspent)
		switch {
		case st.o.unspent != 0 && st.o.unspent != digest, st.o.unspent == 0 && st.o.actual != 0:
			return alreadySettled(st.o, "unspent part")
		case st.o.unspent == 0 && st.pastSpendBy():
			return &logpb.Failure{
				Reason:  logpb.Reason_REASON_PAST_SPEND_BY,
				Message: fmt.Sprintf("the spend-by of operation %d has passed", st.o.op), Hint: "settle what was really used",
			}
		}
		if failure := st.checkParts(command.Unspent, true); failure != nil {
			return failure
		}
	}
	if len(command.Actual) > 0 || command.Final {
		if st.o.actual != 0 && st.o.actual != entry.DigestItems(command.Actual) {
			return alreadySettled(st.o, "actual part")
		}
		return st.checkParts(command.Actual, false)
	}
	return nil
}

// pastSpendBy reports whether an operation's spend-by has passed, in either time base.
func (st *settling) pastSpendBy() bool {
	return st.clock.Now > st.o.spendBy || st.o.spendByWall != 0 && st.clock.WallLate > st.o.spendByWall
}

func alreadySettled(o *operation, part string) *logpb.Failure {
	return &logpb.Failure{
		Reason:  logpb.Reason_REASON_ALREADY_SETTLED,
		Message: fmt.Sprintf("the %s of operation %d was settled before, with other amounts", part, o.op),
		Hint:    "each part counts once",
	}
}

// checkParts validates the items of a Settle: unspent names at most the consumed amounts, actual any amount from 0.
func (st *settling) checkParts(items []*logpb.Item, unspent bool) *logpb.Failure {
	for i, asked := range items {
		for _, other := range items[:i] {
			if other.Quota == asked.Quota {
				return effect.Invalid(fmt.Sprintf("quota %q is named twice", asked.Quota), "add the amounts up")
			}
		}
		c := st.chargeOf(asked.Quota)
		switch {
		case c == nil:
			return notHeld(asked.Quota, fmt.Sprintf("operation %d consumed nothing of %q", st.o.op, asked.Quota))
		case asked.Amount == nil && !unspent:
			return effect.Invalid(fmt.Sprintf("actual of %q needs an amount", asked.Quota), "0 is one")
		case asked.Amount != nil && (*asked.Amount < 0 || *asked.Amount > fixed.MaxAmount || unspent && *asked.Amount == 0):
			return effect.Invalid(fmt.Sprintf("amount %d of %q is out of range", *asked.Amount, asked.Quota), "")
		case !unspent && st.overflows(c, *asked.Amount):
			return effect.Invalid(fmt.Sprintf("amount %d of %q is more than can be counted", *asked.Amount, asked.Quota),
				"is it in the quota's unit?")
		case asked.Amount != nil && unspent && *asked.Amount > c.consumed:
			return notHeld(asked.Quota, fmt.Sprintf("operation %d consumed %d of %q", st.o.op, c.consumed, asked.Quota))
		}
	}
	return nil
}

// maxCounted bounds the count of a quota with overruns, so that sums of a few such values do not overflow.
const maxCounted = int64(1) << 60

// overflows reports whether an actual amount would raise the count of a quota or an ancestor above maxCounted.
func (st *settling) overflows(c *charge, actual int64) (beyond bool) {
	if actual <= c.amount {
		return false
	}
	st.eachShareOf(c, func(_ *charge, q *quota) {
		beyond = beyond || q.ledger.Consumed() > maxCounted-actual
	})
	return beyond
}

// chargeOf returns an operation's charge for an item, nil if there is none.
func (st *settling) chargeOf(name string) *charge {
	for i := range st.o.charges {
		c := &st.o.charges[i]
		if q := st.quotas.editNow(c.quota); q != nil && !c.ancestor && !c.overrun && q.name == name {
			return c
		}
	}
	return nil
}

// eachShareOf calls fn for a charge and its ancestors' shares.
func (st *settling) eachShareOf(first *charge, fn func(c *charge, q *quota)) {
	started := false
	for i := range st.o.charges {
		c := &st.o.charges[i]
		if started && (!c.ancestor || c.overrun) {
			return
		}
		if c == first || started {
			started = true
			if q := st.quotas.editNow(c.quota); q != nil {
				fn(c, q)
			}
		}
	}
}

// unspend returns amounts that will certainly not be spent. A repeat gets the same answer.
func (st *settling) unspend(items []*logpb.Item) {
	if len(items) == 0 {
		return
	}
	repeat := st.o.unspent != 0
	st.o.unspent = entry.DigestItems(items)
	for _, asked := range items {
		own := st.chargeOf(asked.Quota)
		amount := own.consumed
		if asked.Amount != nil {
			amount = *asked.Amount
		}
		st.settled.Returned = append(st.settled.Returned, &logpb.GrantedItem{Quota: asked.Quota, Amount: amount})
		if repeat {
			continue
		}
		st.eachShareOf(own, func(c *charge, q *quota) {
			q.repayCharge(c, amount, st.moment)
			q.ledger.Take(c.end, amount, 0)
			st.recordUsage(q, st.o.holder, int32(c.class), c.window, c.end, -amount)
			st.holders.recordReturned(q, st.o.holder, amount)
			c.amount -= amount
			c.unspent = amount
			st.quotas.markDirty(q)
		})
	}
}

// repayCharge returns the unused part of a charge to the pacer and the burst.
func (q *quota) repayCharge(c *charge, amount int64, at *moment) {
	if q.ledger.Counts(c.end) {
		q.repay(at, amount)
	}
	q.ledger.Undraw(c.end, amount)
}

// finish settles the actual use and ends the exposure. A repeat gets the same answer.
func (st *settling) finish(items []*logpb.Item) {
	if st.o.actual != 0 {
		st.repeatFinish(items)
		return
	}
	st.o.actual = entry.DigestItems(items)
	overruns := make([]charge, 0, len(items))
	for _, asked := range items {
		own := st.chargeOf(asked.Quota)
		overruns = append(overruns, st.finishItem(own, asked)...)
	}
	inTime := !st.pastSpendBy()
	for i := range st.o.charges {
		c := &st.o.charges[i]
		q := st.quotas.editNow(c.quota)
		if q == nil {
			continue
		}
		if c.window == q.ledger.Window {
			q.ledger.Settled = fixed.AddSaturated(q.ledger.Settled, c.amount)
		}
		if inTime || c.end == ledger.OpenEnd {
			// A settle ends the exposure, but never lengthens it.
			end := q.ledger.Key(&q.rule, q.rule.At(st.clock).Late)
			st.moveCharge(q, st.o.holder, c, min(end, c.end), 0)
			st.quotas.markDirty(q)
		}
	}
	st.o.charges = append(st.o.charges, overruns...)
}

// finishItem settles one item. Overruns get charges of their own, which begin now.
func (st *settling) finishItem(own *charge, asked *logpb.Item) []charge {
	actual := *asked.Amount
	difference := actual - own.amount
	var overruns []charge
	st.eachShareOf(own, func(c *charge, q *quota) {
		switch {
		case difference > 0:
			overruns = append(overruns, st.overrun(q, st.o.holder, c, difference))
		case difference < 0 && !q.rule.SettleMax:
			q.repayCharge(c, -difference, st.moment)
			q.ledger.Take(c.end, -difference, 0)
			st.recordUsage(q, st.o.holder, int32(c.class), c.window, c.end, difference)
			st.holders.recordReturned(q, st.o.holder, -difference)
			c.amount += difference
			st.quotas.markDirty(q)
			if !c.ancestor {
				st.settled.Returned = append(st.settled.Returned, &logpb.GrantedItem{Quota: asked.Quota, Amount: -difference})
			}
		}
	})
	if difference > 0 {
		st.settled.Overrun = append(st.settled.Overrun, &logpb.GrantedItem{Quota: asked.Quota, Amount: difference})
		st.emit(effect.Event{
			Kind: effect.EventOverrun, Quota: asked.Quota, Holder: st.o.holder, Lease: st.o.lease, Fence: st.o.fence, Amount: difference,
		})
	}
	return overruns
}

// repeatFinish answers a repeated actual part from the record.
func (st *settling) repeatFinish(items []*logpb.Item) {
	for _, asked := range items {
		c := st.chargeOf(asked.Quota)
		difference := *asked.Amount - (c.consumed - c.unspent)
		switch q := st.quotas.editNow(c.quota); {
		case difference > 0:
			st.settled.Overrun = append(st.settled.Overrun, &logpb.GrantedItem{Quota: asked.Quota, Amount: difference})
		case difference < 0 && !q.rule.SettleMax:
			st.settled.Returned = append(st.settled.Returned, &logpb.GrantedItem{Quota: asked.Quota, Amount: -difference})
		}
	}
}

// settleable returns the record of an ended lease's operation for reading, nil if there is none or it is due to be
// dropped.
func (rs *records) settleable(lease, op uint64) *operation {
	o := rs.retiringRecord(lease, op)
	switch {
	case o == nil:
		return rs.liveDetached(lease, op)
	case o.actual != 0, !rs.amounts.stillCounts(o):
		return nil
	}
	return o
}

// settleDetached accepts an actual that is upward in all its items, once, while the record of an ended lease's
// operation exists. A stale fence can lower the available amount, once, and nothing else.
func (m *Machine) settleDetached(command *logpb.Settle, by string, stale *logpb.Failure) *logpb.Result {
	o := m.records.settleable(command.Lease, command.Op)
	if o == nil || command.Op == graceOp || o.fence != command.Fence || by != "" && !Match(by, o.holder) ||
		len(command.Unspent) > 0 || len(command.Actual) == 0 || command.Release {
		return effect.Failed(stale)
	}
	if o.actual != 0 && o.actual != entry.DigestItems(command.Actual) {
		return effect.Failed(alreadySettled(o, "actual part"))
	}
	st := settling{amounts: m.amounts, o: o}
	if failure := st.checkParts(command.Actual, false); failure != nil {
		return effect.Failed(failure)
	}
	for _, asked := range command.Actual {
		if c := st.chargeOf(asked.Quota); *asked.Amount < c.consumed-c.unspent {
			return effect.Failed(stale)
		}
	}
	st.settled = &logpb.Settled{}
	if o.actual != 0 {
		st.repeatFinish(command.Actual)
		return &logpb.Result{Kind: &logpb.Result_Settled{Settled: st.settled}}
	}
	m.records.detachNow(command.Lease, command.Op)
	if o = m.records.detachedOperation(command.Lease, command.Op); o == nil {
		return effect.Failed(stale)
	}
	st.o = o
	o.actual = entry.DigestItems(command.Actual)
	before := st.cost()
	var overruns []charge
	for _, asked := range command.Actual {
		overruns = append(overruns, st.finishItem(st.chargeOf(asked.Quota), asked)...)
	}
	o.charges = append(o.charges, overruns...)
	m.records.keepDetached(o)
	m.queue.addCost(o.holder, st.cost()-before)
	return &logpb.Result{Kind: &logpb.Result_Settled{Settled: st.settled}}
}
