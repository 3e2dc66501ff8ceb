package providertest

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPeak(t *testing.T) {
	at := func(seconds ...int) (records []Record) {
		for _, s := range seconds {
			records = append(records, Record{At: time.Duration(s) * time.Second, Weight: 10})
		}
		return records
	}
	for name, c := range map[string]struct {
		records []Record
		want    Interval
	}{
		"nothing":                     {nil, Interval{}},
		"one":                         {at(3), Interval{3 * time.Second, 1}},
		"half open":                   {at(0, 60), Interval{0, 1}},
		"just inside":                 {at(0, 59), Interval{0, 2}},
		"across a calendar boundary":  {at(0, 58, 59, 60, 61, 200), Interval{58 * time.Second, 4}},
		"in any order":                {at(61, 0, 58, 60, 59), Interval{58 * time.Second, 4}},
		"the first of several equals": {at(0, 1, 100, 101), Interval{0, 2}},
	} {
		if got := Peak(c.records, time.Minute, Each); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := Peak(at(0, 1), time.Minute, Weights); got.Sum != 20 {
		t.Errorf("by weight: %+v", got)
	}
}

func TestPeakWindow(t *testing.T) {
	records := []Record{
		{Resource: "core", Window: 1},
		{Resource: "core", Window: 2},
		{Resource: "core", Window: 2},
		{Resource: "search", Window: 2},
		{Resource: "core"},
	}
	if got := PeakWindow(records, "core", Each); got != 2 {
		t.Errorf("%d", got)
	}
}

// The two pointers find the same peak as an exhaustive search.
func TestPeak_MatchesBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var records []Record
		for _, ms := range rapid.SliceOfN(rapid.Int64Range(0, 5_000), 0, 60).Draw(t, "at") {
			records = append(records, Record{At: time.Duration(ms) * time.Millisecond, Weight: ms % 7})
		}
		length := time.Duration(rapid.Int64Range(1, 3_000).Draw(t, "length")) * time.Millisecond
		var want int64
		for _, first := range records {
			var sum int64
			for _, r := range records {
				if r.At >= first.At && r.At < first.At+length {
					sum += r.Weight
				}
			}
			want = max(want, sum)
		}
		if got := Peak(slices.Clone(records), length, Weights).Sum; got != want {
			t.Fatalf("peak %d, want %d", got, want)
		}
	})
}

// For any requests at any times, no interval of a period admits more than a sliding limit, and no bucket more than twice its size. A
// caller that waits as long as wait says is admitted.
func TestMeter_KeepsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]Algorithm{Sliding, Bucket}).Draw(t, "kind")
		limit := rapid.Int64Range(1, 40).Draw(t, "limit")
		m := newMeter(kind, limit, time.Minute)
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		born := now
		var admitted []Record
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 20_000).Draw(t, "pause")) * time.Millisecond)
			n := rapid.Int64Range(1, limit).Draw(t, "n")
			wait := m.wait(now, n)
			if wait > 0 && rapid.Bool().Draw(t, "patient") {
				now = now.Add(wait)
				if left := m.wait(now, n); left != 0 {
					t.Fatalf("%v longer than it said", left)
				}
				wait = 0
			}
			if wait == 0 {
				m.take(now, n)
				admitted = append(admitted, Record{At: now.Sub(born), Weight: n})
			}
			if used := m.used(now); used < 0 || used > limit {
				t.Fatalf("used %d of %d", used, limit)
			}
		}
		most := limit
		if kind == Bucket {
			most = 2 * limit
		}
		if peak := Peak(admitted, time.Minute, Weights); peak.Sum > most {
			t.Fatalf("an interval saw %d of %d", peak.Sum, most)
		}
	})
}
