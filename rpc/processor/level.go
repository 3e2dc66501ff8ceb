package processor

import (
	"math"
	"runtime"
	"time"
)

const (
	// A node is busy if its processors are idle for less than a tenth of the time, and it uses more than a tenth of them itself. Where
	// other processes keep the machine busy, holding callers back would free nothing.
	busyBelow = 0.1
	leastUsed = 0.1
	// least is the part of the processors' time that each caller has in any case. On a follower that only forwards a hostile caller's
	// calls, that caller has no more.
	least = 0.02
	// remembered is how much of the second-largest caller's rate still counts after judgeEvery.
	remembered = 0.99
	// The cost of a call is at least cheapest and at most dearest, whatever was measured: a measurement includes other work.
	cheapest, dearest = 20 * time.Microsecond, 2 * time.Millisecond
	// firstCost is a call's cost before the first measurement; weight is that of a new measurement.
	firstCost = 100 * time.Microsecond
	weight    = 0.1
	// idleWeight is the weight of another judgeEvery of idle time, which the system reports in ticks of 10 ms.
	idleWeight = 0.5
	// leastCharged is the smallest number of calls whose cost can be measured.
	leastCharged = 32
	// In each judgeEvery the level falls to fallTo of its value while the node is busy. Otherwise it rises to riseBy of it, or to aloneBy
	// while a caller is alone. Such a caller soon does not wait any more, but a short pause of the other callers does not lift its limit.
	fallTo, riseBy, aloneBy = 0.9, 1.05, 2
)

// level is how many calls a second each caller may make.
type level struct {
	// cost is the processor time of a call, in seconds.
	cost float64
	// perSecond is the level; infinite: nobody has to wait.
	perSecond float64
	// idle is the part of the recent time in which processors were idle.
	idle float64
	// second is the recent rate of the second-largest caller, in calls a second.
	second float64
}

func newLevel() level { return level{cost: firstCost.Seconds(), perSecond: math.Inf(1), idle: 1} }

// seen holds what was observed in some time. used and charged are sums.
type seen struct {
	time, used time.Duration
	// idle is the part of the time in which processors were idle.
	idle float64
	// callers is how many called, or have other work here.
	callers int
	// charged is the sum of all callers' charges, top the largest one, and second the second-largest of known callers: anonymous callers are
	// no measure for others.
	charged, top, second float64
	// waited is set if a call had to wait for its turn, or a caller has made calls in advance.
	waited bool
}

// part returns the part of the processors' time that this process used; 1 if the system does not report it.
func (s *seen) part() float64 {
	if s.used <= 0 {
		return 1
	}
	return s.used.Seconds() / (s.time.Seconds() * float64(runtime.GOMAXPROCS(0)))
}

// judge sets the level by what was observed.
func (l *level) judge(s seen) {
	if s.charged >= leastCharged && s.used > 0 {
		measured := min(max(s.used.Seconds()/s.charged, cheapest.Seconds()), dearest.Seconds())
		l.cost += weight * (measured - l.cost)
	}
	over := func(each float64) float64 { return math.Pow(each, float64(s.time)/float64(judgeEvery)) } // calls may be rare
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

// rise raises the level, and removes it once no caller is near it.
func (l *level) rise(by, top float64, waited bool) {
	if l.perSecond = max(l.lowest(), l.perSecond*by); !waited && l.perSecond > 2*max(top, l.lowest()) {
		l.perSecond = math.Inf(1)
	}
}

// capacity returns for how many calls a second there is processor time.
func (l *level) capacity() float64 { return float64(runtime.GOMAXPROCS(0)) / l.cost }

// lowest returns the lowest valid level: the largest caller has what the second-largest has, and both have least.
func (l *level) lowest() float64 { return max(l.second, least*l.capacity()) }

// gives returns how many calls a caller gets in some time.
func (l *level) gives(passed time.Duration) float64 {
	if passed <= 0 {
		return 0
	}
	return l.perSecond * passed.Seconds()
}

// takes returns how long a caller needs to get that many calls.
func (l *level) takes(short float64) time.Duration {
	return time.Duration(min(short/l.perSecond, time.Hour.Seconds()) * float64(time.Second))
}

// saves returns the most that a caller can save.
func (l *level) saves() float64 {
	if math.IsInf(l.perSecond, 1) {
		return leastSaved
	}
	return max(leastSaved, l.gives(saved))
}
