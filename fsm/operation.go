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
	"github.com/quotad/quotad/fsm/levels"
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
	// spendBy and spendByWall (0: no window takes part) are the last moment, in both time bases.
	spendBy, spendByWall int64
	transit              int64
	// beganWall is when it was consumed, by the earlier view of Unix time: its call was answered since then.
	beganWall int64
	// began is when it was consumed (cluster time), while its lease lives; 0: before there were reports of rates.
	began int64
	// Digests of what was asked, unspent and settled; 0: not yet.
	asked, unspent, actual uint64
	// account is charged with it: its lease's.
	account uint64
	// detached: its lease has ended.
	detached bool
	// charges begin in single, which is all the room that one takes.
	charges []charge
	single  [1]charge
	// check is when to look again whether a detached record still counts (cluster time).
	check int64
}

// charge is what an operation charged to one quota: an item, the share of an ancestor, or an overrun.
type charge struct {
	quota    uint32
	ancestor bool
	overrun  bool
	// class is its lease's.
	class int8
	// amount is charged now; consumed was consumed; unspent of it went back.
	amount, consumed, unspent int64
	// end is the end under which amount stands in the quota's log.
	end int64
	// window is the one in which it was consumed, before what had been settled in it by then, or of a rate what counted then: what a
	// report that names this operation proves. total is what had been consumed of a rate in all.
	window, before int64
	total          uint64
}

// operations are the records of a lease's operations.
type operations struct {
	cow.Made
	// doneBelow is the low-water mark: its holder is finished with those below it.
	doneBelow uint64
	// list is in the order of numbers.
	list []*operation
}

// firstOperation is what a lease's first operation takes, made at once.
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

// doneBelow returns the mark below which a lease's holder is finished with its operations.
func (l *lease) doneBelow() uint64 {
	if l.operations == nil {
		return 0
	}
	return l.operations.doneBelow
}

// find returns where an operation's record stands among a lease's, or would. It is mostly the last.
func (l *lease) find(op uint64) (int, bool) {
	list := l.records()
	if last := len(list) - 1; last < 0 || list[last].op < op {
		return len(list), false
	}
	return slices.BinarySearchFunc(list, op, func(o *operation, op uint64) int { return cmp.Compare(o.op, op) })
}

// operation returns a record, nil where there is none.
func (l *lease) operation(op uint64) *operation {
	if i, found := l.find(op); found {
		return l.operations.list[i]
	}
	return nil
}

// editOperations returns the records of a lease that may be changed.
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

// editOperation returns a record, of a lease that may be changed, that may be changed.
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

// newOperation returns a record to be filled in for a lease that may be changed.
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
	m.countRecord(o, 1)
}

// recordSize is what the record of a live lease's operation takes, in bytes, besides its charges, chargeSize what each of these takes.
const (
	recordSize = 232
	chargeSize = 64
)

// recordBytes returns what the record of a live lease's operation takes at most, until it is settled: each of its charges may get an
// overrun beside it, and a Settle is never refused.
func recordBytes(charges int) int64 { return recordSize + 2*chargeSize*int64(charges) }

// size returns what the record of a live lease's operation is charged with.
func (o *operation) size() int64 {
	if o.actual == 0 {
		return recordBytes(len(o.charges))
	}
	return recordSize + chargeSize*int64(len(o.charges))
}

// countRecord charges an account with the record of a live lease's operation, or takes that back.
func (m *Machine) countRecord(o *operation, times int64) {
	m.operations += times
	m.accounts.Add(o.account, accounts.Operations, times*o.size())
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
		consumed := m.consumed(o)
		m.finishBelow(l, command.DoneBelow, 0)
		return &logpb.Result{Kind: &logpb.Result_Consumed{Consumed: consumed}}
	}
	if failure := checkNewOperation(l, command.Op, command.DoneBelow); failure != nil {
		return effect.Failed(failure)
	}
	if closed := m.closedItems(l); len(closed) > 0 && len(command.Items) == 0 {
		return effect.Failed(itemClosed(closed[0])) // no items are all items, and one of them is gone
	}
	parts, failure := m.heldParts(l, command.Items, nil)
	if failure != nil {
		return effect.Failed(failure)
	}
	if len(parts) == 0 {
		return effect.Failed(notHeld("", "the lease holds nothing that could be consumed"))
	}
	if failure := noSlots(parts); failure != nil {
		return effect.Failed(failure)
	}
	if refusal := m.judge.consumption(l, m.needsOf(l, parts)); refusal != nil {
		m.recordRefusal(l.holder, refusal)
		m.workflows.RecordDenial(workflowHost{m}, l.holder, refusal, amountIn(m.needsOf(l, parts)))
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
	for _, n := range m.needsOf(l, parts) {
		if m.judge.consumesRamp(l, n.quota) {
			n.quota.ramped = fixed.AddSaturated(n.quota.ramped, n.amount)
		}
	}
	m.finishBelow(l, command.DoneBelow, freeing)
	m.confirm(l)
	return &logpb.Result{Kind: &logpb.Result_Consumed{Consumed: m.consumed(m.charge(l, command.Op, asked, parts))}}
}

// roomForRecord says why there is no room for the record of one more of a lease's operations; nil: there is, or others that take as
// much are finished, and so many bytes of these must be freed for it at once.
func (m *Machine) roomForRecord(l *lease, parts []heldPart, mark uint64) (freeing int64, full *logpb.Result) {
	judged := m.takingFor(l.account, accounts.Operations)
	if judged == accounts.MayTake {
		return 0, nil
	}
	finished, _ := l.find(mark)
	needed, freed := recordBytes(m.chargesOf(l, parts)), int64(0)
	for _, o := range l.records()[:finished] {
		if freed += o.size(); freed >= needed {
			return needed, nil
		}
	}
	return 0, m.accounts.Full(accounts.Operations, judged, settleHint)
}

// chargesOf returns how many charges an operation has that consumes parts of a lease.
func (m *Machine) chargesOf(l *lease, parts []heldPart) (charges int) {
	for _, part := range parts {
		m.eachShare(l, part.index, func(_ *item, q *quota) {
			if q != nil {
				charges++
			}
		})
	}
	return charges
}

// closedItems names the quotas of which a lease held something in a window that has closed.
func (m *Machine) closedItems(l *lease) (closed []string) {
	for i := range l.items {
		it := &l.items[i]
		if q := m.quotas.editNow(it.quota); q != nil && it.held > 0 && it.window != q.ledger.Window && !it.ancestor {
			closed = append(closed, q.name)
		}
	}
	return closed
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

// consumption says what stands in the way of consuming what a lease holds: a cooldown, a burst that is used up.
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

// needsOf returns what parts of a lease need of each quota: the sum over items, those of descendants included.
func (m *Machine) needsOf(l *lease, parts []heldPart) []need {
	var needs []need
	for _, part := range parts {
		m.eachShare(l, part.index, func(_ *item, q *quota) {
			if q == nil {
				return
			}
			i := slices.IndexFunc(needs, func(n need) bool { return n.quota == q })
			if i < 0 {
				i = len(needs)
				needs = append(needs, need{quota: q})
			}
			needs[i].amount = fixed.AddSaturated(needs[i].amount, part.amount)
		})
	}
	return needs
}

// consumeAll consumes, as operation 1, what a new lease holds of anything but slots, and says so in its answer (nil: none).
func (m *Machine) consumeAll(l *lease, granted *logpb.Granted) {
	var room [4]heldPart
	parts, _ := m.heldParts(l, nil, room[:0])
	if len(parts) == 0 {
		return
	}
	if o := m.charge(l, 1, entry.DigestItems(nil), parts); granted != nil {
		granted.Consumed = m.consumed(o)
	}
}

// charge turns held parts into an operation.
func (m *Machine) charge(l *lease, op, asked uint64, parts []heldPart) *operation {
	o := m.newOperation(l)
	o.lease, o.op, o.fence, o.holder, o.asked, o.beganWall = l.id, op, l.fence, l.holder, asked, m.clock.WallEarly
	o.account = l.account
	if m.featureLevel >= levels.Reports {
		o.began = max(m.clock.Now, 1)
	}
	o.charges = o.single[:0]
	spendBy, windows := m.spendByOf(l, parts, o)
	o.spendBy = fixed.AddSaturated(m.clock.Now, spendBy)
	if windows {
		o.spendByWall = fixed.AddSaturated(m.clock.WallLate, spendBy)
	}
	if o.transit == 0 {
		o.transit = min(ledger.MaxTransit, spendBy/2)
	}
	o.transit = min(o.transit, spendBy)
	for _, part := range parts {
		m.eachShare(l, part.index, func(it *item, q *quota) {
			it.held -= part.amount
			if q == nil {
				return
			}
			if it.window == q.ledger.Window {
				q.ledger.Held -= part.amount
			}
			o.charges = append(o.charges, m.chargeFor(q, l, it.ancestor, part.amount, spendBy))
			if t := m.holders.meterOf(q, l.holder); t != nil {
				t.Consumed = fixed.AddSaturated(t.Consumed, part.amount)
			}
		})
	}
	m.keepRecord(l, o)
	return o
}

// spendByOf returns the shortest spend-by of all quotas that take part, since all of it is one call, and notes the
// longest configured transit.
func (m *Machine) spendByOf(l *lease, parts []heldPart, o *operation) (spendBy int64, windows bool) {
	spendBy = ledger.NoSpendBy
	for _, part := range parts {
		m.eachShare(l, part.index, func(_ *item, q *quota) {
			if q == nil {
				return
			}
			spendBy = min(spendBy, q.ledger.SpendBy(&q.rule, q.rule.At(m.clock)))
			windows = windows || q.rule.Kind == ledger.KindWindow
			o.transit = max(o.transit, q.rule.Transit)
		})
	}
	return spendBy, windows
}

// chargeFor charges an amount that was held.
func (m *Machine) chargeFor(q *quota, l *lease, ancestor bool, amount, spendBy int64) charge {
	g, r := &q.ledger, &q.rule
	c := charge{
		quota: q.number, ancestor: ancestor, amount: amount, consumed: amount,
		end: ledger.OpenEnd, window: g.Window, before: g.Settled, class: int8(l.class),
	}
	if r.Kind == ledger.KindRate && m.featureLevel >= levels.Reports {
		c.before, c.total = g.Consumed(), g.Total
	}
	if !r.OpenEnded {
		c.end = g.Key(r, fixed.AddSaturated(r.At(m.clock).Late, spendBy))
	}
	m.recordTotal(q, amount)
	m.count(q, c.end, spendBy, amount, 0)
	m.moveUsage(q, l.holder, &c, ledger.OpenEnd)
	q.drawCharge(m.moment, &c)
	return c
}

// recordTotal records what is consumed of a rate.
func (m *Machine) recordTotal(q *quota, amount int64) {
	if q.rule.Kind == ledger.KindRate && m.featureLevel >= levels.Overtaken {
		q.ledger.Total += uint64(amount)
	}
}

// count counts an amount, of whose exposure so much is left, until an end. While anything in cluster time counts, the state is busy.
func (m *Machine) count(q *quota, end, left, amount, overrun int64) {
	var until int64
	if q.rule.Kind == ledger.KindWindow {
		until = max(fixed.AddSaturated(m.clock.Now, left), 1)
	}
	q.ledger.Add(end, amount, overrun, until)
	if q.rule.Kind != ledger.KindWindow && end != ledger.OpenEnd {
		m.busyUntil = max(m.busyUntil, fixed.AddSaturated(end, q.rule.Period))
	}
}

// consumed returns an operation as its holder sees it.
func (m *Machine) consumed(o *operation) *logpb.Consumed {
	var a struct {
		consumed logpb.Consumed
		items    answerItems
	}
	a.consumed.Op, a.consumed.SpendByNs, a.consumed.SpendByWallNs, a.consumed.TransitNs = o.op, o.spendBy, o.spendByWall, o.transit
	a.consumed.Items = a.items.list[:0]
	for i := range o.charges {
		c := &o.charges[i]
		if q := m.quotas.get(c.quota); q != nil && !c.ancestor && !c.overrun {
			a.consumed.Items = a.items.add(a.consumed.Items, q.name, c.consumed, o.spendBy)
		}
	}
	return &a.consumed
}

// maxDetached is how long an ended lease's records are kept at most: for as long as a call may take.
const maxDetached = fixed.Day

// nextCheck returns when to look at a detached record again.
func (m *Machine) nextCheck(o *operation) int64 {
	left := fixed.Second
	for i := range o.charges {
		if q := m.quotas.get(o.charges[i].quota); q != nil && q.ledger.Counts(o.charges[i].end) {
			left = max(left, q.ledger.DropsIn(&q.rule, q.rule.At(m.clock), o.charges[i].end))
		}
	}
	return fixed.AddSaturated(m.clock.Now, min(left, maxDetached))
}

// moveCharge moves what a charge counts to another end; so much of its exposure is left.
func (m *Machine) moveCharge(q *quota, name string, c *charge, end, left int64) {
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
		q.drawOpen(m.moment, end, left, c.amount)
	}
	c.end = end
	m.count(q, end, left, c.amount, overrun)
	m.moveUsage(q, name, c, from)
}

// stillCounts tells whether anything of an operation counts.
func (m *Machine) stillCounts(o *operation) bool {
	for i := range o.charges {
		if q := m.quotas.editNow(o.charges[i].quota); q != nil && q.ledger.Counts(o.charges[i].end) {
			return true
		}
	}
	return false
}

// closeRecord records that a record goes. What it charged goes on to count; nothing of it can come back.
func (m *Machine) closeRecord(o *operation) {
	for i := range o.charges {
		if q := m.quotas.editNow(o.charges[i].quota); q != nil {
			q.ledger.Close(o.charges[i].end, o.charges[i].amount)
		}
	}
}

// endExposure gives charges whose exposure has no end one: their client said that it is finished with the operation,
// though not what it used.
func (m *Machine) endExposure(o *operation, left int64) {
	for i := range o.charges {
		c := &o.charges[i]
		if c.end != ledger.OpenEnd {
			continue
		}
		if q := m.quotas.editNow(c.quota); q != nil {
			longest := m.longestLeft(o, q, left)
			m.moveCharge(q, o.holder, c, q.ledger.Key(&q.rule, fixed.AddSaturated(q.rule.At(m.clock).Late, longest)), longest)
		}
	}
}

// shortLived tells whether a detached record, which has been kept for as long as was arranged, stops counting soon.
func (m *Machine) shortLived(o *operation) bool {
	for i := range o.charges {
		if q := m.quotas.get(o.charges[i].quota); q != nil && q.ledger.Counts(o.charges[i].end) &&
			q.ledger.DropsIn(&q.rule, q.rule.At(m.clock), o.charges[i].end) > fixed.Hour {
			return false
		}
	}
	return true
}

// longestLeft returns what is left of an exposure that was never settled: it ends one longest call after its lease, which has so much
// left, but not before it may be spent.
func (m *Machine) longestLeft(o *operation, q *quota, left int64) int64 {
	return max(left+q.rule.MaxCall, o.spendBy-m.clock.Now)
}
