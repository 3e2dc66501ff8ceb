package client

import (
	"time"

	"github.com/quotad/quotad/client/pacing"
)

// stamp places an answer on this machine's clocks.
type stamp struct {
	// sent was taken before the attempt that was answered went out, received after its answer came in.
	sent, received time.Time
	// servedIn is what the answering node's clock ran between receiving the attempt and answering it.
	servedIn time.Duration
}

// deadline returns the moment by which something with so much left at the answering node has ended here. It counts
// from before the send, since the time on the way back is not known, and is a little short (pacing.Margin).
func (s stamp) deadline(left time.Duration) time.Time {
	if left <= 0 {
		return s.sent
	}
	// A node cannot have served longer than the whole attempt took; one that says so is not believed.
	served := min(max(s.servedIn, 0), max(s.received.Sub(s.sent), 0))
	return s.sent.Add(served + left - pacing.Margin(left))
}

// moment is an instant on both clocks. The monotonic clock stands still while a machine sleeps and the wall clock can
// be set; whichever gets there first ends a lease.
type moment struct {
	mono time.Time
	wall time.Time
}

// at returns the moment that mono is, where the wall clock reads wall at now.
func at(mono, now, wall time.Time) moment {
	return moment{mono: mono, wall: wall.Add(mono.Sub(now)).Round(0)}
}

// left returns what is left until the moment, at most 0 once it has passed on either clock.
func (m moment) left(now, wall time.Time) time.Duration {
	return min(m.mono.Sub(now), m.wall.Sub(wall.Round(0)))
}
