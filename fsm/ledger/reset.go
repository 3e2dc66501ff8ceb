package ledger

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
)

// A window that is anchored at its provider's reset has two kinds of boundaries. Each makes held amounts void; only one
// that is believed frees what was consumed before it. A boundary is believed if it comes no earlier than one period after
// the opening of the present window, or if a second caller, or the operator, names it too. All other amounts leave as those
// of a sliding rate do, one period after the end of their exposure. So no single caller gets more than one window each
// period, whatever it reports (docs/consistency.md).

// Anchor is what a provider-anchored window rests on: what was believed, and on whose word.
type Anchor struct {
	// Since is where the last boundary was, as far as anybody said or time proves; at first the quota's first moment. One
	// caller's word frees nothing before since + one period.
	Since int64
	// Passed is where the last boundary began, whether or not it freed anything.
	Passed int64
	// Teller is the caller that named the known reset first; confirmed: a second one did too, or the operator.
	Teller    string
	Confirmed bool
	// Uncut: what ended before the known window's opening counts on, because that opening is not believed.
	Uncut bool
	// Later is the end of a later reset that one caller reported in place of an unconfirmed known one, 0: none. The known one frees at
	// Later, or maxDoubt after its own end, whichever is first.
	Later int64
	// Claim is a reset that was named and is not known yet.
	Claim Claim
}

// Claim is a reset that a caller named: it lies in [begin, end]. The zero value is none.
type Claim struct {
	Begin, End int64
	By         string
	Confirmed  bool
}

// resetSlack is how much earlier than one period after the last reset the next one may seem to be: boundaries are intervals.
func (r *Rule) resetSlack() int64 { return min(4*r.Skew+fixed.Second, r.Period/8) }

// confirmWidth is the widest interval by which a second caller confirms a reset. A report of an old call says little about
// the time of the reset, and agrees with almost anything.
func (r *Rule) confirmWidth() int64 {
	return min(max(8*r.Skew+2*fixed.Second, r.Period/60), r.Period/8)
}

// maxDoubt is by how much one caller's report of a later reset delays the known one at most.
func (r *Rule) maxDoubt() int64 { return min(MaxWindowClosing, r.Period/8) }

// slides is how long after its end an amount counts while no reset is known. A reset that is learned later may reach back
// a little further than one period: boundaries are intervals.
func (r *Rule) slides() int64 { return r.Period + 4*r.Skew + fixed.Second }

// Soonest is the earliest reset that frees something on one caller's word.
func (g *Ledger) Soonest(r *Rule) int64 { return g.Since + r.Period - r.resetSlack() }

// Frees tells whether the known reset will free what was consumed before it.
func (g *Ledger) Frees(r *Rule) bool {
	return !g.Disputed && (g.Confirmed || g.CloseEnd >= g.Soonest(r))
}

// ends returns when the known reset is over: at its end, or later where a report names a later reset.
func (g *Ledger) ends(r *Rule) int64 {
	return max(g.CloseEnd, min(g.Later, fixed.AddSaturated(g.CloseEnd, r.maxDoubt())))
}

// advanceAnchored advances a window that ends at the provider's reset. While no reset is known, the quota is a sliding
// rate that started empty at the last one.
func (g *Ledger) advanceAnchored(r *Rule, v View) (rolled, learned bool) {
	if g.Since == 0 {
		g.Since = v.Early
	}
	if g.Known && !g.Closing && v.Late >= g.CloseBegin {
		g.Closing, rolled = true, true
		g.roll(g.Window + 1)
	}
	if g.Known && v.Early >= g.ends(r) {
		g.pass(r)
		learned = g.believe(r, v)
	}
	g.uncapAt(v.Early)
	if !g.Known || g.Uncut {
		g.slide(r, v.Early-r.slides())
	}
	return rolled, learned
}

// slide drops what ended one period ago, as a sliding rate does. What is dropped so was in a window that is over: a
// boundary has passed that nobody reported, and the next one is a period away. Without that, each window could be freed
// twice: by time, and by a report right after.
func (g *Ledger) slide(r *Rule, cutoff int64) {
	for _, e := range g.Log {
		if e.End >= cutoff {
			break
		}
		if e.End >= g.Since {
			g.Since += r.Period
		}
	}
	g.drop(max(g.Opened, cutoff))
}

// pass leaves the known reset behind.
func (g *Ledger) pass(r *Rule) {
	g.Passed = max(g.Passed, g.CloseBegin)
	frees, soonest := g.Frees(r), g.Soonest(r)
	if !g.Disputed {
		g.Since = max(g.Since, g.CloseBegin)
	}
	if frees {
		if !g.Confirmed {
			// An interval that is wide, because the call took long, must not let the next reset come sooner.
			g.Since = max(g.Since, min(soonest, g.CloseEnd))
		}
		g.Opened = max(g.Opened, g.CloseBegin)
		g.closed()
		g.drop(g.Opened)
	}
	g.Known, g.Closing, g.Disputed, g.Uncut, g.Confirmed, g.Teller, g.Later = false, false, false, false, false, "", 0
}

// LearnReset takes over a reset that the provider named to a caller, in an answer that it gave within an interval. It
// returns true where a reset is known now that was not. Of several reports of one window the reset lies in all of their
// intervals. level is the state's feature level.
func (g *Ledger) LearnReset(r *Rule, v, answered View, after, resolution int64, by string, level uint32) bool {
	slack := r.Skew + resolution
	named := Claim{Begin: answered.Early + after - slack, End: answered.Late + after + slack, By: by}
	switch {
	case g.Known && named.Begin <= g.CloseEnd && named.End >= g.CloseBegin:
		g.agree(r, &named, level)
		return false
	case g.Known:
		return g.contradict(r, v, &named, level)
	case named.Begin <= v.Late:
		return false
	}
	g.enterClaim(r, v, &named, level)
	return g.believe(r, v)
}

// join takes over a report of the same reset. A reset that is late enough to be believed on one report lies where both intervals overlap.
// An earlier one needs two reports, and one of the two callers may lie about its edge: its interval covers both, and no other report
// moves it.
func (c *Claim) join(r *Rule, named *Claim, soonest int64, level uint32) (confirms bool) {
	confirms = !c.Confirmed && c.By != named.By && max(c.End-c.Begin, named.End-named.Begin) <= r.confirmWidth()
	switch {
	case level < levels.Resets || c.By == named.By && !c.Confirmed || min(c.End, named.End) >= soonest:
		c.Begin, c.End = max(c.Begin, named.Begin), min(c.End, named.End)
	case confirms:
		c.Begin, c.End = min(c.Begin, named.Begin), max(c.End, named.End)
	}
	c.Confirmed = c.Confirmed || confirms
	return confirms
}

// agree takes over a report of the known reset. A report of a second caller confirms it and ends the delay by a later one.
func (g *Ledger) agree(r *Rule, named *Claim, level uint32) {
	known := Claim{Begin: g.CloseBegin, End: g.CloseEnd, By: g.Teller, Confirmed: g.Confirmed}
	confirms := known.join(r, named, g.Soonest(r), level)
	if !g.Closing {
		g.CloseBegin = known.Begin
	}
	g.CloseEnd = known.End
	if confirms {
		g.Confirmed, g.Later = true, 0
		g.Disputed = g.Disputed && level < levels.Resets
		g.cut(r)
	}
}

// contradict takes over a report that names another reset than the known one. Inside the boundary it may be the next one,
// which is no dispute. What two callers name goes before what one did, and one word against another only delays the reset.
func (g *Ledger) contradict(r *Rule, v View, named *Claim, level uint32) bool {
	g.enterClaim(r, v, named, level)
	if g.Closing && named.End >= g.CloseBegin+r.Period-r.resetSlack() {
		g.Later = 0 // the known one is over
		return false
	}
	switch {
	case g.Claim.Confirmed && !g.Confirmed:
		g.know(r)
		return true
	case g.Confirmed && !g.Claim.Confirmed:
	case level < levels.Resets || g.Confirmed:
		g.Disputed = true
	default:
		g.Later = max(g.Later, named.End)
	}
	return false
}

// enterClaim keeps a reset that was named, and joins it with what another caller said.
func (g *Ledger) enterClaim(r *Rule, v View, named *Claim, level uint32) {
	c := &g.Claim
	stale := c.Begin <= v.Late
	switch {
	case !stale && named.Begin <= c.End && named.End >= c.Begin:
		if level < levels.Resets || named.Begin > v.Late {
			c.join(r, named, g.Soonest(r), level)
		}
	case stale || !c.Confirmed:
		*c = *named
	}
}

// believe makes a claim the known reset, if it may be believed: the first of all, one that comes late enough, or one that
// two callers name.
func (g *Ledger) believe(r *Rule, v View) bool {
	c := &g.Claim
	if c.Begin <= v.Late {
		g.Claim = Claim{}
		return false
	}
	if !c.Confirmed && g.Window != 0 && c.End < max(g.Soonest(r), g.Passed+r.Period-r.resetSlack()) {
		return false
	}
	g.know(r)
	return true
}

// know makes the claim the known reset.
func (g *Ledger) know(r *Rule) {
	c := g.Claim
	g.Claim = Claim{}
	g.Known, g.Closing, g.Disputed, g.Uncut, g.Later = true, false, false, true, 0
	g.CloseBegin, g.CloseEnd, g.Teller, g.Confirmed = c.Begin, c.End, c.By, c.Confirmed
	g.cut(r)
}

// cut takes the opening over that the known reset implies: what ended before it is not of this window.
func (g *Ledger) cut(r *Rule) {
	opening := g.CloseBegin - r.Period
	switch {
	case !g.Uncut:
		return
	case opening > g.Since && !g.Confirmed && opening < g.Soonest(r):
		g.Since = opening
		return
	case opening > g.Since || g.Confirmed && opening > g.Opened:
		g.Opened, g.Since = opening, max(g.Since, opening)
		g.dropWindow(g.Opened)
	}
	g.Uncut = false
	for class := range g.Used {
		g.Used[class].Ends = nil
	}
}

// Confirm takes the operator's word for what was reported, and frees what a boundary would have freed that has passed. It
// returns true where something came free.
func (g *Ledger) Confirm(r *Rule, v View) bool {
	before := g.Available(r)
	g.uncap()
	g.Limits = Belief{}
	if g.Others.Heard != 0 || g.Others.HeardByAt != 0 {
		g.Others = Foreign{Heard: v.Now} // what was consumed before says nothing any more
	}
	if r.Kind == KindWindow && r.Anchored {
		if g.Passed > g.Opened {
			g.Opened, g.Since = g.Passed, max(g.Since, g.Passed)
			g.dropWindow(g.Opened)
		}
		if g.Known {
			g.Disputed, g.Confirmed, g.Later = false, true, 0
			g.cut(r)
		} else if g.Claim.Begin > v.Late {
			g.Claim.Confirmed = true
			g.believe(r, v)
		}
	}
	return g.Available(r) != before
}

// dropsAnchored returns when an amount with this end stops counting against a provider-anchored window.
func (g *Ledger) dropsAnchored(r *Rule, end int64) int64 {
	slid := end + r.slides() + 1
	switch {
	case !g.Known || end >= g.CloseBegin && g.Frees(r):
		return slid
	case g.Uncut && !g.Frees(r):
		return slid
	case g.Uncut:
		return min(slid, g.ends(r))
	case g.Frees(r):
		return g.ends(r)
	}
	return max(slid, g.ends(r))
}

// changesAnchored returns when something of a provider-anchored window changes by itself, by the earlier and the later
// view of time; NoTimer: nothing does.
func (g *Ledger) changesAnchored(r *Rule) (early, late int64) {
	early, late = NoTimer, NoTimer
	if g.Known {
		if early = g.ends(r); !g.Closing {
			late = g.CloseBegin
		}
	}
	if len(g.Log) > 0 && (!g.Known || g.Uncut) {
		early = earliest(early, fixed.AddSaturated(g.Log[0].End, r.slides()+1))
	}
	if g.Capped != NoCap {
		early = earliest(early, g.CapEnd)
	}
	return early, late
}

// earliest returns the earlier of two times of which NoTimer is none.
func earliest(a, b int64) int64 {
	if a == NoTimer {
		return b
	}
	return min(a, b)
}
