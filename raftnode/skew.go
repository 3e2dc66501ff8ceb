package raftnode

import (
	"fmt"
	"time"
)

// Clocks that are further off than that fail a check: mostSkew a node's own against the voters', mostAhead the state's earlier view
// against them. The boundaries of windows are 1 s wide to each side.
const (
	mostSkew  = 2 * time.Second
	mostAhead = time.Second
)

// measureClocks compares this node's wall clock, and the state's earlier view of Unix time, with the voters' clocks.
func (n *Node) measureClocks() {
	early, late, ok := n.samples.views(n)
	if !ok {
		return
	}
	skew := outside(n.config.Clock.Wall(), early, late)
	if other, roundTrip, two := n.samples.onlyOther(n); two {
		// Of two voters none can be wrong, says the rule of views, which then trusts the faster one; that may be this node's.
		skew = outside(n.config.Clock.Wall(), other, other+roundTrip)
	}
	n.skew.Store(skew)
	n.metrics.skew.Set(float64(skew) / 1e9)
	n.mu.RLock()
	clock := n.machine.State().Clock()
	n.mu.RUnlock()
	ahead := max(clock.WallEarly-clock.Shifted(late), 0)
	n.viewAhead.Store(ahead)
	n.metrics.viewAhead.Set(float64(ahead) / 1e9)
}

// outside returns how far a moment is before an interval (negative) or after it; 0: it is in it.
func outside(at, from, to int64) int64 {
	switch {
	case at < from:
		return at - from
	case at > to:
		return at - to
	}
	return 0
}

// onlyOther returns the present time by the clock of the only other voter, where there are two and this node is one of them.
func (s *samples) onlyOther(n *Node) (wall, roundTrip int64, ok bool) {
	now := n.config.Clock.Monotonic()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.voters) != 2 || !s.voters[n.config.ID] {
		return 0, 0, false
	}
	for id := range s.voters {
		if known, have := s.of[id]; have && id != n.config.ID && now-known.at <= int64(sampleLife) {
			return known.wall + now - known.at, known.roundTrip, true
		}
	}
	return 0, 0, false
}

// ClocksDifferError says that nobody knows what time it is.
type ClocksDifferError struct {
	// Agree is how many of the voters' clocks agree, Voters how many there are.
	Agree, Voters int
}

// Error implements error.
func (e *ClocksDifferError) Error() string {
	return fmt.Sprintf("only %d clocks of %d voters agree; a majority must agree", e.Agree, e.Voters)
}

// CheckClocks returns a *ClocksDifferError unless the clocks of a majority of the voters agree. A view of Unix time needs fewer, since it may
// err to the safe side; a reset of the clock may not. A node that does not lead has nothing to say.
func (n *Node) CheckClocks() error {
	early, late, ok := n.samples.views(n)
	walls, voters := n.samples.walls(n)
	agree := 0
	for _, s := range walls {
		if ok && outside(s.wall, early-int64(mostSkew), late+int64(mostSkew)) == 0 {
			agree++
		}
	}
	if n.leading.Load() != nil && agree <= voters/2 {
		return &ClocksDifferError{Agree: agree, Voters: voters}
	}
	return nil
}
