package raftnode

import (
	"fmt"
	"slices"
	"time"
)

// Deviations of clocks above which a check fails: mostSkew for a node's own clock from the other voters', mostAhead for the state's earlier
// view ahead of them. The boundaries of windows are 1 s wide to each side.
const (
	mostSkew  = 2 * time.Second
	mostAhead = time.Second
)

// measureClocks compares this node's wall clock, and the state's earlier view of Unix time, with the voters' clocks.
func (n *Node) measureClocks() {
	_, late, ok := n.samples.views(n)
	if !ok {
		return
	}
	skew := int64(0) // also on a node without another clock to compare with
	if others, _ := n.samples.others(n); len(others) > 0 {
		from, to := median(others)
		skew = outside(n.config.Clock.Wall(), from, to)
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

// outside returns how far a moment is before an interval (negative) or after it; 0: inside.
func outside(at, from, to int64) int64 {
	switch {
	case at < from:
		return at - from
	case at > to:
		return at - to
	}
	return 0
}

// median returns the interval of the middle clock, or the one between the two middle clocks. A node compares itself with the median of the
// others and not with the views. If only f+1 of 2f+1 voters answer, the views are as wide as all clocks, and no clock is outside of them.
// If only one other voter answers, it is unknown which of the two clocks is wrong, and both nodes report it.
func median(all []sample) (from, to int64) {
	slow, fast := make([]int64, len(all)), make([]int64, len(all))
	for i, s := range all {
		slow[i], fast[i] = s.wall, s.wall+s.roundTrip
	}
	slices.Sort(slow)
	slices.Sort(fast)
	return slow[(len(all)-1)/2], fast[len(all)/2]
}

// ClocksDifferError says that no majority of the voters' clocks agrees.
type ClocksDifferError struct {
	// Agree is how many of the voters' clocks agree, Voters the number of voters.
	Agree, Voters int
}

// Error implements error.
func (e *ClocksDifferError) Error() string {
	return fmt.Sprintf("only %d clocks of %d voters agree; a majority must agree", e.Agree, e.Voters)
}

// CheckClocks returns a *ClocksDifferError unless the clocks of a majority of the voters agree. Views of Unix time need fewer clocks, since
// they may err to the safe side; a reset of the clock may not. On a node that does not lead CheckClocks returns nil.
func (n *Node) CheckClocks() error {
	walls, voters := n.samples.walls(n)
	agree := 0
	for _, one := range walls {
		near := 0
		for _, s := range walls {
			if outside(s.wall, one.wall-int64(mostSkew), one.wall+one.roundTrip+int64(mostSkew)) == 0 {
				near++
			}
		}
		agree = max(agree, near)
	}
	if n.leading.Load() != nil && agree <= voters/2 {
		return &ClocksDifferError{Agree: agree, Voters: voters}
	}
	return nil
}
