package ledger

import "github.com/quotad/quotad/fsm/fixed"

// Clock is a moment as the cluster knows it, in nanoseconds.
type Clock struct {
	// Now is cluster time: a duration since the cluster's birth.
	Now int64
	// WallEarly is the earlier view of Unix time, plus Shift: no later than some honest voter's clock.
	WallEarly int64
	// WallLate is the later view of Unix time, plus Shift: no earlier than some honest voter's clock.
	WallLate int64
	// Shift is how far ahead of Unix time the views are counted. Each reset of the clock raises it (clockreset.go), so that the views
	// themselves never go back. 0: there was none.
	Shift int64
}

// Shifted returns a moment of Unix time as the views count it.
func (c Clock) Shifted(unix int64) int64 {
	return min(fixed.AddSaturated(unix, c.Shift), fixed.MaxTime)
}
