package model

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// lease is the account of a lease.
type lease struct {
	id, fence uint64
	holder    string
	class     int32
	deadline  int64
	// soonest is the deadline if its baton ended earlier, where these books cannot tell; 0: they can.
	soonest int64
	// ttl is the longest requested length.
	ttl int64
	// provisional says that its first Consume or Renew gives it its full length.
	provisional bool
	items       []*item
	doneBelow   uint64
	ops         map[uint64]*operation
}

// item is the amount that a lease holds of a quota, and with it of the quota's ancestors.
type item struct {
	quota *quota
	held  int64
	// shares are the quota and its ancestors at the time of the grant.
	shares []share
	// closed says that the window of a share has closed and the rest was returned.
	closed bool
}

// share is a quota in which an item is held, and its window at that time.
type share struct {
	quota  *quota
	window int64
}

// operation is one Consume.
type operation struct {
	number uint64
	// asked, unspent and actual are the requested items of each part; those of settled parts are not nil.
	asked, unspent, actual []*logpb.Item
	didUnspent, didActual  bool
	parts                  []*part
	spendBy, spendByWall   int64
	// began is when it was consumed, by the early view of Unix time.
	began int64
	class int32
}

// part is the consumption of one item by an operation.
type part struct {
	quota             *quota
	consumed, unspent int64
	// over is its overrun.
	over int64
	// charges are those of the quota and its ancestors, the quota's first.
	charges []*charge
}

// live returns the lease that a command may name: it has not ended, and the fence is its own.
func (j *Judge) live(id, fence uint64) *lease {
	l := j.leases[id]
	if l == nil || l.fence != fence || l.deadline <= j.clock.Now {
		return nil
	}
	j.closeItems(l)
	return l
}

// named is live for a command that had an effect.
func (j *Judge) named(id, fence uint64, what string) *lease {
	l := j.live(id, fence)
	if l == nil {
		j.violate("dead-fence", "%s worked with lease %d and fence %d, which do not live", what, id, fence)
	}
	return l
}

// closeItems returns the rest of items with a share whose window has closed. The state machine does that when a command names the lease,
// and these books must follow, or they would differ in between.
func (j *Judge) closeItems(l *lease) {
	for _, it := range l.items {
		if !it.isClosed(j.clock) || it.closed {
			continue
		}
		for _, s := range it.shares {
			if s.holds() {
				s.quota.held -= it.held
				j.givenBack(s.quota, it.held, false)
			}
		}
		it.closed = true
	}
}

// isClosed says whether the window of any share has closed.
func (it *item) isClosed(clock fsm.Clock) bool {
	closed := it.closed
	for _, s := range it.shares {
		if !s.quota.deleted {
			s.quota.advance(clock)
			closed = closed || s.window != s.quota.window
		}
	}
	return closed
}

// holds says whether a share still holds its amount.
func (s share) holds() bool { return !s.quota.deleted && s.window == s.quota.window }

// left is the amount that an item holds.
func (it *item) left(clock fsm.Clock) int64 {
	if it.quota.deleted || it.isClosed(clock) {
		return 0
	}
	return it.held
}

// drop subtracts from the amount that an item holds.
func (it *item) drop(amount int64) {
	for _, s := range it.shares {
		if s.holds() && !it.closed {
			s.quota.held -= amount
		}
	}
	it.held -= amount
}

// grant judges a lease and enters it.
func (j *Judge) grant(ask *logpb.Reserve, granted *logpb.Granted, class int32, waited bool) {
	j.stats.Granted++
	j.entry.made[granted.Lease] = granted
	if granted.Lease <= j.lastLease || granted.Fence <= j.lastFence {
		j.violate("fence-order", "lease %d with fence %d comes after lease %d with fence %d", granted.Lease, granted.Fence, j.lastLease,
			j.lastFence)
	}
	j.lastFence, j.lastLease = max(j.lastFence, granted.Fence), max(j.lastLease, granted.Lease)
	var items []*logpb.Item
	for _, item := range granted.Items {
		items = append(items, &logpb.Item{Quota: item.Quota, Amount: &item.Amount})
	}
	needs, ok := j.needs(items)
	if !ok {
		j.violate("all-or-nothing", "lease %d is of a quota that does not exist: %v", granted.Lease, granted.Items)
		return
	}
	j.allOrNothing(ask, granted)
	j.room(ask, granted, needs, class)
	if granted.Class != class {
		j.violate("class", "lease %d is granted to %s in class %d, it asked in class %d", granted.Lease, ask.Holder, granted.Class, class)
	}
	j.order(ask.Holder, needs, granted)
	j.passesInPool(granted)
	l := &lease{
		id: granted.Lease, fence: granted.Fence, holder: ask.Holder, class: class, ttl: ask.TtlNs, deadline: granted.DeadlineNs,
		ops: map[uint64]*operation{},
	}
	if l.ttl == 0 {
		l.ttl = defaultTTL
	}
	l.provisional = waited && !ask.Consume && l.ttl > firstTTL
	length := l.ttl
	if l.provisional {
		length = firstTTL
	}
	latest := min(j.clock.Now+length, j.noteStep(ask.Holder, needs))
	if l.deadline != latest && l.deadline != j.perhapsUntil(l, latest) {
		j.violate("deadline", "lease %d ends at %d, not at %d: it is %d, and its length is %d", l.id, l.deadline, latest, j.clock.Now, length)
	}
	j.noteGrant(ask.Holder, class, needs)
	j.leases[l.id] = l
	j.due.add(l.deadline, l.id)
	j.hold(l, granted.Items)
	j.noteMost(needs)
	j.consumeAtOnce(l, ask, granted)
}

// allOrNothing compares the granted items with the requested ones.
func (j *Judge) allOrNothing(ask *logpb.Reserve, granted *logpb.Granted) {
	for steps, names := range j.chains(ask) {
		if j.isAsked(ask, names, granted) {
			j.stats.Instead += min(steps, 1)
			return
		}
	}
	j.violate("all-or-nothing", "asked for %v, granted %v", ask.Items, granted.Items)
}

// isAsked says whether a grant covers the requested items, from the quotas in names: the requested ones or their fallbacks.
func (j *Judge) isAsked(ask *logpb.Reserve, names []string, granted *logpb.Granted) bool {
	same := len(ask.Items) == len(granted.Items)
	for i := 0; same && i < len(ask.Items); i++ {
		asked, got, instead := ask.Items[i], granted.Items[i], ""
		if j.members(asked.Quota) != nil && !j.isMember(ask, asked.Quota, got, granted) {
			return false
		}
		amount := j.quotas[got.Quota].rule.estimate
		if asked.Amount != nil {
			amount = *asked.Amount
		}
		if j.members(asked.Quota) != nil {
			same = got.Amount == amount
			continue
		}
		if names[i] != asked.Quota {
			instead = asked.Quota
		}
		same = got.Pool == "" && got.Quota == names[i] && got.Amount == amount && got.InsteadOf == instead
	}
	return same
}

// room judges whether there is room for a grant in all quotas that it needs.
func (j *Judge) room(ask *logpb.Reserve, granted *logpb.Granted, needs []need, class int32) {
	for {
		name, detail := j.wanting(ask, needs, class)
		if name == "" {
			return
		}
		if !j.silent() {
			j.violate(name, "lease %d: %s", granted.Lease, detail)
			return
		}
	}
}

// wanting names the first obstacle to a grant; empty: none.
func (j *Judge) wanting(ask *logpb.Reserve, needs []need, class int32) (name, detail string) {
	asked, _ := j.needs(j.asked(ask))
	rank := min(j.rank(ask.Holder, class, needs), j.rank(ask.Holder, class, asked))
	for _, n := range needs {
		q := n.quota
		q.advance(j.clock)
		switch {
		case q.rule.observe:
			continue
		case q.cooling(j.clock.Now):
			return "cooldown", sprint("%s is closed until %d", q.name, q.closedUntil)
		case q.rule.usable == 0:
			return "clamp", sprint("%s is suspended", q.name)
		case n.own > q.rule.maxHold:
			return "clamp", sprint("%d of %s are more than the largest hold, %d", n.own, q.name, q.rule.maxHold)
		case q.rule.kind == windowKind && j.clock.WallEarly == 0:
			return "ceiling", sprint("nobody knows the time, and %s is a window", q.name)
		case q.rolls(j.clock):
			return "item-closed", sprint("the window of %s should have closed at %d", q.name, q.window)
		case q.held+q.surely.sum+q.keptAtLeast(j.clock.Now) > q.allowed()-n.amount:
			name = "ceiling"
			if q.rule.kind == slotsKind && q.held <= q.allowed()-n.amount {
				name = "grace"
			}
			return name, sprint("%s has %d held and %d counted, and %d more are granted; usable are %d", q.name, q.held, q.surely.sum, n.amount,
				q.allowed())
		case ask.Consume && q.rule.burst > 0 && n.amount > q.rule.burst:
			return "burst", sprint("%d of %s can never be consumed at once, its burst is %d", n.amount, q.name, q.rule.burst)
		case ask.Consume && !q.mayDraw(j.clock.Now, &charge{amount: n.amount, began: j.clock.Now}):
			return "burst", sprint("%d of %s are consumed, with these it has more than its burst, %d", n.amount, q.name, q.rule.burst)
		}
		if name, detail := j.policies(ask, class, rank, n); name != "" {
			return name, detail
		}
	}
	return j.keptBack(ask.Holder, needs)
}

// hold enters the items of a lease.
func (j *Judge) hold(l *lease, items []*logpb.GrantedItem) {
	for _, granted := range items {
		q := j.quotas[granted.Quota]
		if q == nil {
			continue
		}
		it := &item{quota: q, held: granted.Amount}
		for _, each := range q.path() {
			each.advance(j.clock)
			it.shares = append(it.shares, share{quota: each, window: each.window})
			each.held += granted.Amount
			each.leases++
		}
		l.items = append(l.items, it)
	}
}

// noteMost records the highest use of a quota, in percent of what it allows.
func (j *Judge) noteMost(needs []need) {
	for _, n := range needs {
		if allowed := n.quota.allowed(); allowed > 0 && allowed < 1<<53 {
			j.stats.Most = max(j.stats.Most, (n.quota.held+n.quota.surely.sum)*100/allowed)
		}
	}
}

// expire handles the end of a lease by its deadline.
func (j *Judge) expire(event *effect.Event) {
	j.stats.Expired++
	j.entry.expired++
	l := j.leases[event.Lease]
	if l == nil || l.fence != event.Fence {
		j.violate("dead-fence", "lease %d with fence %d ends, and does not live", event.Lease, event.Fence)
		return
	}
	if l.soonest != 0 && l.deadline > j.clock.Now {
		l.deadline = l.soonest
	}
	if l.deadline > j.clock.Now {
		j.violate("early-expiry", "lease %d ends at %d, its deadline is %d", l.id, j.clock.Now, l.deadline)
	}
	j.end(l, true)
}

// end ends a lease and returns its held amounts; with grace, its slots stay in use for a while. It returns the sum of each item.
func (j *Judge) end(l *lease, withGrace bool) (held []*logpb.GrantedItem) {
	for _, it := range l.items {
		for i, s := range it.shares {
			q := s.quota
			if q.deleted {
				continue
			}
			q.advance(j.clock)
			q.leases--
			if !s.holds() || it.closed || it.held == 0 {
				continue
			}
			q.held -= it.held
			j.givenBack(q, it.held, true)
			if i == 0 {
				held = append(held, &logpb.GrantedItem{Quota: q.name, Amount: it.held})
			}
			if q.rule.kind == slotsKind && withGrace {
				end := l.deadline + q.rule.graceOf(l.ttl)
				q.enter(&charge{amount: it.held, end: end, latest: end}, j.clock.Now)
			}
		}
	}
	delete(j.leases, l.id)
	j.orphan(l)
	return held
}

// orphan keeps those operations of an ended lease for which an overrun can still be settled.
func (j *Judge) orphan(l *lease) {
	now := j.clock.Now
	var left int64
	for number, o := range l.ops {
		o.endOpen(j.clock, l.deadline)
		if o.didActual {
			delete(l.ops, number)
			continue
		}
		for _, p := range o.parts {
			for _, c := range p.charges {
				left = max(left, 2*c.quota.rule.period, plus(c.latest, c.quota.rule.period)-c.quota.rule.later(j.clock, 0))
			}
		}
	}
	l.items = nil
	if len(l.ops) > 0 {
		// This is longer than the state machine remembers them: it checks again whether they count, a thousand per entry, and forgets the rest
		// after a day.
		j.ended[l.id] = l
		j.forget.add(now+min(left+left/20, 2*24*60*minute)+10*minute, l.id)
	}
}

// counts says whether anything of an ended lease may still count.
func (l *lease) counts(clock fsm.Clock) bool {
	for _, o := range l.ops {
		for _, p := range o.parts {
			for _, c := range p.charges {
				if c.quota.deleted {
					continue
				}
				if c.quota.advance(clock); c.perhaps.in {
					return true
				}
			}
		}
	}
	return false
}

// endOpen gives exposures with an unknown end the latest possible one: one longest call after the lease's deadline.
func (o *operation) endOpen(clock fsm.Clock, deadline int64) {
	for _, p := range o.parts {
		for _, c := range p.charges {
			if c.end != never || c.quota.deleted {
				continue
			}
			r := &c.quota.rule
			left := deadline - clock.Now
			c.move(r.later(clock, max(left+r.maxCall, o.spendBy-clock.Now)), r.later(clock, max(max(left, 0)+r.maxCall, o.spendBy-clock.Now)))
		}
	}
}

func (j *Judge) release(asked *logpb.Release, released *logpb.Released) {
	j.stats.Released++
	l := j.named(asked.Lease, asked.Fence, "Release")
	if l == nil {
		return
	}
	if len(asked.Items) == 0 {
		held := j.end(l, false)
		if !released.Ended || !sameItems(held, released.Returned) {
			j.violate("conservation", "lease %d is released, held %v and returned %v", l.id, held, released.Returned)
		}
		return
	}
	var back []*logpb.GrantedItem
	for _, item := range asked.Items {
		it := l.item(item.Quota)
		if it == nil {
			j.violate("conservation", "lease %d returns %s, which it does not hold", l.id, item.Quota)
			return
		}
		amount := it.left(j.clock)
		if item.Amount != nil {
			amount = *item.Amount
		}
		if amount > it.left(j.clock) || amount == 0 {
			j.violate("conservation", "lease %d returns %d of %s and holds %d", l.id, amount, item.Quota, it.left(j.clock))
			return
		}
		for _, s := range it.shares {
			if s.holds() && !it.closed {
				j.givenBack(s.quota, amount, true)
			}
		}
		it.drop(amount)
		back = append(back, &logpb.GrantedItem{Quota: item.Quota, Amount: amount})
	}
	if released.Ended || !sameItems(back, released.Returned) {
		j.violate("conservation", "lease %d should return %v and returns %v", l.id, back, released.Returned)
	}
}

// item returns a lease's item of a quota; nil: none.
func (l *lease) item(quota string) *item {
	for _, it := range l.items {
		if it.quota.name == quota && !it.quota.deleted {
			return it
		}
	}
	return nil
}

func sameItems(a, b []*logpb.GrantedItem) bool {
	return slices.EqualFunc(a, b, func(a, b *logpb.GrantedItem) bool { return a.Quota == b.Quota && a.Amount == b.Amount })
}

func (j *Judge) revoke(asked *logpb.RevokeLease, released *logpb.Released) {
	l := j.leases[asked.Lease]
	if l == nil || l.deadline <= j.clock.Now {
		j.violate("dead-fence", "lease %d is revoked and does not live", asked.Lease)
		return
	}
	held := j.end(l, true)
	if released == nil || !released.Ended || !sameItems(held, released.Returned) {
		j.violate("conservation", "lease %d is revoked, held %v and returned %v", l.id, held, released.GetReturned())
	}
}

func (j *Judge) renew(asked *logpb.Renew, renewed *logpb.Renewed) {
	j.stats.Renewed++
	l := j.named(asked.Lease, asked.Fence, "Renew")
	if l == nil || renewed == nil {
		return
	}
	ttl := asked.TtlNs
	if ttl == 0 {
		ttl = l.ttl
	}
	l.ttl, l.provisional = max(l.ttl, ttl), false
	until := min(j.clock.Now+ttl, j.batonEnd(l))
	want, soonest := max(l.deadline, until), max(cmp.Or(l.soonest, l.deadline), j.perhapsUntil(l, until))
	if renewed.DeadlineNs != want && renewed.DeadlineNs != soonest {
		j.violate("deadline", "lease %d is renewed until %d, not %d", l.id, renewed.DeadlineNs, want)
	}
	l.deadline, l.soonest = renewed.DeadlineNs, 0
	j.due.add(l.deadline, l.id)
}
