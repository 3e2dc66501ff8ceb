package ledger

import "github.com/quotad/quotad/fsm/fixed"

// What a provider says is left of a rate tells what others use of the key (docs/policy/shares.md, decision 34): what its limit, less what
// is left and what was consumed here until the report of the call came, does not account for. Six fifths of it are held back, since it was
// true when the provider answered and is not any more, and it fades over one period unless later reports say it again. A lie holds a
// rate back for about as long, and no longer.

const (
	// keptPart and keptOver: of what others use so much is held back, six fifths.
	keptPart, keptOver = 6, 5
	// LowerPeriods is for how many periods a reported limit below the configured one lowers what is usable.
	LowerPeriods = 2
)

// Foreign is what others use of a rate, by its provider's word.
type Foreign struct {
	// Amount is what others had used in the period before at (cluster time). 0: nothing is known of others.
	Amount, At int64
	// Heard is when the newest operation was consumed of which a report was believed, before levels.Heard, or when an operator ended what was
	// known. What was consumed before says nothing.
	Heard int64
	// HeardBy is who was believed last since levels.Heard, and of an operation consumed at HeardByAt. Of the same caller an older one says
	// nothing; another's does, or a caller who reports often and nothing would keep all others from being heard.
	HeardBy string
	// HeardByAt is that moment.
	HeardByAt int64
	// Seen is the moment for which kept was worked out, the ledger's; kept is what is held back then.
	Seen, Kept int64
	// Word is how far callers are believed.
	Word Belief
}

// span is how long what is held back takes to fade: a period, but no longer than one caller's word may close a rate, since levels.OneWord.
func (f *Foreign) span(r *Rule) int64 {
	if f.Word.teller == "" {
		return r.Period
	}
	return min(r.Period, MaxWindowClosing)
}

// forget forgets what others use.
func (f *Foreign) forget() {
	*f = Foreign{Heard: f.Heard, HeardBy: f.HeardBy, HeardByAt: f.HeardByAt, Word: f.Word}
}

// Stale reports whether a caller's report of an operation that was consumed then says nothing any more.
func (f *Foreign) Stale(caller string, began int64) bool {
	return began < f.Heard || caller == f.HeardBy && began < f.HeardByAt
}

// Advance works out what is held back at a moment.
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

// steps returns how far what is held back has faded at a moment: in steps of the log's buckets, so that waiting requests are tried again
// at steps and not all the time.
func (f *Foreign) steps(r *Rule, now int64) int64 { return (now - f.At) / r.Width * r.Width }

// Left returns what of it has not faded at a moment.
func (f *Foreign) Left(r *Rule, now int64) int64 {
	span := f.span(r)
	if f.Amount == 0 || now-f.At >= span {
		return 0
	}
	return f.Amount - fixed.MulDivFloor(f.Amount, now-f.At, span)
}

// fades returns when less is held back than at the ledger's moment; NoTimer: nothing is.
func (f *Foreign) fades(r *Rule) int64 {
	if f.Amount == 0 {
		return NoTimer
	}
	return fixed.AddSaturated(f.At, min(f.steps(r, f.Seen)+r.Width, f.span(r)))
}

// fallsTo returns when no more than so much is held back.
func (f *Foreign) fallsTo(r *Rule, amount int64) int64 {
	if amount >= f.Kept {
		return f.Seen
	}
	span := f.span(r)
	passed := fixed.RoundUp(span-fixed.MulDivFloor(amount, keptOver*span, keptPart*f.Amount), r.Width)
	return fixed.AddSaturated(f.At, min(passed, span))
}

// returnsIn returns in how long what is lacking of a rate has come back by itself, while what others use fades and a lowered limit ends;
// ok is false where what stands in the way has no known end.
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

// fadesIn does the same under a limit that stays as it is.
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

// LowerRate lowers what is usable of a rate for some periods, and tells whether that is news. Within that time it only falls.
func (g *Ledger) LowerRate(r *Rule, now, total int64, teller string, during int64) bool {
	if total > g.Capped || total >= r.Usable {
		return false
	}
	news := total < g.Capped
	g.Capped, g.CapTeller = total, teller
	g.CapEnd = fixed.AddSaturated(now, during)
	return news
}

// Learn takes over what others use, unless more is known.
func (f *Foreign) Learn(r *Rule, now, amount int64) {
	left := f.Left(r, now)
	if f.Word.teller != "" && amount <= left {
		return // it goes on fading: who reports often would keep it alive, were it to begin again from what is left
	}
	if amount = max(amount, left); amount <= 0 {
		f.forget()
		return
	}
	f.Amount, f.At = amount, now
	f.Advance(r, now)
}
