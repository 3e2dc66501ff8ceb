package check

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/jepsen/model"
	"github.com/quotad/quotad/rpc/quotav1"
)

// missingIn is what exercised reports for a run of mix edge that had everything, after spoil.
func missingIn(spoil func(r *run, judged *model.Stats)) []string {
	r := &run{
		facts: &history.Facts{
			Mix: "edge", Faults: []string{hostileCaller}, Demanded: []string{hostileCaller}, Began: 1, Ended: 1 + int64(keptWithin),
		},
		verdicts: map[string]*Verdict{},
		faults:   []*history.Fault{{Kind: hostileCaller, Began: 10, Ended: 20, Full: true, Refused: map[string]int64{}}},
	}
	for _, budget := range slices.Concat(hostile.Shared(), hostile.Crowded()) {
		r.faults[0].Refused[budget] = 1
	}
	for _, client := range []string{"policy-0-1", "chain-0-1", "tasks-0-1"} {
		r.calls = append(r.calls, &call{
			Call: &history.Call{Client: client, Sent: 11, Returned: 12}, request: &quotav1.ReserveRequest{RequestId: &quotav1.RequestId{}},
		})
	}
	r.calls = append(r.calls, &call{
		Call: &history.Call{Client: "hot-0-1", Sent: 13, Returned: 14, Error: &history.Error{Canceled: true}}, request: &quotav1.ReserveRequest{},
	})
	rep := &replayed{judge: model.Stats{Lent: 1, Kept: 1}}
	spoil(r, &rep.judge)
	r.exercised(rep)
	return r.verdict("exercised", "").Examples
}

// TestExercised_NamesMissingParts: the checker reports nothing for a complete run, and each missing part by name.
func TestExercised_NamesMissingParts(t *testing.T) {
	lacks := func(spoil func(r *run)) []string { return missingIn(func(r *run, _ *model.Stats) { spoil(r) }) }
	whole := lacks(func(*run) {})
	for name, c := range map[string]struct {
		spoil func(r *run)
		want  string
	}{
		"a fault that was never drawn": {func(r *run) { r.faults = nil }, "the fault hostile-caller was asked for and never injected"},
		"a fault that could not be done": {
			func(r *run) { r.faults[0].Failed = "no" }, "the fault hostile-caller was asked for and never injected",
		},
		"no policy at work": {
			func(r *run) { r.calls[0].Returned = 9 }, "no call of the profile policy was answered while the fault hostile-caller lasted",
		},
		"no workflow at work": {
			func(r *run) { r.calls[1].Sent = 21 }, "no call of the profile chain was answered while the fault hostile-caller lasted",
		},
		"no task at work": {
			func(r *run) { r.calls[2].Error = &history.Error{} }, "no call of the profile tasks was answered while the fault hostile-caller lasted",
		},
		"a budget was never full": {func(r *run) { delete(r.faults[0].Refused, "leases") }, "no hostile caller was refused more leases"},
		"nobody left": {
			func(r *run) { r.calls[3].Error.Canceled = false }, "no caller went away before the answer to a request without an id",
		},
		"who left can ask again": {
			func(r *run) { r.calls[3].request = &quotav1.ReserveRequest{RequestId: &quotav1.RequestId{}} },
			"no caller went away before the answer to a request without an id",
		},
	} {
		if slices.Contains(whole, c.want) {
			t.Errorf("a whole run lacks %q", c.want)
		}
		if got := lacks(c.spoil); !slices.Contains(got, c.want) {
			t.Errorf("%s: %q is missing in %q", name, c.want, got)
		}
	}
}

// TestExercised_DemandsSharesAndCrowds: every run has rates with shares, so each run lends of them, and a longer one keeps for higher
// classes. An attack of full size asks for more streams and watchers than one caller may have, and is refused some.
func TestExercised_DemandsSharesAndCrowds(t *testing.T) {
	const (
		lent     = "nothing of a rate with shares was lent to a class below one that asks"
		kept     = "nothing of a rate with shares was kept for a higher class"
		streams  = "no hostile caller was refused more streams in an attack of full size"
		watchers = "no hostile caller was refused more watchers in an attack of full size"
	)
	for name, c := range map[string]struct {
		spoil func(r *run, judged *model.Stats)
		want  []string
	}{
		"a whole run":                     {func(*run, *model.Stats) {}, nil},
		"nothing was lent":                {func(_ *run, judged *model.Stats) { judged.Lent = 0 }, []string{lent}},
		"nothing was kept":                {func(_ *run, judged *model.Stats) { judged.Kept = 0 }, []string{kept}},
		"nothing was kept in a short run": {func(r *run, judged *model.Stats) { judged.Kept = 0; r.facts.Ended-- }, nil},
		"no stream refused":               {func(r *run, _ *model.Stats) { delete(r.faults[0].Refused, "streams") }, []string{streams}},
		"no watcher refused":              {func(r *run, _ *model.Stats) { r.faults[0].Refused["watchers"] = 0 }, []string{watchers}},
		"refused in a small attack only": {func(r *run, _ *model.Stats) {
			small := *r.faults[0]
			small.Full, small.Refused = false, map[string]int64{"streams": 1, "watchers": 1}
			r.faults = append(r.faults, &small)
			delete(r.faults[0].Refused, "streams")
			delete(r.faults[0].Refused, "watchers")
		}, []string{streams, watchers}},
		"no attack of full size": {func(r *run, _ *model.Stats) { r.faults[0].Full = false; delete(r.faults[0].Refused, "streams") }, nil},
		"one that failed":        {func(r *run, _ *model.Stats) { r.faults[0].Failed = "no"; delete(r.faults[0].Refused, "streams") }, nil},
	} {
		got := missingIn(c.spoil)
		for _, what := range []string{lent, kept, streams, watchers} {
			if slices.Contains(got, what) != slices.Contains(c.want, what) {
				t.Errorf("%s: %q is missing, want %q", name, got, c.want)
			}
		}
	}
}

// TestExercised_DemandsEachKindOfFile: a fault that came often enough must damage each kind of file; one that came less often need not.
func TestExercised_DemandsEachKindOfFile(t *testing.T) {
	const missing = "the fault cut-files hit no witness in 8 times"
	for name, c := range map[string]struct {
		times  int
		but    string
		failed string
		want   bool
	}{
		"each kind":             {8, "", "", false},
		"no witness":            {8, history.FileWitness, "", true},
		"no witness, few times": {7, history.FileWitness, "", false},
		"no snapshot":           {8, history.FileSnapshot, "", false},
		"those that failed":     {8, history.FileWitness, "no", false},
	} {
		got := missingIn(func(r *run, _ *model.Stats) {
			for n := range c.times {
				kind := history.FileKinds[n%len(history.FileKinds)]
				if kind == c.but {
					kind = history.FileLog
				}
				r.faults = append(r.faults, &history.Fault{Kind: "cut-files", Began: 10, Ended: 20, Damaged: kind, Failed: c.failed})
			}
		})
		if slices.Contains(got, missing) != c.want {
			t.Errorf("%s: missing are %q", name, got)
		}
	}
}
