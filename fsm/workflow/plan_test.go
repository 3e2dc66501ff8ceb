package workflow

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/logpb"
)

// chain returns a workflow in which each holder comes after the previous one.
func chain(name string, holders ...string) *logpb.Workflow {
	w := &logpb.Workflow{Name: name}
	for i, holder := range holders {
		step := &logpb.WorkflowStep{Holder: holder}
		if i > 0 {
			step.After = []string{holders[i-1]}
		}
		w.Steps = append(w.Steps, step)
	}
	return w
}

func after(holder string, others ...string) *logpb.WorkflowStep {
	return &logpb.WorkflowStep{Holder: holder, After: others}
}

func graph(name string, steps ...*logpb.WorkflowStep) *logpb.Workflow {
	return &logpb.Workflow{Name: name, Steps: steps}
}

// TestPlan_OrderOfSteps: each step after the steps whose work it takes over, and otherwise as in the definition.
func TestPlan_OrderOfSteps(t *testing.T) {
	for _, c := range []struct {
		workflow *logpb.Workflow
		order    string
	}{
		{chain("w", "a", "b", "c"), "a b c"},
		{graph("w", after("c", "b"), after("b", "a"), after("a")), "a b c"},
		{graph("w", after("end", "left", "right"), after("right", "start"), after("left", "start"), after("start")), "start right left end"},
		{graph("w", after("b"), after("d"), after("a"), after("c", "d")), "b d a c"},
	} {
		p, failure := newPlan(c.workflow)
		if failure != nil {
			t.Fatal(failure)
		}
		if got := strings.Join(p.holders, " "); got != c.order {
			t.Errorf("%s, want %s", got, c.order)
		}
	}
}

// TestPlan_IsTopological: a random graph is refused for an existing cycle, or every step comes after its predecessors.
// Upstream and downstream mirror each other, and are the transitive closure.
func TestPlan_IsTopological(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(rt, "steps")
		name := func(i int) string { return string(rune('a' + i)) }
		w := &logpb.Workflow{Name: "w"}
		edges := map[[2]string]bool{}
		for i := range n {
			step := after(name(i))
			for j := range n {
				if rapid.IntRange(0, 3*n).Draw(rt, "edge") <= 2 {
					step.After = append(step.After, name(j))
					edges[[2]string{name(j), name(i)}] = true
				}
			}
			w.Steps = append(w.Steps, step)
		}
		p, failure := newPlan(w)
		if failure != nil {
			_, path, _ := strings.Cut(failure.Message, "a cycle: ")
			cycle := strings.Split(path, " -> ")
			if len(cycle) < 2 || cycle[0] != cycle[len(cycle)-1] {
				rt.Fatalf("%v", failure)
			}
			for i := range cycle[1:] {
				if !edges[[2]string{cycle[i], cycle[i+1]}] {
					rt.Fatalf("%s does not come after %s: %v", cycle[i+1], cycle[i], failure)
				}
			}
			return
		}
		for i := range n {
			for j := range n {
				direct := edges[[2]string{p.holders[i], p.holders[j]}]
				through := slices.ContainsFunc(p.holders, func(k string) bool {
					return p.upstream[j].has(slices.Index(p.holders, k)) && edges[[2]string{p.holders[i], k}]
				})
				if direct && i >= j || p.upstream[j].has(i) != (direct || through) || p.upstream[j].has(i) != p.downstream[i].has(j) {
					rt.Fatalf("%s and %s of %v", p.holders[i], p.holders[j], w)
				}
			}
		}
	})
}
