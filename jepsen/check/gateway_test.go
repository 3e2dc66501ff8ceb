package check

import (
	"testing"
	"time"

	"github.com/quotad/quotad/jepsen/history"
)

// TestGateway_FindsEachFlaw: each forbidden behaviour of a gateway, planted into a good history.
func TestGateway_FindsEachFlaw(t *testing.T) {
	type observed struct {
		spends []*history.Spend
		run    *run
	}
	for name, c := range map[string]struct {
		change func(*observed)
		want   Outcome
	}{
		"nothing":                  {func(*observed) {}, ""},
		"an answer cut off":        {func(o *observed) { o.spends[0].Whole, o.run.asked[0].Whole = false, false }, ""},
		"a cut that looks whole":   {func(o *observed) { o.spends[0].Whole = false }, Fail},
		"an answer of nobody's":    {func(o *observed) { o.spends[0].ID = "b-9" }, Fail},
		"sent twice":               {func(o *observed) { o.spends[2].Status = 200 }, Fail},
		"sent twice after a break": {func(o *observed) { o.spends[2].Status, o.spends[2].Whole = 200, false }, Fail},
		"a key that was replaced":  {func(o *observed) { o.spends[1].Status = 401 }, Fail},
		"a call without an end":    {func(o *observed) { o.run.asked[1].Returned += int64(time.Minute) }, Fail},
		"a slot that stays held":   {func(o *observed) { o.run.facts.Held["openai/m/streams"] = 1 }, Fail},
		"no service after a fault": {func(o *observed) {
			o.run.faults = append(o.run.faults, &history.Fault{Kind: "gateway-killed", Ended: int64(100 * time.Second)})
		}, Fail},
		"a fault that did nothing": {func(o *observed) {
			o.run.faults = append(o.run.faults, &history.Fault{Kind: "gateway-killed", Ended: int64(100 * time.Second), Failed: "no"})
		}, ""},
	} {
		o := observed{
			spends: []*history.Spend{
				{ID: "a-0", Began: 11, Ended: 12, Status: 200, Whole: true},
				{ID: "a-1", Began: 13, Ended: 14, Status: 200, Whole: true},
				{ID: "a-2", Began: 15, Ended: 16, Status: 429},
				{ID: "a-2", Began: 17, Ended: 18, Status: 200, Whole: true},
			},
			run: newRun(history.Dir(t.TempDir())),
		}
		o.run.facts.Held, o.run.facts.Healed = map[string]int64{"openai/m/streams": 0}, 5
		for _, id := range []string{"a-0", "a-1", "a-2"} {
			o.run.asked = append(o.run.asked, &history.Asked{ID: id, Sent: 10, Returned: 20, Status: 200, Whole: true})
		}
		c.change(&o)
		o.run.gateway(o.spends)
		if v := o.run.verdict("gateway", ""); v.Outcome != c.want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestSlots_OfACallEndWhenItsAgentLeaves: the provider may notice a little later.
func TestSlots_OfACallEndWhenItsAgentLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		left bool
		want Outcome
	}{"it left": {true, ""}, "it stayed": {false, Fail}} {
		r := newRun(history.Dir(t.TempDir()))
		r.asked = []*history.Asked{{ID: "a-0", Returned: 50, Left: c.left}}
		v := &Verdict{}
		r.atOnce(v, []*history.Spend{{ID: "a-0", Began: 1, Ended: 90}, {ID: "a-1", Began: 60, Ended: 80}}, 1)
		if v.Outcome != c.want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
