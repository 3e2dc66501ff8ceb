package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// What a provider says is left of a rate tells what others use of the key (docs/policy/shares.md, decision 34): what its limit, less what
// is left and what was consumed here until the report of the call came, does not account for. Six fifths of it are held back, since it was
// true when the provider answered and is not any more, and it fades over one period unless later reports say it again. A lie holds a
// rate back for about as long, and no longer.

const (
	// keptPart and keptOver: of what others use so much is held back, six fifths.
	keptPart, keptOver = 6, 5
	// lowerPeriods is for how many periods a reported limit below the configured one lowers what is usable.
	lowerPeriods = 2
)

// foreign is what others use of a rate, by its provider's word.
type foreign struct {
	// amount is what others had used in the period before at (cluster time). 0: nothing is known of others.
	amount, at int64
	// heard is when the newest operation was consumed of which a report was believed, before levelHeard, or when an operator ended what was
	// known. What was consumed before says nothing.
	heard int64
	// heardBy is who was believed last since levelHeard, and of an operation consumed at heardByAt. Of the same caller an older one says
	// nothing; another's does, or a caller who reports often and nothing would keep all others from being heard.
	heardBy   string
	heardByAt int64
	// seen is the moment for which kept was worked out, the ledger's; kept is what is held back then.
	seen, kept int64
	// word is how far callers are believed.
	word belief
}

// span is how long what is held back takes to fade: a period, but no longer than one caller's word may close a rate, since levelOneWord.
func (f *foreign) span(r *rule) int64 {
	if f.word.teller == "" {
		return r.period
	}
	return min(r.period, maxWindowClosing)
}

// forget forgets what others use.
func (f *foreign) forget() {
	*f = foreign{heard: f.heard, heardBy: f.heardBy, heardByAt: f.heardByAt, word: f.word}
}

// stale reports whether a caller's report of an operation that was consumed then says nothing any more.
func (f *foreign) stale(caller string, began int64) bool {
	return began < f.heard || caller == f.heardBy && began < f.heardByAt
}

// advance works out what is held back at a moment.
func (f *foreign) advance(r *rule, now int64) {
	if f.amount == 0 {
		return
	}
	span := f.span(r)
	if now-f.at >= span {
		f.forget()
		return
	}
	f.seen, f.kept = now, mulDivCeil(keptPart*f.amount, max(span-f.steps(r, now), 0), keptOver*span)
}

// steps returns how far what is held back has faded at a moment: in steps of the log's buckets, so that waiting requests are tried again
// at steps and not all the time.
func (f *foreign) steps(r *rule, now int64) int64 { return (now - f.at) / r.width * r.width }

// left returns what of it has not faded at a moment.
func (f *foreign) left(r *rule, now int64) int64 {
	span := f.span(r)
	if f.amount == 0 || now-f.at >= span {
		return 0
	}
	return f.amount - mulDivFloor(f.amount, now-f.at, span)
}

// fades returns when less is held back than at the ledger's moment; noTimer: nothing is.
func (f *foreign) fades(r *rule) int64 {
	if f.amount == 0 {
		return noTimer
	}
	return addSaturated(f.at, min(f.steps(r, f.seen)+r.width, f.span(r)))
}

// fallsTo returns when no more than so much is held back.
func (f *foreign) fallsTo(r *rule, amount int64) int64 {
	if amount >= f.kept {
		return f.seen
	}
	span := f.span(r)
	passed := roundUp(span-mulDivFloor(amount, keptOver*span, keptPart*f.amount), r.width)
	return addSaturated(f.at, min(passed, span))
}

// returnsIn returns in how long what is lacking of a rate has come back by itself, while what others use fades and a lowered limit ends;
// ok is false where what stands in the way has no known end.
func (g *ledger) returnsIn(r *rule, v view, lacking int64) (left int64, ok bool) {
	left, ok = g.fadesIn(r, v, lacking)
	if g.capped >= r.usable {
		return left, ok
	}
	after, known := g.fadesIn(r, v, lacking-(r.usable-g.capped))
	after = max(after, g.capEnd-v.early, 1)
	if known && (!ok || after < left) {
		return after, true
	}
	return left, ok
}

// fadesIn does the same under a limit that stays as it is.
func (g *ledger) fadesIn(r *rule, v view, lacking int64) (left int64, ok bool) {
	for i := 0; lacking > 0; i++ {
		next := never
		if i < len(g.log) {
			next = g.dropsIn(r, v, g.log[i].end)
		}
		if lacking <= g.others.kept {
			if faded := max(left, g.others.fallsTo(r, g.others.kept-lacking)-v.early, 1); faded < next {
				return faded, true
			}
		}
		if next == never {
			return 0, false
		}
		lacking, left = lacking-g.log[i].amount, next
	}
	return left, true
}

// lowerRate lowers what is usable of a rate for some periods, and tells whether that is news. Within that time it only falls.
func (g *ledger) lowerRate(r *rule, now, total int64, teller string, during int64) bool {
	if total > g.capped || total >= r.usable {
		return false
	}
	news := total < g.capped
	g.capped, g.capTeller = total, teller
	g.capEnd = addSaturated(now, during)
	return news
}

// told is a limit that a provider named.
type told struct {
	limit, at int64
	// known: it named one.
	known bool
}

// recordTold remembers the limit that a provider named last, to show it next to the configured one.
func (m *Machine) recordTold(q *quota, signal *logpb.Signal) {
	if m.featureLevel >= levelReports && signal.Limit != nil {
		q.told = told{limit: *signal.Limit, at: m.clock.Now, known: true}
	}
}

// hearRate takes over what a provider said of a rate when it answered an operation: what others use of the key, and a limit below the
// configured one, to which it returns what is usable then. An operation that may not count any more, or was consumed before another
// one that its caller reported, says nothing about the present.
func (m *Machine) hearRate(by reporter, q *quota, o *operation, signal *logpb.Signal) *int64 {
	if m.featureLevel < levelReports || o == nil || o.began == 0 || signal.Remaining == nil && signal.Limit == nil {
		return nil
	}
	g, r, now := &q.ledger, &q.rule, m.clock.Now
	ours, amount, charged := chargedBy(q, o)
	if !charged || g.others.stale(by.caller, o.began) || now-o.began > r.counting() {
		return nil
	}
	if m.featureLevel < levelHeard {
		g.others.heard = o.began
	} else {
		g.others.heardBy, g.others.heardByAt = by.caller, o.began
	}
	available, limit := g.available(r), r.limit
	var capped *int64
	if signal.Limit != nil && *signal.Limit < limit {
		limit = *signal.Limit
		usable := mulDivFloor(limit, million-int64(q.definition.HeadroomPpm), million)
		usable = m.believedLimit(by, q, usable, signal)
		if g.lowerRate(r, now, usable, by.caller, m.loweredFor(r)) {
			m.emit(Event{Kind: EventCapped, Quota: q.name, Amount: usable})
			capped = &usable
		}
	}
	if signal.Remaining != nil {
		if signal.Cause != logpb.Cause_CAUSE_OK {
			amount = 0 // what was refused, the provider did not count
		}
		others := limit - min(*signal.Remaining, limit) - min(addSaturated(ours, amount), limit)
		if m.featureLevel >= levelOneWord {
			others = g.others.word.believe(by.caller, others, saysLimited(signal.Cause), now, m.closingBound(q))
		}
		g.others.learn(r, now, others)
	}
	if g.available(r) != available {
		m.markDirty(q)
	}
	return capped
}

// believedLimit returns how far a lower limit that a caller names lowers what is usable.
func (m *Machine) believedLimit(by reporter, q *quota, usable int64, signal *logpb.Signal) int64 {
	if m.featureLevel < levelOneWord {
		return usable
	}
	lacking := q.rule.usable - usable
	return q.rule.usable - q.ledger.limits.believe(by.caller, lacking, saysLimited(signal.Cause), m.clock.Now, m.closingBound(q))
}

// loweredFor returns for how long a report lowers what is usable.
func (m *Machine) loweredFor(r *rule) int64 {
	if m.featureLevel < levelOneWord {
		return lowerPeriods * r.period
	}
	return min(lowerPeriods*r.period, maxWindowClosing)
}

// learn takes over what others use, unless more is known.
func (f *foreign) learn(r *rule, now, amount int64) {
	left := f.left(r, now)
	if f.word.teller != "" && amount <= left {
		return // it goes on fading: who reports often would keep it alive, were it to begin again from what is left
	}
	if amount = max(amount, left); amount <= 0 {
		f.forget()
		return
	}
	f.amount, f.at = amount, now
	f.advance(r, now)
}

// chargedBy returns what an operation charges to a quota, and what else of us a provider may have counted when it answered: what counted
// when the operation was consumed, and what was consumed since. Calls overtake each other, and some providers say what remains when they
// have answered and not when they admitted the call.
func chargedBy(q *quota, o *operation) (ours, amount int64, charged bool) {
	var own int64
	var total uint64
	for i := range o.charges {
		c := &o.charges[i]
		if c.quota != q.number {
			continue
		}
		if !charged {
			ours, total, charged = c.before, c.total, true
		}
		amount = addSaturated(amount, c.amount)
		if own = addSaturated(own, c.consumed); c.overrun {
			own = addSaturated(own, c.amount)
		}
	}
	if q.ledger.total != 0 {
		ours = addSaturated(ours, max(int64(q.ledger.total-total)-own, 0)) // below 0: a part was consumed before there was a total
	}
	return ours, amount, charged
}

// encodeBurn leaves out what nobody was granted.
func encodeBurn(b *burn) []int64 {
	if b.of == ([len(b.of)]int64{}) {
		return nil
	}
	return slices.Clone(b.of[:])
}

// takeReports enters what a snapshot has of reports and grants of a rate.
func (q *quota) takeReports(encoded *logpb.SnapshotQuota) error {
	f := &q.ledger.others
	var err error
	if f.word, err = takeBelief(encoded.OthersWord); err != nil {
		return fmt.Errorf("quota %d: of others %w", encoded.Number, err)
	}
	if q.ledger.limits, err = takeBelief(encoded.LimitWord); err != nil {
		return fmt.Errorf("quota %d: of its limit %w", encoded.Number, err)
	}
	f.amount, f.at, f.heard = encoded.Foreign, encoded.ForeignAtNs, encoded.HeardNs
	f.heardBy, f.heardByAt = encoded.HeardBy, encoded.HeardByNs
	switch {
	case f.amount < 0 || f.amount > maxAmount || f.at < 0 || f.heard < 0 || f.heardByAt < 0 || encoded.ForeignSeenNs < f.at:
		return fmt.Errorf("quota %d: others used %d of it at %d", encoded.Number, f.amount, f.at)
	case f.amount != 0 && (q.rule.kind != kindRate || encoded.ForeignSeenNs-f.at >= q.rule.period):
		return fmt.Errorf("quota %d is no rate, and others use it, or did longer than a period ago", encoded.Number)
	case len(encoded.Burnt) != 0 && (len(encoded.Burnt) != len(q.burn.of) || !q.rule.burns()), encoded.BurntLast < 0:
		return fmt.Errorf("quota %d has burnt %d amounts up to %d", encoded.Number, len(encoded.Burnt), encoded.BurntLast)
	}
	f.advance(&q.rule, encoded.ForeignSeenNs)
	copy(q.burn.of[:], encoded.Burnt)
	q.burn.last = encoded.BurntLast
	if encoded.ToldLimit != nil {
		q.told = told{limit: *encoded.ToldLimit, at: encoded.ToldNs, known: true}
	}
	return nil
}
