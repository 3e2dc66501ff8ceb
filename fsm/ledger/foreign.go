package ledger

import "github.com/quotad/quotad/fsm/fixed"

// The remainder that a provider reports shows what others use of a rate's key (docs/policy/shares.md, decision 34): the
// part of the limit that neither the remainder nor our own consumption until the report explains. Six fifths of it are
// held back, because it was true when the provider answered and may have grown since. It fades over one period unless
// later reports repeat it. A false report holds a rate back for about as long, and no longer.

const (
	// keptPart and keptOver: six fifths of the use by others is held back.
	keptPart, keptOver = 6, 5
	// LowerPeriods is for how many periods a reported limit below the configured one lowers the usable amount.
	LowerPeriods = 2
)

// Foreign is the use of a rate by others, as reported by its provider.
type Foreign struct {
	// Amount is the use by others in the period before At (cluster time). 0: no use by others is known.
	Amount, At int64
	// CountsFrom is the time from which operations count: earlier ones say nothing. It is when the newest reported
	// operation was consumed, before levels.ReportsPerCaller, or when an operator cleared the state.
	CountsFrom int64
	// LastCaller is the caller of the last report that counted, since levels.ReportsPerCaller, and LastBegan when its
	// operation was consumed. An older operation of the same caller says nothing. Another caller's may: otherwise
	// frequent reports without content would silence all others.
	LastCaller string
	// LastBegan is cluster time.
	LastBegan int64
	// Seen is the ledger's time at which Kept was computed; Kept is the amount held back then.
	Seen, Kept int64
	// Trust is how far callers' reports are trusted.
	Trust Trust
}

// span returns how long the held-back amount takes to fade: a period. Since levels.SingleReporter it is at most as long
// as one caller's reports may close a rate.
func (f *Foreign) span(r *Rule) int64 {
	if f.Trust.caller == "" {
		return r.Period
	}
	return min(r.Period, MaxWindowClosing)
}

// forget clears the use by others.
func (f *Foreign) forget() {
	*f = Foreign{CountsFrom: f.CountsFrom, LastCaller: f.LastCaller, LastBegan: f.LastBegan, Trust: f.Trust}
}

// Stale reports whether a caller's report of an operation consumed at began no longer counts.
func (f *Foreign) Stale(caller string, began int64) bool {
	return began < f.CountsFrom || caller == f.LastCaller && began < f.LastBegan
}

// Advance computes the amount held back at a moment.
func (f *Foreign) Advance(r *Rule, now int64) {
	if f.Amount == 0 {
		return
	}
	span := f.span(r)
	if now-f.At >= span {
		f.forget()
		return
	}
	f.Seen, f.Kept = now, fixed.MulDivCeil(keptPart*f.Amount, max(span-f.steps(r, now), 0), keptOver*span)
}

// steps returns how far the held-back amount has faded at a moment, in steps of the log's buckets, so that waiting
// requests are retried at these steps only.
func (f *Foreign) steps(r *Rule, now int64) int64 { return (now - f.At) / r.Width * r.Width }

// Left returns the part of Amount that has not faded at a moment.
func (f *Foreign) Left(r *Rule, now int64) int64 {
	span := f.span(r)
	if f.Amount == 0 || now-f.At >= span {
		return 0
	}
	return f.Amount - fixed.MulDivFloor(f.Amount, now-f.At, span)
}

// fades returns when the held-back amount next falls; NoTimer: nothing is held back.
func (f *Foreign) fades(r *Rule) int64 {
	if f.Amount == 0 {
		return NoTimer
	}
	return fixed.AddSaturated(f.At, min(f.steps(r, f.Seen)+r.Width, f.span(r)))
}

// fallsTo returns when at most an amount is held back.
func (f *Foreign) fallsTo(r *Rule, amount int64) int64 {
	if amount >= f.Kept {
		return f.Seen
	}
	span := f.span(r)
	passed := fixed.RoundUp(span-fixed.MulDivFloor(amount, keptOver*span, keptPart*f.Amount), r.Width)
	return fixed.AddSaturated(f.At, min(passed, span))
}

// returnsIn returns how long until a lacking amount of a rate is available again by time alone, while others' use fades
// and a lowered limit ends. ok is false if the shortage has no known end.
func (g *Ledger) returnsIn(r *Rule, v View, lacking int64) (left int64, ok bool) {
	left, ok = g.fadesIn(r, v, lacking)
	if g.Capped >= r.Usable {
		return left, ok
	}
	after, known := g.fadesIn(r, v, lacking-(r.Usable-g.Capped))
	after = max(after, g.CapEnd-v.Early, 1)
	if known && (!ok || after < left) {
		return after, true
	}
	return left, ok
}

// fadesIn is returnsIn under an unchanged limit.
func (g *Ledger) fadesIn(r *Rule, v View, lacking int64) (left int64, ok bool) {
	for i := 0; lacking > 0; i++ {
		next := Never
		if i < len(g.Log) {
			next = g.DropsIn(r, v, g.Log[i].End)
		}
		if lacking <= g.Others.Kept {
			if faded := max(left, g.Others.fallsTo(r, g.Others.Kept-lacking)-v.Early, 1); faded < next {
				return faded, true
			}
		}
		if next == Never {
			return 0, false
		}
		lacking, left = lacking-g.Log[i].Amount, next
	}
	return left, true
}

// LowerRate lowers the usable amount of a rate for some time, and reports whether it fell. Within that time it only
// falls.
func (g *Ledger) LowerRate(r *Rule, now, total int64, caller string, during int64) bool {
	if total > g.Capped || total >= r.Usable {
		return false
	}
	news := total < g.Capped
	g.Capped, g.CappedBy = total, caller
	g.CapEnd = fixed.AddSaturated(now, during)
	return news
}

// Learn records use by others, unless more is already known.
func (f *Foreign) Learn(r *Rule, now, amount int64) {
	left := f.Left(r, now)
	if f.Trust.caller != "" && amount <= left {
		return // keep fading: otherwise frequent reports would restart it from the rest and keep it alive
	}
	if amount = max(amount, left); amount <= 0 {
		f.forget()
		return
	}
	f.Amount, f.At = amount, now
	f.Advance(r, now)
}
