package check

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestExercisedTellsWhatIsMissing: a run that had everything lacks nothing; without one of the parts it is told which.
func TestExercisedTellsWhatIsMissing(t *testing.T) {
	const fault = "hostile-caller"
	lacks := func(spoil func(r *run)) []string {
		r := &run{facts: &history.Facts{Mix: "edge", Faults: []string{fault}, Demanded: []string{fault}}, verdicts: map[string]*Verdict{}}
		r.faults = []*history.Fault{{Kind: fault, Began: 10, Ended: 20, Refused: map[string]int64{}}}
		for _, budget := range hostile.Shared() {
			r.faults[0].Refused[budget] = 1
		}
		for _, client := range []string{"policy-0-1", "chain-0-1", "tasks-0-1"} {
			r.calls = append(r.calls, &call{Call: &history.Call{Client: client, Sent: 11, Returned: 12}, request: &quotav1.ReserveRequest{RequestId: &quotav1.RequestId{}}})
		}
		r.calls = append(r.calls, &call{
			Call: &history.Call{Client: "hot-0-1", Sent: 13, Returned: 14, Error: &history.Error{Canceled: true}}, request: &quotav1.ReserveRequest{},
		})
		spoil(r)
		r.exercised(&replayed{})
		return r.verdict("exercised", "").Examples
	}
	whole := lacks(func(*run) {})
	for name, c := range map[string]struct {
		spoil func(r *run)
		want  string
	}{
		"a fault that was never drawn":   {func(r *run) { r.faults = nil }, "the fault hostile-caller was asked for and never injected"},
		"a fault that could not be done": {func(r *run) { r.faults[0].Failed = "no" }, "the fault hostile-caller was asked for and never injected"},
		"no policy at work":              {func(r *run) { r.calls[0].Returned = 9 }, "no call of the profile policy was answered while the fault hostile-caller lasted"},
		"no workflow at work":            {func(r *run) { r.calls[1].Sent = 21 }, "no call of the profile chain was answered while the fault hostile-caller lasted"},
		"no task at work":                {func(r *run) { r.calls[2].Error = &history.Error{} }, "no call of the profile tasks was answered while the fault hostile-caller lasted"},
		"a budget was never full":        {func(r *run) { delete(r.faults[0].Refused, "leases") }, "no hostile caller was refused more leases"},
		"nobody left":                    {func(r *run) { r.calls[3].Error.Canceled = false }, "no caller went away before the answer to a request without an id"},
		"who left can ask again": {
			func(r *run) { r.calls[3].request = &quotav1.ReserveRequest{RequestId: &quotav1.RequestId{}} }, "no caller went away before the answer to a request without an id",
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
