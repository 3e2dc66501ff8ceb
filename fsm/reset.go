package fsm

// A window that is anchored at its provider's reset has two kinds of boundaries. Each makes held amounts void; only one
// that is believed frees what was consumed before it. A boundary is believed if it comes no earlier than one period after
// the opening of the present window, or if a second caller, or the operator, names it too. All other amounts leave as those
// of a sliding rate do, one period after the end of their exposure. So no single caller gets more than one window each
// period, whatever it reports (docs/consistency.md).

// anchor is what a provider-anchored window rests on: what was believed, and on whose word.
type anchor struct {
	// since is where the last boundary was, as far as anybody said or time proves; at first the quota's first moment. One
	// caller's word frees nothing before since + one period.
	since int64
	// passed is where the last boundary began, whether or not it freed anything.
	passed int64
	// teller is the caller that named the known reset first; confirmed: a second one did too, or the operator.
	teller    string
	confirmed bool
	// uncut: what ended before the known window's opening counts on, because that opening is not believed.
	uncut bool
	// claim is a reset that was named and is not known yet.
	claim claim
}

// claim is a reset that a caller named: it lies in [begin, end]. The zero value is none.
type claim struct {
	begin, end int64
	by         string
	confirmed  bool
}

// resetSlack is how much earlier than one period after the last reset the next one may seem to be: boundaries are intervals.
func (r *rule) resetSlack() int64 { return min(4*r.skew+second, r.period/8) }

// confirmWidth is the widest interval by which a second caller confirms a reset. A report of an old call says little about
// the time of the reset, and agrees with almost anything.
func (r *rule) confirmWidth() int64 {
	return min(max(8*r.skew+2*second, r.period/60), r.period/8)
}

// slides is how long after its end an amount counts while no reset is known. A reset that is learned later may reach back
// a little further than one period: boundaries are intervals.
func (r *rule) slides() int64 { return r.period + 4*r.skew + second }

// soonest is the earliest reset that frees something on one caller's word.
func (g *ledger) soonest(r *rule) int64 { return g.since + r.period - r.resetSlack() }

// frees tells whether the known reset will free what was consumed before it.
func (g *ledger) frees(r *rule) bool {
	return !g.disputed && (g.confirmed || g.closeEnd >= g.soonest(r))
}

// advanceAnchored advances a window that ends at the provider's reset. While no reset is known, the quota is a sliding
// rate that started empty at the last one.
func (g *ledger) advanceAnchored(r *rule, v view) (rolled, learned bool) {
	if g.since == 0 {
		g.since = v.early
	}
	if g.known && !g.closing && v.late >= g.closeBegin {
		g.closing, rolled = true, true
		g.roll(g.window + 1)
	}
	if g.known && v.early >= g.closeEnd {
		g.pass(r)
		learned = g.believe(r, v)
	}
	g.uncapAt(v.early)
	if !g.known || g.uncut {
		g.slide(r, v.early-r.slides())
	}
	return rolled, learned
}

// slide drops what ended one period ago, as a sliding rate does. What is dropped so was in a window that is over: a
// boundary has passed that nobody reported, and the next one is a period away. Without that, each window could be freed
// twice: by time, and by a report right after.
func (g *ledger) slide(r *rule, cutoff int64) {
	for _, e := range g.log {
		if e.end >= cutoff {
			break
		}
		if e.end >= g.since {
			g.since += r.period
		}
	}
	g.drop(max(g.opened, cutoff))
}

// pass leaves the known reset behind.
func (g *ledger) pass(r *rule) {
	g.passed = max(g.passed, g.closeBegin)
	frees, soonest := g.frees(r), g.soonest(r)
	if !g.disputed {
		g.since = max(g.since, g.closeBegin)
	}
	if frees {
		if !g.confirmed {
			// An interval that is wide, because the call took long, must not let the next reset come sooner.
			g.since = max(g.since, min(soonest, g.closeEnd))
		}
		g.opened = max(g.opened, g.closeBegin)
		g.closed()
		g.drop(g.opened)
	}
	g.known, g.closing, g.disputed, g.uncut, g.confirmed, g.teller = false, false, false, false, false, ""
}

// learnReset takes over a reset that the provider named to a caller, in an answer that it gave within an interval. It
// returns true where a reset is known now that was not. Of several reports of one window the reset lies in all of their
// intervals.
func (g *ledger) learnReset(r *rule, v, answered view, after, resolution int64, by string) bool {
	slack := r.skew + resolution
	named := claim{begin: answered.early + after - slack, end: answered.late + after + slack, by: by}
	switch {
	case g.known && named.begin <= g.closeEnd && named.end >= g.closeBegin:
		g.agree(r, &named)
		return false
	case g.known:
		return g.contradict(r, v, &named)
	case named.begin <= v.late:
		return false
	}
	g.enterClaim(r, v, &named)
	return g.believe(r, v)
}

// agree takes over a report that names the known reset.
func (g *ledger) agree(r *rule, named *claim) {
	precise := max(g.closeEnd-g.closeBegin, named.end-named.begin) <= r.confirmWidth()
	if !g.closing {
		g.closeBegin = max(g.closeBegin, named.begin)
	}
	g.closeEnd = min(g.closeEnd, named.end)
	if named.by != g.teller && precise && !g.confirmed {
		g.confirmed = true
		g.cut(r)
	}
}

// contradict takes over a report that names another reset than the known one. Inside the boundary it may be the next one,
// which is no dispute. What two callers name goes before what one did.
func (g *ledger) contradict(r *rule, v view, named *claim) bool {
	g.enterClaim(r, v, named)
	if g.closing && named.end >= g.closeBegin+r.period-r.resetSlack() {
		return false
	}
	switch {
	case g.claim.confirmed && !g.confirmed:
		g.know(r)
		return true
	case g.claim.confirmed || !g.confirmed:
		g.disputed = true
	}
	return false
}

// enterClaim keeps a reset that was named, and joins it with what another caller said.
func (g *ledger) enterClaim(r *rule, v view, named *claim) {
	c := &g.claim
	stale := c.begin <= v.late
	switch {
	case !stale && named.begin <= c.end && named.end >= c.begin:
		precise := max(c.end-c.begin, named.end-named.begin) <= r.confirmWidth()
		c.begin, c.end = max(c.begin, named.begin), min(c.end, named.end)
		c.confirmed = c.confirmed || c.by != named.by && precise
	case stale || !c.confirmed:
		*c = *named
	}
}

// believe makes a claim the known reset, if it may be believed: the first of all, one that comes late enough, or one that
// two callers name.
func (g *ledger) believe(r *rule, v view) bool {
	c := &g.claim
	if c.begin <= v.late {
		g.claim = claim{}
		return false
	}
	if !c.confirmed && g.window != 0 && c.end < max(g.soonest(r), g.passed+r.period-r.resetSlack()) {
		return false
	}
	g.know(r)
	return true
}

// know makes the claim the known reset.
func (g *ledger) know(r *rule) {
	c := g.claim
	g.claim = claim{}
	g.known, g.closing, g.disputed, g.uncut = true, false, false, true
	g.closeBegin, g.closeEnd, g.teller, g.confirmed = c.begin, c.end, c.by, c.confirmed
	g.cut(r)
}

// cut takes the opening over that the known reset implies: what ended before it is not of this window.
func (g *ledger) cut(r *rule) {
	opening := g.closeBegin - r.period
	switch {
	case !g.uncut:
		return
	case opening > g.since && !g.confirmed && opening < g.soonest(r):
		g.since = opening
		return
	case opening > g.since || g.confirmed && opening > g.opened:
		g.opened, g.since = opening, max(g.since, opening)
		g.dropWindow(g.opened)
	}
	g.uncut = false
	for class := range g.used {
		g.used[class].ends = nil
	}
}

// confirm takes the operator's word for what was reported, and frees what a boundary would have freed that has passed. It
// returns true where something came free.
func (g *ledger) confirm(r *rule, v view) bool {
	before := g.available(r)
	g.uncap()
	g.limits = belief{}
	if g.others.heard != 0 || g.others.heardByAt != 0 {
		g.others = foreign{heard: v.now} // what was consumed before says nothing any more
	}
	if r.kind == kindWindow && r.anchored {
		if g.passed > g.opened {
			g.opened, g.since = g.passed, max(g.since, g.passed)
			g.dropWindow(g.opened)
		}
		if g.known {
			g.disputed, g.confirmed = false, true
			g.cut(r)
		} else if g.claim.begin > v.late {
			g.claim.confirmed = true
			g.believe(r, v)
		}
	}
	return g.available(r) != before
}

// dropsAnchored returns when an amount with this end stops counting against a provider-anchored window.
func (g *ledger) dropsAnchored(r *rule, end int64) int64 {
	slid := end + r.slides() + 1
	switch {
	case !g.known || end >= g.closeBegin && g.frees(r):
		return slid
	case g.uncut && !g.frees(r):
		return slid
	case g.uncut:
		return min(slid, g.closeEnd)
	case g.frees(r):
		return g.closeEnd
	}
	return max(slid, g.closeEnd)
}

// changesAnchored returns when something of a provider-anchored window changes by itself, by the earlier and the later
// view of time; noTimer: nothing does.
func (g *ledger) changesAnchored(r *rule) (early, late int64) {
	early, late = noTimer, noTimer
	if g.known {
		if early = g.closeEnd; !g.closing {
			late = g.closeBegin
		}
	}
	if len(g.log) > 0 && (!g.known || g.uncut) {
		early = earliest(early, addSaturated(g.log[0].end, r.slides()+1))
	}
	if g.capped != noCap {
		early = earliest(early, g.capEnd)
	}
	return early, late
}

// earliest returns the earlier of two times of which noTimer is none.
func earliest(a, b int64) int64 {
	if a == noTimer {
		return b
	}
	return min(a, b)
}
