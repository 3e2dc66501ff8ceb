package ledger

import (
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
)

// MaxPast is how many dropped amounts a window remembers; beyond that the oldest are merged.
const MaxPast = 128

// Past is an amount that was dropped.
type Past struct {
	// Until is when the last of its exposures ended, by cluster time.
	Until, Amount int64
}

// Remember records a dropped amount of a window.
func (g *Ledger) Remember(p Past) {
	if p.Until == 0 || p.Amount == 0 {
		return
	}
	if last := len(g.Past) - 1; last >= 0 && g.Past[last].Until >= p.Until {
		// The later end for both keeps the list in order, and ends nothing too soon.
		g.Past[last].Amount = fixed.AddSaturated(g.Past[last].Amount, p.Amount)
		return
	}
	if g.Past = append(g.Past, p); len(g.Past) > MaxPast {
		g.Past[1].Amount = fixed.AddSaturated(g.Past[0].Amount, g.Past[1].Amount)
		g.Past = slices.Delete(g.Past, 0, 1)
	}
}

// forgetPast removes amounts that ended before a moment of cluster time.
func (g *Ledger) forgetPast(before int64) {
	n := 0
	for n < len(g.Past) && g.Past[n].Until < before {
		n++
	}
	g.Past = slices.Delete(g.Past, 0, n)
}

// Beyond returns the first moment at which everything kept by a window has ended.
func (g *Ledger) Beyond(r *Rule) int64 {
	last := max(g.Cutoff, g.Opened, g.Passed, g.Since)
	if !r.Anchored {
		last = max(last, g.Window)
	}
	if n := len(g.Log); n > 0 {
		last = max(last, g.Log[n-1].End)
	}
	return fixed.AddSaturated(last, 1+r.settling())
}

// Restart closes a window and begins another one, at a moment beyond all that it kept. moved is how far the views
// advanced.
func (g *Ledger) Restart(r *Rule, v View, moved int64) {
	before := slices.Clone(g.Past)
	for _, e := range g.Log {
		before = append(before, Past{Until: e.Until, Amount: e.Amount})
	}
	window := g.Window + 1
	if !r.Anchored {
		window = r.span(v.Late + r.Skew).End
	}
	g.roll(window)
	g.Log, g.Past, g.Counted, g.Settled = nil, nil, 0, 0
	g.Cutoff = v.Early - r.settling()
	g.Known, g.Closing, g.Disputed, g.CloseBegin, g.CloseEnd = false, false, false, 0, 0
	if r.Anchored {
		// As if a boundary had just passed: one caller's report alone frees nothing for a period.
		g.Opened, g.Anchor = g.Cutoff, Anchor{Since: v.Early}
	}
	for _, p := range before {
		g.recount(r, v, p)
	}
	if g.Capped != NoCap {
		g.CappedIn, g.CapEnd = g.Window, fixed.AddSaturated(g.CapEnd, moved)
	}
}

// recount counts an amount again if its exposure may touch a window that is not over; the amount cannot return.
func (g *Ledger) recount(r *Rule, v View, p Past) {
	end := g.Key(r, fixed.AddSaturated(v.Late, p.Until-v.Now))
	if end < g.Cutoff {
		g.Remember(p)
		return
	}
	g.Add(end, p.Amount, 0, p.Until)
	g.Close(end, p.Amount)
	if p.Until <= v.Now {
		g.Settled = fixed.AddSaturated(g.Settled, p.Amount)
	}
}

// settling returns how long an amount counts after the end of its exposure at least, so that a window that begins now
// may still count it.
func (r *Rule) settling() int64 {
	if r.Anchored {
		return r.slides()
	}
	return r.Skew
}
