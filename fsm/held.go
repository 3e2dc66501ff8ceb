package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// This file changes the single amounts that a lease holds.

// closedWindow is the window of an item that ended with its window or with that of an ancestor.
const closedWindow = -1

// heldPart is an amount of a lease's item.
type heldPart struct {
	index  int
	quota  *quota
	amount int64
}

// hold enters the amounts that a lease holds.
func (am *amounts) hold(l *lease, req *logpb.Reserve, needs []need) {
	for _, asked := range req.Items {
		first := quotaOf(needs, asked.Quota)
		amount := first.rule.Estimate
		if asked.Amount != nil {
			amount = *asked.Amount
		}
		for q := first; q != nil; q = am.quotas.parent(q) {
			q.ledger.Held += amount
			am.recordUsage(q, l.holder, l.class, q.ledger.Window, ledger.OpenEnd, amount)
			q.leases++
			l.items = append(l.items, item{
				quota: q.number, ancestor: q != first, window: q.ledger.Window, held: amount,
			})
		}
	}
}

// unhold takes an amount out of an item and its ancestors' shares.
func (am *amounts) unhold(l *lease, index int, amount int64) {
	am.eachShare(l, index, func(it *item, q *quota) {
		if it.heldOf(q) > 0 {
			q.ledger.Held -= amount
			q.repay(am.moment, amount)
			am.recordUsage(q, l.holder, l.class, it.window, ledger.OpenEnd, -amount)
			am.quotas.markDirty(q)
		}
		it.held -= amount
	})
}

// eachShare calls fn for an item and its ancestors' shares; q is nil where a quota was deleted.
func (am *amounts) eachShare(l *lease, index int, fn func(it *item, q *quota)) {
	for i := index; i == index || i < len(l.items) && l.items[i].ancestor; i++ {
		fn(&l.items[i], am.quotas.editNow(l.items[i].quota))
	}
}

// voidClosed ends items with a share in a window that has closed, and releases the holdings of their other shares.
func (am *amounts) voidClosed(l *lease) {
	for i := 0; i+1 < len(l.items); i++ {
		if l.items[i].ancestor || !l.items[i+1].ancestor || !am.shareClosed(l, i) {
			continue
		}
		am.eachShare(l, i, func(it *item, q *quota) {
			if held := it.heldOf(q); held > 0 {
				q.ledger.Held -= held
				q.repay(am.moment, held)
				am.recordUsage(q, l.holder, l.class, it.window, ledger.OpenEnd, -held)
				am.quotas.markDirty(q)
			}
			it.window = closedWindow
		})
	}
}

// shareClosed reports whether the window of an item or of an ancestor has closed.
func (am *amounts) shareClosed(l *lease, index int) (closed bool) {
	am.eachShare(l, index, func(it *item, q *quota) {
		closed = closed || q != nil && it.held > 0 && it.window != closedWindow && it.window != q.ledger.Window
	})
	return closed
}

// closedItems returns the names of quotas of which a lease held something in a window that has closed.
func (am *amounts) closedItems(l *lease) (closed []string) {
	for i := range l.items {
		it := &l.items[i]
		if q := am.quotas.editNow(it.quota); q != nil && it.held > 0 && it.window != q.ledger.Window && !it.ancestor {
			closed = append(closed, q.name)
		}
	}
	return closed
}

// slotsOnly reports whether a lease has slots only.
func (am *amounts) slotsOnly(l *lease) bool {
	for i := range l.items {
		if q := am.quotas.editNow(l.items[i].quota); q != nil && q.rule.Kind != ledger.KindSlots {
			return false
		}
	}
	return true
}

// heldParts finds the amounts that a command's items name in a lease's holdings, and appends them; no items: everything
// but slots.
func (am *amounts) heldParts(l *lease, items []*logpb.Item, parts []heldPart) ([]heldPart, *logpb.Failure) {
	if len(items) == 0 {
		for i := range l.items {
			q := am.quotas.editNow(l.items[i].quota)
			if held := l.items[i].heldOf(q); held > 0 && !l.items[i].ancestor && q.rule.Kind != ledger.KindSlots {
				parts = append(parts, heldPart{index: i, quota: q, amount: held})
			}
		}
		return parts, nil
	}
	for n, asked := range items {
		part, failure := am.heldPart(l, asked)
		if failure != nil {
			return nil, failure
		}
		for _, other := range items[:n] {
			if other.Quota == asked.Quota {
				return nil, effect.Invalid(fmt.Sprintf("quota %q is named twice", asked.Quota), "add the amounts up")
			}
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func (am *amounts) heldPart(l *lease, asked *logpb.Item) (heldPart, *logpb.Failure) {
	for i := range l.items {
		it := &l.items[i]
		q := am.quotas.editNow(it.quota)
		if it.ancestor || q == nil || q.name != asked.Quota {
			continue
		}
		held := it.heldOf(q)
		amount := held
		if asked.Amount != nil {
			amount = *asked.Amount
		}
		switch {
		case asked.Amount != nil && (amount < 1 || amount > fixed.MaxAmount):
			return heldPart{}, effect.Invalid(fmt.Sprintf("amount %d of %q is not within 1 to 2^53-1", amount, asked.Quota), "")
		case it.held > 0 && it.window != q.ledger.Window:
			return heldPart{}, itemClosed(asked.Quota)
		case amount > held || amount == 0:
			return heldPart{}, notHeld(asked.Quota, fmt.Sprintf("the lease holds %d of %q", held, asked.Quota))
		}
		return heldPart{index: i, quota: q, amount: amount}, nil
	}
	return heldPart{}, notHeld(asked.Quota, fmt.Sprintf("the lease has no item of %q", asked.Quota))
}

// needsOf returns what parts of a lease need of each quota: the sum over items, including those of descendants.
func (am *amounts) needsOf(l *lease, parts []heldPart) []need {
	var needs []need
	for _, part := range parts {
		am.eachShare(l, part.index, func(_ *item, q *quota) {
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

// chargesOf returns the number of charges of an operation that consumes parts of a lease.
func (am *amounts) chargesOf(l *lease, parts []heldPart) (charges int) {
	for _, part := range parts {
		am.eachShare(l, part.index, func(_ *item, q *quota) {
			if q != nil {
				charges++
			}
		})
	}
	return charges
}

// spendByOf returns the shortest spend-by of all quotas involved, since all of it is one call. It records the longest
// configured transit in o.
func (am *amounts) spendByOf(l *lease, parts []heldPart, o *operation) (spendBy int64, windows bool) {
	spendBy = ledger.NoSpendBy
	for _, part := range parts {
		am.eachShare(l, part.index, func(_ *item, q *quota) {
			if q == nil {
				return
			}
			spendBy = min(spendBy, q.ledger.SpendBy(&q.rule, q.rule.At(am.clock)))
			windows = windows || q.rule.Kind == ledger.KindWindow
			o.transit = max(o.transit, q.rule.Transit)
		})
	}
	return spendBy, windows
}

// grantedItems returns a lease's items as its holder sees them.
func (am *amounts) grantedItems(l *lease, room *answerItems) []*logpb.GrantedItem {
	items := room.list[:0]
	for i := range l.items {
		it := &l.items[i]
		q := am.quotas.get(it.quota)
		switch {
		case q == nil:
		case it.ancestor && len(items) > 0:
			last := items[len(items)-1]
			last.UntilNs = min(last.UntilNs, itemEnd(q, it, l.deadline, am.clock))
		case !it.ancestor:
			items = room.add(items, q.name, it.held, itemEnd(q, it, l.deadline, am.clock))
		}
	}
	return items
}

// letGo releases a lease's holdings when it ends. It returns the released items, the cost of the unused amounts, and,
// with grace, the slots that stay in use for a while.
func (am *amounts) letGo(l *lease, withGrace bool) (returned []*logpb.GrantedItem, unused int64, grace []charge) {
	for i := range l.items {
		it := &l.items[i]
		q := am.quotas.editNow(it.quota)
		if q == nil {
			continue
		}
		q.leases--
		held := it.heldOf(q)
		if held == 0 {
			continue
		}
		q.ledger.Held -= held
		q.repay(am.moment, held)
		am.recordUsage(q, l.holder, l.class, it.window, ledger.OpenEnd, -held)
		am.quotas.markDirty(q)
		if !it.ancestor {
			returned = append(returned, &logpb.GrantedItem{Quota: q.name, Amount: held})
		}
		if q.rule.Kind != ledger.KindSlots {
			unused = max(unused, cost(q, held))
		} else if withGrace {
			end := l.deadline + q.rule.GraceOf(l.ttl)
			am.count(q, end, 0, held, 0)
			grace = append(grace, charge{quota: q.number, amount: held, consumed: held, end: end})
		}
	}
	return returned, unused, grace
}

// charge fills in an operation that consumes parts of a lease's holdings.
func (am *amounts) charge(o *operation, l *lease, op, asked uint64, parts []heldPart) {
	o.lease, o.op, o.fence, o.holder, o.asked, o.beganWall = l.id, op, l.fence, l.holder, asked, am.clock.WallEarly
	o.account = l.account
	if am.featureLevel >= levels.Reports {
		o.began = max(am.clock.Now, 1)
	}
	o.charges = o.single[:0]
	spendBy, windows := am.spendByOf(l, parts, o)
	o.spendBy = fixed.AddSaturated(am.clock.Now, spendBy)
	if windows {
		o.spendByWall = fixed.AddSaturated(am.clock.WallLate, spendBy)
	}
	if o.transit == 0 {
		o.transit = min(ledger.MaxTransit, spendBy/2)
	}
	o.transit = min(o.transit, spendBy)
	for _, part := range parts {
		am.eachShare(l, part.index, func(it *item, q *quota) {
			it.held -= part.amount
			if q == nil {
				return
			}
			if it.window == q.ledger.Window {
				q.ledger.Held -= part.amount
			}
			o.charges = append(o.charges, am.chargeFor(q, l, it.ancestor, part.amount, spendBy))
			if t := am.holders.meterOf(q, l.holder); t != nil {
				t.Consumed = fixed.AddSaturated(t.Consumed, part.amount)
			}
		})
	}
}
