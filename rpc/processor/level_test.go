package processor

import (
	"math"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// callCost is a call's cost: some hundred calls in a tenth of a second take a real part of this machine's processor time.
var callCost = 100 * time.Microsecond * time.Duration(min(runtime.GOMAXPROCS(0), 16))

// window is a busy node's observation of a tenth of a second: the calls of the largest caller, of the next one, and of all.
func window(top, second, all float64, callers int) seen {
	return seen{
		time: 100 * time.Millisecond, used: time.Duration(all * float64(callCost)), callers: callers,
		charged: all, top: top, second: second,
	}
}

// settled returns the level after many equal windows.
func settled(s seen) level {
	l := newLevel()
	for range 100 {
		l.judge(s)
	}
	return l
}

func TestLevel(t *testing.T) {
	least := least * float64(runtime.GOMAXPROCS(0)) / callCost.Seconds()
	idle := window(500, 10, 600, 3)
	idle.idle = 0.5
	elsewhere := window(500, 1, 600, 2)
	elsewhere.used /= 20
	for _, tc := range []struct {
		name string
		seen seen
		want float64
	}{
		{"nobody waits while there is time", idle, math.Inf(1)},
		{"a caller that is alone never waits", window(500, 0, 500, 1), math.Inf(1)},
		{"who calls most comes down to the next one", window(500, 200, 1000, 8), 2000},
		{"others' processes keep the machine busy", elsewhere, math.Inf(1)},
		{"and not below a part of the time", window(500, 1, 600, 2), least},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if l := settled(tc.seen); math.Abs(l.perSecond-tc.want) > 0.02*tc.want {
				t.Errorf("%v calls a second, want %v", l.perSecond, tc.want)
			}
		})
	}
}

// TestLevel_Rises: once the node is not busy any more, the level rises until nobody has to wait.
func TestLevel_Rises(t *testing.T) {
	l := settled(window(500, 200, 1000, 8))
	idle := window(200, 200, 800, 8)
	idle.idle = 1
	before := l.perSecond
	for windows := 0; !math.IsInf(l.perSecond, 1); windows++ {
		l.judge(idle)
		if l.perSecond < before {
			t.Fatalf("it fell from %v to %v", before, l.perSecond)
		}
		if before = l.perSecond; windows > 100 {
			t.Fatalf("still %v calls a second", before)
		}
	}
}

// TestLevel_TimesAdd: the level changes alike whether calls set it often or seldom.
func TestLevel_TimesAdd(t *testing.T) {
	often, seldom := settled(window(500, 200, 1000, 8)), settled(window(500, 200, 1000, 8))
	for _, idle := range []float64{1, 0} {
		for range 5 {
			s := window(200, 200, 800, 8)
			s.idle, s.waited = idle, true
			often.judge(s)
		}
		s := window(1000, 1000, 4000, 8)
		s.time, s.idle, s.waited = 5*s.time, idle, true
		seldom.judge(s)
		if math.Abs(often.perSecond-seldom.perSecond) > 0.1*often.perSecond || math.Abs(often.idle-seldom.idle) > 0.01 {
			t.Errorf("%v calls a second in five steps, %v in one; %v and %v idle", often.perSecond, seldom.perSecond, often.idle, seldom.idle)
		}
	}
}

// TestLevel_NeverStarves: whatever is observed, a caller gets its turn if its calls take no more than a fiftieth of the time. So does
// each that makes no more calls than the second-largest caller.
func TestLevel_NeverStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLevel()
		for range rapid.IntRange(1, 50).Draw(t, "windows") {
			second := rapid.Float64Range(0, 1e5).Draw(t, "second")
			top := second + rapid.Float64Range(0, 1e5).Draw(t, "more")
			s := window(top, second, top+second, rapid.IntRange(0, 10).Draw(t, "callers"))
			s.used = time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "used"))
			s.idle, s.time = rapid.Float64Range(0, 1).Draw(t, "idle"),
				time.Duration(rapid.Int64Range(int64(judgeEvery), int64(time.Hour)).Draw(t, "time"))
			l.judge(s)
			if l.cost < cheapest.Seconds() || l.cost > dearest.Seconds() {
				t.Fatalf("a call costs %v s", l.cost)
			}
			if l.perSecond < least*float64(runtime.GOMAXPROCS(0))/dearest.Seconds() || l.perSecond < second/s.time.Seconds() {
				t.Fatalf("%v calls a second, the second made %v", l.perSecond, second)
			}
		}
	})
}
