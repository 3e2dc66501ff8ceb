package ledger

import (
	"math"
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
)

// OpenEnd is the end of an exposure whose end is not known yet.
const OpenEnd = math.MaxInt64

// Ledger has the amounts that count against one quota.
//
// All three kinds follow one rule: an amount counts as long as the end of its exposure is not before a cutoff, and a
// grant needs held + open + counted + amount <= usable. For a rate the cutoff is one period ago; for slots it is now;
// for a window it is the opening of the oldest window that is not surely closed. An amount that touches two windows
// counts in both: its end lies after the second one's opening, and it began before the first one closed. What fits into
// the older window fits into the newer, whose sum is a part of it.
//
// Invariants: Log is in ascending order of end, without duplicates; Counted is the sum of its amounts; no entry ends
// before Cutoff; all terms are at least 0.
type Ledger struct {
	// Held is reserved and not yet spendable; it belongs to Window.
	Held int64
	// Open was consumed; the end of its exposure is not known yet.
	Open int64
	// Counted was consumed; the end of its exposure is known.
	Counted int64
	// Log has the counted amounts, by end. Amounts that ended before Cutoff are dropped.
	Log    []Entry
	Cutoff int64
	// Window identifies the window to which held amounts belong. Amounts held in another one are void.
	Window int64
	// Capped is the total to which reports lowered this window, or this rate; NoCap for none. It was learned in window
	// CappedIn, and ends with it, or at CapEnd (the earlier view) if that comes first. CappedBy is the caller that
	// reported it.
	Capped, CappedIn, CapEnd int64
	CappedBy                 string
	// LimitTrust is how far reports of lower limits of a rate are trusted.
	LimitTrust Trust
	// Settled is the amount consumed and finally settled within this window.
	Settled int64
	// Arrival is the burst's theoretical arrival time before Draws, which are in the order of ends. Loose are amounts
	// that were open when their client left, and may be charged until their end.
	Arrival int64
	Draws   []draw
	Loose   []Ending
	// DrawnFrom: amounts that end until then do not return to the burst, since it is not known which of them are in
	// Draws.
	DrawnFrom int64

	// Others is the use of a rate by others. Total is all its consumption since levels.Overtaken, modulo 2^64.
	Others Foreign
	Total  uint64

	// The rest of a window's state. Boundaries are intervals: they begin when the later view of time reaches CloseBegin
	// and end when the earlier view reaches CloseEnd. Calendar windows compute them.
	Known      bool // provider-anchored: the reset is known
	Closing    bool // provider-anchored: its boundary has begun
	Disputed   bool // provider-anchored: reports named different resets
	CloseBegin int64
	CloseEnd   int64
	Opened     int64 // provider-anchored: the opening of the present window
	Anchor           // provider-anchored: the basis of its reset
	// Used is the held and consumed amount of each class in this window.
	Used [Classes]Usage
	// Past are the amounts dropped from a window, the oldest first, while less than about a period of cluster time has
	// passed since. If wrong clocks ended the window too soon, a clock reset counts them again.
	Past []Past
}

// NoCap means that no report lowered the window.
const NoCap = math.MaxInt64

// Entry is the amounts that count until the same end.
type Entry struct {
	// Amount counts until End.
	End, Amount int64
	// Closed is the part of Amount whose operation's record is dropped: it cannot return.
	Closed int64
	// Overrun is the part of Amount that was settled on top of an estimate.
	Overrun int64
	// Until is when the last of its exposures ends, by cluster time, for windows; else 0.
	Until int64
}

// Clone returns a ledger that shares nothing with this one.
func (g *Ledger) Clone() Ledger {
	c := *g
	c.Log, c.Past = slices.Clone(g.Log), slices.Clone(g.Past)
	c.Draws, c.Loose = slices.Clone(g.Draws), slices.Clone(g.Loose)
	for class := range c.Used {
		c.Used[class] = g.Used[class].Clone()
	}
	return c
}

// Advance advances the ledger to a moment: it drops ended amounts and rolls windows. rolled says that a window's held
// amounts became void. learned says that a reset named inside the last boundary is known now.
func (g *Ledger) Advance(r *Rule, v View) (rolled, learned bool) {
	switch {
	case r.Kind == KindRate:
		g.drop(v.Early - r.Period)
		if len(g.Draws) > 0 || len(g.Loose) > 0 {
			g.advanceBurst(r, v.Now)
		}
		g.Others.Advance(r, v.Now)
		g.uncapAt(v.Early)
	case r.Kind == KindSlots:
		g.drop(v.Early + 1)
	case r.Kind == KindPool: // it counts nothing
	case r.Anchored:
		rolled, learned = g.advanceAnchored(r, v)
		g.forgetPast(v.Now - r.slides())
	default:
		if id := r.span(v.Late + r.Skew).End; id > g.Window {
			rolled = g.Window != 0
			g.roll(id)
		}
		g.dropWindow(r.span(v.Early - r.Skew).start)
		g.uncapAt(v.Early)
		g.forgetPast(v.Now - r.slides())
	}
	return rolled, learned
}

// roll makes held amounts void and starts a new window.
func (g *Ledger) roll(window int64) {
	g.Held, g.Window, g.Used = 0, window, [Classes]Usage{}
}

// dropWindow drops amounts that ended before a window's opening, and clears the state of the closed window.
func (g *Ledger) dropWindow(opening int64) {
	if opening > g.Cutoff {
		g.closed()
	}
	g.drop(opening)
}

// closed clears the state of a window that has closed. A cap learned since its boundary began belongs to the next
// window.
func (g *Ledger) closed() {
	g.Settled = 0
	if g.CappedIn != g.Window {
		g.uncap()
	}
}

func (g *Ledger) uncap() { g.Capped, g.CappedIn, g.CapEnd, g.CappedBy = NoCap, 0, 0, "" }

// uncapAt ends an expired cap.
func (g *Ledger) uncapAt(early int64) {
	if g.Capped != NoCap && early >= g.CapEnd {
		g.uncap()
	}
}

// drop drops amounts that ended before a cutoff.
func (g *Ledger) drop(cutoff int64) {
	if cutoff <= g.Cutoff {
		return
	}
	g.Cutoff = cutoff
	n := 0
	for n < len(g.Log) && g.Log[n].End < cutoff {
		g.Counted -= g.Log[n].Amount
		g.Remember(Past{Until: g.Log[n].Until, Amount: g.Log[n].Amount})
		n++
	}
	g.Log = slices.Delete(g.Log, 0, n)
	for class := range g.Used {
		g.Used[class].Drop(cutoff)
	}
}

// UsedByAll returns the held and consumed amount of all classes in this window.
func (g *Ledger) UsedByAll() (sum int64) {
	for class := range g.Used {
		sum += g.Used[class].Amount
	}
	return sum
}

// Usable returns the most that may count: the rule's usable amount, or less after a report.
func (g *Ledger) Usable(r *Rule) int64 { return min(r.Usable, g.Capped) }

// Consumed returns the consumed amounts that count.
func (g *Ledger) Consumed() int64 { return g.Open + g.Counted }

// Available returns the amount that is not held, consumed or held back for others. It is below 0 after an overrun or a
// lowered limit.
func (g *Ledger) Available(r *Rule) int64 {
	return g.Usable(r) - g.Held - g.Open - g.Counted - g.Others.Kept
}

// Closes returns how long until the window to which holds belong begins to close, by the later view (nanoseconds).
func (g *Ledger) Closes(r *Rule, v View) (left int64, ok bool) {
	switch {
	case r.Kind != KindWindow:
		return 0, false
	case !r.Anchored:
		return g.Window - r.Skew - v.Late, true
	case g.Known && !g.Closing:
		return g.CloseBegin - v.Late, true
	}
	return 0, false
}

// SpendBy returns the longest spend-by of an amount consumed now. Just before a boundary it is 1 s, and the amount
// counts in both windows.
func (g *Ledger) SpendBy(r *Rule, v View) int64 {
	left, ok := g.Closes(r, v)
	switch {
	case !ok:
		return r.SpendBy
	case left <= boundarySpendBy:
		return min(boundarySpendBy, r.SpendBy)
	}
	return min(r.SpendBy, left-1)
}

// Key returns the log's end for an exposure that ends at late: rounded up, and for windows not after the last moment of
// the last window that it touches.
func (g *Ledger) Key(r *Rule, late int64) int64 {
	switch {
	case r.Kind == KindWindow && !r.Anchored:
		return r.span(late+r.Skew).End - 1
	case r.Kind == KindWindow && g.Known && !g.Closing && late < g.CloseBegin:
		return min(fixed.RoundUp(late, r.Width), g.CloseBegin-1)
	}
	return fixed.RoundUp(late, r.Width)
}

// Add counts an amount until an end; until is when its exposure ends by cluster time.
func (g *Ledger) Add(end, amount, overrun, until int64) {
	if end == OpenEnd {
		g.Open += amount
		return
	}
	if end < g.Cutoff {
		return
	}
	i, found := g.Find(end)
	if !found {
		g.Log = slices.Insert(g.Log, i, Entry{End: end})
	}
	g.Log[i].Amount += amount
	g.Log[i].Overrun += overrun
	g.Log[i].Until = max(g.Log[i].Until, until)
	g.Counted += amount
}

// Take stops counting an amount that was added under an end. It does nothing if the amount has ended by time.
func (g *Ledger) Take(end, amount, overrun int64) {
	if end == OpenEnd {
		g.Open -= amount
		return
	}
	i, found := g.Find(end)
	if !found {
		return
	}
	g.Counted -= amount
	g.Log[i].Amount -= amount
	g.Log[i].Overrun -= overrun
	if g.Log[i].Amount == 0 {
		g.Log = slices.Delete(g.Log, i, i+1)
	}
}

// Close records that an amount can no longer return.
func (g *Ledger) Close(end, amount int64) {
	if i, found := g.Find(end); found {
		g.Log[i].Closed += amount
	}
}

// Counts reports whether an amount that was added under an end still counts.
func (g *Ledger) Counts(end int64) bool { return end >= g.Cutoff }

// Overrun returns the overruns that count.
func (g *Ledger) Overrun() (sum int64) {
	for _, e := range g.Log {
		sum += e.Overrun
	}
	return sum
}

// Find returns where an end is in the log, or would be inserted: mostly at the end.
func (g *Ledger) Find(end int64) (int, bool) {
	if last := len(g.Log) - 1; last < 0 || g.Log[last].End < end {
		return len(g.Log), false
	} else if g.Log[last].End == end {
		return last, true
	}
	from, to := 0, len(g.Log)-1 // by index: slices.BinarySearchFunc copies each entry that it reads
	for from < to {
		if middle := int(uint(from+to) >> 1); g.Log[middle].End < end {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return from, g.Log[from].End == end
}

// FreesIn returns how long, at the earliest, until enough has ended by time for an amount to fit (nanoseconds). With
// certain, it counts only amounts that cannot return earlier: only an operator's action can make it sooner. ok is false
// if the shortage (held, open) has no known end.
func (g *Ledger) FreesIn(r *Rule, v View, amount int64, certain bool) (left int64, ok bool) {
	lacking := amount - g.Available(r)
	if certain {
		lacking = amount - g.Usable(r)
		if r.Kind == KindRate {
			lacking = amount - r.Usable // a lowered limit may end before anything drops
		}
		for _, e := range g.Log {
			lacking += e.Closed
		}
	}
	if lacking <= 0 {
		return 0, true
	}
	if r.Kind == KindRate && !certain && (g.Others.Kept > 0 || g.Capped < r.Usable) {
		return g.returnsIn(r, v, lacking)
	}
	for _, e := range g.Log {
		if certain {
			lacking -= e.Closed
		} else {
			lacking -= e.Amount
		}
		if lacking <= 0 {
			return g.DropsIn(r, v, e.End), true
		}
	}
	if g.Capped < r.Usable {
		return g.uncappedIn(r, v)
	}
	return 0, false
}

// uncappedIn returns how long until a cap of the window ends.
func (g *Ledger) uncappedIn(r *Rule, v View) (left int64, ok bool) {
	at := g.CapEnd
	switch {
	case !r.Anchored:
		at = min(at, r.span(v.Early-r.Skew).End+r.Skew)
	case g.Known && g.Frees(r):
		at = min(at, g.ends(r))
	}
	return max(at-v.Early, 1), true
}

// DropsIn returns how long until an entry with this end stops counting.
func (g *Ledger) DropsIn(r *Rule, v View, end int64) int64 {
	var left int64
	switch {
	case r.Kind == KindRate:
		left = end + r.Period + 1 - v.Early
	case r.Kind == KindSlots:
		left = end - v.Early
	case !r.Anchored:
		left = r.span(end).End + r.Skew - v.Early
	default:
		left = g.dropsAnchored(r, end) - v.Early
	}
	return max(left, 1)
}

// cappedFor returns how long one caller's report keeps a window lowered: until it ends, but at most an hour if it is
// longer.
func (r *Rule) cappedFor() int64 {
	if r.Period > MaxWindowClosing {
		return MaxWindowClosing
	}
	return r.Period + 4*r.Skew
}

// Lower lowers the window's total after a caller's report, never below the total that the report proves, and never
// raises it. If another caller reports the same total, the cap lasts its full time from then on.
func (g *Ledger) Lower(r *Rule, v View, total int64, caller string) bool {
	total = max(total, 0)
	if total > g.Capped || total == g.Capped && caller == g.CappedBy {
		return false
	}
	if caller != g.CappedBy {
		g.CappedBy, g.CapEnd = caller, fixed.AddSaturated(v.Late, r.cappedFor())
	}
	g.Capped, g.CappedIn = total, g.Window
	return true
}
