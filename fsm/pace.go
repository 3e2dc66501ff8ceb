package fsm

import (
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Shares of a rate (docs/policy/shares.md, decision 33). While a higher class asks, a reserve stays for it. Its share
// is lent to lower classes at the pace at which used amounts return. So a log that is used up returns a little all the
// time, and not everything one period after a burst. Every grant pays the pacer, whatever its class; only lower classes
// wait for it.

const (
	// leadPart: an amount is lent while the pacer is at most a leadPart-th of a period ahead.
	leadPart = 50
	// leastReserve and mostReserve bound the reserve, which is the largest call of a higher class: at least a hundredth
	// of usable, at most a twentieth. Without a reserve a call waits for amounts to return; a reserve is unused
	// capacity.
	leastReserve, mostReserve = 100, 20
)

// pacer is the pacer state of a rate with shares.
type pacer struct {
	// paidUntil is when all granted amounts will have returned, if one after the other (cluster time).
	paidUntil int64
	// shutUntil: until then, one period from a cooldown's end on, nothing is free for lower classes.
	shutUntil int64
	// size is the largest amount that a higher class asked for in period number era, sizeOld that of the period before.
	size, sizeOld, era [ledger.ClassBackground]int64
}

// pay advances the pacer for a grant, or for use beyond an estimate. It reports whether the pacer moved back instead: a
// state from before levels.ShortLead may have it further ahead than allowed.
func (q *quota) pay(at *moment, amount int64) (earlier bool) {
	q.recordBurn(at.clock.Now, amount)
	if !q.rule.Paced() {
		return false
	}
	was := q.pacer.paidUntil
	q.pacer.paidUntil = fixed.AddSaturated(max(was, at.clock.Now), q.rule.Price(amount, q.ledger.Room(&q.rule)))
	q.pacer.boundLead(&q.rule, at.clock.Now, at.featureLevel)
	return q.pacer.paidUntil < was
}

// repay moves the pacer back for a returned amount. It may fall behind the present, which earns nothing.
func (q *quota) repay(at *moment, amount int64) {
	q.recordBurn(at.clock.Now, -amount)
	if room := q.ledger.Room(&q.rule); q.rule.Paced() && room > 0 {
		q.pacer.boundLead(&q.rule, at.clock.Now, at.featureLevel)
		q.pacer.paidUntil = fixed.AddSaturated(q.pacer.paidUntil, -fixed.MulDivFloor(amount, q.rule.Counting(), room))
	}
}

// boundLead bounds the pacer's lead to the longest time that a consumed amount counts. An overrun may be many times the
// usable amount.
func (p *pacer) boundLead(r *ledger.Rule, now int64, level uint32) {
	if level >= levels.ShortLead && r.Paced() {
		p.paidUntil = min(p.paidUntil, fixed.AddSaturated(now, r.Counting()))
	}
}

// repace keeps the pacer's lead when the rule changes. If the price of an amount changes, it converts the lead to an amount, rounded up,
// and then to the lead at the new price. Before levels.Repaced it always does. From levels.ShortLead on the lead is bounded.
func (q *quota) repace(to *ledger.Rule, now int64, level uint32) {
	from := &q.rule
	switch {
	case !to.Paced():
		if from.Paced() {
			q.pacer, q.ledger.Used = pacer{}, [ledger.Classes]ledger.Usage{}
		}
	case !from.Paced():
		q.pacer = pacer{paidUntil: now}
	case level >= levels.Repaced && q.ledger.Room(from) == q.ledger.Room(to) && from.Counting() == to.Counting():
	default:
		owed := fixed.MulDivCeil(max(q.pacer.paidUntil-now, 0), q.ledger.Room(from), from.Counting())
		q.pacer.paidUntil = fixed.AddSaturated(now, to.Price(owed, q.ledger.Room(to)))
	}
	q.pacer.boundLead(to, now, level)
}

// recordPacedDemand records that a class asked for an amount.
func (q *quota) recordPacedDemand(rank int32, amount, now int64) {
	q.tried[rank] = max(now, 1)
	if rank >= ledger.ClassBackground {
		return
	}
	p, era := &q.pacer, now/q.rule.Period
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

// asksUntil returns until when a class counts as asking: it waits, or asked recently.
func (q *quota) asksUntil(class int32, now int64) int64 {
	switch {
	case class == ledger.ClassCritical && q.ahead.critical > 0, class == ledger.ClassStandard && q.ahead.standard > 0:
		return ledger.Never
	case q.tried[class] == 0:
		return now
	}
	return fixed.AddSaturated(q.tried[class], max(q.rule.Policy.Shares.Quiet, q.rule.Period))
}

// sizeAt returns the largest amount that a class asked for in the period era or the one before.
func (p *pacer) sizeAt(class int32, era int64) int64 {
	switch p.era[class] {
	case era:
		return max(p.size[class], p.sizeOld[class])
	case era - 1:
		return p.size[class]
	}
	return 0
}

// higher is the part of a rate for the asking classes above one.
type higher struct {
	asks           bool
	share, reserve int64
	// room is the amount that share and reserve are parts of.
	room int64
}

// above returns the part for the classes above a rank at a moment, now or later, if nobody asks until then.
func (q *quota) above(rank int32, g *ledger.Ledger, now, at int64) (h higher) {
	var largest int64
	h.room = g.Room(&q.rule)
	for class := range rank {
		if q.asksUntil(class, now) > at {
			h.asks = true
			h.share += q.shareIn(h.room, class)
			largest = max(largest, q.pacer.sizeAt(class, at/q.rule.Period))
		}
	}
	if h.asks {
		h.reserve = min(max(largest, h.room/leastReserve), h.room/mostReserve)
	}
	return h
}

// reserveFrom returns how much of the reserve an amount has to leave. An amount that needs more than the rest of the
// room is granted when all of the room is available.
func (h *higher) reserveFrom(amount int64) int64 {
	return min(h.reserve, max(h.room-amount, 0))
}

// heldBack reports whether an amount that fits is kept from a rank.
func (q *quota) heldBack(rank int32, amount, there, now int64) bool {
	if rank <= ledger.ClassCritical || !q.rule.Paced() {
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

// lendsFrom returns when the next amount is lent.
func (q *quota) lendsFrom() int64 { return q.pacer.paidUntil - q.rule.Period/leadPart }

// heldBackUntil returns when an amount is granted to a rank on top of the amount set aside, if nobody asks or returns
// anything until then; ledger.Never: unknown.
func (q *quota) heldBackUntil(rank int32, amount, aside, now int64) int64 {
	steps := []int64{now}
	for era := now / q.rule.Period; len(steps) < 3; {
		era++
		steps = append(steps, era*q.rule.Period) // a period's demand is forgotten after the next period
	}
	for class := range rank {
		if until := q.asksUntil(class, now); until > now && until < ledger.Never {
			steps = append(steps, until)
		}
	}
	slices.Sort(steps)
	for i, from := range steps {
		at := q.grantedFrom(q.above(rank, &q.ledger, now, from), amount, aside, now, from)
		if at < ledger.Never && (i+1 == len(steps) || at < steps[i+1]) {
			return at
		}
	}
	return ledger.Never
}

// grantedFrom returns when an amount is granted on top of higher classes and the amount set aside, not before from.
func (q *quota) grantedFrom(h higher, amount, aside, now, from int64) int64 {
	taken := fixed.AddSaturated(amount, aside)
	from = max(from, q.thereFrom(fixed.AddSaturated(taken, h.reserveFrom(amount)), now))
	if !h.asks || from == ledger.Never {
		return from
	}
	return max(from, min(q.lendsFrom(), max(q.pacer.shutUntil, q.thereFrom(fixed.AddSaturated(taken, h.share), now))))
}

// thereFrom returns when an amount is available; ledger.Never: unknown.
func (q *quota) thereFrom(amount, now int64) int64 {
	if amount > q.rule.Usable {
		return ledger.Never
	}
	left, ok := q.ledger.FreesIn(&q.rule, ledger.View{Early: now, Late: now, Now: now}, amount, false)
	if !ok {
		return ledger.Never
	}
	return fixed.AddSaturated(now, left)
}

// withholdByPacedCap keeps critical calls of a rate below their cap while lower classes ask. A call that is larger than
// the cap passes alone.
func (rq *request) withholdByPacedCap(n need) *logpb.Refusal {
	q, now := n.quota, rq.clock.Now
	used := &q.ledger.Used[ledger.ClassCritical]
	if rq.class != ledger.ClassCritical || used.Amount == 0 || fixed.AddSaturated(used.Amount, n.amount) <= q.cap(&q.ledger) {
		return nil
	}
	until := q.lowerAskUntil(now)
	if until <= now {
		return nil
	}
	until = min(until, q.belowCapFrom(used, n.amount, now))
	if until == ledger.Never {
		until = fixed.AddSaturated(now, unknownRetry)
	}
	return rq.refusal(logpb.Reason_REASON_CAP, q, until, "critical calls have used what they may while others ask")
}

// cap is the most that critical calls may use of a rate while others ask.
func (q *quota) cap(g *ledger.Ledger) int64 {
	return fixed.MulDivFloor(g.Room(&q.rule), q.rule.Policy.Shares.Cap, fixed.Million)
}

// lowerAskUntil returns until when classes below critical count as asking: one waits, or asked less than a period ago.
func (q *quota) lowerAskUntil(now int64) (until int64) {
	if q.waiting > q.ahead.critical {
		return ledger.Never
	}
	for class := ledger.ClassStandard; class < ledger.Classes; class++ {
		if q.tried[class] != 0 {
			until = max(until, fixed.AddSaturated(q.tried[class], q.rule.Period))
		}
	}
	return max(until, now)
}

// belowCapFrom returns when critical calls have used so little that an amount is below their cap; ledger.Never:
// unknown.
func (q *quota) belowCapFrom(used *ledger.Usage, amount, now int64) int64 {
	left := used.Amount
	for _, e := range used.Ends {
		if left -= e.Amount; left <= 0 || fixed.AddSaturated(left, amount) <= q.cap(&q.ledger) {
			return fixed.AddSaturated(now, q.ledger.DropsIn(&q.rule, ledger.View{Early: now, Late: now, Now: now}, e.End))
		}
	}
	return ledger.Never
}

// exhaustedPaced returns the refusal of a need below class critical that does not fit into a rate with shares now.
func (rq *request) exhaustedPaced(n need) *logpb.Refusal {
	now, burst := rq.clock.Now, rq.burstWait(n)
	at := n.quota.heldBackUntil(rq.rank, n.amount, 0, now)
	if at == ledger.Never {
		at = fixed.AddSaturated(now, unknownRetry)
	}
	at = max(at, fixed.AddSaturated(now, burst))
	if burst > 0 || n.quota.ledger.Available(&n.quota.rule) < n.amount {
		return rq.refusal(logpb.Reason_REASON_EXHAUSTED, n.quota, at, "come back then, or wait in the queue")
	}
	return rq.refusal(logpb.Reason_REASON_SHARE, n.quota, at,
		"what is left is kept for a higher class, and lent at the pace at which it comes back")
}

// takes returns the largest call of a class that a rate could grant now, if nobody waits.
func (q *quota) takes(class int32, g *ledger.Ledger, now int64) int64 {
	there := max(g.Available(&q.rule), 0)
	if class == ledger.ClassCritical {
		used := g.Used[ledger.ClassCritical].Amount
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

// boundTakes bounds the possible calls on a child by the amounts that this quota has for their classes.
func (q *quota) boundTakes(uses []ClassUse, g *ledger.Ledger, now int64) {
	if q.rule.Policy.Observe {
		return
	}
	for i := range uses {
		most := max(g.Available(&q.rule), 0)
		if q.rule.Paced() {
			most = q.takes(uses[i].Class, g, now)
		}
		uses[i].Takes = min(uses[i].Takes, most)
	}
}

// pacedUses returns the part of each class in a rate. Used is known for critical calls only, whose cap needs it. Kept
// is a class's share while it asks.
func (q *quota) pacedUses(g *ledger.Ledger, now int64) []ClassUse {
	uses, room := make([]ClassUse, ledger.Classes), g.Room(&q.rule)
	for class := range int32(ledger.Classes) {
		u := ClassUse{Class: class, Share: q.shareIn(room, class), Used: g.Used[class].Amount, Takes: q.takes(class, g, now)}
		if class < ledger.ClassBackground && q.asksUntil(class, now) > now {
			u.Kept = u.Share
		}
		uses[class] = u
	}
	return uses
}

// viewPacer returns a rate's pacer as a reader sees it; nil: it has none.
func (q *quota) viewPacer(g *ledger.Ledger, now int64) *PacerView {
	if !q.rule.Paced() {
		return nil
	}
	h, there := q.above(ledger.ClassBackground, g, now, now), g.Available(&q.rule)
	v := &PacerView{
		Ahead: max(q.pacer.paidUntil-now, 0), LendsIn: max(q.lendsFrom()-now, 0), Reserve: h.reserve, Zone: logpb.Zone_ZONE_GREEN,
	}
	switch {
	case there < max(q.pacer.sizeAt(ledger.ClassCritical, now/q.rule.Period), 1):
		v.Zone = logpb.Zone_ZONE_RED
	case h.asks && (there < h.share || now < q.pacer.shutUntil):
		v.Zone = logpb.Zone_ZONE_AMBER
	}
	return v
}
