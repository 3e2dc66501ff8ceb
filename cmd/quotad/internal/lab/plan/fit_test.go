package plan

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// TestFits_AreTheSmallestThatFit: with the suggested limit a fleet is no longer overloaded, and with one less it is.
func TestFits_AreTheSmallestThatFit(t *testing.T) {
	seen := 0
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		paper, err := OnPaper(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, fit := range (&Report{Paper: paper}).fits() {
			if fit.Why != whyOverloaded || len(paper.Starved) > 0 {
				continue
			}
			seen++
			for _, q := range f.Quotas {
				if q.Name != fit.Quota {
					continue
				}
				wanted := newDemands(f)
				for limit, want := range map[int64]bool{fit.Limit: false, fit.Limit - 1: true} {
					setLimit(q, limit)
					if overloaded := judgeQuota(wanted, q).Verdict == Overloaded; overloaded != want {
						t.Fatalf("%s with a limit of %d, for a fit of %+v: overloaded is %v", q.Name, limit, fit, overloaded)
					}
				}
				setLimit(q, fit.Now)
			}
		}
	})
	t.Logf("%d overloaded quotas were judged", seen)
}

// TestReport_NamesFittingLimits: the report says which changes make a fleet fit, and which classes cancelled calls.
func TestReport_NamesFittingLimits(t *testing.T) {
	for _, c := range []struct{ name, fleet, want string }{
		{
			"overloaded",
			"quotas: [{name: q, headroom: 0.2, rate: {limit: 1000, per: 1m}}]\nagents: [{name: a, every: 10s, latency: 10s, use: {q: 200}}]",
			"q fits with a limit of 1500 (now 1000), or with what is scheduled at 66 % of its pace",
		},
		{"fits", "quotas: [{name: q, rate: {limit: 1000, per: 1m}}]\nagents: [{name: a, every: 1m, latency: 1s, use: {q: 3}}]", ""},
	} {
		paper := judged(t, c.fleet)
		report := &Report{Title: c.name, Paper: paper}
		report.Fits = report.fits()
		var out bytes.Buffer
		if err := report.Write(&out); err != nil {
			t.Fatal(err)
		}
		if fits := strings.Contains(out.String(), "To make it fit"); fits != (c.want != "") || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: the report says\n%s", c.name, out.String())
		}
	}
	side := func(givenUp ...int64) *sim.Result {
		r := &sim.Result{}
		for i, n := range givenUp {
			r.Classes = append(r.Classes, sim.ClassResult{Class: sim.Classes[i], Calls: 1, GivenUp: n})
			r.GivenUp += n
		}
		return r
	}
	burst := judged(t,
		"quotas: [{name: q, rate: {limit: 1000, per: 1m}}]\nagents: "+
			"[{name: a, every: 30s, latency: 1s, use: {q: {estimate: 400, actual: 100-300}}}]")
	report := &Report{Title: "bursts", Paper: burst, Runs: []Runs{{Seed: 1, Alone: side(0, 7, 2), Governed: side(0, 0, 3)}}}
	report.Fits = report.fits()
	var out bytes.Buffer
	if err := report.Write(&out); err != nil {
		t.Fatal(err)
	}
	said := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"calls given up 9 3", "of them critical 0 0", "of them standard 7 0", "of them background 2 3",
		"q takes all bursts at once with a limit of 1200 (now 1000)",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}
