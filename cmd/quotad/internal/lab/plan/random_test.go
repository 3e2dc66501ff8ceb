package plan

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestRandomFleets_AreNeverRefused: for any fleet, no limit refuses a call that quotad granted, no call arrives late, and no client's
// command is an error. Retry budgets are kept, and workflows run in order. Fleets have every kind of quota, policies,
// holds, batches, crashes, cuts, outages, and leaders that are killed.
func TestRandomFleets_AreNeverRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		r, err := sim.Run(t.Context(), f, sim.Governed, rapid.Uint64Range(1, 1000).Draw(t, "seed"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Refused > 0 || r.Late > 0 || len(r.Failures) > 0 {
			t.Fatalf("refused %d, late %d, errors %v", r.Refused, r.Late, r.Failures)
		}
		fail := func(format string, values ...any) { t.Fatalf(format, values...) }
		judgeBudgets(r, fail)
		judgeWorkflows(r, fail)
		for i := range r.Quotas {
			if q := &r.Quotas[i]; q.Peak > q.Limit {
				t.Fatalf("%s: %d of %d in one period", q.Quota, q.Peak, q.Limit)
			}
		}
	})
}

func drawFleet(t *rapid.T) *fleet.Fleet {
	f := &fleet.Fleet{
		Begins: time.Date(2026, 1, 5, 11, 57, 0, 0, time.UTC), For: 8 * time.Minute,
		Network: fleet.Span{Least: time.Millisecond, Most: 40 * time.Millisecond},
		Cluster: fleet.Cluster{
			Commit:   fleet.Span{Least: time.Millisecond, Most: 8 * time.Millisecond},
			Hop:      fleet.Span{Least: 100 * time.Microsecond, Most: 2 * time.Millisecond},
			Failover: fleet.Span{Least: 500 * time.Millisecond, Most: 3 * time.Second},
		},
	}
	for range rapid.IntRange(0, 3).Draw(t, "kills") {
		f.Cluster.Kills = append(f.Cluster.Kills, time.Duration(rapid.IntRange(1, 460).Draw(t, "kill"))*time.Second)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "quotas") {
		f.Quotas = append(f.Quotas, drawQuota(t, fmt.Sprintf("q%d", i)))
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "agents") {
		f.Agents = append(f.Agents, drawAgent(t, f, fmt.Sprintf("a%d", i)))
	}
	if rapid.Bool().Draw(t, "outages") {
		drawOutages(t, f)
	}
	if rapid.Bool().Draw(t, "a chain") {
		drawChain(t, f)
	}
	return f
}

// said are outputs of tools with their meanings; none names a wrong time.
var said = []fleet.Outage{
	{Says: "You've hit your usage limit. Try again in {left}.", Means: fleet.PlanExhausted},
	{Says: "API Error: Request rejected (429)", Means: fleet.Saturated},
	{Says: "segmentation fault", Means: fleet.Failed},
	{},
}

func drawOutages(t *rapid.T, f *fleet.Fleet) {
	for range rapid.IntRange(1, 2).Draw(t, "outages") {
		o := rapid.SampledFrom(said).Draw(t, "said")
		o.Quota = rapid.SampledFrom(f.Quotas).Draw(t, "quota").Name
		o.At, o.For = time.Duration(rapid.IntRange(1, 400).Draw(t, "at"))*time.Second,
			time.Duration(rapid.IntRange(1, 120).Draw(t, "for"))*time.Second
		f.Provider.Outages = append(f.Provider.Outages, o)
	}
}

// drawChain makes the agents a chain, in which each continues the work of the one before, as a workflow.
func drawChain(t *rapid.T, f *fleet.Fleet) {
	workflow := &quotav1.Workflow{Name: "chain", Threshold: 1, Calm: durationpb.New(10 * time.Second)}
	for i, a := range f.Agents {
		a.Count = 1
		step := &quotav1.WorkflowStep{Holder: a.Name}
		if i > 0 {
			step.After = []string{f.Agents[i-1].Name}
			a.Follows = step.After
		}
		workflow.Steps = append(workflow.Steps, step)
	}
	if len(workflow.Steps) > 1 {
		workflow.Threshold = int32(rapid.IntRange(1, len(workflow.Steps)).Draw(t, "threshold"))
		f.Workflows = append(f.Workflows, workflow)
	}
}

func drawQuota(t *rapid.T, name string) *quotav1.Quota {
	q := &quotav1.Quota{Name: name}
	limit := rapid.Int64Range(6, 40).Draw(t, "limit")
	policy := &quotav1.Policy{Ageing: durationpb.New(time.Minute)}
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		per := rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute}).Draw(t, "per")
		q.Rule = &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(per)}}
	case 1:
		q.Rule = &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(time.Minute), Burst: 5}}
	case 2:
		q.Rule = &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: limit}}
	default:
		anchor := rapid.SampledFrom([]quotav1.Anchor{quotav1.Anchor_ANCHOR_CALENDAR, quotav1.Anchor_ANCHOR_PROVIDER}).Draw(t, "anchor")
		q.Rule = &quotav1.Quota_Window{Window: &quotav1.Window{Limit: 4 * limit, Every: "2m0s", Anchor: anchor}}
		policy.Zones = rapid.SampledFrom([]quotav1.Zones{
			quotav1.Zones_ZONES_UNSPECIFIED, quotav1.Zones_ZONES_SMOOTH, quotav1.Zones_ZONES_STRICT,
		}).Draw(t, "zones")
		if rapid.Bool().Draw(t, "shares") {
			policy.Shares = &quotav1.Shares{Critical: 0.4, Standard: 0.35, Background: 0.25}
		}
	}
	if rapid.Bool().Draw(t, "policy") {
		q.Policy = policy
	}
	return q
}

func drawAgent(t *rapid.T, f *fleet.Fleet, name string) *fleet.Agent {
	a := &fleet.Agent{
		Name: name, Count: rapid.IntRange(1, 4).Draw(t, "count"), Weight: rapid.IntRange(1, 3).Draw(t, "weight"), Overlap: 1,
		Class:    quotav1.Class(rapid.IntRange(1, 3).Draw(t, "class")),
		Calls:    rapid.IntRange(1, 20).Draw(t, "calls"),
		Parallel: rapid.IntRange(1, 4).Draw(t, "parallel"),
		Think:    fleet.Span{Most: time.Duration(rapid.IntRange(0, 3000).Draw(t, "think")) * time.Millisecond},
		Latency:  fleet.Span{Least: 10 * time.Millisecond, Most: time.Duration(rapid.IntRange(20, 9000).Draw(t, "latency")) * time.Millisecond},
		Patience: rapid.SampledFrom([]time.Duration{5 * time.Second, time.Minute, fleet.Forever}).Draw(t, "patience"),
		HoldTTL:  time.Minute,
	}
	slots := false
	for _, q := range f.Quotas {
		if len(a.Uses) > 0 && rapid.Bool().Draw(t, "skip") {
			continue
		}
		use := fleet.Use{Quota: q.Name, Estimate: rapid.Int64Range(1, 3).Draw(t, "amount")}
		if slots = slots || q.GetSlots() != nil; q.GetSlots() == nil && rapid.Bool().Draw(t, "actual") {
			use.Actual = fleet.Range{Least: 0, Most: use.Estimate}
		}
		a.Uses = append(a.Uses, use)
	}
	if !slots { // a round of calls would need a slot each
		switch rapid.IntRange(0, 2).Draw(t, "caller") {
		case 1:
			a.Hold = 2
		case 2:
			a.Batch = true
		}
	}
	if a.Hold == 0 && !a.Batch && rapid.Bool().Draw(t, "retry") {
		a.Retry = &fleet.Retry{
			MaxFailures: rapid.IntRange(1, 3).Draw(t, "failures"), TTL: 20 * time.Second,
			Ends: []fleet.End{{Task: 1, Times: 1, Says: "error: no", Exit: 1, Means: fleet.Failed}},
		}
		if rapid.Bool().Draw(t, "told") {
			a.Retry.Quotas = []string{a.Uses[0].Quota}
		}
		if rapid.Bool().Draw(t, "load") {
			a.Retry.Load = a.Uses[:1]
		}
	}
	if rapid.Bool().Draw(t, "accidents") {
		a.Crashes = []fleet.Absence{{At: 3 * time.Minute, For: time.Minute}}
		a.Cuts = []fleet.Absence{{At: 5 * time.Minute, For: 2 * time.Minute}}
	}
	return a
}
