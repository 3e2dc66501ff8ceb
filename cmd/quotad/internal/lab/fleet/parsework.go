package fleet

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Bounds and defaults of retry budgets, the same as the cluster's.
const (
	defaultFailures = 3
	mostFailures    = 100
	defaultTaskTTL  = 10 * time.Minute
	mostReported    = 16
	mostSaid        = 300
)

var (
	retryKeys = []string{"max_failures", "ttl", "quotas", "load", "ends"}
	endKeys   = []string{"task", "times", "finished", "says", "exit", "means"}
)

func outcomeWords(outcomes []Outcome) []string {
	words := make([]string, len(outcomes))
	for i, outcome := range outcomes {
		words[i] = string(outcome)
	}
	return words
}

// message reads a tool's output and its meaning.
func (p *parser) message(n *yaml.Node, values map[string]*yaml.Node) (says string, means Outcome) {
	if v, ok := values["says"]; ok {
		if says = p.doc.Text(v, "says"); len(says) == 0 || len(says) > mostSaid {
			p.doc.Fail(v, "one line, as the tool prints it", "says must have 1 to %d bytes", mostSaid)
		}
	}
	if v, ok := values["means"]; ok {
		means = Outcome(p.doc.Choice(v, "means", outcomeWords(Outcomes[:len(Outcomes)-1])...))
		if says == "" {
			p.doc.Fail(n, "say what the tool prints", "means needs says")
		}
	}
	return says, means
}

// retry reads a retry budget.
func (p *parser) retry(n *yaml.Node, a *Agent) *Retry {
	r := &Retry{MaxFailures: defaultFailures, TTL: defaultTaskTTL}
	values := p.doc.Mapping(n, "retry", retryKeys...)
	if v, ok := values["max_failures"]; ok {
		r.MaxFailures = int(p.doc.Int(v, "max_failures", 1, mostFailures))
	}
	if v, ok := values["ttl"]; ok {
		r.TTL = p.doc.Duration(v, "ttl", time.Second, longest)
	}
	if v, ok := values["quotas"]; ok {
		for _, element := range p.doc.Sequence(v, "quotas") {
			r.Quotas = append(r.Quotas, p.doc.Choice(element, "quotas", p.limits...))
		}
		if distinct := slices.Compact(slices.Sorted(slices.Values(r.Quotas))); len(distinct) < len(r.Quotas) || len(distinct) > mostReported {
			p.doc.Fail(v, "", "quotas names one twice, or more than %d", mostReported)
		}
	}
	if v, ok := values["load"]; ok {
		r.Load = p.uses(v, "load")
	}
	if v, ok := values["ends"]; ok {
		for _, element := range p.doc.Sequence(v, "ends") {
			r.Ends = append(r.Ends, p.end(element))
		}
	}
	if a.Batch || a.Hold > 0 {
		p.doc.Fail(n, "a tool that works on a task asks for each call", "the agent %q has both retry and batch or hold; one excludes the other",
			a.Name)
	}
	return r
}

// end reads the end of some attempts.
func (p *parser) end(n *yaml.Node) End {
	e := End{Exit: 1}
	values := p.doc.Mapping(n, "an end", endKeys...)
	for _, number := range []struct {
		key         string
		to          *int
		least, most int64
	}{{"task", &e.Task, 1, maxCalls}, {"times", &e.Times, 1, maxCalls}, {"exit", &e.Exit, 0, 255}} {
		if v, ok := values[number.key]; ok {
			*number.to = int(p.doc.Int(v, number.key, number.least, number.most))
		}
	}
	if v, ok := values["finished"]; ok {
		e.Finished = p.doc.Bool(v, "finished")
	}
	e.Says, e.Means = p.message(n, values)
	if e.Says == "" {
		p.doc.Fail(n, `such as says: "You've hit your session limit"`, "an end says nothing")
	}
	return e
}

// follows reads the agents whose work an agent continues.
func (p *parser) follows(n *yaml.Node, values map[string]*yaml.Node, a *Agent) {
	v, ok := values["follows"]
	if !ok {
		return
	}
	for _, element := range p.doc.Sequence(v, "follows") {
		name := p.doc.Text(element, "follows")
		a.Follows = append(a.Follows, name)
		p.later = append(p.later, func(f *Fleet) {
			if before := f.agent(name); before == nil || before.Count > 1 {
				p.doc.Fail(element, "the name of one agent, without a count", "%q, which the agent %q follows, is no agent, or several", name, a.Name)
			}
		})
	}
	for _, key := range []string{"every", "cron", "start", "jitter", "tasks", "count"} {
		if other, ok := values[key]; ok {
			p.doc.Fail(other, "its tasks come from the agent that it follows",
				"the agent %q has both follows and %s; one excludes the other", a.Name, key)
		}
	}
	if len(a.Follows) == 0 || len(slices.Compact(slices.Sorted(slices.Values(a.Follows)))) < len(a.Follows) {
		p.doc.Fail(n, "", "follows of the agent %q names nobody, or one twice", a.Name)
	}
}

// agent returns a description by its name; nil: unknown.
func (f *Fleet) agent(name string) *Agent {
	if i := slices.IndexFunc(f.Agents, func(a *Agent) bool { return a.Name == name }); i >= 0 {
		return f.Agents[i]
	}
	return nil
}

// countHandedOn counts the tasks of agents that follow others: the minimum of the numbers of these.
func (p *parser) countHandedOn(f *Fleet) {
	if p.doc.Err() != nil {
		return
	}
	steps := make([]*quotav1.WorkflowStep, len(f.Agents))
	for i, a := range f.Agents {
		steps[i] = &quotav1.WorkflowStep{Holder: a.Name, After: a.Follows}
	}
	if cycle := quotafile.CycleOf(steps); cycle != "" {
		p.doc.Fail(p.doc.Root, "take one of these out of a follows", "the agents follow each other in a cycle: %s", cycle)
		return
	}
	for range f.Agents { // in as many rounds the counts reach the end of any chain
		for _, a := range f.Agents {
			for i, name := range a.Follows {
				if before := f.agent(name).Tasks; i == 0 || before > 0 && (a.Tasks == 0 || before < a.Tasks) {
					a.Tasks = before
				}
			}
		}
	}
}

// workflows reads workflows, whose steps must be agents.
func (p *parser) workflows(n *yaml.Node, f *Fleet) []*quotav1.Workflow {
	all := quotafile.Workflows(p.doc, n)
	holders := map[string]bool{}
	for _, a := range f.Agents {
		for _, name := range a.Holders() {
			holders[name] = true
		}
	}
	for _, workflow := range all {
		for _, step := range workflow.Steps {
			if !holders[step.Holder] {
				p.doc.Fail(n, "steps are agents of the fleet", "step %q of the workflow %q is no agent", step.Holder, workflow.Name)
			}
		}
	}
	return all
}
