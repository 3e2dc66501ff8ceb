package fsm

import (
	"math"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// Shares of a rate (docs/policy/shares.md, decision 33). While a higher class asks, a reserve stays for it, and its share is
// lent to lower classes at the pace at which what was used comes back: then a log that is used up returns a little all the time,
// and not all of it a period after a burst. Every grant pays the pacer, whatever its class; only lower classes wait for it.

const (
	// leadPart: what is lent is at most a leadPart-th of a period ahead of the pacer.
	leadPart = 50
	// leastReserve and mostReserve: the reserve is the largest call of a higher class, a hundredth of usable at least and a
	// twentieth at most. What does not return has to be waited for, and what is reserved is not used.
	leastReserve, mostReserve = 100, 20
	// leastRoom: while others use a rate, shares are of what they leave, and of a leastRoom-th of usable at least.
	leastRoom = 10
	// never is no moment.
	never = int64(math.MaxInt64)
)

// pacer is what a rate with shares remembers.
type pacer struct {
	// paidUntil is when all that was granted will have come back, were it one after the other (cluster time).
	paidUntil int64
	// shutUntil: until then, one period from a cooldown's end on, nothing is free for lower classes.
	shutUntil int64
	// size is the largest amount that a higher class asked for in period number era, sizeOld that of the period before.
	size, sizeOld, era [classBackground]int64
}

// paced tells whether the rule has shares and slides.
func (r *rule) paced() bool { return r.kind == kindRate && r.policy.shares.on }

// counting is how long a grant counts at most that is consumed at once.
func (r *rule) counting() int64 { return addSaturated(r.period, r.spendBy+r.width) }

// room returns what shares of a rate are of: what is usable and not held back for others. What comes back at the pace of usable is not
// there where somebody else uses a part of it.
func (g *ledger) room(r *rule) int64 {
	if g.total == 0 { // nothing was consumed since levelOvertaken
		return r.usable
	}
	return min(r.usable, max(g.usable(r)-g.others.kept, r.usable/leastRoom, 1))
}

// price is how far an amount moves a pacer.
func (r *rule) price(amount, room int64) int64 {
	if room == 0 {
		return 0 // only a quota that observes grants of nothing
	}
	return mulDivCeil(amount, r.counting(), room)
}

// pay moves the pacer on for what is granted, or was used beyond an estimate.
func (q *quota) pay(now, amount int64) {
	q.recordBurn(now, amount)
	if q.rule.paced() {
		q.pacer.paidUntil = addSaturated(max(q.pacer.paidUntil, now), q.rule.price(amount, q.ledger.room(&q.rule)))
	}
}

// repay moves it back for what a hold or what still counts gave back. It may fall behind the present, which earns nothing.
func (q *quota) repay(now, amount int64) {
	q.recordBurn(now, -amount)
	if room := q.ledger.room(&q.rule); q.rule.paced() && room > 0 {
		q.pacer.paidUntil = addSaturated(q.pacer.paidUntil, -mulDivFloor(amount, q.rule.counting(), room))
	}
}

// repace carries what the pacer is ahead over to another rule of the quota: as an amount, rounded up, where its price is another one.
func (q *quota) repace(to *rule, now int64) {
	from := &q.rule
	switch {
	case !to.paced():
		if from.paced() {
			q.pacer, q.ledger.used = pacer{}, [classes]usage{}
		}
	case !from.paced():
		q.pacer = pacer{paidUntil: now}
	case q.ledger.room(from) == q.ledger.room(to) && from.counting() == to.counting():
	default:
		owed := mulDivCeil(max(q.pacer.paidUntil-now, 0), q.ledger.room(from), from.counting())
		q.pacer.paidUntil = addSaturated(now, to.price(owed, q.ledger.room(to)))
	}
}

// recordPacedDemand records that a class asked for an amount.
func (q *quota) recordPacedDemand(rank int32, amount, now int64) {
	q.tried[rank] = max(now, 1)
	if rank >= classBackground {
		return
	}
	p, era := &q.pacer, now/q.rule.period
	switch p.era[rank] {
	case era:
	case era - 1:
		p.sizeOld[rank], p.size[rank] = p.size[rank], 0
	default:
		p.sizeOld[rank], p.size[rank] = 0, 0
	}
	p.era[rank] = era
	p.size[rank] = max(p.size[rank], amount)
}

// asksUntil returns until when a class counts as asking; it waits, or it asked not long ago.
func (q *quota) asksUntil(class int32, now int64) int64 {
	switch {
	case class == classCritical && q.ahead.critical > 0, class == classStandard && q.ahead.standard > 0:
		return never
	case q.tried[class] == 0:
		return now
	}
	return addSaturated(q.tried[class], max(q.rule.policy.shares.quiet, q.rule.period))
}

// sizeAt returns the largest amount that a class asked for in the period of a moment or the one before.
func (p *pacer) sizeAt(class int32, era int64) int64 {
	switch p.era[class] {
	case era:
		return max(p.size[class], p.sizeOld[class])
	case era - 1:
		return p.size[class]
	}
	return 0
}

// higher is what of a rate is for those classes above one that ask.
type higher struct {
	asks           bool
	share, reserve int64
	// room is what these are of.
	room int64
}

// above returns what is for the classes above a rank at a moment, the present or one to come, if nobody asks until then.
func (q *quota) above(rank int32, g *ledger, now, at int64) (h higher) {
	var largest int64
	h.room = g.room(&q.rule)
	for class := range rank {
		if q.asksUntil(class, now) > at {
			h.asks = true
			h.share += q.shareIn(h.room, class)
			largest = max(largest, q.pacer.sizeAt(class, at/q.rule.period))
		}
	}
	if h.asks {
		h.reserve = min(max(largest, h.room/leastReserve), h.room/mostReserve)
	}
	return h
}

// reserveFrom returns how much of the reserve an amount has to leave: one that needs more than the rest of the room is granted when all of
// it is there.
func (h *higher) reserveFrom(amount int64) int64 {
	return min(h.reserve, max(h.room-amount, 0))
}

// heldBack tells whether an amount that fits into what is there is kept from a rank.
func (q *quota) heldBack(rank int32, amount, there, now int64) bool {
	if rank <= classCritical || !q.rule.paced() {
		return false
	}
	h := q.above(rank, &q.ledger, now, now)
	if !h.asks {
		return false
	}
	left := there - amount
	switch {
	case left < h.reserveFrom(amount):
		return true
	case left >= h.share && now >= q.pacer.shutUntil:
		return false // free
	}
	return q.lendsFrom() > now
}

// lendsFrom is when the next is lent.
func (q *quota) lendsFrom() int64 { return q.pacer.paidUntil - q.rule.period/leadPart }

// heldBackUntil returns when an amount is granted to a rank next to what is set aside, if nobody asks for anything and nothing is given
// back until then; never: nobody knows.
func (q *quota) heldBackUntil(rank int32, amount, aside, now int64) int64 {
	steps := []int64{now}
	for era := now / q.rule.period; len(steps) < 3; {
		era++
		steps = append(steps, era*q.rule.period) // what was asked for in a period is forgotten after the next
	}
	for class := range rank {
		if until := q.asksUntil(class, now); until > now && until < never {
			steps = append(steps, until)
		}
	}
	slices.Sort(steps)
	for i, from := range steps {
		at := q.grantedFrom(q.above(rank, &q.ledger, now, from), amount, aside, now, from)
		if at < never && (i+1 == len(steps) || at < steps[i+1]) {
			return at
		}
	}
	return never
}

// grantedFrom returns when an amount is granted next to higher classes and what is set aside, at a moment at the earliest.
func (q *quota) grantedFrom(h higher, amount, aside, now, from int64) int64 {
	taken := addSaturated(amount, aside)
	from = max(from, q.thereFrom(addSaturated(taken, h.reserveFrom(amount)), now))
	if !h.asks || from == never {
		return from
	}
	return max(from, min(q.lendsFrom(), max(q.pacer.shutUntil, q.thereFrom(addSaturated(taken, h.share), now))))
}

// thereFrom returns when so much is there; never: that is not known.
func (q *quota) thereFrom(amount, now int64) int64 {
	if amount > q.rule.usable {
		return never
	}
	left, ok := q.ledger.freesIn(&q.rule, view{early: now, late: now, now: now}, amount, false)
	if !ok {
		return never
	}
	return addSaturated(now, left)
}

// withholdByPacedCap keeps critical calls of a rate below their cap while lower classes ask. A call that is larger
// than the cap passes alone.
func (m *Machine) withholdByPacedCap(as priority, n need) *logpb.Refusal {
	q, now := n.quota, m.clock.Now
	used := &q.ledger.used[classCritical]
	if as.class != classCritical || used.amount == 0 || addSaturated(used.amount, n.amount) <= q.cap(&q.ledger) {
		return nil
	}
	until := q.lowerAskUntil(now)
	if until <= now {
		return nil
	}
	until = min(until, q.belowCapFrom(used, n.amount, now))
	if until == never {
		until = addSaturated(now, unknownRetry)
	}
	return m.refusal(logpb.Reason_REASON_CAP, q, until, "critical calls have used what they may while others ask")
}

// cap is the most that critical calls may use of a rate while others ask.
func (q *quota) cap(g *ledger) int64 {
	return mulDivFloor(g.room(&q.rule), q.rule.policy.shares.cap, million)
}

// lowerAskUntil returns until when classes below critical count as asking: one waits, or asked less than a period ago.
func (q *quota) lowerAskUntil(now int64) (until int64) {
	if q.waiting > q.ahead.critical {
		return never
	}
	for class := classStandard; class < classes; class++ {
		if q.tried[class] != 0 {
			until = max(until, addSaturated(q.tried[class], q.rule.period))
		}
	}
	return max(until, now)
}

// belowCapFrom returns when critical calls have used so little again that an amount is below their cap; never: nobody knows.
func (q *quota) belowCapFrom(used *usage, amount, now int64) int64 {
	left := used.amount
	for _, e := range used.ends {
		if left -= e.amount; left <= 0 || addSaturated(left, amount) <= q.cap(&q.ledger) {
			return addSaturated(now, q.ledger.dropsIn(&q.rule, view{early: now, late: now, now: now}, e.end))
		}
	}
	return never
}

// exhaustedPaced makes the refusal of a need of a rate with shares, in a class below critical, that does not fit now.
func (m *Machine) exhaustedPaced(req *logpb.Reserve, as priority, n need) *logpb.Refusal {
	now, burst := m.clock.Now, m.burstWait(req, n)
	at := n.quota.heldBackUntil(as.rank, n.amount, 0, now)
	if at == never {
		at = addSaturated(now, unknownRetry)
	}
	at = max(at, addSaturated(now, burst))
	if burst > 0 || n.quota.ledger.available(&n.quota.rule) < n.amount {
		return m.refusal(logpb.Reason_REASON_EXHAUSTED, n.quota, at, "come back then, or wait in the queue")
	}
	return m.refusal(logpb.Reason_REASON_SHARE, n.quota, at,
		"what is left is kept for a higher class, and lent at the pace at which it comes back")
}

// takes returns the most that one call of a class could be granted of a rate now, if nobody waits.
func (q *quota) takes(class int32, g *ledger, now int64) int64 {
	there := max(g.available(&q.rule), 0)
	if class == classCritical {
		used := g.used[classCritical].amount
		if used == 0 || q.lowerAskUntil(now) <= now {
			return there
		}
		return min(there, max(q.cap(g)-used, 0))
	}
	h := q.above(class, g, now, now)
	switch {
	case !h.asks || there >= h.room && q.lendsFrom() <= now:
		return there
	case q.lendsFrom() <= now:
		return max(there-h.reserve, 0)
	case now < q.pacer.shutUntil:
		return 0
	}
	return max(there-max(h.reserve, h.share), 0)
}

// pacedUses returns what each class has of a rate. What a class uses is known of critical calls alone, whose cap needs it; what is kept for
// one is its share while it asks.
func (q *quota) pacedUses(g *ledger, now int64) []ClassUse {
	uses, room := make([]ClassUse, classes), g.room(&q.rule)
	for class := range int32(classes) {
		u := ClassUse{Class: class, Share: q.shareIn(room, class), Used: g.used[class].amount, Takes: q.takes(class, g, now)}
		if class < classBackground && q.asksUntil(class, now) > now {
			u.Kept = u.Share
		}
		uses[class] = u
	}
	return uses
}

// viewPacer returns a rate's pacer as a reader sees it; nil: it has none.
func (q *quota) viewPacer(g *ledger, now int64) *PacerView {
	if !q.rule.paced() {
		return nil
	}
	h, there := q.above(classBackground, g, now, now), g.available(&q.rule)
	v := &PacerView{
		Ahead: max(q.pacer.paidUntil-now, 0), LendsIn: max(q.lendsFrom()-now, 0), Reserve: h.reserve, Zone: logpb.Zone_ZONE_GREEN,
	}
	switch {
	case there < max(q.pacer.sizeAt(classCritical, now/q.rule.period), 1):
		v.Zone = logpb.Zone_ZONE_RED
	case h.asks && (there < h.share || now < q.pacer.shutUntil):
		v.Zone = logpb.Zone_ZONE_AMBER
	}
	return v
}
