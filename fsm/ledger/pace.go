package ledger

import (
	"math"

	"github.com/quotad/quotad/fsm/fixed"
)

const (
	// leastRoom: shares are parts of the amount that others leave of a rate, and at least of a leastRoom-th of usable.
	leastRoom = 10
	// Never means that there is no such time.
	Never = int64(math.MaxInt64)
)

// Paced reports whether the rule is a rate with shares.
func (r *Rule) Paced() bool { return r.Kind == KindRate && r.Policy.Shares.On }

// Counting returns the longest time that a grant counts that is consumed at once (nanoseconds).
func (r *Rule) Counting() int64 { return fixed.AddSaturated(r.Period, r.SpendBy+r.Width) }

// Price returns how far an amount advances a pacer (nanoseconds).
func (r *Rule) Price(amount, room int64) int64 {
	if room == 0 {
		return 0 // only a quota that observes grants amounts of a usable amount of 0
	}
	return fixed.MulDivCeil(amount, r.Counting(), room)
}

// Room returns the amount that shares of a rate are parts of: the usable amount that is not held back for others. The
// part that others use does not return to us.
func (g *Ledger) Room(r *Rule) int64 {
	if g.Total == 0 { // nothing was consumed since levels.Overtaken
		return r.Usable
	}
	return min(r.Usable, max(g.Usable(r)-g.Others.Kept, r.Usable/leastRoom, 1))
}
