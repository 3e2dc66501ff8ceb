package check

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestInvited_ReservesWithoutAnID: each is in the log at most once for each time that it was sent, even if its caller left before the
// answer; those of a hostile caller are not recorded.
func TestInvited_ReservesWithoutAnID(t *testing.T) {
	logged := func(holder string) occurrence {
		return occurrence{index: 7, command: &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
			Holder: holder, Items: []*logpb.Item{{Quota: "q"}},
		}}}}
	}
	sent := func(holder string) *call {
		line := &history.Call{Error: &history.Error{Canceled: true}}
		request := &quotav1.ReserveRequest{Holder: holder, Items: []*quotav1.Item{{Quota: "q"}}}
		return &call{Call: line, request: request, parts: []part{{asked: apiAsked(request)}}}
	}
	for name, c := range map[string]struct {
		sent   []*call
		logged []occurrence
		want   int
	}{
		"once":                   {[]*call{sent("a")}, []occurrence{logged("a")}, 0},
		"never came in":          {[]*call{sent("a")}, nil, 0},
		"sent twice":             {[]*call{sent("a"), sent("a")}, []occurrence{logged("a"), logged("a")}, 0},
		"carried out twice":      {[]*call{sent("a")}, []occurrence{logged("a"), logged("a")}, 1},
		"sent by another":        {[]*call{sent("b")}, []occurrence{logged("a")}, 1},
		"of a hostile caller":    {nil, []occurrence{logged(history.Unrecorded + "a")}, 0},
		"of a machine's gateway": {nil, []occurrence{logged(history.Machine + "a")}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &run{calls: c.sent, verdicts: map[string]*Verdict{}}
			r.uninvited(&replayed{at: map[uint64][]occurrence{7: c.logged}})
			if v := r.verdict("invited", ""); v.Count != c.want {
				t.Errorf("%d violations: %v", v.Count, v.Examples)
			}
		})
	}
}
