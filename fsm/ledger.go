package fsm

import (
	"math"
	"slices"
)

// openEnd is the end of an exposure whose end is not known yet.
const openEnd = math.MaxInt64

// ledger is what counts against one quota.
//
// All three kinds are one rule: an amount counts as long as the end of its exposure is not before a cutoff, and a
// grant needs held + open + counted + amount <= usable. For a rate the cutoff is one period ago; for slots it is now;
// for a window it is the opening of the oldest window that is not surely closed. An amount that touches two windows is
// in both sums, because its end lies after the second one's opening and it began before the first one closed; and
// what fits into the older window fits into the newer, whose sum is a part of it.
//
// Invariants: log is in ascending order of end, without duplicates; counted is the sum of its amounts; no entry ends
// before cutoff; all terms are at least 0.
type ledger struct {
	// held is reserved and not yet spendable; it belongs to window.
	held int64
	// open was consumed, and the end of its exposure is not known yet.
	open int64
	// counted was consumed, and the end of its exposure is known.
	counted int64
	log     []entry
	cutoff  int64
	// window identifies the window to which held amounts belong. Amounts held in another one are void.
	window int64
	// capped is the total to which reports lowered this window, or this rate; noCap for none. It was learned in window cappedIn, and ends
	// with it, or at capEnd (the earlier view) if that comes first. capTeller is the caller whose word it is.
	capped, cappedIn, capEnd int64
	capTeller                string
	// limits is how far the word of lower limits of a rate is believed.
	limits belief
	// settled is what was consumed and finally settled within this window.
	settled int64
	// arrival is the burst's theoretical arrival time before draws, which are in the order of ends. loose is what was
	// open when its client left
	// it, and may be charged until its end.
	arrival int64
	draws   []draw
	loose   []ending
	// drawnFrom: of what ends until then nothing goes back into the burst, since it is not known which of it is among draws.
	drawnFrom int64

	// others is what others use of a rate. total is what was consumed of it in all from levelOvertaken on, modulo 2^64.
	others foreign
	total  uint64

	// The rest of the windows' state. Boundaries are intervals: they begin when the later view of time reaches
	// closeBegin and end when the earlier view reaches closeEnd. Calendar windows compute them.
	known      bool // provider-anchored: the reset is known
	closing    bool // provider-anchored: its boundary has begun
	disputed   bool // provider-anchored: reports named different resets
	closeBegin int64
	closeEnd   int64
	opened     int64 // provider-anchored: where the present window opened
	anchor           // provider-anchored: what it rests on
	// used is what each class holds and has consumed in this window.
	used [classes]usage
	// past is what was dropped of a window, the oldest first, while less than about a period of cluster time has passed since: where
	// wrong clocks ended the window too soon, a reset of the clock counts it again.
	past []past
}

// noCap says that no report lowered the window.
const noCap = math.MaxInt64

// entry is what counts until the same end.
type entry struct {
	end    int64
	amount int64
	// closed is the part of amount whose operation's record is gone: nothing of it can come back.
	closed int64
	// overrun is the part of amount that was settled on top of an estimate.
	overrun int64
	// until is when the last of its exposures ends, by cluster time, of a window; 0 elsewhere.
	until int64
}

// clone returns a ledger that shares nothing with this one.
func (g *ledger) clone() ledger {
	c := *g
	c.log, c.past = slices.Clone(g.log), slices.Clone(g.past)
	c.draws, c.loose = slices.Clone(g.draws), slices.Clone(g.loose)
	for class := range c.used {
		c.used[class] = g.used[class].clone()
	}
	return c
}

// advance brings the ledger to a moment: what has ended is dropped, windows roll. rolled says that a window's held
// amounts became void, learned that a reset which was named inside the last boundary is known now.
func (g *ledger) advance(r *rule, v view) (rolled, learned bool) {
	switch {
	case r.kind == kindRate:
		g.drop(v.early - r.period)
		if len(g.draws) > 0 || len(g.loose) > 0 {
			g.advanceBurst(r, v.now)
		}
		g.others.advance(r, v.now)
		g.uncapAt(v.early)
	case r.kind == kindSlots:
		g.drop(v.early + 1)
	case r.kind == kindPool: // it counts nothing
	case r.anchored:
		rolled, learned = g.advanceAnchored(r, v)
		g.forgetPast(v.now - r.slides())
	default:
		if id := r.span(v.late + r.skew).end; id > g.window {
			rolled = g.window != 0
			g.roll(id)
		}
		g.dropWindow(r.span(v.early - r.skew).start)
		g.uncapAt(v.early)
		g.forgetPast(v.now - r.slides())
	}
	return rolled, learned
}

// roll makes held amounts void and gives the next ones a new window.
func (g *ledger) roll(window int64) {
	g.held, g.window, g.used = 0, window, [classes]usage{}
}

// dropWindow drops what ended before a window's opening, and with it what was known of the closed window.
func (g *ledger) dropWindow(opening int64) {
	if opening > g.cutoff {
		g.closed()
	}
	g.drop(opening)
}

// closed forgets what was known of a window that has closed. A cap that was learned since its boundary began is the next
// one's.
func (g *ledger) closed() {
	g.settled = 0
	if g.cappedIn != g.window {
		g.uncap()
	}
}

func (g *ledger) uncap() { g.capped, g.cappedIn, g.capEnd, g.capTeller = noCap, 0, 0, "" }

// uncapAt ends a cap whose time is over.
func (g *ledger) uncapAt(early int64) {
	if g.capped != noCap && early >= g.capEnd {
		g.uncap()
	}
}

// drop drops what ended before a cutoff.
func (g *ledger) drop(cutoff int64) {
	if cutoff <= g.cutoff {
		return
	}
	g.cutoff = cutoff
	n := 0
	for n < len(g.log) && g.log[n].end < cutoff {
		g.counted -= g.log[n].amount
		g.remember(past{until: g.log[n].until, amount: g.log[n].amount})
		n++
	}
	g.log = slices.Delete(g.log, 0, n)
	for class := range g.used {
		g.used[class].drop(cutoff)
	}
}

// usedByAll returns what all classes hold and have consumed in this window.
func (g *ledger) usedByAll() (sum int64) {
	for class := range g.used {
		sum += g.used[class].amount
	}
	return sum
}

// usable returns what may count at most: the rule's usable, lowered by a report.
func (g *ledger) usable(r *rule) int64 { return min(r.usable, g.capped) }

// consumed returns what was consumed and counts.
func (g *ledger) consumed() int64 { return g.open + g.counted }

// available returns what is neither held nor consumed, nor held back for others; it is below 0 after an overrun or a lowered limit.
func (g *ledger) available(r *rule) int64 {
	return g.usable(r) - g.held - g.open - g.counted - g.others.kept
}

// closes returns in how long the window to which holds belong begins to close, by the later view.
func (g *ledger) closes(r *rule, v view) (left int64, ok bool) {
	switch {
	case r.kind != kindWindow:
		return 0, false
	case !r.anchored:
		return g.window - r.skew - v.late, true
	case g.known && !g.closing:
		return g.closeBegin - v.late, true
	}
	return 0, false
}

// spendBy returns the longest spend-by of something consumed now. Just before a boundary it is 1 s, and the amount
// counts in both windows.
func (g *ledger) spendBy(r *rule, v view) int64 {
	left, ok := g.closes(r, v)
	switch {
	case !ok:
		return r.spendBy
	case left <= boundarySpendBy:
		return min(boundarySpendBy, r.spendBy)
	}
	return min(r.spendBy, left-1)
}

// key returns the end under which an exposure that ends at late stands in the log: rounded up, and for windows no
// further than the last moment of the last window that it touches.
func (g *ledger) key(r *rule, late int64) int64 {
	switch {
	case r.kind == kindWindow && !r.anchored:
		return r.span(late+r.skew).end - 1
	case r.kind == kindWindow && g.known && !g.closing && late < g.closeBegin:
		return min(roundUp(late, r.width), g.closeBegin-1)
	}
	return roundUp(late, r.width)
}

// add counts an amount until an end; until is when its exposure ends by cluster time.
func (g *ledger) add(end, amount, overrun, until int64) {
	if end == openEnd {
		g.open += amount
		return
	}
	if end < g.cutoff {
		return
	}
	i, found := g.find(end)
	if !found {
		g.log = slices.Insert(g.log, i, entry{end: end})
	}
	g.log[i].amount += amount
	g.log[i].overrun += overrun
	g.log[i].until = max(g.log[i].until, until)
	g.counted += amount
}

// take ends the counting of an amount that was added under an end. It does nothing where that has ended by itself.
func (g *ledger) take(end, amount, overrun int64) {
	if end == openEnd {
		g.open -= amount
		return
	}
	i, found := g.find(end)
	if !found {
		return
	}
	g.counted -= amount
	g.log[i].amount -= amount
	g.log[i].overrun -= overrun
	if g.log[i].amount == 0 {
		g.log = slices.Delete(g.log, i, i+1)
	}
}

// close records that nothing of an amount can come back any more.
func (g *ledger) close(end, amount int64) {
	if i, found := g.find(end); found {
		g.log[i].closed += amount
	}
}

// counts tells whether an amount that was added under an end still counts.
func (g *ledger) counts(end int64) bool { return end >= g.cutoff }

// overrun returns the overruns that count.
func (g *ledger) overrun() (sum int64) {
	for _, e := range g.log {
		sum += e.overrun
	}
	return sum
}

// find returns where an end stands in the log, or would. It is mostly the last.
func (g *ledger) find(end int64) (int, bool) {
	if last := len(g.log) - 1; last < 0 || g.log[last].end < end {
		return len(g.log), false
	} else if g.log[last].end == end {
		return last, true
	}
	from, to := 0, len(g.log)-1 // by index: slices.BinarySearchFunc copies each entry that it looks at
	for from < to {
		if middle := int(uint(from+to) >> 1); g.log[middle].end < end {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return from, g.log[from].end == end
}

// freesIn returns in how long enough has ended by itself for an amount to fit, at the earliest. With certain, only
// what cannot come back earlier is reckoned: the answer is a bound that nothing but an operator can beat. ok is false
// where what stands in the way (held, open) has no known end.
func (g *ledger) freesIn(r *rule, v view, amount int64, certain bool) (left int64, ok bool) {
	lacking := amount - g.available(r)
	if certain {
		lacking = amount - g.usable(r)
		if r.kind == kindRate {
			lacking = amount - r.usable // a lowered limit may end before anything drops
		}
		for _, e := range g.log {
			lacking += e.closed
		}
	}
	if lacking <= 0 {
		return 0, true
	}
	if r.kind == kindRate && !certain && (g.others.kept > 0 || g.capped < r.usable) {
		return g.returnsIn(r, v, lacking)
	}
	for _, e := range g.log {
		if certain {
			lacking -= e.closed
		} else {
			lacking -= e.amount
		}
		if lacking <= 0 {
			return g.dropsIn(r, v, e.end), true
		}
	}
	if g.capped < r.usable {
		return g.uncappedIn(r, v)
	}
	return 0, false
}

// uncappedIn returns in how long a report that lowered the window is forgotten.
func (g *ledger) uncappedIn(r *rule, v view) (left int64, ok bool) {
	at := g.capEnd
	switch {
	case !r.anchored:
		at = min(at, r.span(v.early-r.skew).end+r.skew)
	case g.known && g.frees(r):
		at = min(at, g.closeEnd)
	}
	return max(at-v.early, 1), true
}

// dropsIn returns in how long an entry with this end stops counting.
func (g *ledger) dropsIn(r *rule, v view, end int64) int64 {
	var left int64
	switch {
	case r.kind == kindRate:
		left = end + r.period + 1 - v.early
	case r.kind == kindSlots:
		left = end - v.early
	case !r.anchored:
		left = r.span(end).end + r.skew - v.early
	default:
		left = g.dropsAnchored(r, end) - v.early
	}
	return max(left, 1)
}

// cappedFor returns how long a window stays lowered by one caller's word: until it ends, but an hour at most where it is longer.
func (r *rule) cappedFor() int64 {
	if r.period > maxWindowClosing {
		return maxWindowClosing
	}
	return r.period + 4*r.skew
}

// lower lowers the window's total on a caller's word, never below what a report proves and never up. Another caller who
// says the same lets it last from then on.
func (g *ledger) lower(r *rule, v view, total int64, teller string) bool {
	total = max(total, 0)
	if total > g.capped || total == g.capped && teller == g.capTeller {
		return false
	}
	if teller != g.capTeller {
		g.capTeller, g.capEnd = teller, addSaturated(v.late, r.cappedFor())
	}
	g.capped, g.cappedIn = total, g.window
	return true
}
