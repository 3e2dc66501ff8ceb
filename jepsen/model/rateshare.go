package model

import (
	"math/big"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// Shares of a rate (docs/policy/shares.md): while a higher class asks, a reserve is kept for it, and its share is lent at the pace at which
// granted amounts return. These books know bounds of both: grants are judged by the demand that is certain, refusals by the demand that is
// possible.

const (
	// leadPart: lending is at most a leadPart-th of a period ahead.
	leadPart = 50
	// The reserve is the largest call of a higher class, at least a leastReserve-th and at most a mostReserve-th of usable.
	leastReserve, mostReserve = 100, 20
	// leastRoom: shares are of at least a leastRoom-th of usable, whatever others use.
	leastRoom = 10
	// defaultCap is the part of a rate that critical calls may use while others ask.
	defaultCap = 900_000
	// levelShortLead is the first version of entries at which granted amounts return within the time that a grant counts.
	levelShortLead = 12
)

// pacing is the account of a rate's shares.
type pacing struct {
	// surely and perhaps are the demand of each class. Aged background work is perhaps standard.
	surely, perhaps [3]demand
	// least is the earliest time until which lent amounts return; most is the latest.
	least int64
	most  pacer
	// shut and perhapsShut are until when nothing is free after a cooldown.
	shut, perhapsShut int64
	// unsized: the period has changed, so that the calls of the present one are unknown.
	unsized bool
	// whole: these books know all use by critical calls. critical are their charges.
	whole    bool
	critical []*charge
}

// demand is the demand of one class: its last request (0: none), and its recent calls, each larger than all later ones.
type demand struct {
	last  int64
	calls []call
}

type call struct{ at, amount int64 }

// note records a call. It drops calls older than two periods: they are neither in the present period nor in the one before.
func (d *demand) note(now, amount, period int64) {
	d.last = max(now, 1)
	for len(d.calls) > 0 && d.calls[len(d.calls)-1].amount <= amount {
		d.calls = d.calls[:len(d.calls)-1]
	}
	old := 0
	for old < len(d.calls) && now-d.calls[old].at >= 2*period {
		old++
	}
	d.calls = append(d.calls[old:], call{now, amount})
}

// largest returns the largest call within a time before now.
func (d *demand) largest(now, within int64) int64 {
	for _, c := range d.calls {
		if now-c.at < within {
			return c.amount
		}
	}
	return 0
}

// lately says whether a class asked within a time before now.
func (d *demand) lately(now, within int64) bool { return d.last != 0 && now-d.last < within }

// pacer is the latest time until which granted amounts return. These books may learn of a return after a grant that it preceded in the same
// entry. So a return counts before all grants of its entry, which gives the latest time.
type pacer struct {
	entry      uint64
	now        int64
	before     int64
	paid, back int64
	// latest bounds the result, if it is not 0.
	latest int64
}

// until returns the latest time.
func (p *pacer) until() int64 {
	left := p.before - p.back
	if p.paid != 0 {
		left = plus(max(left, p.now), p.paid)
	}
	if p.latest != 0 {
		left = min(left, p.latest)
	}
	return left
}

// at advances the pacer to an entry.
func (p *pacer) at(entry uint64, now int64) *pacer {
	if p.entry != entry || p.now != now {
		*p = pacer{entry: entry, now: now, before: p.until()}
	}
	return p
}

// paced says whether the quota is a rate with shares.
func (q *quota) paced() bool {
	return q.rule.kind == rateKind && q.definition.GetPolicy().GetShares() != nil
}

// countsFor is the longest time for which a grant that is consumed at once counts.
func (r *rule) countsFor() int64 {
	return plus(r.period, r.spendBy+max(r.period/rounding, second/1000))
}

// roomAtLeast is the least amount to which shares apply: the part that others leave. A report that is not judged yet may change it.
func (j *Judge) roomAtLeast(q *quota) int64 { return j.roomOf(q, q.rule.usable) }

// roomOf is the same for a given usable.
func (j *Judge) roomOf(q *quota, usable int64) int64 {
	least := min(max(usable/leastRoom, 1), usable)
	unheard := j.find(j.entry.next, func(command *logpb.Command, _ *logpb.Result) bool { return command.GetReport() != nil }) >= 0
	if q.cap.is || j.clock.Now < q.others.lowered || unheard {
		return least
	}
	return max(least, usable-q.keptAtMost(j.clock.Now))
}

// lastsAtLeast is the shortest time in which an amount returns, lastsAtMost the longest.
func (q *quota) lastsAtLeast(amount int64) int64 {
	if q.rule.usable == 0 {
		return 0
	}
	return mulDiv(amount, q.rule.countsFor(), q.rule.usable)
}

func (j *Judge) lastsAtMost(q *quota, amount int64) int64 {
	room := j.roomAtLeast(q)
	if room == 0 {
		return 0
	}
	return mulDivUp(amount, q.rule.countsFor(), room)
}

// mulDivUp returns a*b/c, rounded up.
func mulDivUp(a, b, c int64) int64 {
	product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
	product.Add(product, big.NewInt(c-1))
	product.Quo(product, big.NewInt(c))
	if !product.IsInt64() {
		return never
	}
	return product.Int64()
}

// pays records an amount that is granted of a quota, or an overrun.
func (j *Judge) pays(q *quota, amount int64) {
	if !q.paced() {
		return
	}
	now := j.clock.Now
	q.pace.least = plus(max(q.pace.least, now), q.lastsAtLeast(amount))
	most := q.pace.most.at(j.entry.index, now)
	most.paid = plus(most.paid, j.lastsAtMost(q, amount))
	j.boundLead(q, true)
}

// boundLead bounds the time until which granted amounts return, at an event that surely or perhaps changes it: nothing counts for longer,
// however much was used.
func (j *Judge) boundLead(q *quota, surely bool) {
	if j.level < levelShortLead {
		return
	}
	latest := plus(j.clock.Now, q.rule.countsFor())
	q.pace.least = min(q.pace.least, latest)
	if surely {
		q.pace.most.at(j.entry.index, j.clock.Now).latest = latest
	}
}

// givenBack records an early return, a certain or a possible one.
func (j *Judge) givenBack(q *quota, amount int64, surely bool) {
	if !q.paced() {
		return
	}
	j.boundLead(q, surely)
	q.pace.least -= j.lastsAtMost(q, amount)
	if most := q.pace.most.at(j.entry.index, j.clock.Now); surely {
		most.back = plus(most.back, q.lastsAtLeast(amount))
	}
}

// lowers subtracts the unused part from a charge.
func (j *Judge) lowers(c *charge, by int64) {
	if !c.quota.deleted {
		c.quota.advance(j.clock)
		j.givenBack(c.quota, by, c.surely.in)
	}
	c.lower(by)
}

// repaced converts the lent amounts to another rule. Without shares it drops them.
func (j *Judge) repaced(q *quota, was bool, before *rule) {
	p, now := &q.pace, j.clock.Now
	switch {
	case !q.paced():
		p.surely, p.least, p.shut, p.perhapsShut, p.critical = [3]demand{}, 0, 0, 0, nil
		return
	case !was:
		p.least, p.whole = 0, q.held == 0 && q.perhaps.sum == 0
		p.most = pacer{entry: j.entry.index, now: now, before: now}
		return
	}
	if before.period != q.rule.period {
		p.unsized = true
		for class := range p.surely {
			p.surely[class].calls = nil
		}
	}
	if p.least > now {
		owed := mulDiv(p.least-now, j.roomOf(q, before.usable), before.countsFor())
		p.least = plus(now, q.lastsAtLeast(owed))
	}
	owed := mulDivUp(max(p.most.until()-now, 0), before.usable, before.countsFor())
	p.most = pacer{entry: j.entry.index, now: now, before: now}
	p.most.before = plus(now, j.lastsAtMost(q, owed))
	j.boundLead(q, true)
}

// reopens begins the time after a cooldown that ended at a given time.
func (q *quota) reopens(at int64) {
	q.reopened, q.ramped = at, 0
	if !q.paced() {
		return
	}
	until := plus(at, q.rule.period)
	q.pace.perhapsShut = max(q.pace.perhapsShut, until)
	if q.definition.GetPolicy().GetRampNs() == 0 {
		q.pace.shut = until
	}
}

// asksFor records the demand of a Reserve for rates with shares: surely for its quotas, unless a budget refused it first, and perhaps for
// their fallbacks.
func (j *Judge) asksFor(ask *logpb.Reserve, result *logpb.Result) {
	class, reason := j.classOf(ask), result.GetRefusal().GetReason()
	items := j.asked(ask)
	pooled := slices.ContainsFunc(items, func(item *logpb.Item) bool { return j.members(item.Quota) != nil })
	surely := reason != logpb.Reason_REASON_CALLER_BUDGET && reason != logpb.Reason_REASON_BUDGET_FULL
	for step, names := range j.chains(ask) {
		if step > 0 {
			items = make([]*logpb.Item, len(names))
			for i, name := range names {
				items[i] = &logpb.Item{Quota: name, Amount: ask.Items[i].Amount}
			}
		}
		needs, _ := j.needs(items)
		for _, n := range needs {
			if n.quota.paced() {
				j.noteDemand(n, ask.Holder, class, needs, surely && step == 0, pooled)
			}
		}
	}
}

func (j *Judge) noteDemand(n need, holder string, class int32, needs []need, surely, pooled bool) {
	p, now, period := &n.quota.pace, j.clock.Now, n.quota.rule.period
	p.perhaps[class].note(now, n.amount, period)
	if class == 2 && j.mayBeAged(holder, needs) {
		p.perhaps[1].note(now, n.amount, period)
	}
	switch {
	case !surely:
	case pooled: // the member and its need are unknown
		p.surely[class].last = max(now, 1)
	default:
		p.surely[class].note(now, n.amount, period)
	}
}

// mayBeAged says whether background work of a holder may count as standard.
func (j *Judge) mayBeAged(holder string, needs []need) bool {
	return slices.ContainsFunc(needs, func(n need) bool {
		u, ageing := n.quota.usages[holder], n.quota.ageing
		return ageing > 0 && (u == nil || u.unsure || j.clock.Now-u.seen > remembered || j.clock.Now-u.granted >= ageing)
	})
}

// wantedFor is how long after its last request a class counts as asking.
func (q *quota) wantedFor() int64 {
	quiet := q.definition.GetPolicy().GetShares().GetQuietNs()
	if quiet == 0 {
		quiet = defaultQuiet
	}
	return max(quiet, q.rule.period)
}

// surelyAsks says whether a class surely asks for a rate: it did recently, or critical calls wait, whose class never changes.
func (j *Judge) surelyAsks(q *quota, class int32) bool {
	return q.pace.surely[class].lately(j.clock.Now, q.wantedFor()) ||
		class == 0 && slices.ContainsFunc(j.waitSetsOf[q], func(set *waitSet) bool { return set.byClass[0] > 0 })
}

// perhapsAsks says whether a class may be asking.
func (j *Judge) perhapsAsks(q *quota, class int32) bool {
	if q.pace.perhaps[class].lately(j.clock.Now, q.wantedFor()) {
		return true
	}
	for _, set := range j.waitSetsOf[q] {
		ages := class == 1 && slices.ContainsFunc(set.quotas, func(q *quota) bool { return q.ageing > 0 })
		for at := range set.lines {
			if (at.class == class || ages && at.class == 2) && j.firstOf(set, at) != 0 {
				return true
			}
		}
	}
	return false
}

// shareOf is the share of a class in millionths.
func (q *quota) shareOf(class int32) int64 {
	shares := q.definition.GetPolicy().GetShares()
	return int64([]int32{shares.GetCriticalPpm(), shares.GetStandardPpm()}[class])
}

// lentTo says why a rate should have withheld a grant from a class: for the reserve while a higher class asks, or for the part of its share
// that does not return yet.
func (j *Judge) lentTo(rank int32, n need) string {
	q, now := n.quota, j.clock.Now
	if j.entry.saved {
		return "" // nothing is withheld from a waiter with reservations
	}
	room, asks := j.roomAtLeast(q), false
	var share, largest int64
	for above := range rank {
		if j.surelyAsks(q, above) {
			asks = true
			share += mulDiv(room, q.shareOf(above), millionth)
			largest = max(largest, q.pace.surely[above].largest(now, q.rule.period))
		}
	}
	if !asks {
		return ""
	}
	j.stats.Lent++
	left := q.allowed() - q.held - q.surely.sum - q.keptAtLeast(now) - n.amount
	reserve := min(max(largest, room/leastReserve), room/mostReserve, max(room-n.amount, 0))
	switch {
	case left < reserve:
		return sprint("%d of %s are left with this grant to class %d, and %d are reserved for those above who ask", left, q.name, rank, reserve)
	case left >= share && now >= q.pace.shut:
		return "" // free
	case q.pace.least-q.rule.period/leadPart > now:
		return sprint("%d of %s are left with class %d, %d (until %d all) are for those above who ask, and what was granted comes back until %d",
			left, q.name, rank, share, q.pace.shut, q.pace.least)
	}
	return ""
}

// keptFrom says whether a rate may withhold the amount of a Reserve below critical.
func (j *Judge) keptFrom(ask *logpb.Reserve, n need) bool {
	q, now, class := n.quota, j.clock.Now, j.classOf(ask)
	j.stats.Kept++
	var share, largest int64
	asks := false
	for above := range class {
		if j.perhapsAsks(q, above) {
			asks = true
			share += mulDiv(q.rule.usable, q.shareOf(above), millionth)
			largest = max(largest, q.pace.perhaps[above].largest(now, 2*q.rule.period))
		}
	}
	switch {
	case !asks, q.rule.observe:
		return false
	case q.cap.is, now < q.others.lowered:
		j.stats.Unjudged++
		return true
	case q.pace.unsized:
		largest = q.rule.usable
	}
	left := q.rule.usable - q.held - q.perhaps.sum - q.keptAtMost(now) - n.amount
	reserve := min(max(largest, q.rule.usable/leastReserve), q.rule.usable/mostReserve)
	free := left >= share && now >= q.pace.perhapsShut
	return left < reserve || !free && q.pace.most.until()-q.rule.period/leadPart > now
}

// capOf is the most that critical calls may use of a room while others ask.
func (q *quota) capOf(room int64) int64 {
	part := int64(q.definition.GetPolicy().GetShares().GetCapPpm())
	if part == 0 {
		part = defaultCap
	}
	return mulDiv(room, part, millionth)
}

// lowerAsk says whether a class below critical waits, or asked less than a period ago.
func (j *Judge) lowerAsk(q *quota, asked *[3]demand) bool {
	if asked[1].lately(j.clock.Now, q.rule.period) || asked[2].lately(j.clock.Now, q.rule.period) {
		return true
	}
	return slices.ContainsFunc(j.waitSetsOf[q], func(set *waitSet) bool {
		for at := range set.lines {
			if at.class > 0 && j.firstOf(set, at) != 0 {
				return true
			}
		}
		return false
	})
}

// usedByCritical is the least and the most that critical calls hold and have counted of a rate.
func (j *Judge) usedByCritical(q *quota) (least, most int64) {
	q.advance(j.clock)
	for _, c := range q.pace.critical {
		if c.surely.in {
			least += c.amount
		}
		if c.perhaps.in {
			most += c.amount
		}
	}
	for _, l := range j.leases {
		for _, it := range l.items {
			for _, s := range it.shares {
				if l.class == 0 && s.quota == q && s.holds() && !it.closed {
					least, most = least+it.held, most+it.held
				}
			}
		}
	}
	return least, most
}

// capped says why the cap should have withheld a critical grant of a rate while others ask.
func (j *Judge) capped(n need) string {
	q := n.quota
	most := q.capOf(q.rule.usable)
	if !q.pace.whole || plus(q.held+q.surely.sum, n.amount) <= most || !j.lowerAsk(q, &q.pace.surely) {
		return ""
	}
	used, _ := j.usedByCritical(q)
	if used == 0 || used+n.amount <= most {
		return "" // a call that is larger than the cap passes alone
	}
	return sprint("critical calls have %d of %s, %d more are granted, and %d are the most while others ask", used, q.name, n.amount, most)
}

// mayCap says whether a rate may withhold the amount of a critical Reserve.
func (j *Judge) mayCap(ask *logpb.Reserve, n need) bool {
	q := n.quota
	if j.classOf(ask) != 0 || q.rule.observe || !j.lowerAsk(q, &q.pace.perhaps) {
		return false
	}
	_, used := j.usedByCritical(q)
	return used > 0 && used+n.amount > q.capOf(j.roomAtLeast(q))
}
