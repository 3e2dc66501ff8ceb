package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// Shares keep a part of a window for each class, against lower classes (docs/policy.md). What they are on a rate is in pace.go.

const (
	defaultCap   = 900_000
	defaultFloor = 300_000
	defaultQuiet = 15 * minute
	maxQuiet     = day
	// demandGrain: an attempt is recorded when the one before it is older than such a part of the quiet time.
	demandGrain = 16
)

// shares is a definition's shares, worked out, in millionths of usable.
type shares struct {
	on bool
	// holders are the shares of single holders, in place of those of the classes.
	holders    []*logpb.HolderShare
	of         [classes]int64
	cap, floor int64
	// quiet is how long after the last attempt of a higher class nothing is kept from background work.
	quiet int64
}

// newShares works shares out, or says why they cannot work.
func newShares(def *logpb.Quota, kind kind, level uint32) (shares, *logpb.Failure) {
	given := def.GetPolicy().GetShares()
	if given == nil {
		return shares{}, nil
	}
	s := shares{
		on: true, of: [classes]int64{int64(given.CriticalPpm), int64(given.StandardPpm), int64(given.BackgroundPpm)},
		cap: int64(given.CapPpm), floor: defaultFloor, quiet: given.QuietNs, holders: given.Holders,
	}
	if s.cap == 0 {
		s.cap = defaultCap
	}
	if given.FloorPpm != nil {
		s.floor = int64(*given.FloorPpm)
	}
	if s.quiet == 0 {
		s.quiet = defaultQuiet
	}
	sum := int64(0)
	for _, part := range s.of {
		if part < 0 || part > million {
			return shares{}, impossible(def, "a share must be 0 to 1", "critical: 0.4, standard: 0.35, background: 0.25")
		}
		sum += part
	}
	ofHolders, failure := sumOfHolders(def, given.Holders)
	if failure != nil {
		return shares{}, failure
	}
	switch {
	case sum > 0 && ofHolders > 0:
		return shares{}, impossible(def, "classes and single holders have shares", "name either classes or holders")
	case kind != kindWindow && level < levelRates:
		return shares{}, impossible(def, "only windows have shares", "a rate's queue lends everything to whoever comes first in the order")
	case kind == kindSlots:
		return shares{}, impossible(def, "slots have no shares", "windows and rates have")
	case kind == kindRate && ofHolders > 0:
		return shares{}, impossible(def, "only windows have shares of single holders", "give shares to classes")
	case sum+ofHolders > million:
		return shares{}, impossible(def, "the shares are together more than 1", "critical: 0.4, standard: 0.35, background: 0.25")
	case s.cap < s.of[classCritical] || s.cap > million:
		return shares{}, impossible(def, "the cap must be at least critical's share and at most 1", "the default is 0.9")
	case s.floor < 0 || s.floor > million:
		return shares{}, impossible(def, "the floor must be 0 to 1", "the default is 0.3")
	case s.quiet < second || s.quiet > maxQuiet:
		return shares{}, impossible(def, "quiet must be 1 s to 24 h", "the default is 15m")
	}
	return s, nil
}

// recordDemand records that somebody asked for needs: what is kept, is kept for somebody.
func (m *Machine) recordDemand(needs []need, as priority) {
	for _, n := range needs {
		s, tried := &n.quota.rule.policy.shares, n.quota.tried[as.class]
		switch {
		case !s.on:
		case n.quota.rule.paced():
			n.quota.recordPacedDemand(as.rank, n.amount, m.clock.Now)
		case tried == 0 || m.clock.Now-tried > s.quiet/demandGrain:
			n.quota.tried[as.class] = max(m.clock.Now, 1)
		}
	}
}

// demanded tells whether a class above one asked for a quota lately.
func (q *quota) demanded(above int32, now int64) bool {
	for class := range above {
		if tried := q.tried[class]; tried != 0 && now-tried < q.rule.policy.shares.quiet {
			return true
		}
	}
	return false
}

// share is a class's share of a window.
func (q *quota) share(class int32) int64 { return q.shareIn(q.rule.usable, class) }

// shareIn is a class's share of what is usable.
func (q *quota) shareIn(usable int64, class int32) int64 {
	return mulDivFloor(usable, q.rule.policy.shares.of[class], million)
}

// kept returns what is kept for a class while so many millionths of the window are left: what it has not used of its
// share, at most as much of the share as there is left of the window.
func (q *quota) kept(g *ledger, class int32, left int64) int64 {
	share := q.share(class)
	return keptOf(share, g.used[class].amount, left)
}

// keptOf returns what is kept of a share.
func keptOf(share, used, left int64) int64 {
	return max(min(share-used, mulDivFloor(share, left, million)), 0)
}

// spared returns how much of a window a holder may not touch with an amount: what is kept for the classes above it, or for
// holders with a share, and for background work beyond its share the floor, which shrinks over the last part of the window.
func (m *Machine) spared(q *quota, name string, as priority, others []ownShare, quiet bool, amount, left int64) (sum int64) {
	s := &q.rule.policy.shares
	for _, other := range others {
		sum += keptOf(other.share, other.used, left)
	}
	if len(s.holders) == 0 && !quiet {
		for above := range as.rank {
			sum += q.kept(&q.ledger, above, left)
		}
	}
	if as.rank == classBackground && !quiet && !m.withinShare(q, name, as.rank, amount) {
		floor := mulDivFloor(q.rule.usable, s.floor, million)
		sum = max(sum, mulDivFloor(floor, min(left*shrinkPart, million), million))
	}
	return sum
}

// withinShare tells whether an amount is part of what is kept for who asks.
func (m *Machine) withinShare(q *quota, name string, class int32, amount int64) bool {
	s := &q.rule.policy.shares
	if len(s.holders) > 0 {
		return addSaturated(m.usedBy(q, name), amount) <= q.shareOf(s.holder(name))
	}
	return q.ledger.used[class].amount+amount <= q.share(class)
}

// withholdByShare keeps what is left of a window for higher classes, or for holders with a share, and critical calls below
// their cap.
func (m *Machine) withholdByShare(name string, as priority, n need) *logpb.Refusal {
	q := n.quota
	if !q.rule.policy.shares.on {
		return nil
	}
	if q.rule.paced() {
		return m.withholdByPacedCap(as, n)
	}
	if q.rule.anchored && !q.ledger.known {
		return nil // a sliding rate as long as no reset is known: nothing of it ends with a window
	}
	closes, known := q.ledger.closes(&q.rule, q.rule.at(m.clock))
	if as.class == classCritical && addSaturated(q.ledger.used[as.class].amount, n.amount) > q.rule.cap() {
		if !known {
			closes = unknownRetry
		}
		return m.refusal(logpb.Reason_REASON_CAP, q, addSaturated(m.clock.Now, max(closes, millisecond)),
			"critical calls have used what they may: something is kept for the others")
	}
	quiet := as.class == classBackground && !q.demanded(as.class, m.clock.Now)
	others := m.sharesOfOthers(q, name, as, quiet)
	room := q.ledger.available(&q.rule) - n.amount
	length := q.rule.length(&q.ledger)
	fits := func(left int64) bool {
		part := int64(million)
		if known {
			part = min(mulDivCeil(max(left, 0), million, length), million)
		}
		return room >= m.spared(q, name, as, others, quiet, n.amount, part)
	}
	if room < 0 || fits(closes) {
		return nil // what is not there at all is somebody else's refusal
	}
	wait := unknownRetry
	if known {
		// What is spared only shrinks.
		wait = firstMillisecond(closes, func(passed int64) bool { return fits(closes - passed) })
	}
	return m.refusal(logpb.Reason_REASON_SHARE, q, addSaturated(m.clock.Now, wait), "what is left is kept for others: "+q.keptFor())
}

// cap is the most that critical calls may use of a window.
func (r *rule) cap() int64 { return mulDivFloor(r.usable, r.policy.shares.cap, million) }

// rejectAboveCap refuses a critical call that is larger than the cap of a quota's rule: it can never fit.
func (m *Machine) rejectAboveCap(class int32, n need, r *rule) *logpb.Refusal {
	if class != classCritical || !r.policy.shares.on || r.paced() || n.amount <= r.cap() {
		return nil
	}
	return m.refusal(logpb.Reason_REASON_NEVER_FITS, n.quota, 0, fmt.Sprintf("critical calls may use %d of a window: ask for less, or in a lower class", r.cap()))
}

// classUses returns what each class has of a window; nil: it has no shares.
func (q *quota) classUses(g *ledger, at Clock) []ClassUse {
	if !q.rule.policy.shares.on || len(q.rule.policy.shares.holders) > 0 {
		return nil
	}
	if q.rule.paced() {
		return q.pacedUses(g, at.Now)
	}
	left := q.partLeft(g, at)
	uses := make([]ClassUse, classes)
	for class := range int32(classes) {
		share, used, kept := q.share(class), g.used[class].amount, q.kept(g, class, left)
		uses[class] = ClassUse{
			Class: class, Share: share, Used: used, Kept: kept, Lent: max(share-used-kept, 0), Borrowed: max(used-share, 0),
		}
	}
	return uses
}

// partLeft returns the part of its window that is left, in millionths; all of it where that is not known.
func (q *quota) partLeft(g *ledger, at Clock) int64 {
	closes, known := g.closes(&q.rule, q.rule.at(at))
	if !known {
		return million
	}
	return min(mulDivCeil(max(closes, 0), million, q.rule.length(g)), million)
}
