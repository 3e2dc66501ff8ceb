package ledger

import "github.com/quotad/quotad/fsm/fixed"

// Clock is a moment as the cluster knows it, in nanoseconds.
type Clock struct {
	// Now is cluster time: a duration since the cluster was formed.
	Now int64
	// WallEarly is the earlier view of Unix time, plus Shift: not after some honest voter's clock.
	WallEarly int64
	// WallLate is the later view of Unix time, plus Shift: not before some honest voter's clock.
	WallLate int64
	// Shift is how far ahead of Unix time the views are. Each clock reset raises it (clockreset.go), so that the views
	// themselves never go back. 0: there was no reset.
	Shift int64
}

// Shifted converts a Unix time to the time of the views.
func (c Clock) Shifted(unix int64) int64 {
	return min(fixed.AddSaturated(unix, c.Shift), fixed.MaxTime)
}
