package raftnode

import (
	"testing"
	"time"
)

// TestMedian_FindsWrongClock: however many voters answer, a clock that is an hour off is outside of the others' median. A right one is
// inside while most of the others are right.
func TestMedian_FindsWrongClock(t *testing.T) {
	const now, wrong = int64(1000 * time.Hour), int64(time.Hour)
	for name, c := range map[string]struct {
		own    int64
		others []int64
		want   int64
	}{
		"two of two answer, one is wrong":               {now, []int64{now + wrong}, -wrong},
		"two of three answer, it is wrong":              {now + wrong, []int64{now}, wrong},
		"three of three answer, it is wrong":            {now + wrong, []int64{now, now}, wrong},
		"three of three answer, another one is wrong":   {now, []int64{now, now + wrong}, 0},
		"three of five answer, it is wrong":             {now - wrong, []int64{now, now}, -wrong},
		"three of five answer, another one is wrong":    {now, []int64{now - wrong, now}, 0},
		"four of five answer, another one is wrong":     {now, []int64{now, now - wrong, now}, 0},
		"four of five answer, two are wrong, it is one": {now + wrong, []int64{now, now, now + wrong}, wrong},
		"five of five answer, two are wrong, it is one": {now + wrong, []int64{now, now + wrong, now, now}, wrong},
		"five of five answer, two others are wrong":     {now, []int64{now, now + wrong, now, now + wrong}, 0},
	} {
		var others []sample
		for _, wall := range c.others {
			others = append(others, sample{wall: wall, roundTrip: int64(time.Millisecond)})
		}
		from, to := median(others)
		got := outside(c.own, from, to)
		if off := got - c.want; off < -int64(time.Second) || off > int64(time.Second) {
			t.Errorf("%s: it is %v off, want %v", name, time.Duration(got), time.Duration(c.want))
		}
	}
}
