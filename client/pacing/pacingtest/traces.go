// Package pacingtest has traces of takes that both the Go client's limiter and the simulation of fleets replay. If the two consumed
// ahead at different moments or in different amounts, plans in virtual time would differ from runs in real time. They cannot share one
// test: the fake cluster belongs to the client, and the simulation to quotad.
package pacingtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Quota is the quota of a trace: a rate per minute. A batch's spend-by is two seconds, and its transit one.
const Quota = "t/core"

// Pace is a number of takes at one pace.
type Pace struct {
	Takes int
	Every time.Duration
}

// Trace is a series of takes of one unit each, and the expected grants to one caller. Answers take no time.
type Trace struct {
	Name string
	// Usable is the quota's usable amount per minute.
	Usable int64
	Paces  []Pace
	// Want lists each take at or before which something was granted, as take:grants/left: the grants since the previous entry, and the
	// units at hand after the take.
	Want string
}

// Moments returns the times of the takes, from the trace's beginning.
func (t Trace) Moments() []time.Duration {
	var all []time.Duration
	var now time.Duration
	for _, pace := range t.Paces {
		for range pace.Takes {
			now += pace.Every
			all = append(all, now)
		}
	}
	return all
}

// Replay makes the takes of a trace and compares the grants. take makes a take at the given time, and returns the number of grants so
// far and the units at hand afterwards.
func Replay(t *testing.T, trace Trace, take func(at time.Duration) (grants int, left int64)) {
	t.Helper()
	var seen []string
	before := 0
	for i, at := range trace.Moments() {
		grants, left := take(at)
		if grants > before {
			seen = append(seen, fmt.Sprintf("%d:%d/%d", i+1, grants-before, left))
		}
		before = grants
	}
	if got := strings.Join(seen, " "); got != trace.Want {
		t.Errorf("%s:\n have %s\n want %s", trace.Name, got, trace.Want)
	}
}

// Traces are the traces that both sides replay.
var Traces = []Trace{
	{
		Name: "a call a minute", Usable: 60_000, Paces: []Pace{{3, time.Minute}},
		Want: "1:1/0 2:1/0 3:1/0",
	},
	{
		Name: "a steady pace", Usable: 60_000, Paces: []Pace{{60, 50 * time.Millisecond}},
		Want: "1:1/0 2:1/0 3:1/1 4:1/3 7:1/6 12:1/10 20:1/16 33:1/22 51:1/27",
	},
	{
		Name: "a fast pace", Usable: 60_000, Paces: []Pace{{300, 4 * time.Millisecond}},
		Want: "1:1/0 2:1/0 3:1/1 4:1/3 7:1/6 12:1/12 22:1/23 40:1/42 73:1/74 131:1/122 227:1/188",
	},
	{
		Name: "a small share", Usable: 40, Paces: []Pace{{30, 50 * time.Millisecond}},
		Want: "1:1/0 2:1/0 3:1/1 4:1/3 7:1/6 12:1/10 20:1/16",
	},
	{
		Name: "a burst, a pause and a burst", Usable: 60_000, Paces: []Pace{{40, time.Millisecond}, {1, 5 * time.Second}, {40, time.Millisecond}},
		Want: "1:1/0 2:1/0 3:1/1 4:1/3 7:1/6 12:1/12 22:1/23 40:1/44 41:1/0 42:1/1 43:1/3 46:1/6 51:1/12 61:1/23 79:1/43",
	},
	{
		Name: "a pace that slows down", Usable: 60_000, Paces: []Pace{
			{100, 10 * time.Millisecond}, {20, 200 * time.Millisecond}, {6, 900 * time.Millisecond},
		},
		Want: "1:1/0 2:1/0 3:1/1 4:1/3 7:1/6 12:1/12 22:1/22 39:1/38 69:1/61 104:1/40 109:1/17 114:1/10 119:1/7 121:1/3 123:1/1 125:1/0 126:1/0",
	},
}
