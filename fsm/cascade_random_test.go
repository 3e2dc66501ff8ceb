package fsm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// crossed are workflows that share holders, in orders that cross.
func crossed(t *rapid.T) []*logpb.Workflow {
	all := []*logpb.Workflow{
		chain("one", "a", "b", "c", "d"), graph("two", after("d"), after("b", "d"), after("x", "d")),
		graph("three", after("x"), after("c"), after("a", "x", "c")),
	}
	for _, w := range all {
		w.Threshold = rapid.Int32Range(1, 3).Draw(t, "threshold")
		w.WithinNs, w.CalmNs = 30*second, rapid.SampledFrom([]int64{5 * second, minute}).Draw(t, "calm")
		w.BatonTimeNs, w.PauseNs = rapid.SampledFrom([]int64{3 * second, minute}).Draw(t, "turn"), 20*second
	}
	return all
}

// cascading is a fleet whose members belong to workflows, on quotas with policies.
type cascading struct {
	*rapid.T
	w       *world
	members []string
	// since is the newest fence when each workflow became sequential; 0: it is parallel.
	since  map[string]uint64
	leases []*logpb.Granted
	newest uint64
	// granted counts grants by holder, switched the changes to sequential.
	granted  map[string]int
	switched int
}

func newCascading(t *rapid.T) *cascading {
	c := &cascading{T: t, w: newWorld(t), members: []string{"a", "b", "c", "d", "x"}, since: map[string]uint64{}, granted: map[string]int{}}
	c.do(applyQuotas(
		policed(rateOf("r", 20, 10*second), &logpb.Policy{
			RampNs: 10 * second, AgeingNs: 20 * second, Breaker: &logpb.Breaker{Failures: 3, ClosedNs: 10 * second},
		}),
		policed(hourly("h", 2000), &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH, Shares: fleetShares()}),
		slotsOf("s", 2), rateOf("plain", 50, 10*second), rateOf("small", 3, 10*second),
	))
	c.do(holders(&logpb.HolderRule{Pattern: "a", Class: ledger.ClassCritical}, &logpb.HolderRule{Pattern: "d", Class: ledger.ClassBackground}))
	c.do(workflows(crossed(t)...))
	return c
}

// do carries out commands and checks the invariants after the entry.
func (c *cascading) do(commands ...*logpb.Command) []*logpb.Result {
	results := c.w.apply(commands...)
	for i := range c.w.last.Events {
		e := &c.w.last.Events[i]
		switch e.Kind {
		case effect.EventGranted:
			c.newest = max(c.newest, e.Fence)
			c.granted[e.Holder]++
			if g := e.Result.GetGranted(); g != nil {
				c.leases = append(c.leases, g)
			}
		case effect.EventSequential:
			c.since[e.Workflow] = c.newest
			c.switched++
		case effect.EventParallel:
			delete(c.since, e.Workflow)
		default:
		}
	}
	for _, r := range results {
		if g := r.GetGranted(); g != nil {
			c.leases = append(c.leases, g)
		}
	}
	c.check()
	return results
}

// check: in each sequential workflow, at most one member has live leases granted since the switch.
func (c *cascading) check() {
	state := c.w.m.State()
	for _, v := range state.Workflows("", "", 100, state.Clock()) {
		since, sequential := c.since[v.Definition.Name]
		if sequential != v.Sequential {
			c.Fatalf("%s is sequential: %v, by its events: %v", v.Definition.Name, v.Sequential, sequential)
		}
		var live []string
		for _, step := range v.Steps {
			if slices.ContainsFunc(state.Leases(step.Holder, "", 0, 1000, state.Clock()),
				func(l LeaseView) bool { return sequential && l.Fence > since }) {
				live = append(live, step.Holder)
			}
		}
		if len(live) > 1 {
			c.Fatalf("%v have leases of %s at a time", live, v.Definition.Name)
		}
	}
	checkCeiling(c.T, c.w, true)
}

// act makes a random member use its leases, or ask for one.
func (c *cascading) act() {
	if rapid.IntRange(0, 9).Draw(c.T, "reborn") == 0 {
		c.w.reborn()
	}
	var g *logpb.Granted
	if len(c.leases) > 0 {
		g = c.leases[len(c.leases)-1-rapid.IntRange(0, min(len(c.leases)-1, 8)).Draw(c.T, "lease")]
	}
	switch kind := rapid.IntRange(0, 9).Draw(c.T, "kind"); {
	case kind < 5 || g == nil:
		a := ask(rapid.SampledFrom(append(c.members, "outsider")).Draw(c.T, "holder"))
		for _, name := range []string{"r", "h", "s", "plain", "small"} {
			if rapid.IntRange(0, 3).Draw(c.T, name) == 0 {
				a.Items = append(a.Items, itemOf(name, rapid.Int64Range(1, 2).Draw(c.T, "amount")))
			}
		}
		if len(a.Items) == 0 {
			a.Items = append(a.Items, itemOf("plain", 1))
		}
		a.TtlNs = rapid.SampledFrom([]int64{second, 20 * second, 5 * minute}).Draw(c.T, "ttl")
		a.WaitNs = rapid.SampledFrom([]int64{0, 0, 10 * second, 5 * minute}).Draw(c.T, "wait")
		a.Consume, a.Resume = rapid.Bool().Draw(c.T, "consume"), rapid.IntRange(0, 9).Draw(c.T, "resume") == 0
		c.do(reserve(a))
	case kind < 6:
		c.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
	case kind < 7:
		c.do(renew(&logpb.Renew{Lease: g.Lease, Fence: g.Fence, TtlNs: rapid.SampledFrom([]int64{second, hour}).Draw(c.T, "ttl")}))
	case kind < 8:
		c.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: rapid.Uint64Range(2, 1000).Draw(c.T, "op")}))
	default:
		wait := rapid.Int64Range(0, 20*second).Draw(c.T, "retry after")
		cause := rapid.SampledFrom([]logpb.Cause{logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_ACCOUNT}).Draw(c.T, "cause")
		c.do(reports(g.Lease, 1, signal(g.Items[0].Quota, cause, retryAfter(wait))))
	}
}

// TestRandomCascades_UnderPolicies: with zones, shares, ageing, ramps, breakers and cooldowns, at most one member of a
// sequential workflow has leases. Totals are the sums of their parts, and nothing exceeds usable. Afterwards each
// member that continues to ask is served again and again: none is blocked permanently.
func TestRandomCascades_UnderPolicies(t *testing.T) {
	switched := 0
	rapid.Check(t, func(rt *rapid.T) {
		c := newCascading(rt)
		for range rapid.IntRange(20, 120).Draw(rt, "steps") {
			c.w.now += rapid.SampledFrom([]int64{0, 100 * millisecond, second, 7 * second, 30 * second}).Draw(rt, "pass")
			c.act()
		}
		switched += c.switched
		// Now all ask for a plentiful quota, wait or retry, and one of them stays limited.
		patient := map[string]bool{}
		for _, name := range c.members {
			patient[name] = rapid.Bool().Draw(rt, name+" waits")
		}
		victim := rapid.SampledFrom([]string{"", "a", "b", "c", "d", "x"}).Draw(rt, "limited without an end")
		for _, round := range []string{"first", "second"} {
			clear(c.granted)
			for range 150 {
				c.w.now += 2 * second
				c.askAll(patient, victim)
			}
			for _, name := range c.members {
				if name != victim && c.granted[name] == 0 {
					rt.Fatalf("%s was granted nothing in the %s five minutes: %v, limited is %q", name, round, c.granted, victim)
				}
			}
		}
	})
	if switched < 10 {
		t.Errorf("only %d workflows went one at a time", switched)
	}
}

// askAll releases some leases and makes every member ask again; the victim asks for more than there is.
func (c *cascading) askAll(patient map[string]bool, victim string) {
	var commands []*logpb.Command
	state := c.w.m.State()
	for _, l := range state.Leases("", "", 0, 1000, state.Clock()) {
		if int64(l.ID)%3 == c.w.now/second%3 { // a lease lasts up to 6 s
			commands = append(commands, release(&logpb.Release{Lease: l.ID, Fence: l.Fence}))
		}
	}
	for _, name := range c.members {
		a := ask(name, itemOf("plain", 1))
		if name == victim {
			a = ask(name, itemOf("plain", 1), itemOf("small", 1), itemOf("h", 2000))
		}
		a.TtlNs = 20 * second
		if patient[name] && name != victim {
			a.WaitNs = 5 * minute
			if waitsForPlain(state, name) {
				continue
			}
		}
		commands = append(commands, reserve(a))
	}
	c.do(commands...)
}

// waitsForPlain reports whether a holder waits for the plentiful quota; it may still wait for the one that limits it.
func waitsForPlain(s *State, name string) (found bool) {
	s.queue.eachOf(name, func(w *waiter) bool {
		found = len(w.req.Items) == 1 && w.req.Items[0].Quota == "plain"
		return !found
	})
	return found
}

// TestRandomCascades replays the entries of random cascades on a twin without snapshots: same results, events and
// hashes.
func TestRandomCascades(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCascading(rt)
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			c.w.now += rapid.SampledFrom([]int64{0, millisecond, second, 10 * second, minute}).Draw(rt, "pass")
			c.act()
			if rapid.IntRange(0, 19).Draw(rt, "changed") == 0 {
				c.do(workflows())
				c.do(workflows(crossed(rt)...))
			}
		}
		twin := New()
		for i, data := range c.w.entries {
			twin.Follow(uint64(i+1), 1, data)
		}
		ledger, whole := c.w.m.State().Hash()
		twinLedger, twinWhole := twin.State().Hash()
		if ledger != twinLedger || whole != twinWhole {
			rt.Fatalf("the twins' hashes differ:\n%s\n%s", sayWorkflows(c.w.m.State()), sayWorkflows(twin.State()))
		}
	})
}

func sayWorkflows(s *State) (text string) {
	s.workflows.Records(func(record *logpb.SnapshotRecord) bool {
		text += fmt.Sprintln(record)
		return true
	})
	return text
}
