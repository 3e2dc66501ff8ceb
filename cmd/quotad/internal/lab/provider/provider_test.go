package provider

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// attempt is one call of a case computed by hand.
type attempt struct {
	at, n   int64
	refused bool
	retry   time.Duration
}

func run(t *testing.T, p *Provider, attempts []attempt) {
	t.Helper()
	for i, a := range attempts {
		got := p.Arrive(a.at, []Amount{{Limit: 0, N: a.n}})
		if got.Refused != a.refused || got.RetryAfter != a.retry {
			t.Errorf("attempt %d at %v: refused %v, retry after %v; want %v, %v",
				i, time.Duration(a.at), got.Refused, got.RetryAfter, a.refused, a.retry)
		}
	}
}

// TestSliding_WaitsForOldestToLeave: if five were taken within a second, the sixth waits until the first ones are a second old.
func TestSliding_WaitsForOldestToLeave(t *testing.T) {
	m := NewMeter(Rule{Quota: "writes", Kind: Sliding, Limit: 5, Period: time.Second}, 0, 10*sec, 10)
	run(t, New([]*Meter{m}, nil, false), []attempt{
		{at: 100 * ms, n: 2},
		{at: 400 * ms, n: 3},
		{at: 900 * ms, n: 1, refused: true, retry: time.Second}, // 200 ms, rounded up
		{at: 1099 * ms, n: 1, refused: true, retry: time.Second},
		{at: 1100 * ms, n: 2}, // [100, 1100) is over
		{at: 1399 * ms, n: 1, refused: true, retry: time.Second}, // 3 + 2 count
		{at: 1400 * ms, n: 3},
		{at: 1401 * ms, n: 6, refused: true, retry: time.Second}, // more than the limit
	})
	if m.Refused() != 4 || m.Total() != 10 {
		t.Errorf("refused %d, admitted %d; want 4 and 10", m.Refused(), m.Total())
	}
	// Arrivals in (401, 1401]: 1 + 1 + 2 + 1 + 3 + 6.
	if m.Peak() != 14 {
		t.Errorf("peak %d, want 14", m.Peak())
	}
}

// TestBurst_RefillsOnePerSecond: with a burst of 3 at one a second, three pass at once, then one for each second.
func TestBurst_RefillsOnePerSecond(t *testing.T) {
	m := NewMeter(Rule{Kind: Sliding, Limit: 60, Period: time.Minute, Burst: 3}, 0, 100*sec, 10)
	run(t, New([]*Meter{m}, nil, false), []attempt{
		{at: 0, n: 3},
		{at: 500 * ms, n: 1, refused: true, retry: time.Second},
		{at: 1000 * ms, n: 1},
		{at: 1001 * ms, n: 1, refused: true, retry: time.Second},
		{at: 10 * sec, n: 3},
		{at: 10 * sec, n: 1, refused: true, retry: time.Second},
	})
}

// TestWindows: a window that begins with its first call ends at a whole second of Unix time; a calendar window does not
// depend on its first call.
func TestWindows(t *testing.T) {
	begins := 300 * ms // 0.3 s after a whole second, and after the epoch
	anchored := NewMeter(Rule{Kind: Anchored, Limit: 3, Period: time.Minute}, begins, 300*sec, 10)
	run(t, New([]*Meter{anchored}, nil, false), []attempt{
		{at: 10 * sec, n: 3}, // at 10.3: the window ends at 70 s of Unix time, 69.7 s of the run
		{at: 11 * sec, n: 1, refused: true, retry: 59 * time.Second},
		{at: 69*sec + 699*ms, n: 1, refused: true, retry: time.Second},
		{at: 69*sec + 700*ms, n: 3},
	})
	calendar := NewMeter(Rule{Kind: Calendar, Limit: 3, Period: time.Minute}, begins, 300*sec, 10)
	run(t, New([]*Meter{calendar}, nil, true), []attempt{
		{at: 58 * sec, n: 3},
		{at: 59 * sec, n: 1, refused: true}, // silent: no time to retry
		{at: 59*sec + 700*ms, n: 3},
	})
	if w := calendar.Windows(); len(w) != 2 || w[0].To != 59*sec+700*ms || w[1].Admitted != 3 {
		t.Errorf("windows %+v", w)
	}
}

func TestMonth(t *testing.T) {
	begins := time.Date(2028, 2, 28, 12, 0, 0, 0, time.UTC)
	m := NewMeter(Rule{Kind: Calendar, Limit: 1, Period: 30 * 24 * time.Hour, Month: true}, begins.UnixNano(), 100*sec, 10)
	hour := int64(time.Hour)
	run(t, New([]*Meter{m}, nil, false), []attempt{
		{at: 0, n: 1},
		{at: 35 * hour, n: 1, refused: true, retry: time.Hour}, // 23:00 on the 29th of a leap year
		{at: 36 * hour, n: 1},
	})
}

// TestSlots: slots are in use from the call's arrival to its end.
func TestSlots(t *testing.T) {
	m := NewMeter(Rule{Kind: Slots, Limit: 2}, 0, 10*sec, 10)
	p := New([]*Meter{m}, nil, false)
	run(t, p, []attempt{{at: 0, n: 1}, {at: 1, n: 1}, {at: 2, n: 1, refused: true, retry: time.Second}})
	p.Done(3, []Amount{{N: 1}})
	run(t, p, []attempt{{at: 4, n: 1}, {at: 5, n: 1, refused: true, retry: time.Second}})
	if m.Peak() != 2 {
		t.Errorf("peak %d", m.Peak())
	}
}

// TestArrive_RefusedByOneLimitCountsInNone: a call that one limit refuses counts against none, and outages count separately.
func TestArrive_RefusedByOneLimitCountsInNone(t *testing.T) {
	requests := NewMeter(Rule{Kind: Sliding, Limit: 10, Period: time.Minute}, 0, 100*sec, 10)
	tokens := NewMeter(Rule{Kind: Sliding, Limit: 100, Period: time.Minute}, 0, 100*sec, 10)
	p := New([]*Meter{requests, tokens}, []Outage{{Limit: 1, From: 30 * sec, To: 40 * sec}}, false)
	both := []Amount{{Limit: 0, N: 1}, {Limit: 1, N: 60}}
	if p.Arrive(0, both).Refused {
		t.Error("the first was refused")
	}
	if a := p.Arrive(1, both); !a.Refused || a.Limit != 1 || a.Outage {
		t.Errorf("the second: %+v", a)
	}
	if a := p.Arrive(31*sec, both); !a.Outage || a.RetryAfter != 9*time.Second {
		t.Errorf("in the outage: %+v", a)
	}
	if requests.Total() != 1 || tokens.Refused() != 1 || tokens.Outage() != 1 || requests.Refused() != 0 {
		t.Errorf("requests %d, refused %d and %d, outage %d", requests.Total(), requests.Refused(), tokens.Refused(), tokens.Outage())
	}
}

// TestWave_CountsCallsAfterOutage: a wave consists of attempts after an outage: refused ones before do not count.
func TestWave_CountsCallsAfterOutage(t *testing.T) {
	m := NewMeter(Rule{Kind: Sliding, Limit: 10, Period: time.Minute}, 0, 1000*sec, 10)
	p := New([]*Meter{m}, []Outage{{From: 30 * sec, To: 40 * sec, Says: "try again in {left}", Means: "saturated"}}, false)
	call := func(at, n int64) Answer { return p.Arrive(at, []Amount{{N: n}}) }
	call(0, 5)
	m.Calm(false)
	if a := call(31*sec, 9); a.Says != "try again in 9s" || a.Means != "saturated" || a.Until != 40*sec {
		t.Errorf("in the outage: %+v", a)
	}
	m.Calm(true)
	call(41*sec, 4)
	call(99*sec, 3)
	if m.Wave() != 7 || m.Peak() != 18 {
		t.Errorf("wave %d of 4 + 3, peak %d of 5 + 9 + 4", m.Wave(), m.Peak())
	}
	m.Calm(false)
	call(100*sec, 10)
	if m.Wave() != 7 {
		t.Errorf("wave %d, in an outage", m.Wave())
	}
}

// TestSliding_MatchesRecount: for any calls, no period of a sliding limit admits more than the limit, by an independent
// recount. A refused call would not have fitted, and a call that waits for the given time is served.
func TestSliding_MatchesRecount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 20).Draw(t, "limit")
		m := NewMeter(Rule{Kind: Sliding, Limit: limit, Period: time.Second}, 0, 100*sec, 10)
		p := New([]*Meter{m}, nil, false)
		var taken []Entry
		counted := func(now int64) (sum int64) {
			for _, e := range taken {
				if now < e.At+sec {
					sum += e.N
				}
			}
			return sum
		}
		now := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			now += rapid.Int64Range(0, sec/2).Draw(t, "pause")
			n := rapid.Int64Range(1, limit).Draw(t, "amount")
			wait := m.wait(now, n)
			if fits := counted(now)+n <= limit; fits != (wait == 0) {
				t.Fatalf("at %d: %d of %d are counted, %d more: wait %d", now, counted(now), limit, n, wait)
			}
			if wait > 0 && (counted(now+wait)+n > limit || counted(now+wait-1)+n <= limit) {
				t.Fatalf("at %d: told to wait %d for %d", now, wait, n)
			}
			if !p.Arrive(now, []Amount{{N: n}}).Refused {
				taken = append(taken, Entry{At: now, N: n})
			}
		}
	})
}
