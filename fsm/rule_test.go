package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestApplyQuotas_RefusesImpossibleQuotas: they are refused as a whole, with the reason, and change nothing.
func TestApplyQuotas_RefusesImpossibleQuotas(t *testing.T) {
	child := func(name, parent string) *logpb.Quota {
		return with(rateOf(name, 10, minute), func(q *logpb.Quota) { q.Parent = parent })
	}
	burst := func(limit, per, burst, spendBy int64) *logpb.Quota {
		return &logpb.Quota{Name: "b", SpendByNs: spendBy, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit, PerNs: per, Burst: burst}}}
	}
	for name, definitions := range map[string][]*logpb.Quota{
		"no rule":                   {{Name: "x"}},
		"no name":                   {rateOf("", 1, minute)},
		"a name that begins with /": {rateOf("/a", 1, minute)},
		"a name with blanks":        {rateOf("a b", 1, minute)},
		"the same name twice":       {rateOf("a", 1, minute), rateOf("a", 2, minute)},
		"a negative limit":          {rateOf("a", -1, minute)},
		"a limit beyond 2^53":       {rateOf("a", 1<<53, minute)},
		"no period":                 {rateOf("a", 1, 0)},
		"a negative period":         {rateOf("a", 1, -second)},
		"a parent that is missing":  {child("a", "nobody")},
		"its own parent":            {child("a", "a")},
		"a cycle of three":          {child("a", "b"), child("b", "c"), child("c", "a")},
		"all of it as headroom":     {with(rateOf("a", 10, minute), func(q *logpb.Quota) { q.HeadroomPpm = 1_000_000 })},
		"a burst that is too small": {burst(6000, minute, 1, 0)},
		"a window of no length":     {{Name: "a", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 1}}}},
		"a skew of half a window": {{Name: "a", Rule: &logpb.Quota_Window{Window: &logpb.Window{
			Limit: 1, Every: logpb.Every_EVERY_HOUR, SkewNs: 30 * minute,
		}}}},
		"a transit as long as spend-by": {with(rateOf("a", 10, minute), func(q *logpb.Quota) { q.SpendByNs, q.TransitNs = second, second })},
		"a negative estimate":           {with(rateOf("a", 10, minute), func(q *logpb.Quota) { q.DefaultEstimate = -1 })},
		"slots under a rate":            {rateOf("p", 10, minute), under(slotsOf("p/c", 1), "p")},
		"a rate under slots":            {slotsOf("p", 10), under(rateOf("p/c", 1, minute), "p")},
		"a transit that its burst cuts": {with(burst(600, minute, 2, 0), func(q *logpb.Quota) { q.TransitNs = second })},
		"one wrong among good ones":     {rateOf("good", 10, minute), child("a", "nobody")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.do(applyQuotas(definitions...)).GetFailure()
			if f == nil || f.Reason != logpb.Reason_REASON_IMPOSSIBLE_QUOTA && f.Reason != logpb.Reason_REASON_INVALID {
				t.Fatalf("%v", f)
			}
			if w.m.State().Counts().Quotas != 0 {
				t.Fatal("something was applied")
			}
		})
	}
}

// TestApplyQuotas_Changes: a limit can change while there are leases; a kind cannot; a quota in use is not deleted.
func TestApplyQuotas_Changes(t *testing.T) {
	remove := func(name string, force bool) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: name, Force: force}}}
	}
	tell(t, []story{
		{"a lowered limit takes nothing away and grants nothing until there is room", []*logpb.Quota{rateOf("r", 10, minute)}, []line{
			{0, asks("a", 0, itemOf("r", 8)), "lease 1: r=8 until 5m0s"},
			{0, applyQuotas(rateOf("r", 4, minute)), "applied"},
			{0, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 5s"},
			{0, consumes(1, 1, itemOf("r", 5)), "op 1 spends r=5 by 2s"},
			{0, releases(1), "back r=3; ended"},
			{0, asks("b", 0, itemOf("r", 5)), "NEVER_FITS r"},
			{0, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 1m2.400000001s"},
			{0, applyQuotas(rateOf("r", 20, minute)), "applied"},
			{0, asks("b", 0, itemOf("r", 15)), "lease 2: r=15 until 5m0s"},
		}},
		{"another kind makes another quota", []*logpb.Quota{rateOf("r", 10, minute)}, []line{
			{0, applyQuotas(slotsOf("r", 10)), "! KIND_CHANGE"},
			{0, remove("r", false), "applied"},
			{0, applyQuotas(slotsOf("r", 10)), "applied"},
		}},
		{"what is in use stays, unless forced", []*logpb.Quota{rateOf("r", 10, minute), slotsOf("s", 1)}, []line{
			{0, asks("a", 0, itemOf("r", 8), itemOf("s", 1)), "lease 1: r=8 s=1 until 5m0s"},
			{0, remove("r", false), "! QUOTA_IN_USE"},
			{0, remove("r", true), "applied"},
			{0, consumes(1, 1, itemOf("r", 1)), "! NOT_HELD"},
			{0, renews(1, 0), "until 5m0s"},
			{0, remove("nowhere", false), "! UNKNOWN_QUOTA"},
		}},
		{"what is in use does not move to another parent", []*logpb.Quota{rateOf("p", 10, minute), rateOf("c", 10, minute)}, []line{
			{0, asks("a", minute, itemOf("c", 1)), "lease 1: c=1 until 1m0s"},
			{0, applyQuotas(under(rateOf("c", 10, minute), "p")), "! QUOTA_IN_USE"},
			{minute, applyQuotas(under(rateOf("c", 10, minute), "p")), "applied"},
			{0, asks("a", 0, itemOf("c", 10)), "lease 2: c=10 until 6m0s"},
			{0, asks("a", 0, itemOf("p", 1)), "EXHAUSTED p again at 1m5s"},
		}},
		{"a child draws on its parent", []*logpb.Quota{
			rateOf("org", 10, minute), with(rateOf("org/a", 8, minute), func(q *logpb.Quota) { q.Parent = "org" }),
			with(rateOf("org/b", 8, minute), func(q *logpb.Quota) { q.Parent = "org" }),
		}, []line{
			{0, asks("a", 0, itemOf("org/a", 7)), "lease 1: org/a=7 until 5m0s"},
			{0, asks("b", 0, itemOf("org/b", 4)), "EXHAUSTED org again at 5s"},
			{0, asks("b", 0, itemOf("org/b", 3)), "lease 2: org/b=3 until 5m0s"},
			{0, releases(1, itemOf("org/a", 2)), "back org/a=2"},
			{0, asks("c", 0, itemOf("org", 2)), "lease 3: org=2 until 5m0s"},
			{0, remove("org", false), "! QUOTA_IN_USE"},
		}},
	})
}
