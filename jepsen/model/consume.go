package model

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

func sprint(format string, args ...any) string { return fmt.Sprintf(format, args...) }

func (j *Judge) consume(asked *logpb.Consume, result *logpb.Result) {
	if refusal := result.GetRefusal(); refusal != nil {
		j.stats.Refused++
		j.consumeRefused(asked, refusal)
		return
	}
	consumed := result.GetConsumed()
	l := j.named(asked.Lease, asked.Fence, "Consume")
	if l == nil || consumed == nil {
		return
	}
	if o := l.ops[asked.Op]; o != nil {
		j.consumedAgain(l, o, asked, consumed)
		return
	}
	if asked.Op < max(l.doneBelow, asked.DoneBelow) || asked.Op == 0 || consumed.Op != asked.Op {
		j.violate("once", "operation %d of lease %d is below %d, up to which all were done", asked.Op, l.id, max(l.doneBelow, asked.DoneBelow))
	}
	if closed := l.closedItem(j.clock); len(asked.Items) == 0 && closed != nil {
		j.violate("item-closed", "all of lease %d is consumed, and what it held of %s is void", l.id, closed.quota.name)
	}
	j.cooled(l, asked.Items)
	j.doneBelow(l, asked.DoneBelow)
	if l.provisional {
		l.provisional = false
		until := min(j.clock.Now+l.ttl, j.batonEnd(l))
		l.soonest = max(l.deadline, j.perhapsUntil(l, until))
		l.deadline = max(l.deadline, until)
		j.due.add(l.deadline, l.id)
	}
	j.charge(l, asked.Items, consumed)
}

// closedItem is an item with a held amount whose window has closed; nil: there is none.
func (l *lease) closedItem(clock fsm.Clock) *item {
	for _, it := range l.items {
		if it.held > 0 && !it.quota.deleted && it.quota.rule.kind != slotsKind && it.isClosed(clock) {
			return it
		}
	}
	return nil
}

// consumedAgain judges a repeated operation: the answer must be the same, and nothing happens.
func (j *Judge) consumedAgain(l *lease, o *operation, asked *logpb.Consume, consumed *logpb.Consumed) {
	j.stats.Repeated++
	if !sameAsked(o.asked, asked.Items) {
		j.violate("once", "operation %d of lease %d consumed %v, and now %v", o.number, l.id, o.asked, asked.Items)
	}
	var items []*logpb.GrantedItem
	for _, p := range o.parts {
		if !p.quota.deleted {
			items = append(items, &logpb.GrantedItem{Quota: p.quota.name, Amount: p.consumed})
		}
	}
	if !sameItems(items, consumed.Items) || consumed.SpendByNs != o.spendBy || consumed.SpendByWallNs != o.spendByWall ||
		consumed.Op != o.number {
		j.violate("once", "operation %d of lease %d consumed %v until %d, now the answer is %v", o.number, l.id, items, o.spendBy, consumed)
	}
	j.doneBelow(l, asked.DoneBelow)
}

func sameAsked(a, b []*logpb.Item) bool {
	return slices.EqualFunc(a, b, func(a, b *logpb.Item) bool {
		return a.Quota == b.Quota && a.GetAmount() == b.GetAmount() && (a.Amount == nil) == (b.Amount == nil)
	})
}

// cooled judges a Consume by cooldowns and suspensions.
func (j *Judge) cooled(l *lease, items []*logpb.Item) {
	for _, it := range l.items {
		if !asks(items, it, j) {
			continue
		}
		for _, s := range it.shares {
			switch {
			case s.quota.deleted, s.quota.rule.observe:
			case s.quota.cooling(j.clock.Now):
				j.violate("cooldown", "lease %d consumes %s, and %s is closed until %d", l.id, it.quota.name, s.quota.name, s.quota.closedUntil)
			case s.quota.rule.usable == 0:
				j.violate("clamp", "lease %d consumes %s, and %s is suspended", l.id, it.quota.name, s.quota.name)
			}
		}
	}
}

// asks says whether a Consume covers an item: without items, it covers all but slots.
func asks(items []*logpb.Item, it *item, j *Judge) bool {
	if len(items) == 0 {
		return it.quota.rule.kind != slotsKind && it.left(j.clock) > 0
	}
	return slices.ContainsFunc(items, func(item *logpb.Item) bool { return item.Quota == it.quota.name && !it.quota.deleted })
}

// consumeAtOnce judges the consumption of a Reserve with its grant, as operation 1: of all but slots.
func (j *Judge) consumeAtOnce(l *lease, ask *logpb.Reserve, granted *logpb.Granted) {
	something := slices.ContainsFunc(l.items, func(it *item) bool { return it.quota.rule.kind != slotsKind })
	if (granted.Consumed != nil) != (ask.Consume && something) {
		j.violate("all-or-nothing", "lease %d: consume is %v, and consumed was %v", l.id, ask.Consume, granted.Consumed)
	}
	if granted.Consumed != nil {
		j.charge(l, nil, granted.Consumed)
	}
}

// charge enters an operation: its amounts must be held, in a window that has not closed, and count from now on.
func (j *Judge) charge(l *lease, asked []*logpb.Item, consumed *logpb.Consumed) {
	j.stats.Consumed++
	o := &operation{
		number: consumed.Op, asked: asked, spendBy: consumed.SpendByNs, spendByWall: consumed.SpendByWallNs, began: j.clock.WallEarly,
		class: l.class,
	}
	l.ops[o.number] = o
	var want []*logpb.GrantedItem
	for _, it := range l.items {
		if len(asked) == 0 && asks(nil, it, j) {
			want = append(want, &logpb.GrantedItem{Quota: it.quota.name, Amount: it.left(j.clock)})
		}
	}
	for _, item := range asked {
		amount := item.GetAmount()
		if it := l.item(item.Quota); it != nil && item.Amount == nil {
			amount = it.left(j.clock)
		}
		want = append(want, &logpb.GrantedItem{Quota: item.Quota, Amount: amount})
	}
	if !sameItems(want, consumed.Items) {
		j.violate("conservation", "lease %d should consume %v and consumes %v", l.id, want, consumed.Items)
	}
	for _, item := range consumed.Items {
		it := l.item(item.Quota)
		switch {
		case it == nil:
			j.violate("conservation", "lease %d consumes %s, which it does not hold", l.id, item.Quota)
		case it.isClosed(j.clock):
			j.violate("item-closed", "lease %d consumes %s, which it held in a window that has closed", l.id, item.Quota)
		case item.Amount > it.held || item.Amount < 1 || it.quota.rule.kind == slotsKind:
			j.violate("conservation", "lease %d consumes %d of %s and holds %d", l.id, item.Amount, item.Quota, it.held)
		default:
			o.parts = append(o.parts, j.chargePart(it, item.Amount, o))
		}
	}
	j.spendBy(l, o)
}

// chargePart turns a held amount into one that counts, for the quota and each ancestor.
func (j *Judge) chargePart(it *item, amount int64, o *operation) *part {
	p := &part{quota: it.quota, consumed: amount}
	it.drop(amount)
	for _, s := range it.shares {
		q := s.quota
		if q.deleted {
			continue
		}
		if q.rolls(j.clock) {
			j.violate("item-closed", "%d of %s are consumed, of a window that should have closed at %d", amount, q.name, q.window)
		}
		end := q.rule.later(j.clock, o.spendBy-j.clock.Now)
		if q.rule.openEnded {
			end = never
		}
		c := &charge{
			amount: amount, end: end, latest: end, before: q.perhaps.sum, beforeLeast: q.surely.sum, answered: j.level >= levelReports,
			total: q.total, class: o.class,
		}
		c.counted = j.consumes(q, amount)
		q.enter(c, j.clock.Now)
		p.charges = append(p.charges, c)
		if !q.draw(j.clock.Now, c) && !q.rule.observe {
			j.violate("burst", "%d of %s are consumed, with these it has more than its burst, %d", amount, q.name, q.rule.burst)
		}
		j.reaches(q, c, o)
	}
	return p
}

// reaches enters an amount into a calendar window if it surely reaches the provider in it: consumed in it by the early view, and spent in
// it by the late one.
func (j *Judge) reaches(q *quota, c *charge, o *operation) {
	if q.rule.kind != windowKind || q.rule.anchored || c.end == never {
		return
	}
	begin, end := q.rule.windowAt(j.clock.WallEarly)
	if plus(j.clock.WallLate, o.spendBy-j.clock.Now) >= end {
		return
	}
	c.window, c.sure = begin, true
	q.surelyIn[begin] += c.amount
	if q.surelyIn[begin] > q.highest && !q.rule.observe {
		j.violate("window", "%s has %d in the window that began at %d, usable are %d", q.name, q.surelyIn[begin], begin, q.highest)
	}
	for other := range q.surelyIn {
		if other < begin {
			delete(q.surelyIn, other)
		}
	}
}

// spendBy judges how long an operation may be spent: no longer than the strictest of its quotas allows.
func (j *Judge) spendBy(l *lease, o *operation) {
	longest, windows := int64(never), false
	for _, p := range o.parts {
		for _, c := range p.charges {
			longest = min(longest, c.quota.rule.spendBy)
			windows = windows || c.quota.rule.kind == windowKind
		}
	}
	left := o.spendBy - j.clock.Now
	if left <= 0 || left > longest {
		j.violate("spend-by", "operation %d of lease %d may be spent for %d ns, its quotas say %d", o.number, l.id, left, longest)
	}
	if wall := j.clock.WallLate + left; windows && o.spendByWall != wall || !windows && o.spendByWall != 0 {
		j.violate("spend-by", "operation %d of lease %d may be spent until %d of Unix time, not %d", o.number, l.id, o.spendByWall, wall)
	}
}

// doneBelow applies a client's mark: the client has finished the operations below it, and nothing of them can return.
func (j *Judge) doneBelow(l *lease, mark uint64) {
	if mark <= l.doneBelow {
		return
	}
	l.doneBelow = mark
	for number, o := range l.ops {
		if number < mark {
			o.endOpen(j.clock, l.deadline)
			delete(l.ops, number)
		}
	}
}

func (j *Judge) settle(asked *logpb.Settle, settled *logpb.Settled) {
	l := j.live(asked.Lease, asked.Fence)
	if l == nil {
		j.settleEnded(asked, settled)
		return
	}
	o := l.ops[asked.Op]
	if o == nil {
		j.violate("once", "operation %d of lease %d is settled, and there is none", asked.Op, l.id)
		return
	}
	j.stats.Settled++
	inTime := j.inTime(o)
	var back, over []*logpb.GrantedItem
	if len(asked.Unspent) > 0 {
		back = j.unspend(l, o, asked.Unspent, inTime)
	}
	if len(asked.Actual) > 0 || asked.Final {
		var rest []*logpb.GrantedItem
		rest, over = j.finish(l, o, asked.Actual, inTime)
		back = append(back, rest...)
	}
	if !sameItems(back, settled.Returned) || !sameItems(over, settled.Overrun) {
		j.violate("conservation", "operation %d of lease %d: %v should come back and %v be charged on top, these were %v and %v",
			o.number, l.id, back, over, settled.Returned, settled.Overrun)
	}
	j.doneBelow(l, asked.DoneBelow)
	if settled.Released != asked.Release {
		j.violate("unexplained", "lease %d: release is %v, released %v", l.id, asked.Release, settled.Released)
	}
	if settled.Released {
		j.end(l, false)
	}
}

// settledBefore tells whether the real use of an operation was settled by an earlier command. Then the same Settle charges nothing.
func (j *Judge) settledBefore(asked *logpb.Settle) bool {
	l := j.leases[asked.Lease]
	if l == nil {
		l = j.ended[asked.Lease]
	}
	return l != nil && l.ops[asked.Op] != nil && l.ops[asked.Op].didActual
}

// inTime says whether an operation may still be spent, by either clock.
func (j *Judge) inTime(o *operation) bool {
	return j.clock.Now <= o.spendBy && (o.spendByWall == 0 || j.clock.WallLate <= o.spendByWall)
}

// part returns the part of an operation that consumed of a quota; nil: none.
func (o *operation) part(quota string) *part {
	for _, p := range o.parts {
		if p.quota.name == quota && !p.quota.deleted {
			return p
		}
	}
	return nil
}

// unspend returns unspent amounts: once, until the spend-by, from their own charges, even if the provider charges at admission.
func (j *Judge) unspend(l *lease, o *operation, items []*logpb.Item, inTime bool) (back []*logpb.GrantedItem) {
	switch {
	case o.didUnspent && !sameAsked(o.unspent, items), !o.didUnspent && o.didActual:
		j.violate("once", "the unspent part of operation %d of lease %d was settled before", o.number, l.id)
		return nil
	case !o.didUnspent && !inTime:
		j.violate("conservation", "operation %d of lease %d returns amounts at %d, its spend-by was %d", o.number, l.id, j.clock.Now, o.spendBy)
	}
	for _, item := range items {
		p := o.part(item.Quota)
		if p == nil {
			j.violate("conservation", "operation %d of lease %d consumed no %s and gives it back", o.number, l.id, item.Quota)
			continue
		}
		amount := p.consumed
		if item.Amount != nil {
			amount = *item.Amount
		}
		if amount > p.consumed {
			j.violate("conservation", "operation %d of lease %d consumed %d of %s and returns %d", o.number, l.id, p.consumed, item.Quota, amount)
			continue
		}
		back = append(back, &logpb.GrantedItem{Quota: item.Quota, Amount: amount})
		if o.didUnspent {
			continue
		}
		p.unspent = amount
		for _, c := range p.charges {
			j.lowers(c, amount)
		}
	}
	if o.didUnspent {
		j.stats.Repeated++
	}
	o.didUnspent, o.unspent = true, items
	return back
}

// finish settles the real use, once. Less than the estimate reduces the charges of quotas that count real use; more is charged as an
// overrun from now on. It ends the exposure.
func (j *Judge) finish(l *lease, o *operation, items []*logpb.Item, inTime bool) (back, over []*logpb.GrantedItem) {
	if o.didActual && !sameAsked(o.actual, items) {
		j.violate("once", "the actual part of operation %d of lease %d was settled before", o.number, l.id)
		return nil, nil
	}
	for _, item := range items {
		p := o.part(item.Quota)
		if p == nil || item.Amount == nil {
			j.violate("conservation", "operation %d of lease %d consumed no %s and settles it", o.number, l.id, item.Quota)
			continue
		}
		switch difference := *item.Amount - (p.consumed - p.unspent); {
		case difference > 0:
			over = append(over, &logpb.GrantedItem{Quota: item.Quota, Amount: difference})
			if !o.didActual {
				j.overrun(p, difference)
			}
		case difference < 0 && !o.didActual:
			for _, c := range p.charges {
				if !c.quota.rule.settleMax && !c.quota.deleted {
					j.lowers(c, -difference)
				}
			}
			fallthrough
		case difference < 0:
			if !p.quota.rule.settleMax {
				back = append(back, &logpb.GrantedItem{Quota: item.Quota, Amount: -difference})
			}
		}
	}
	if o.didActual {
		j.stats.Repeated++
		return back, over
	}
	o.didActual, o.actual = true, items
	for _, p := range o.parts {
		for _, c := range p.charges {
			if c.quota.deleted {
				continue
			}
			now, latest := c.quota.rule.later(j.clock, 0), c.latest
			if inTime || c.end == never {
				latest = min(latest, now)
			}
			c.move(min(c.end, now), latest)
		}
	}
	return back, over
}

// overrun charges use beyond the estimate, to the quota and to its ancestors.
func (j *Judge) overrun(p *part, amount int64) {
	p.over = amount
	for _, c := range p.charges {
		if !c.quota.deleted {
			now := c.quota.rule.later(j.clock, 0)
			j.consumes(c.quota, amount)
			c.quota.enter(&charge{amount: amount, end: now, latest: now, class: c.class}, j.clock.Now)
			j.pays(c.quota, amount)
			for class := range c.quota.granted { // any class may be charged with it
				c.quota.granted[class] = plus(c.quota.granted[class], amount)
			}
		}
	}
}

// settleEnded judges a Settle with the fence of an ended lease: it can only charge an overrun, once.
func (j *Judge) settleEnded(asked *logpb.Settle, settled *logpb.Settled) {
	l := j.ended[asked.Lease]
	var o *operation
	if l != nil && l.fence == asked.Fence {
		o = l.ops[asked.Op]
	}
	if o == nil {
		j.violate("dead-fence", "Settle of operation %d worked with lease %d and fence %d, which do not live (its end is remembered: %t)",
			asked.Op, asked.Lease, asked.Fence, l != nil)
		return
	}
	if len(asked.Unspent) > 0 || asked.Release || len(asked.Actual) == 0 || len(settled.Returned) > 0 || settled.Released {
		j.violate("dead-fence", "Settle of lease %d, which has ended, did more than to charge on top: %v", l.id, settled)
		return
	}
	j.stats.Orphans++
	if o.didActual && !sameAsked(o.actual, asked.Actual) {
		j.violate("once", "the actual part of operation %d of lease %d was settled before", o.number, l.id)
		return
	}
	var over []*logpb.GrantedItem
	for _, item := range asked.Actual {
		p := o.part(item.Quota)
		if p == nil || item.Amount == nil || *item.Amount < p.consumed-p.unspent {
			j.violate("dead-fence", "Settle of lease %d, which has ended, was taken with %v", l.id, item)
			continue
		}
		if difference := *item.Amount - (p.consumed - p.unspent); difference > 0 {
			over = append(over, &logpb.GrantedItem{Quota: item.Quota, Amount: difference})
			if !o.didActual {
				j.overrun(p, difference)
			}
		}
	}
	o.didActual, o.actual = true, asked.Actual
	if !sameItems(over, settled.Overrun) {
		j.violate("conservation", "operation %d of lease %d: %v should be charged on top, %v was", o.number, l.id, over, settled.Overrun)
	}
}
