package ledger

import (
	"math"

	"github.com/quotad/quotad/fsm/fixed"
)

// NoTimer means that there is no time.
const NoTimer = int64(math.MinInt64)

// Changes returns when time alone changes something, by the earlier and the later view of time; NoTimer: never.
func (g *Ledger) Changes(r *Rule) (early, late int64) {
	late = NoTimer
	first := func(after int64) int64 {
		if len(g.Log) == 0 {
			return NoTimer
		}
		return fixed.AddSaturated(g.Log[0].End, after)
	}
	switch {
	case r.Kind == KindRate:
		early = first(r.Period + 1)
		for _, at := range []int64{g.Others.fades(r), g.lifts()} {
			if at != NoTimer && (early == NoTimer || at < early) {
				early = at
			}
		}
	case r.Kind == KindSlots:
		early = first(0)
	case r.Kind == KindPool:
		early = NoTimer
	case !r.Anchored:
		early, late = r.span(g.Cutoff).End+r.Skew, g.Window-r.Skew
		if g.Capped != NoCap {
			early = min(early, g.CapEnd)
		}
	default:
		return g.changesAnchored(r)
	}
	return early, late
}

// lifts returns when a lowered limit ends; NoTimer: there is none.
func (g *Ledger) lifts() int64 {
	if g.Capped == NoCap {
		return NoTimer
	}
	return g.CapEnd
}
