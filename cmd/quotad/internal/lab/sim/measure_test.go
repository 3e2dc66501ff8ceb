package sim

import (
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
)

const second = int64(time.Second)

// TestUse_OfRate: ten calls a period of 10 s, wanted from 0 to 40 s, with 2 s from a grant to a call's end. The ideal
// counts 10 x 10/12 at any time. Calls at 0, 12, 24 and 36 s are exactly that, except at the edges.
func TestUse_OfRate(t *testing.T) {
	m := provider.NewMeter(provider.Rule{Kind: provider.Sliding, Limit: 10, Period: 10 * time.Second}, 0, 100*second, 10)
	p := provider.New([]*provider.Meter{m}, nil, false)
	for _, at := range []int64{0, 12, 24, 36} {
		p.Arrive(at*second, []provider.Amount{{N: 10}})
	}
	u := use{rule: m.Rule(), whole: 10, lag: 2 * second, wanting: []stretch{{0, 40 * second}}, end: 100 * second}
	part, measured := u.measure(m)
	// Measured from 10 to 40 s, of which 12-22, 24-34 and 36-40 have ten: 24 s of 30, 10 x 24/30 = 8 of 8.33.
	if measured != 30*time.Second || part < 0.9599 || part > 0.9601 {
		t.Errorf("%.4f in %v; want 0.96 in 30s", part, measured)
	}
	u.closed = []stretch{{20 * second, 25 * second}} // nothing is measured for a period after a cooldown
	if part, measured = u.measure(m); measured != 15*time.Second {
		t.Errorf("%.4f in %v; want 10-20 s and 35-40 s", part, measured)
	}
}

// TestUse_OfWindow: a window is measured by its use at its end, if there is demand then.
func TestUse_OfWindow(t *testing.T) {
	m := provider.NewMeter(provider.Rule{Kind: provider.Calendar, Limit: 10, Period: 100 * time.Second}, 0, 1000*second, 10)
	p := provider.New([]*provider.Meter{m}, nil, false)
	for _, call := range []struct{ at, n int64 }{{5, 4}, {105, 9}, {205, 10}, {305, 3}} {
		p.Arrive(call.at*second, []provider.Amount{{N: call.n}})
	}
	u := use{rule: m.Rule(), whole: 10, wanting: []stretch{{98 * second, 201 * second}, {290 * second, 299 * second}}, end: 390 * second}
	// The first two windows end in demand, with 4 and 9 used; the third does not, and the fourth is not over.
	if part, measured := u.measure(m); part != 0.65 || measured != 200*time.Second {
		t.Errorf("%.4f in %v; want 0.65 in 200s", part, measured)
	}
}

func TestStretches(t *testing.T) {
	joined := merged([]stretch{{0, 5}, {5, 7}, {9, 10}})
	if len(joined) != 2 || joined[0] != (stretch{0, 7}) {
		t.Errorf("merged: %v", joined)
	}
	left := without([]stretch{{0, 10}, {20, 30}}, []stretch{{2, 4}, {8, 22}, {29, 40}})
	want := []stretch{{0, 2}, {4, 8}, {22, 29}}
	if len(left) != len(want) {
		t.Fatalf("without: %v, want %v", left, want)
	}
	for i := range want {
		if left[i] != want[i] {
			t.Errorf("without: %v, want %v", left, want)
		}
	}
}

func TestJainAndQuantile(t *testing.T) {
	if j := jain([]float64{3, 3, 3}); j != 1 {
		t.Errorf("all the same: %v", j)
	}
	if j := jain([]float64{4, 0, 0, 0}); j != 0.25 {
		t.Errorf("one has all: %v", j)
	}
	waits := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	if q := quantile(waits, 0.5); q != 5 {
		t.Errorf("median %d", q)
	}
	if q := quantile(waits, 0.99); q != 10 {
		t.Errorf("p99 %d", q)
	}
}

// TestWaits_EndWhenCallIsSent: a call in flight when the run ends has waited until it was sent, on both sides.
func TestWaits_EndWhenCallIsSent(t *testing.T) {
	f, err := fleet.Parse("fleet.yaml", []byte(`for: 1m
quotas: [{name: q, rate: {limit: 10, per: 1m}}]
agents: [{name: a, use: {q: 1}, latency: 1h}]
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []Side{Alone, Governed} {
		r, err := Run(t.Context(), f, side, 1)
		if err != nil {
			t.Fatal(err)
		}
		if longest := r.Classes[1].Longest; len(r.Classes[1].Waits) != 1 || longest > 100*time.Millisecond {
			t.Errorf("%s: %d waits, the longest %v", side, len(r.Classes[1].Waits), longest)
		}
	}
}

// TestWaits_OfUnservableCallLastToTheEnd: a call that can never be granted and has no limit to its patience waits for the rest
// of the run.
func TestWaits_OfUnservableCallLastToTheEnd(t *testing.T) {
	f, err := fleet.Parse("fleet.yaml", []byte(`for: 10m
quotas: [{name: q, rate: {limit: 10, per: 1m}}]
agents: [{name: a, start: 4m, tasks: 1, use: {q: 11}, patience: forever}]
`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), f, Governed, 1)
	if err != nil {
		t.Fatal(err)
	}
	if longest := r.Classes[1].Longest; r.GivenUp != 1 || longest != 6*time.Minute {
		t.Errorf("%d given up, the longest after %v; want 6m", r.GivenUp, longest)
	}
}

// TestCommands_AreCounted: the number of commands is counted. A call needs two if each asks, a fraction of one from
// batches, and none alone.
func TestCommands_AreCounted(t *testing.T) {
	for _, c := range []struct {
		side        Side
		batch       string
		least, most float64
	}{{Alone, "false", 0, 0}, {Governed, "false", 2, 2.2}, {Governed, "true", 0.01, 0.8}} {
		f, err := fleet.Parse("fleet.yaml", []byte(`for: 2m
quotas: [{name: q, rate: {limit: 12000, per: 1m}}]
agents: [{name: a, count: 5, every: 1m, calls: 500, use: {q: 1}, latency: 50ms-150ms, batch: `+c.batch+`}]
`))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), f, c.side, 1)
		if err != nil {
			t.Fatal(err)
		}
		each := float64(r.Commands) / float64(r.Served)
		if each < c.least || each > c.most || r.Entries > 2*r.Commands || (r.Entries > 0) != (r.Commands > 0) {
			t.Errorf("%s, batch: %s: %d commands in %d entries for %d calls", c.side, c.batch, r.Commands, r.Entries, r.Served)
		}
	}
}
