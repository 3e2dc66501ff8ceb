package ledger

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
)

// A window anchored at its provider's reset has two kinds of boundaries. Each makes held amounts void; only a believed
// one frees the amounts consumed before it. A boundary is believed if it comes one period after the opening of the
// present window or later, or if a second caller or the operator names it too. All other amounts leave as in a sliding
// rate, one period after the end of their exposure. So no single caller gets more than one window each period, whatever
// it reports (docs/consistency.md).

// Anchor is the basis of a provider-anchored window: the believed reset, and its reporter.
type Anchor struct {
	// Since is the last boundary, as far as reports or time prove; at first the quota's first moment. One caller's
	// report frees nothing before Since + one period.
	Since int64
	// Passed is where the last boundary began, whether or not it freed anything.
	Passed int64
	// NamedBy is the caller that named the known reset first. Confirmed: a second caller or the operator named it too.
	NamedBy   string
	Confirmed bool
	// Uncut: amounts that ended before the known window's opening still count, because that opening is not believed.
	Uncut bool
	// Later is the end of a later reset that one caller reported instead of an unconfirmed known one, 0: none. The
	// known one frees at Later, or maxDoubt after its own end, whichever is first.
	Later int64
	// Claim is a named reset that is not known yet.
	Claim Claim
}

// Claim is a reset that a caller named: it lies in [Begin, End]. The zero value is none.
type Claim struct {
	Begin, End int64
	By         string
	Confirmed  bool
}

// resetSlack is how much earlier than one period after the last reset the next one may seem to be: boundaries are
// intervals.
func (r *Rule) resetSlack() int64 { return min(4*r.Skew+fixed.Second, r.Period/8) }

// confirmWidth is the widest interval with which a second caller confirms a reset. The report of an old call says
// little about the time of the reset, and agrees with almost anything.
func (r *Rule) confirmWidth() int64 {
	return min(max(8*r.Skew+2*fixed.Second, r.Period/60), r.Period/8)
}

// maxDoubt is the longest delay of the known reset by one caller's report of a later one.
func (r *Rule) maxDoubt() int64 { return min(MaxWindowClosing, r.Period/8) }

// slides is how long after its end an amount counts while no reset is known. A reset learned later may reach back a
// little further than one period: boundaries are intervals.
func (r *Rule) slides() int64 { return r.Period + 4*r.Skew + fixed.Second }

// Soonest returns the earliest reset that frees something after one caller's report.
func (g *Ledger) Soonest(r *Rule) int64 { return g.Since + r.Period - r.resetSlack() }

// Frees reports whether the known reset will free the amounts consumed before it.
func (g *Ledger) Frees(r *Rule) bool {
	return !g.Disputed && (g.Confirmed || g.CloseEnd >= g.Soonest(r))
}

// ends returns when the known reset is over: at its end, or later if a report names a later reset.
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

// slide drops amounts that ended one period ago, like a sliding rate. A dropped amount was in a window that is over: a
// boundary has passed without a report, and the next one is a period away. Otherwise each window could be freed twice:
// by time, and by a report right after.
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

// pass ends the known reset.
func (g *Ledger) pass(r *Rule) {
	g.Passed = max(g.Passed, g.CloseBegin)
	frees, soonest := g.Frees(r), g.Soonest(r)
	if !g.Disputed {
		g.Since = max(g.Since, g.CloseBegin)
	}
	if frees {
		if !g.Confirmed {
			// A wide interval, of a long call, must not let the next reset come sooner.
			g.Since = max(g.Since, min(soonest, g.CloseEnd))
		}
		g.Opened = max(g.Opened, g.CloseBegin)
		g.closed()
		g.drop(g.Opened)
	}
	g.Known, g.Closing, g.Disputed, g.Uncut, g.Confirmed, g.NamedBy, g.Later = false, false, false, false, false, "", 0
}

// LearnReset records a reset that the provider named to a caller, in an answer given within the interval answered. It
// returns true if a reset became known. Several reports of one reset narrow it to the intersection of their intervals.
// level is the state's feature level.
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

// join merges a report of the same reset. A reset that is late enough to be believed on one report lies in the
// intersection of both intervals. An earlier one needs two reports, and one of the two callers may lie about its edge:
// its interval covers both, and no other report moves it.
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

// agree applies a report of the known reset. A second caller's report confirms it and ends the delay by a later one.
func (g *Ledger) agree(r *Rule, named *Claim, level uint32) {
	known := Claim{Begin: g.CloseBegin, End: g.CloseEnd, By: g.NamedBy, Confirmed: g.Confirmed}
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

// contradict applies a report of another reset than the known one. Inside the boundary it may be the next one, which is
// no dispute. Two callers' reports go before one caller's; one report against another only delays the reset.
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

// enterClaim keeps a named reset, and joins it with another caller's.
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

// believe makes a claim the known reset, if it may be believed: the first one, one that comes late enough, or one named
// by two callers.
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
	g.CloseBegin, g.CloseEnd, g.NamedBy, g.Confirmed = c.Begin, c.End, c.By, c.Confirmed
	g.cut(r)
}

// cut applies the opening that the known reset implies: amounts that ended before it are not of this window.
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

// Confirm confirms the reported values for an operator, and frees the amounts that a passed boundary would have freed.
// It returns true if something became free.
func (g *Ledger) Confirm(r *Rule, v View) bool {
	before := g.Available(r)
	g.uncap()
	g.LimitTrust = Trust{}
	if g.Others.CountsFrom != 0 || g.Others.LastBegan != 0 {
		g.Others = Foreign{CountsFrom: v.Now} // operations consumed before say nothing any more
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

// changesAnchored returns when time alone changes a provider-anchored window, by the earlier and the later view of
// time; NoTimer: never.
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

// earliest returns the earlier of two times; a may be NoTimer.
func earliest(a, b int64) int64 {
	if a == NoTimer {
		return b
	}
	return min(a, b)
}
