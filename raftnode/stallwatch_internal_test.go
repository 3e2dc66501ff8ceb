package raftnode

import (
	"testing"
	"time"
)

// TestStallWatch_CountsWhatTheProcessRan: only checks on schedule count, so that a starved process, or one that is paused again and again,
// does not take its own absence for a stuck disk. A disk that is stuck on a busy machine is found late.
func TestStallWatch_CountsWhatTheProcessRan(t *testing.T) {
	const every, limit = 250 * time.Millisecond, 2 * time.Second
	repeated := func(times int, after ...time.Duration) (all []time.Duration) {
		for range times {
			all = append(all, after...)
		}
		return all
	}
	for name, c := range map[string]struct {
		after []time.Duration // from one check to the next
		stuck bool
	}{
		"stuck":                         {repeated(9, every), true},
		"a slow write":                  {repeated(8, every), false},
		"one pause":                     {[]time.Duration{every, time.Hour, every}, false},
		"a pause after a slow write":    {append(repeated(7, every), time.Minute, every), false},
		"paused again and again":        {repeated(100, time.Second, time.Millisecond), false},
		"starved":                       {repeated(100, 3*every), false},
		"stuck, seldom late":            {repeated(12, every, every, time.Second), true},
		"stuck, each check a bit late":  {repeated(5, 2*every), true},
		"checks that caught up at once": {repeated(100, time.Second, 0), false},
	} {
		w := &stallWatch{every: every, limit: limit}
		now, stuck := int64(7), w.check(7, 5, true)
		for _, after := range c.after {
			now += int64(after)
			stuck = stuck || w.check(now, 5, true)
		}
		if stuck != c.stuck {
			t.Errorf("%s: stuck %t after the process ran %v", name, stuck, w.ran)
		}
		if w.check(now+1, 6, true) || w.ran != 0 {
			t.Errorf("%s: the next write inherits %v", name, w.ran)
		}
	}
}
