package pacing

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	none  = quotav1.Zone_ZONE_UNSPECIFIED
	green = quotav1.Zone_ZONE_GREEN
	amber = quotav1.Zone_ZONE_AMBER
	red   = quotav1.Zone_ZONE_RED
)

func TestShare_IsInUnits(t *testing.T) {
	for _, c := range []struct {
		name   string
		quota  Quota
		amount int64
		want   int64
	}{
		{"half of usable", Quota{Usable: 1_000, DefaultEstimate: 1, Holders: 1, Zone: none}, 1, 500},
		{"half between holders", Quota{Usable: 1_000, DefaultEstimate: 1, Holders: 5, Zone: none}, 1, 100},
		{"no holder seen", Quota{Usable: 1_000, DefaultEstimate: 1, Holders: 0, Zone: none}, 1, 500},
		{"units of several amounts", Quota{Usable: 60_000, DefaultEstimate: 500, Holders: 3, Zone: none}, 500, 20},
		{"an amount of 0 counts as 1", Quota{Usable: 1_000, DefaultEstimate: 1, Holders: 1, Zone: none}, 0, 500},
		{"green: 20 calls", Quota{Usable: 1_000_000, DefaultEstimate: 500, Holders: 1, Zone: green}, 500, 20},
		{"amber: 5 calls", Quota{Usable: 1_000_000, DefaultEstimate: 500, Holders: 1, Zone: amber}, 500, 5},
		{"red: 1 call", Quota{Usable: 1_000_000, DefaultEstimate: 500, Holders: 1, Zone: red}, 500, 1},
		// A unit below the default estimate: more units make up the same amount.
		{"green, units of a tenth of a call", Quota{Usable: 1_000_000, DefaultEstimate: 500, Holders: 1, Zone: green}, 50, 200},
		{"green, half of usable is less", Quota{Usable: 100, DefaultEstimate: 10, Holders: 1, Zone: green}, 10, 5},
		{"no default estimate", Quota{Usable: 1_000, DefaultEstimate: 0, Holders: 1, Zone: amber}, 1, 5},
		{"largest amounts", Quota{Usable: math.MaxInt64, DefaultEstimate: math.MaxInt64, Holders: 1, Zone: green}, 1, MostUnits},
		{"suspended", Quota{Usable: 0, DefaultEstimate: 1, Holders: 1, Zone: none}, 1, 0},
	} {
		if got := c.quota.Share(c.amount); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestBatch_HasNoneBelowTwoCalls(t *testing.T) {
	for _, c := range []struct {
		name                              string
		demand, share, atHand, most, call int64
		want                              int64
	}{
		{"what is in demand", 7, 100, 0, 1_000, 1, 7},
		{"the share", 700, 100, 0, 1_000, 1, 100},
		{"the share, less what is at hand", 700, 100, 30, 1_000, 1, 70},
		{"the bound", 700, 100, 0, 10, 1, 10},
		{"two calls", 2, 100, 0, 1_000, 1, 2},
		{"one call", 1, 100, 0, 1_000, 1, 0},
		{"less than two calls of three units", 5, 100, 0, 1_000, 3, 0},
		{"two calls of three units", 6, 100, 0, 1_000, 3, 6},
		{"more at hand than the share", 50, 10, 20, 1_000, 1, 0},
	} {
		if got := Batch(c.demand, c.share, c.atHand, c.most, c.call); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestDemand_FadesAtThePaceOfABatch(t *testing.T) {
	var d Demand
	d.Add(0, 100, 2*time.Second)
	if got := d.Units(0, 2*time.Second); got != 100 {
		t.Errorf("at once: %d", got)
	}
	// After one life a part of 1/e is left.
	if got := d.Units(2*time.Second, 2*time.Second); got != 36 {
		t.Errorf("after one life: %d, want 36", got)
	}
	// Until a batch was observed, its life is FirstLife.
	var early Demand
	early.Add(0, 100, 0)
	if got := early.Units(FirstLife, 0); got != 36 {
		t.Errorf("after the first life: %d, want 36", got)
	}
}

// At a steady pace the demand is the need of one batch's life.
func TestDemand_OfASteadyPaceIsOneBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		life := time.Duration(rapid.Int64Range(int64(200*time.Millisecond), int64(time.Minute)).Draw(t, "life"))
		perLife := rapid.IntRange(20, 2_000).Draw(t, "calls per life")
		gap := life / time.Duration(perLife)
		var d Demand
		var now time.Duration
		for now < 12*life {
			now += gap
			d.Add(now, 1, life)
		}
		if got := float64(d.Units(now, life)); got < 0.9*float64(perLife)-1 || got > 1.1*float64(perLife)+1 {
			t.Errorf("%v for %d calls in a life of %v", got, perLife, life)
		}
	})
}

func TestDefaultWindows_DoNotOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cooldown := time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "cooldown"))
		draw := func(below time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(below)-1).Draw(t, "draw"))
		}
		classes := []quotav1.Class{quotav1.Class_CLASS_CRITICAL, quotav1.Class_CLASS_STANDARD, quotav1.Class_CLASS_BACKGROUND}
		last := time.Duration(-1)
		for _, class := range classes {
			delay := DefaultWindows.Delay(cooldown, class, draw)
			if delay < max(cooldown, 0) || delay < last {
				t.Errorf("%v comes back after %v, the class above it after %v; cooldown %v", class, delay, last, cooldown)
			}
			last = delay
		}
		if got := DefaultWindows.Delay(0, quotav1.Class_CLASS_UNSPECIFIED, draw); got < 500*time.Millisecond || got >= 3500*time.Millisecond {
			t.Errorf("an unspecified class comes back after %v, not in the window of standard", got)
		}
	})
}

func TestDelay_OfAnEmptyWindowDrawsNothing(t *testing.T) {
	at := Windows{{time.Second, time.Second}, {time.Second, time.Second}, {time.Second, time.Second}}
	draw := func(time.Duration) time.Duration { t.Error("it drew"); return 0 }
	if got := at.Delay(time.Minute, quotav1.Class_CLASS_CRITICAL, draw); got != time.Minute+time.Second {
		t.Errorf("%v", got)
	}
}

func TestLife_HasALeast(t *testing.T) {
	if got := Life(time.Second, 3*time.Second); got != 2*time.Second {
		t.Errorf("%v", got)
	}
	if got := Life(time.Second, time.Second); got != ShortestLife {
		t.Errorf("an answer that came late: %v", got)
	}
}
