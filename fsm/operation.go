package fsm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxRecords is how many operations of a live lease may have records.
const maxRecords = 1024

// graceOp is the number of the record that keeps the slots of an expired lease in use; clients number from 1.
const graceOp = 0

// operation is the record of one Consume.
type operation struct {
	cow.Made
	lease, op uint64
	fence     uint64
	holder    string
	// spendBy (cluster time) and spendByWall (Unix time; 0: no window is involved) are the last moment to spend it.
	spendBy, spendByWall int64
	transit              int64
	// beganWall is when it was consumed, by the earlier view of Unix time: its call was answered after that.
	beganWall int64
	// began is when it was consumed (cluster time), while its lease lives; 0: before there were reports of rates.
	began int64
	// Digests of the requested, unspent and actual amounts; 0: not yet.
	asked, unspent, actual uint64
	// account is charged with it: its lease's.
	account uint64
	// detached: its lease has ended.
	detached bool
	// charges start in single, which avoids an allocation for one charge.
	charges []charge
	single  [1]charge
	// check is when to check again whether a detached record still counts (cluster time).
	check int64
}

// charge is the charge of an operation to one quota: an item, the share of an ancestor, or an overrun.
type charge struct {
	quota    uint32
	ancestor bool
	overrun  bool
	// class is its lease's.
	class int8
	// amount is the amount charged now, consumed the amount consumed, unspent the part of it that was returned.
	amount, consumed, unspent int64
	// end is the end under which amount is in the quota's log.
	end int64
	// window is the window in which it was consumed. before is the amount settled in it by then, or for a rate the
	// amount that counted then: a report that names this operation proves it. total is the total consumption of a rate
	// by then.
	window, before int64
	total          uint64
}

// operations are the records of a lease's operations.
type operations struct {
	cow.Made
	// doneBelow is the low-water mark: its holder has finished the operations below it.
	doneBelow uint64
	// list is in the order of numbers.
	list []*operation
}

// firstOperation combines the objects of a lease's first operation in one allocation.
type firstOperation struct {
	operations
	operation
	single [1]*operation
}

// records returns the records of a lease's operations, by number.
func (l *lease) records() []*operation {
	if l.operations == nil {
		return nil
	}
	return l.operations.list
}

// doneBelow returns the low-water mark: the lease's holder has finished the operations below it.
func (l *lease) doneBelow() uint64 {
	if l.operations == nil {
		return 0
	}
	return l.operations.doneBelow
}

// find returns where an operation's record is among a lease's, or would be inserted: mostly at the end.
func (l *lease) find(op uint64) (int, bool) {
	list := l.records()
	if last := len(list) - 1; last < 0 || list[last].op < op {
		return len(list), false
	}
	return slices.BinarySearchFunc(list, op, func(o *operation, op uint64) int { return cmp.Compare(o.op, op) })
}

// operation returns a record, nil if there is none.
func (l *lease) operation(op uint64) *operation {
	if i, found := l.find(op); found {
		return l.operations.list[i]
	}
	return nil
}

// editOperations returns a lease's list of records for update.
func (m *Machine) editOperations(l *lease) *operations {
	switch {
	case l.operations == nil:
		l.operations = &operations{Made: cow.In(m.generation)}
	case !l.operations.MadeIn(m.generation):
		l.operations = &operations{
			Made: cow.In(m.generation), doneBelow: l.operations.doneBelow, list: slices.Clone(l.operations.list),
		}
	}
	return l.operations
}

// editOperation returns a record for update. The lease must be one for update.
func (m *Machine) editOperation(l *lease, o *operation) *operation {
	if o.MadeIn(m.generation) {
		return o
	}
	c := *o
	c.charges = append(c.single[:0], o.charges...)
	c.Made = cow.In(m.generation)
	if i, found := l.find(o.op); found {
		m.editOperations(l).list[i] = &c
	}
	return &c
}

// newOperation returns an empty record for a lease for update.
func (m *Machine) newOperation(l *lease) *operation {
	if l.operations != nil {
		return &operation{Made: cow.In(m.generation)}
	}
	kept, first := m.freeList.firstOperation()
	kept.Made, first.Made = cow.In(m.generation), cow.In(m.generation)
	l.operations = kept
	return first
}

// keepRecord enters a record.
func (m *Machine) keepRecord(l *lease, o *operation) {
	kept := m.editOperations(l)
	i, _ := l.find(o.op)
	kept.list = slices.Insert(kept.list, i, o)
	m.records.countRecord(o, 1)
}

// recordSize is the size in bytes of the record of a live lease's operation without charges, chargeSize that of a
// charge.
const (
	recordSize = 232
	chargeSize = 64
)

// recordBytes returns the most that the record of a live lease's operation takes until it is settled. Each charge may
// get an overrun, and a Settle is never refused.
func recordBytes(charges int) int64 { return recordSize + 2*chargeSize*int64(charges) }

// size returns the charge for the record of a live lease's operation, in bytes.
func (o *operation) size() int64 {
	if o.actual == 0 {
		return recordBytes(len(o.charges))
	}
	return recordSize + chargeSize*int64(len(o.charges))
}

// countRecord charges an account for the record of a live lease's operation, or with times -1 releases the charge.
func (rs *records) countRecord(o *operation, times int64) {
	rs.count += times
	rs.book.Add(o.account, accounts.Operations, times*o.size())
}

// consume makes held amounts spendable.
func (m *Machine) consume(command *logpb.Consume, by string) *logpb.Result {
	l, failure := m.lookupLease(command.Lease, command.Fence, by)
	if failure != nil {
		return effect.Failed(failure)
	}
	asked := entry.DigestItems(command.Items)
	if o := l.operation(command.Op); o != nil && command.Op != graceOp {
		if o.asked != asked {
			return effect.Fail(logpb.Reason_REASON_OPERATION_REUSED,
				fmt.Sprintf("operation %d of lease %d consumed something else", command.Op, l.id), "take a new number")
		}
		consumed := m.amounts.consumed(o)
		m.finishBelow(l, command.DoneBelow, 0)
		return &logpb.Result{Kind: &logpb.Result_Consumed{Consumed: consumed}}
	}
	if failure := checkNewOperation(l, command.Op, command.DoneBelow); failure != nil {
		return effect.Failed(failure)
	}
	if closed := m.amounts.closedItems(l); len(closed) > 0 && len(command.Items) == 0 {
		return effect.Failed(itemClosed(closed[0])) // no items means all items, and one of them is gone
	}
	parts, failure := m.amounts.heldParts(l, command.Items, nil)
	if failure != nil {
		return effect.Failed(failure)
	}
	if len(parts) == 0 {
		return effect.Failed(notHeld("", "the lease holds nothing that could be consumed"))
	}
	if failure := noSlots(parts); failure != nil {
		return effect.Failed(failure)
	}
	if refusal := m.judge.consumption(l, m.amounts.needsOf(l, parts)); refusal != nil {
		m.recordRefusal(l.holder, refusal)
		m.workflows.RecordDenial(workflowHost{m}, l.holder, refusal, amountIn(m.amounts.needsOf(l, parts)))
		refusal.BackPressure = m.workflows.Pressure(l.holder, m.clock.Now)
		m.emit(effect.Event{
			Kind: effect.EventRefused, Quota: refusal.Quota, Holder: l.holder, Lease: l.id, Fence: l.fence,
			Reason: refusal.Reason,
		})
		return effect.Refused(refusal)
	}
	freeing, full := m.roomForRecord(l, parts, command.DoneBelow)
	if full != nil {
		return full
	}
	for _, n := range m.amounts.needsOf(l, parts) {
		if m.judge.consumesRamp(l, n.quota) {
			n.quota.ramped = fixed.AddSaturated(n.quota.ramped, n.amount)
		}
	}
	m.finishBelow(l, command.DoneBelow, freeing)
	m.confirm(l)
	return &logpb.Result{Kind: &logpb.Result_Consumed{Consumed: m.amounts.consumed(m.charge(l, command.Op, asked, parts))}}
}

// roomForRecord returns why there is no room for another record of a lease; nil: there is. If freeing is not 0, that many
// bytes of finished operations must be freed for it at once.
func (m *Machine) roomForRecord(l *lease, parts []heldPart, mark uint64) (freeing int64, full *logpb.Result) {
	judged := m.takingFor(l.account, accounts.Operations)
	if judged == accounts.MayTake {
		return 0, nil
	}
	finished, _ := l.find(mark)
	needed, freed := recordBytes(m.amounts.chargesOf(l, parts)), int64(0)
	for _, o := range l.records()[:finished] {
		if freed += o.size(); freed >= needed {
			return needed, nil
		}
	}
	return 0, m.accounts.Full(accounts.Operations, judged, settleHint)
}

// checkNewOperation checks the number of a new operation, as if those below mark were finished already.
func checkNewOperation(l *lease, op, mark uint64) *logpb.Failure {
	mark = max(mark, l.doneBelow())
	finishing, _ := l.find(mark)
	switch {
	case op == graceOp:
		return effect.Invalid("operations are numbered from 1", "")
	case op < mark:
		return &logpb.Failure{
			Reason:  logpb.Reason_REASON_STALE_OPERATION,
			Message: fmt.Sprintf("operation %d is below the mark %d that you sent", op, mark), Hint: "take a new number",
		}
	case len(l.records())-finishing >= maxRecords:
		return &logpb.Failure{
			Reason:  logpb.Reason_REASON_TOO_MANY_OPERATIONS,
			Message: fmt.Sprintf("the lease has %d operations", len(l.records())), Hint: "settle some and send done_below",
		}
	}
	return nil
}

func noSlots(parts []heldPart) *logpb.Failure {
	for _, part := range parts {
		if part.quota.rule.Kind == ledger.KindSlots {
			return effect.Invalid(fmt.Sprintf("%q has slots: held is in use, there is nothing to consume", part.quota.name), "leave it out")
		}
	}
	return nil
}

// consumption returns what prevents consuming a lease's holdings: a cooldown, or a burst that is used up.
func (j *judge) consumption(l *lease, needs []need) *logpb.Refusal {
	var worst *logpb.Refusal
	now := j.clock.Now
	for _, n := range needs {
		q := n.quota
		if q.rule.Policy.Observe {
			continue
		}
		switch {
		case q.rule.Limit == 0:
			worst = worse(worst, j.refusal(logpb.Reason_REASON_SUSPENDED, q, 0, "its limit is 0: ask the operator"))
		case q.rule.Burst > 0 && n.amount > q.rule.Burst:
			worst = worse(worst, j.refusal(logpb.Reason_REASON_NEVER_FITS, q, 0,
				fmt.Sprintf("consume at most %d at a time", q.rule.Burst)))
		}
		if q.cooling(now) {
			worst = worse(worst, j.coolingRefusal(q, l.holder, l.class, q.cooldown))
		}
		if wait := j.rampWait(n); wait > 0 && j.consumesRamp(l, q) {
			worst = worse(worst, j.refusal(logpb.Reason_REASON_REOPENING, q, fixed.AddSaturated(now, wait), "it reopens slowly after a cooldown"))
		}
		if left := q.burstLeft(j.moment, n.amount); left > 0 {
			worst = worse(worst, j.refusal(logpb.Reason_REASON_EXHAUSTED, q, fixed.AddSaturated(now, left), "the burst is used up"))
		}
	}
	return worst
}

// consumeAll consumes a new lease's holdings except slots, as operation 1, and records that in its answer (nil: none).
func (m *Machine) consumeAll(l *lease, granted *logpb.Granted) {
	var room [4]heldPart
	parts, _ := m.amounts.heldParts(l, nil, room[:0])
	if len(parts) == 0 {
		return
	}
	if o := m.charge(l, 1, entry.DigestItems(nil), parts); granted != nil {
		granted.Consumed = m.amounts.consumed(o)
	}
}

// charge makes an operation of held parts.
func (m *Machine) charge(l *lease, op, asked uint64, parts []heldPart) *operation {
	o := m.newOperation(l)
	m.amounts.charge(o, l, op, asked, parts)
	m.keepRecord(l, o)
	return o
}

// consumed returns an operation as its holder sees it.
func (am *amounts) consumed(o *operation) *logpb.Consumed {
	var a struct {
		consumed logpb.Consumed
		items    answerItems
	}
	a.consumed.Op, a.consumed.SpendByNs, a.consumed.SpendByWallNs, a.consumed.TransitNs = o.op, o.spendBy, o.spendByWall, o.transit
	a.consumed.Items = a.items.list[:0]
	for i := range o.charges {
		c := &o.charges[i]
		if q := am.quotas.get(c.quota); q != nil && !c.ancestor && !c.overrun {
			a.consumed.Items = a.items.add(a.consumed.Items, q.name, c.consumed, o.spendBy)
		}
	}
	return &a.consumed
}

// maxDetached is the longest time that an ended lease's records are kept: as long as a call may take.
const maxDetached = fixed.Day
