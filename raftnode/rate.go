package raftnode

import (
	"errors"
	"slices"
	"time"
)

// The guard on the rate of the leader's clock. It alone measures the time of leases: if it runs fast, leases end early.
const (
	rateSamples = 60   // one a second
	ratePercent = 2    // the largest difference between the rates
	minAdvance  = 0.25 // seconds between samples; shorter steps are not compared
)

// ErrClockRate says that the leader's monotonic clock ran at another rate than the wall clocks of a majority.
var ErrClockRate = errors.New("this node's clock runs at another rate than the other nodes' clocks: leases would end early or late")

// rateMeter compares the rates of two clocks over the last samples. It uses the median of their steps: setting a wall clock makes one large
// step, while a clock with a wrong rate makes all steps wrong.
type rateMeter struct {
	own, other int64
	begun      bool
	steps      []float64
}

// add records a reading of both clocks (nanoseconds) and tells whether their rates differ.
func (m *rateMeter) add(own, other int64) bool {
	advance := float64(own - m.own)
	if m.begun && advance < minAdvance*float64(time.Second) {
		return false
	}
	if m.begun {
		m.steps = append(m.steps, float64(other-m.other)/advance)
	}
	m.own, m.other, m.begun = own, other, true
	if len(m.steps) > rateSamples {
		m.steps = slices.Delete(m.steps, 0, 1)
	}
	if len(m.steps) < rateSamples {
		return false
	}
	sorted := slices.Sorted(slices.Values(m.steps))
	median := sorted[len(sorted)/2]
	return median < 1-ratePercent/100.0 || median > 1+ratePercent/100.0
}

// guardRate stops a leader whose clock runs at another rate than the voters' wall clocks.
func (n *Node) guardRate(lead *leadership) {
	if _, wall, ok := n.samples.views(n); ok && lead.rate.add(n.config.Clock.Monotonic(), wall) {
		n.fail(ErrClockRate)
	}
}
