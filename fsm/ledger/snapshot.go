package ledger

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// TakeWindow restores the window to which held amounts belong. A calendar window must end where the calendar has an
// end; it may have begun by a later view than the present one.
func (g *Ledger) TakeWindow(r *Rule, window int64) error {
	g.Window = window
	if r.Kind != KindWindow || r.Anchored || window == 0 {
		return nil
	}
	if r.span(window-1).End != window {
		return fmt.Errorf("a window that ends at %d, where none does", window)
	}
	return nil
}

// TakeResets restores the end of the window: the known reset, and the claimed one. Each must be an interval, or the
// window would be left before it is entered.
func (g *Ledger) TakeResets(encoded *logpb.SnapshotQuota) error {
	g.Known, g.CloseBegin, g.CloseEnd = encoded.Known, encoded.CloseBeginNs, encoded.CloseEndNs
	g.Anchor = Anchor{
		Since: encoded.SinceNs, Passed: encoded.PassedNs, NamedBy: encoded.NamedBy, Confirmed: encoded.Confirmed, Uncut: encoded.Uncut,
		Later: encoded.LaterNs,
	}
	if c := encoded.Claim; c != nil {
		g.Claim = Claim{Begin: c.BeginNs, End: c.EndNs, By: c.Caller, Confirmed: c.Confirmed}
	}
	if g.Known && g.CloseBegin > g.CloseEnd || g.Claim.Begin > g.Claim.End {
		return fmt.Errorf("quota %d is reset from %d to %d, or is claimed to be from %d to %d", encoded.Number,
			g.CloseBegin, g.CloseEnd, g.Claim.Begin, g.Claim.End)
	}
	return nil
}

// Check checks the order of the ends.
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
