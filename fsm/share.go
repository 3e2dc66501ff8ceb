package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Shares keep a part of a window for each class, against lower classes (docs/policy.md). Shares of a rate are in
// pace.go.

// demandGrain: an attempt is recorded if the last recorded one is older than this part of the quiet time.
const demandGrain = 16

// recordDemand records that a class asked for needs, so that its share is kept.
func recordDemand(needs []need, as priority, now int64) {
	for _, n := range needs {
		s, tried := &n.quota.rule.Policy.Shares, n.quota.tried[as.class]
		switch {
		case !s.On:
		case n.quota.rule.Paced():
			n.quota.recordPacedDemand(as.rank, n.amount, now)
		case tried == 0 || now-tried > s.Quiet/demandGrain:
			n.quota.tried[as.class] = max(now, 1)
		}
	}
}

// demanded reports whether a class above one asked for a quota recently.
func (q *quota) demanded(above int32, now int64) bool {
	for class := range above {
		if tried := q.tried[class]; tried != 0 && now-tried < q.rule.Policy.Shares.Quiet {
			return true
		}
	}
	return false
}

// share returns a class's share of a window.
func (q *quota) share(class int32) int64 { return q.shareIn(q.rule.Usable, class) }

// shareIn returns a class's share of a usable amount.
func (q *quota) shareIn(usable int64, class int32) int64 {
	return fixed.MulDivFloor(usable, q.rule.Policy.Shares.Of[class], fixed.Million)
}

// kept returns the amount kept for a class while left millionths of the window remain: the unused part of its share,
// and at most left millionths of the share.
func (q *quota) kept(g *ledger.Ledger, class int32, left int64) int64 {
	share := q.share(class)
	return keptOf(share, g.Used[class].Amount, left)
}

// keptOf returns the amount kept of a share.
func keptOf(share, used, left int64) int64 {
	return max(min(share-used, fixed.MulDivFloor(share, left, fixed.Million)), 0)
}

// spared returns how much of a window a holder's amount must leave: the amounts kept for higher classes or for holders
// with a share. For background work beyond its share it includes the floor, which shrinks over the last part of the
// window.
func (rq *request) spared(q *quota, others []ownShare, quiet bool, amount, left int64) (sum int64) {
	s := &q.rule.Policy.Shares
	for _, other := range others {
		sum += keptOf(other.share, other.used, left)
	}
	if len(s.Holders) == 0 && !quiet {
		for above := range rq.rank {
			sum += q.kept(&q.ledger, above, left)
		}
	}
	if rq.rank == ledger.ClassBackground && !quiet && !rq.withinShare(q, amount) {
		floor := fixed.MulDivFloor(q.rule.Usable, s.Floor, fixed.Million)
		sum = max(sum, fixed.MulDivFloor(floor, min(left*ledger.ShrinkPart, fixed.Million), fixed.Million))
	}
	return sum
}

// withinShare reports whether an amount is within the share of the requesting holder or class.
func (rq *request) withinShare(q *quota, amount int64) bool {
	s := &q.rule.Policy.Shares
	if len(s.Holders) > 0 {
		return fixed.AddSaturated(rq.holders.usedBy(q, rq.req.Holder), amount) <= q.shareOf(s.Holder(rq.req.Holder))
	}
	return q.ledger.Used[rq.rank].Amount+amount <= q.share(rq.rank)
}

// withholdByShare keeps the rest of a window for higher classes or for holders with a share, and keeps critical calls
// below their cap.
func (rq *request) withholdByShare(n need) *logpb.Refusal {
	q := n.quota
	if !q.rule.Policy.Shares.On {
		return nil
	}
	if q.rule.Paced() {
		return rq.withholdByPacedCap(n)
	}
	if q.rule.Anchored && !q.ledger.Known {
		return nil // as long as no reset is known it is a sliding rate: nothing of it ends with a window
	}
	closes, known := q.ledger.Closes(&q.rule, q.rule.At(rq.clock))
	if rq.class == ledger.ClassCritical && fixed.AddSaturated(q.ledger.Used[rq.class].Amount, n.amount) > q.rule.Cap() {
		if !known {
			closes = unknownRetry
		}
		return rq.refusal(logpb.Reason_REASON_CAP, q, fixed.AddSaturated(rq.clock.Now, max(closes, fixed.Millisecond)),
			"critical calls have used what they may: something is kept for the others")
	}
	quiet := rq.class == ledger.ClassBackground && !q.demanded(rq.class, rq.clock.Now)
	others := rq.sharesOfOthers(q, quiet)
	room := q.ledger.Available(&q.rule) - n.amount
	length := q.rule.Length(&q.ledger)
	fits := func(left int64) bool {
		part := int64(fixed.Million)
		if known {
			part = min(fixed.MulDivCeil(max(left, 0), fixed.Million, length), fixed.Million)
		}
		return room >= rq.spared(q, others, quiet, n.amount, part)
	}
	if room < 0 || fits(closes) {
		return nil // another check refuses an amount that is not available
	}
	wait := unknownRetry
	if known {
		// spared only shrinks, as FirstMillisecond requires.
		wait = fixed.FirstMillisecond(closes, func(passed int64) bool { return fits(closes - passed) })
	}
	return rq.refusal(logpb.Reason_REASON_SHARE, q, fixed.AddSaturated(rq.clock.Now, wait), "what is left is kept for others: "+q.keptFor())
}

// rejectAboveCap refuses a critical call that is larger than the cap of a quota's rule: it can never fit.
func (rq *request) rejectAboveCap(n need, r *ledger.Rule) *logpb.Refusal {
	if rq.class != ledger.ClassCritical || !r.Policy.Shares.On || r.Paced() || n.amount <= r.Cap() {
		return nil
	}
	return rq.refusal(logpb.Reason_REASON_NEVER_FITS, n.quota, 0,
		fmt.Sprintf("critical calls may use %d of a window: ask for less, or in a lower class", r.Cap()))
}

// classUses returns the part of each class in a window; nil: it has no shares.
func (q *quota) classUses(g *ledger.Ledger, at Clock) []ClassUse {
	if !q.rule.Policy.Shares.On || len(q.rule.Policy.Shares.Holders) > 0 {
		return nil
	}
	if q.rule.Paced() {
		return q.pacedUses(g, at.Now)
	}
	left := q.partLeft(g, at)
	uses := make([]ClassUse, ledger.Classes)
	for class := range int32(ledger.Classes) {
		share, used, kept := q.share(class), g.Used[class].Amount, q.kept(g, class, left)
		uses[class] = ClassUse{
			Class: class, Share: share, Used: used, Kept: kept, Lent: max(share-used-kept, 0), Borrowed: max(used-share, 0),
		}
	}
	return uses
}

// partLeft returns the remaining part of a quota's window, in millionths; all of it if the end is not known.
func (q *quota) partLeft(g *ledger.Ledger, at Clock) int64 {
	closes, known := g.Closes(&q.rule, q.rule.At(at))
	if !known {
		return fixed.Million
	}
	return min(fixed.MulDivCeil(max(closes, 0), fixed.Million, q.rule.Length(g)), fixed.Million)
}
