package processor

import (
	"math"
	"runtime"
	"time"
)

const (
	// A node is busy when its processors have nothing to do for less than a tenth of the time, and it uses more than a tenth of them itself:
	// where others' processes keep the machine busy, to hold callers back would free nothing.
	busyBelow = 0.1
	leastUsed = 0.1
	// least is the part of the processors' time that each caller has in any case. On a follower that does nothing but forward a hostile
	// caller's calls it is what that caller has.
	least = 0.02
	// remembered is what counts of the second one's charges after judgeEvery.
	remembered = 0.99
	// A call is taken to cost between cheapest and dearest, whatever was measured: what is measured holds other work too.
	cheapest, dearest = 20 * time.Microsecond, 2 * time.Millisecond
	// firstCost is a call's cost before anything was measured; weight is that of a new measurement.
	firstCost = 100 * time.Microsecond
	weight    = 0.1
	// idleWeight is the weight of another judgeEvery of how much processors had nothing to do, which is told in ticks of 10 ms.
	idleWeight = 0.5
	// leastCharged is of how many calls a cost can be measured.
	leastCharged = 32
	// While the node is busy the level falls to fallTo of what it was each judgeEvery, and else comes to riseBy of it, or to aloneBy of it where
	// a caller is alone: soon it does not wait any more, but a caller that others pause for a moment beside is not let loose by that.
	fallTo, riseBy, aloneBy = 0.9, 1.05, 2
)

// level is how many calls a second each caller may make.
type level struct {
	// cost is the processor time of a call, in seconds.
	cost float64
	// perSecond is the level; infinite: nobody has to wait.
	perSecond float64
	// idle is the part of the time that processors had nothing to do, of late.
	idle float64
	// second is how many calls a second the caller made who makes the second most, of late.
	second float64
}

func newLevel() level { return level{cost: firstCost.Seconds(), perSecond: math.Inf(1), idle: 1} }

// seen is what was seen in some time. used and charged are sums.
type seen struct {
	time, used time.Duration
	// idle is the part of the time that processors had nothing to do.
	idle float64
	// callers called, or have other work here.
	callers int
	// charged is what all callers were charged with, top the one who was charged most, and second the next one who is known: strangers are
	// the measure of nobody.
	charged, top, second float64
	// waited is set where a call had to wait for its turn, or a caller has made calls ahead.
	waited bool
}

// part is the part of the processors' time that this process used. Where the system does not tell, it is taken to use them.
func (s *seen) part() float64 {
	if s.used <= 0 {
		return 1
	}
	return s.used.Seconds() / (s.time.Seconds() * float64(runtime.GOMAXPROCS(0)))
}

// judge sets the level by what was seen.
func (l *level) judge(s seen) {
	if s.charged >= leastCharged && s.used > 0 {
		measured := min(max(s.used.Seconds()/s.charged, cheapest.Seconds()), dearest.Seconds())
		l.cost += weight * (measured - l.cost)
	}
	over := func(each float64) float64 { return math.Pow(each, float64(s.time)/float64(judgeEvery)) } // calls may come seldom
	l.idle += (1 - over(1-idleWeight)) * (s.idle - l.idle)
	top := s.top / s.time.Seconds()
	l.second = max(l.second*over(remembered), s.second/s.time.Seconds())
	switch {
	case s.callers < 2:
		l.rise(over(aloneBy), top, s.waited)
	case l.idle < busyBelow && s.part() > leastUsed:
		l.perSecond = max(l.lowest(), min(l.perSecond, top)*over(fallTo))
	default:
		l.rise(over(riseBy), top, s.waited)
	}
}

// rise raises the level, and ends it where nobody comes near it.
func (l *level) rise(by, top float64, waited bool) {
	if l.perSecond = max(l.lowest(), l.perSecond*by); !waited && l.perSecond > 2*max(top, l.lowest()) {
		l.perSecond = math.Inf(1)
	}
}

// capacity is for how many calls a second there is processor time.
func (l *level) capacity() float64 { return float64(runtime.GOMAXPROCS(0)) / l.cost }

// lowest is how low the level may come: who calls most has what the next one has, and both what is left to everybody.
func (l *level) lowest() float64 { return max(l.second, least*l.capacity()) }

// gives returns what comes to a caller in some time.
func (l *level) gives(passed time.Duration) float64 {
	if passed <= 0 {
		return 0
	}
	return l.perSecond * passed.Seconds()
}

// takes returns in what time so much comes to a caller.
func (l *level) takes(short float64) time.Duration {
	return time.Duration(min(short/l.perSecond, time.Hour.Seconds()) * float64(time.Second))
}

// saves returns the most that a caller saves up.
func (l *level) saves() float64 {
	if math.IsInf(l.perSecond, 1) {
		return leastSaved
	}
	return max(leastSaved, l.gives(saved))
}
