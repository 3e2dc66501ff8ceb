package fsm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
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

// workflows returns a command that replaces all workflows.
func workflows(all ...*logpb.Workflow) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Workflows: all, ReplaceWorkflows: true}}}
}

func deletesWorkflow(name string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_DeleteWorkflow{DeleteWorkflow: &logpb.DeleteWorkflow{Workflow: name}}}
}

// TestApplyQuotas_RefusesImpossibleWorkflows: with the reason; nothing of the file is applied.
func TestApplyQuotas_RefusesImpossibleWorkflows(t *testing.T) {
	many := make([]string, workflow.MaxSteps+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d", i)
	}
	shared := make([]*logpb.Workflow, workflow.MaxOfHolder+1)
	for i := range shared {
		shared[i] = chain(fmt.Sprintf("w%d", i), "a", "b")
	}
	changed := func(change func(*logpb.Workflow)) []*logpb.Workflow {
		return []*logpb.Workflow{with(chain("w", "a", "b"), change)}
	}
	for name, c := range map[string]struct {
		workflows []*logpb.Workflow
		says      string
	}{
		"a cycle of two":      {[]*logpb.Workflow{graph("w", after("a", "b"), after("b", "a"))}, "a cycle: a -> b -> a"},
		"a step after itself": {[]*logpb.Workflow{graph("w", after("a"), after("b", "b"))}, "a cycle: b -> b"},
		"a cycle next to what is fine": {[]*logpb.Workflow{
			graph("w", after("a"), after("b", "a", "e"), after("c", "b"), after("d", "c"), after("e", "d"), after("f", "e")),
		}, "a cycle: b -> c -> d -> e -> b"},
		"a cycle upstream of the first": {[]*logpb.Workflow{
			graph("w", after("a", "b"), after("b", "c"), after("c", "b")),
		}, "a cycle: b -> c -> b"},
		"an unknown step": {
			[]*logpb.Workflow{graph("w", after("a"), after("b", "nobody"))}, `"b" comes after "nobody", which is no step of it`,
		},
		"a step twice":          {[]*logpb.Workflow{graph("w", after("a"), after("b", "a"), after("a"))}, `step "a" stands twice`},
		"a predecessor twice":   {[]*logpb.Workflow{graph("w", after("a"), after("b", "a", "a"))}, `step "b" comes after "a" twice`},
		"a pattern":             {[]*logpb.Workflow{chain("w", "a", "b*")}, `step "b*" is a pattern`},
		"a step without holder": {[]*logpb.Workflow{chain("w", "a", "")}, "a step has no holder"},
		"no steps":              {[]*logpb.Workflow{graph("w")}, "0 steps are not within 2 to 64"},
		"one step":              {[]*logpb.Workflow{chain("w", "a")}, "1 steps are not within 2 to 64"},
		"too many steps":        {[]*logpb.Workflow{chain("w", many...)}, "65 steps are not within 2 to 64"},
		"no name":               {[]*logpb.Workflow{chain("", "a", "b")}, "is no name for a workflow"},
		"two of a name":         {[]*logpb.Workflow{chain("w", "a", "b"), chain("w", "c", "d")}, `"w": is defined twice`},
		"a holder in too many":  {shared, `"a" is a step of more than 8 workflows`},
		"more than all":         {changed(func(w *logpb.Workflow) { w.Threshold = 3 }), "a threshold of 3 is not within 1 to its 2 steps"},
		"less than one":         {changed(func(w *logpb.Workflow) { w.Threshold = -1 }), "a threshold of -1 is not within"},
		"within a day":          {changed(func(w *logpb.Workflow) { w.WithinNs = day }), "within must be 1 s to 600 s"},
		"calm at once":          {changed(func(w *logpb.Workflow) { w.CalmNs = 1 }), "calm must be 1 s to 3600 s"},
		"a turn into the past":  {changed(func(w *logpb.Workflow) { w.BatonTimeNs = -1 }), "turn must be 1 s to 3600 s"},
		"an endless pause":      {changed(func(w *logpb.Workflow) { w.PauseNs = day }), "pause must be 1 s to 3600 s"},
	} {
		w := newWorld(t)
		command := workflows(append([]*logpb.Workflow{chain("fine", "x", "y")}, c.workflows...)...)
		command.GetApplyQuotas().Quotas = []*logpb.Quota{rateOf("r", 1, minute)}
		r := w.do(command)
		if f := r.GetFailure(); f.GetReason() != logpb.Reason_REASON_IMPOSSIBLE_WORKFLOW || !strings.Contains(f.Message, c.says) {
			t.Errorf("%s: %v", name, r)
		}
		if len(w.m.State().Workflows("", "", 1, w.clock())) != 0 || w.m.quotas.byNumber.Len() != 0 {
			t.Errorf("%s: some of it was applied", name)
		}
	}
}

// TestWorkflows_AreReplacedAsAWhole: and kept if a file does not mention them.
func TestWorkflows_AreReplacedAsAWhole(t *testing.T) {
	w := newWorld(t)
	names := func() string {
		var names []string
		for _, v := range w.m.State().Workflows("", "", 100, w.clock()) {
			names = append(names, v.Definition.Name)
		}
		return strings.Join(names, " ")
	}
	for i, c := range []struct {
		command *logpb.Command
		want    string
	}{
		{workflows(chain("b", "x", "y"), chain("a", "y", "z")), "a b"},
		{applyQuotas(rateOf("r", 1, minute)), "a b"},
		{with(workflows(), func(c *logpb.Command) { c.GetApplyQuotas().DryRun = true }), "a b"},
		{workflows(chain("a", "y", "z"), chain("c", "q", "y")), "a c"},
		{deletesWorkflow("c"), "a"},
		{workflows(), ""},
	} {
		w.do(c.command)
		w.reborn()
		if got := names(); got != c.want {
			t.Errorf("after %d: %q, want %q", i, got, c.want)
		}
	}
	if n := tablesOf(w.m.state)["workflows.stepsOf"].MethodByName("Len").Call(nil)[0].Int(); n != 0 {
		t.Errorf("%d holders are steps of nothing", n)
	}
	w.fails(deletesWorkflow("c"), logpb.Reason_REASON_UNKNOWN_WORKFLOW)
}

// TestWorkflows_ListByPageAndHolder: by page, and those of one holder.
func TestWorkflows_ListByPageAndHolder(t *testing.T) {
	w := newWorld(t)
	w.do(workflows(chain("a", "x", "y"), chain("b", "y", "z"), chain("c", "x", "z")))
	for _, c := range []struct {
		holder, after string
		limit         int
		want          string
	}{
		{"", "", 2, "a b"}, {"", "b", 2, "c"}, {"x", "", 2, "a c"}, {"x", "a", 2, "c"}, {"x", "", 1, "a"}, {"nobody", "", 2, ""},
	} {
		var names []string
		for _, v := range w.m.State().Workflows(c.holder, c.after, c.limit, w.clock()) {
			names = append(names, v.Definition.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
