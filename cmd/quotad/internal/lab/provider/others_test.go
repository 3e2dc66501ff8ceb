package provider

import (
	"slices"
	"testing"
	"time"
)

// TestOthers_CountButAreNoAttempts: others' use counts against the limit and reduces the remaining amount that answers report. It is not an
// attempt, and not part of the fleet's use.
func TestOthers_CountButAreNoAttempts(t *testing.T) {
	m := NewMeter(Rule{Quota: "tokens", Kind: Sliding, Limit: 10, Period: time.Second, Tells: true}, 0, 10*sec, 10)
	p := New([]*Meter{m}, nil, false)
	m.Others(100*ms, 6)
	m.Others(200*ms, 5) // does not fit
	call := func(at, n int64) Answer { return p.Arrive(at, []Amount{{Limit: 0, N: n}}) }
	if a := call(300*ms, 3); a.Refused || !slices.Equal(a.Counts, []Count{{Limit: 0, Left: 1}}) {
		t.Errorf("%+v", a)
	}
	if a := call(400*ms, 2); !a.Refused || a.Counts[0].Left != 1 {
		t.Errorf("%+v", a)
	}
	if a := call(1100*ms, 2); a.Refused || a.Counts[0].Left != 5 {
		t.Errorf("%+v, and what others used has ended", a)
	}
	if m.Total() != 5 || m.Refused() != 1 || m.Peak() != 7 { // attempts, refused ones included
		t.Errorf("total %d, refused %d, peak %d", m.Total(), m.Refused(), m.Peak())
	}
	if n := slices.IndexFunc(m.Admitted(), func(e Entry) bool { return e.Others }); n != 0 {
		t.Errorf("%v", m.Admitted())
	}
}
