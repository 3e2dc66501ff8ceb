package quotafile

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/rpc/quotav1"
)

// workflows reads the list of workflows.
func (p *parser) workflows(n *yaml.Node) []*quotav1.Workflow {
	elements := p.doc.Sequence(n, "workflows")
	if len(elements) > MaxWorkflows {
		p.doc.Fail(n, "", "workflows has %d elements; the maximum is %d", len(elements), MaxWorkflows)
		elements = elements[:MaxWorkflows]
	}
	var all []*quotav1.Workflow
	lines := map[string]int{}
	for _, element := range elements {
		all = append(all, p.workflow(element, lines))
	}
	return all
}

func (p *parser) workflow(n *yaml.Node, lines map[string]int) *quotav1.Workflow {
	workflow := &quotav1.Workflow{}
	values := p.doc.Mapping(n, "a workflow", workflowKeys...)
	if v, ok := values["name"]; ok {
		workflow.Name = p.doc.Text(v, "name")
		if message := checkName(workflow.Name); message != "" {
			p.doc.Fail(v, "", "name %s", message)
		}
		p.once(lines, "workflow", workflow.Name, v)
	} else {
		p.doc.Fail(n, `such as "name: release"`, "a workflow has no name")
	}
	if v, ok := values["steps"]; ok {
		workflow.Steps = p.steps(v)
	} else {
		p.doc.Fail(n, `such as "steps: [{holder: triage}, {holder: review, after: [triage]}]"`, "a workflow has no steps")
	}
	if v, ok := values["threshold"]; ok {
		workflow.Threshold = int32(p.doc.Int(v, "threshold", 1, maxSteps)) // at most 64
	}
	if v, ok := values["within"]; ok {
		workflow.Within = p.duration(v, "within", time.Second, 10*time.Minute)
	}
	if v, ok := values["calm"]; ok {
		workflow.Calm = p.duration(v, "calm", time.Second, time.Hour)
	}
	if v, ok := values["baton_time"]; ok {
		workflow.BatonTime = p.duration(v, "baton_time", time.Second, time.Hour)
	}
	if v, ok := values["pause"]; ok {
		workflow.Pause = p.duration(v, "pause", time.Second, time.Hour)
	}
	return workflow
}

// steps reads a workflow's steps, and checks their references to each other.
func (p *parser) steps(n *yaml.Node) []*quotav1.WorkflowStep {
	elements := p.doc.Sequence(n, "steps")
	if len(elements) < 2 || len(elements) > maxSteps {
		p.doc.Fail(n, "", "a workflow has %d steps; it needs 2 to %d", len(elements), maxSteps)
		return nil
	}
	lines := map[string]int{}
	steps := make([]*quotav1.WorkflowStep, len(elements))
	after := make([]*yaml.Node, len(elements))
	for i, element := range elements {
		steps[i] = &quotav1.WorkflowStep{}
		values := p.doc.Mapping(element, "a step", stepKeys...)
		if v, ok := values["holder"]; ok {
			steps[i].Holder = p.stepName(v, "holder")
			p.once(lines, "step", steps[i].Holder, v)
		} else {
			p.doc.Fail(element, `such as "holder: triage"`, "a step has no holder")
		}
		after[i] = values["after"]
	}
	for i, v := range after {
		if v == nil {
			continue
		}
		for _, element := range p.doc.Sequence(v, "after") {
			name := p.stepName(element, "after")
			if _, known := lines[name]; !known {
				p.doc.Fail(element, "add it as a step", "%q is not a step of this workflow", name)
			}
			if slices.Contains(steps[i].After, name) {
				p.doc.Fail(element, "", "duplicate %q", name)
			}
			steps[i].After = append(steps[i].After, name)
		}
	}
	if cycle := CycleOf(steps); p.doc.Err() == nil && cycle != "" {
		p.doc.Fail(n, "take one of these out of an after", "the steps form a cycle: %s", cycle)
	}
	return steps
}

func (p *parser) stepName(n *yaml.Node, what string) string {
	name := p.doc.Text(n, what)
	odd := func(r rune) bool { return r == '*' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if name == "" || len(name) > maxHolder || strings.ContainsFunc(name, odd) {
		p.doc.Fail(n, "steps are exact names; several may stand after the same ones", "%s must be a holder's name of 1 to %d bytes", what,
			maxHolder)
	}
	return name
}

// CycleOf returns a cycle among steps, in their order; empty: none.
func CycleOf(steps []*quotav1.WorkflowStep) string {
	after := map[string][]string{}
	for _, step := range steps {
		after[step.Holder] = step.After
	}
	fine := map[string]bool{}
	var back func(path []string) []string
	back = func(path []string) []string {
		name := path[len(path)-1]
		for _, before := range after[name] {
			if begin := slices.Index(path, before); begin >= 0 {
				return append(path[begin:], before)
			}
			if !fine[before] {
				if cycle := back(append(path, before)); cycle != nil {
					return cycle
				}
			}
		}
		fine[name] = true
		return nil
	}
	for _, step := range steps {
		if fine[step.Holder] {
			continue
		}
		if cycle := back([]string{step.Holder}); cycle != nil {
			slices.Reverse(cycle)
			return strings.Join(cycle, " -> ")
		}
	}
	return ""
}

func workflowNode(workflow *quotav1.Workflow) *yaml.Node {
	n := mapping()
	put(n, "name", text(workflow.Name))
	if workflow.Threshold != 0 {
		put(n, "threshold", number(int64(workflow.Threshold)))
	}
	putDuration(n, "within", workflow.Within)
	putDuration(n, "calm", workflow.Calm)
	putDuration(n, "baton_time", workflow.BatonTime)
	putDuration(n, "pause", workflow.Pause)
	steps := &yaml.Node{Kind: yaml.SequenceNode}
	for _, step := range workflow.Steps {
		s := flow()
		put(s, "holder", text(step.Holder))
		if len(step.After) > 0 {
			after := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, name := range step.After {
				after.Content = append(after.Content, text(name))
			}
			put(s, "after", after)
		}
		steps.Content = append(steps.Content, s)
	}
	put(n, "steps", steps)
	return n
}
