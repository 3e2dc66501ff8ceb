package raftnode

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestRateMeter_FindsWrongClock: a clock with a wrong rate is detected within a minute. A clock that is set, jitters or stands still for a
// while is not reported.
func TestRateMeter_FindsWrongClock(t *testing.T) {
	const second = int64(time.Second)
	random := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		rate float64 // of the other clock
		step func(i int) int64
		want bool
	}{
		"the same":                   {1, nil, false},
		"half a per cent fast":       {1.005, nil, false},
		"three per cent fast":        {1.03, nil, true},
		"three per cent slow":        {0.97, nil, true},
		"twice as fast":              {2, nil, true},
		"half as fast":               {0.5, nil, true},
		"set by an hour":             {1, func(i int) int64 { return at(i == 30, 3600*second) }, false},
		"set back by an hour":        {1, func(i int) int64 { return at(i == 30, -3600*second) }, false},
		"set ten times":              {1, func(i int) int64 { return at(i%10 == 0, 5*second) }, false},
		"jitter of 200 ms":           {1, func(int) int64 { return random.Int64N(second / 5) }, false},
		"jitter, twice as fast":      {2, func(int) int64 { return random.Int64N(second / 5) }, true},
		"standing still for a while": {1, func(i int) int64 { return at(i >= 20 && i < 40, -second*int64(i-19)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, set, found := &rateMeter{}, int64(0), false
			for i := range 3 * rateSamples {
				offset := int64(0)
				if c.step != nil {
					if offset = c.step(i); offset > second || offset < 0 {
						set, offset = set+offset, 0
					}
				}
				found = m.add(int64(i)*second, int64(float64(i)*c.rate*float64(second))+set+offset) || found
				if found && i < rateSamples {
					t.Fatalf("judged after %d samples", i)
				}
			}
			if found != c.want {
				t.Fatalf("found: %v", found)
			}
		})
	}
}

func at(now bool, offset int64) int64 {
	if now {
		return offset
	}
	return 0
}
