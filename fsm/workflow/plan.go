package workflow

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// A workflow is a graph of holders without a cycle. cascade.go has its effects (docs/workflows.md).

// Bounds and defaults of workflows.
const (
	maxWorkflows = 1000
	// MaxSteps is the most steps of a workflow: as many as a stepSet holds.
	MaxSteps, minSteps = 64, 2
	// MaxOfHolder is the most workflows in which a holder is a step.
	MaxOfHolder = 8
	// MaxHolder is the longest name of a step's holder, in bytes.
	MaxHolder        = 128
	defaultThreshold = 3
	defaultWithin    = 30 * fixed.Second
	maxWithin        = 10 * fixed.Minute
	defaultCalm      = 60 * fixed.Second
	defaultBatonTime = 5 * fixed.Minute
	defaultPause     = 5 * fixed.Minute
	maxTime          = fixed.Hour
)

// stepSet is a set of steps, by their places in workflow order.
type stepSet uint64

func (s stepSet) has(i int) bool { return s&(1<<i) != 0 }

func (s stepSet) with(i int) stepSet { return s | 1<<i }

func (s stepSet) without(i int) stepSet { return s &^ (1 << i) }

// Plan is a compiled definition; it never changes.
type Plan struct {
	definition *logpb.Workflow
	// holders are the steps in workflow order: each after the steps whose work it takes over, and otherwise as in the
	// definition.
	holders []string
	// upstream has, by place, all steps before a step, directly or not; downstream all steps after it.
	upstream, downstream []stepSet
	// threshold is how many steps must be limited within a time to make the workflow sequential.
	threshold int
	within    int64
	// calmTime is how long no step may be limited before the workflow is parallel again, batonTime the longest baton,
	// pauseTime the longest pause of a step without a grant.
	calmTime, batonTime, pauseTime int64
}

// newPlan compiles a definition, or returns why it is invalid.
func newPlan(def *logpb.Workflow) (*Plan, *logpb.Failure) {
	if failure := checkSteps(def); failure != nil {
		return nil, failure
	}
	p := &Plan{definition: def, threshold: int(def.Threshold)}
	if p.threshold == 0 {
		p.threshold = min(defaultThreshold, len(def.Steps))
	}
	if p.threshold < 0 || p.threshold > len(def.Steps) {
		return nil, impossible(def, fmt.Sprintf("a threshold of %d is not within 1 to its %d steps", def.Threshold, len(def.Steps)),
			"leave it out for 3")
	}
	for _, time := range []struct {
		name                   string
		given, otherwise, most int64
		to                     *int64
	}{
		{"within", def.WithinNs, defaultWithin, maxWithin, &p.within},
		{"calm", def.CalmNs, defaultCalm, maxTime, &p.calmTime},
		{"turn", def.BatonTimeNs, defaultBatonTime, maxTime, &p.batonTime},
		{"pause", def.PauseNs, defaultPause, maxTime, &p.pauseTime},
	} {
		if *time.to = time.given; time.given == 0 {
			*time.to = time.otherwise
		}
		if *time.to < fixed.Second || *time.to > time.most {
			return nil, impossible(def, fmt.Sprintf("%s must be 1 s to %d s", time.name, time.most/fixed.Second),
				fmt.Sprintf("the default is %d s", time.otherwise/fixed.Second))
		}
	}
	return p, p.arrange()
}

// checkSteps validates a definition's names.
func checkSteps(def *logpb.Workflow) *logpb.Failure {
	switch {
	case !ledger.ValidName(def.Name):
		return impossible(def, "is no name for a workflow", "letters, digits and . _ - / @ :, such as release/chain")
	case len(def.Steps) < minSteps || len(def.Steps) > MaxSteps:
		return impossible(def, fmt.Sprintf("%d steps are not within %d to %d", len(def.Steps), minSteps, MaxSteps),
			"a longer one can be several workflows that share holders")
	}
	known := map[string]bool{}
	for _, step := range def.Steps {
		switch name := step.GetHolder(); {
		case name == "" || len(name) > MaxHolder:
			return impossible(def, "a step has no holder, or one of more than 128 bytes", "holder: triage")
		case strings.Contains(name, "*"):
			return impossible(def, fmt.Sprintf("step %q is a pattern", name), "name each holder: several may stand after the same ones")
		case known[name]:
			return impossible(def, fmt.Sprintf("step %q stands twice", name), "one step for each holder, with all that come before it")
		default:
			known[name] = true
		}
	}
	for _, step := range def.Steps {
		for i, before := range step.After {
			switch {
			case !known[before]:
				return impossible(def, fmt.Sprintf("step %q comes after %q, which is no step of it", step.Holder, before),
					"add it as a step, or leave it out")
			case slices.Contains(step.After[:i], before):
				return impossible(def, fmt.Sprintf("step %q comes after %q twice", step.Holder, before), "name it once")
			}
		}
	}
	return nil
}

// arrange puts the steps into workflow order: the next step is the first in the definition whose predecessors all have
// a place.
func (p *Plan) arrange() *logpb.Failure {
	steps := p.definition.Steps
	for len(p.holders) < len(steps) {
		next := slices.IndexFunc(steps, func(s *logpb.WorkflowStep) bool {
			return !slices.Contains(p.holders, s.Holder) && len(p.missing(s)) == 0
		})
		if next < 0 {
			return impossible(p.definition, "its steps form a cycle: "+p.cycle(), "take one of these out of an after")
		}
		at, step := len(p.holders), steps[next]
		var upstream stepSet
		for i, before := range p.holders {
			if slices.Contains(step.After, before) {
				upstream |= p.upstream[i].with(i)
			}
		}
		p.holders, p.upstream, p.downstream = append(p.holders, step.Holder), append(p.upstream, upstream), append(p.downstream, 0)
		for i := range at {
			if upstream.has(i) {
				p.downstream[i] = p.downstream[i].with(at)
			}
		}
	}
	return nil
}

// missing returns the predecessors of a step that have no place yet.
func (p *Plan) missing(step *logpb.WorkflowStep) []string {
	var names []string
	for _, before := range step.After {
		if !slices.Contains(p.holders, before) {
			names = append(names, before)
		}
	}
	return names
}

// cycle describes a cycle among the steps that cannot be placed: each of them comes after another of them.
func (p *Plan) cycle() string {
	steps := map[string]*logpb.WorkflowStep{}
	var path []string
	for _, step := range p.definition.Steps {
		steps[step.Holder] = step
		if len(path) == 0 && !slices.Contains(p.holders, step.Holder) {
			path = []string{step.Holder}
		}
	}
	for {
		before := p.missing(steps[path[len(path)-1]])[0]
		if begin := slices.Index(path, before); begin >= 0 {
			path = append(path[begin:], before)
			slices.Reverse(path)
			return strings.Join(path, " -> ")
		}
		path = append(path, before)
	}
}

// Check compiles definitions and checks them against each other.
func Check(definitions []*logpb.Workflow) ([]*Plan, *logpb.Failure) {
	if len(definitions) > maxWorkflows {
		return nil, effect.Invalid(fmt.Sprintf("%d workflows are more than %d", len(definitions), maxWorkflows), "")
	}
	plans := make([]*Plan, len(definitions))
	named, of := map[string]bool{}, map[string]int{}
	for i, def := range definitions {
		var failure *logpb.Failure
		if plans[i], failure = newPlan(def); failure != nil {
			return nil, failure
		}
		if named[def.Name] {
			return nil, impossible(def, "is defined twice", "")
		}
		named[def.Name] = true
		for _, name := range plans[i].holders {
			if of[name]++; of[name] > MaxOfHolder {
				return nil, impossible(def, fmt.Sprintf("%q is a step of more than %d workflows", name, MaxOfHolder),
					"one workflow can have several branches")
			}
		}
	}
	return plans, nil
}

func impossible(def *logpb.Workflow, message, hint string) *logpb.Failure {
	return &logpb.Failure{
		Reason:  logpb.Reason_REASON_IMPOSSIBLE_WORKFLOW,
		Message: fmt.Sprintf("workflow %q: %s", def.GetName(), message), Hint: hint,
	}
}
