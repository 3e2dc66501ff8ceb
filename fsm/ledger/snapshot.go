package ledger

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// TakeWindow enters to which window what is held belongs: of the calendar's, one that begins no later than the later view allows, or it
// would not be left in time.
func (g *Ledger) TakeWindow(r *Rule, v View, window int64) error {
	g.Window = window
	if r.Kind != KindWindow || r.Anchored || window == 0 {
		return nil
	}
	if r.span(window-1).End != window {
		return fmt.Errorf("a window that ends at %d, which none does that has begun by %d", window, v.Late)
	}
	return nil
}

// TakeResets enters when the window ends: a reset that is known, and what is claimed of one. Each is an interval, or the window would be
// left before it is entered.
func (g *Ledger) TakeResets(encoded *logpb.SnapshotQuota) error {
	g.Known, g.CloseBegin, g.CloseEnd = encoded.Known, encoded.CloseBeginNs, encoded.CloseEndNs
	if c := encoded.Claim; c != nil {
		g.Claim = Claim{Begin: c.BeginNs, End: c.EndNs, By: c.Caller, Confirmed: c.Confirmed}
	}
	if g.Known && g.CloseBegin > g.CloseEnd || g.Claim.Begin > g.Claim.End {
		return fmt.Errorf("quota %d is reset from %d to %d, or is claimed to be from %d to %d", encoded.Number,
			g.CloseBegin, g.CloseEnd, g.Claim.Begin, g.Claim.End)
	}
	return nil
}

// Check looks at the order of what is used.
func (u *Usage) Check() error {
	last := Ending{End: -1 << 63}
	for i, e := range u.Ends {
		if i > 0 && e.End <= last.End || e.Amount <= 0 {
			return fmt.Errorf("the use of %d that ends at %d is out of order", e.Amount, e.End)
		}
		last = e
	}
	return nil
}
