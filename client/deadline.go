package client

import (
	"time"

	"github.com/quotad/quotad/client/pacing"
)

// stamp places an answer on this machine's clock.
type stamp struct {
	// sent is from before the answered attempt was sent, received from after its answer arrived.
	sent, received time.Time
	// servedIn is the time between receiving the attempt and answering it, by the node's clock.
	servedIn time.Duration
}

// deadline returns the moment by which something with this much time left at the answering node has ended. It counts
// from before the send, since the return trip's duration is unknown, less a margin (pacing.Margin).
func (s stamp) deadline(left time.Duration) time.Time {
	if left <= 0 {
		return s.sent
	}
	// Serving cannot take longer than the whole attempt; ignore a node's excess.
	served := min(max(s.servedIn, 0), max(s.received.Sub(s.sent), 0))
	return s.sent.Add(served + left - pacing.Margin(left))
}

// moment is an instant on both clocks. The monotonic clock stops while a machine sleeps, and the wall clock can be set;
// a lease ends when the first of them reaches it.
type moment struct {
	mono time.Time
	wall time.Time
}

// at returns the moment of mono, if the wall clock reads wall at now.
func at(mono, now, wall time.Time) moment {
	return moment{mono: mono, wall: wall.Add(mono.Sub(now)).Round(0)}
}

// left returns the time until the moment; 0 or less once it has passed on either clock.
func (m moment) left(now, wall time.Time) time.Duration {
	return min(m.mono.Sub(now), m.wall.Sub(wall.Round(0)))
}
