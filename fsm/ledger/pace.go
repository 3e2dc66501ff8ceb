package ledger

import (
	"math"

	"github.com/quotad/quotad/fsm/fixed"
)

const (
	// leastRoom: while others use a rate, shares are of what they leave, and of a leastRoom-th of usable at least.
	leastRoom = 10
	// Never is no moment.
	Never = int64(math.MaxInt64)
)

// Paced tells whether the rule has shares and slides.
func (r *Rule) Paced() bool { return r.Kind == KindRate && r.Policy.Shares.On }

// Counting is how long a grant counts at most that is consumed at once.
func (r *Rule) Counting() int64 { return fixed.AddSaturated(r.Period, r.SpendBy+r.Width) }

// Price is how far an amount moves a pacer.
func (r *Rule) Price(amount, room int64) int64 {
	if room == 0 {
		return 0 // only a quota that observes grants of nothing
	}
	return fixed.MulDivCeil(amount, r.Counting(), room)
}

// Room returns what shares of a rate are of: what is usable and not held back for others. What comes back at the pace of usable is not
// there where somebody else uses a part of it.
func (g *Ledger) Room(r *Rule) int64 {
	if g.Total == 0 { // nothing was consumed since levels.Overtaken
		return r.Usable
	}
	return min(r.Usable, max(g.Usable(r)-g.Others.Kept, r.Usable/leastRoom, 1))
}
