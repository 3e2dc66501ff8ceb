package fleet

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// defaultPatience is the default patience of a call, the same as that of a governed HTTP call.
const defaultPatience = 30 * time.Second

// agent reads one agent.
func (p *parser) agent(n *yaml.Node) *Agent {
	a := &Agent{
		Count: 1, Class: quotav1.Class_CLASS_STANDARD, Weight: 1, Overlap: 1, Calls: 1, Parallel: 1,
		Latency: Span{Least: 200 * time.Millisecond, Most: 600 * time.Millisecond}, Patience: defaultPatience, HoldTTL: 5 * time.Minute,
	}
	values := p.doc.Mapping(n, "an agent", agentKeys...)
	if v, ok := values["name"]; ok {
		a.Name = p.agentName(v)
	} else {
		p.doc.Fail(n, `such as "name: poller"`, "an agent has no name")
	}
	if v, ok := values["class"]; ok {
		a.Class = p.classOf(v, "class")
	}
	for _, count := range []struct {
		key  string
		to   *int
		most int64
	}{
		{"count", &a.Count, MaxAgents},
		{"weight", &a.Weight, 1000},
		{"tasks", &a.Tasks, maxCalls},
		{"overlap", &a.Overlap, 1000},
		{"calls", &a.Calls, maxCalls},
		{"parallel", &a.Parallel, 1000},
		{"hold", &a.Hold, 1000},
	} {
		if v, ok := values[count.key]; ok {
			*count.to = int(p.doc.Int(v, count.key, 1, count.most))
		}
	}
	if v, ok := values["batch"]; ok {
		a.Batch = p.doc.Bool(v, "batch")
	}
	p.use(n, values, a)
	p.times(n, values, a)
	p.follows(n, values, a)
	if v, ok := values["retry"]; ok {
		a.Retry = p.retry(v, a)
	}
	a.Crashes, a.Cuts = p.absences(values, "crashes"), p.absences(values, "cuts")
	if (a.Batch || a.Hold > 0) && slices.ContainsFunc(a.Uses, func(u Use) bool { return p.slots[u.Quota] }) {
		p.doc.Fail(n, "a slot belongs to one call while it runs", "the agent %q uses slots, which cannot be had ahead with hold or batch", a.Name)
	}
	if (a.Batch || a.Hold > 0) && slices.ContainsFunc(a.Uses, func(u Use) bool { return u.Tokens != nil }) {
		p.doc.Fail(n, "give an estimate of one call", "the agent %q has calls ahead, which reserve equal amounts, but gives tokens", a.Name)
	}
	if a.Batch && a.Hold > 0 {
		p.doc.Fail(n, "", "the agent %q has both batch and hold; one excludes the other", a.Name)
	}
	return a
}

// agentName reads a name. Holder rules are made from it, so it must be a valid holder name and no pattern.
func (p *parser) agentName(n *yaml.Node) string {
	name := p.doc.Text(n, "name")
	if name == "" || len(name) > 100 {
		p.doc.Fail(n, "", "name must have 1 to 100 bytes")
	}
	if strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r) || r == '*' || r == utf8.RuneError
	}) {
		p.doc.Fail(n, "such as ralph@node-7", "the name %q has blanks, control characters or *", name)
	}
	return name
}

// use reads the amounts that a call draws.
func (p *parser) use(n *yaml.Node, values map[string]*yaml.Node, a *Agent) {
	v, ok := values["use"]
	if !ok {
		p.doc.Fail(n, "such as use: {openai/requests: 1, openai/tokens: 500}", "the agent %q uses nothing", a.Name)
		return
	}
	if a.Uses = p.uses(v, "use"); len(a.Uses) == 0 {
		p.doc.Fail(v, "such as {openai/requests: 1, openai/tokens: 500}", "the use of the agent %q names no quota", a.Name)
	}
}

// uses reads amounts by quota, in the order of the quotas.
func (p *parser) uses(v *yaml.Node, what string) (all []Use) {
	uses := p.doc.Mapping(v, what, p.quotas...)
	for _, quota := range p.quotas {
		one, ok := uses[quota]
		if !ok {
			continue
		}
		use := Use{Quota: quota}
		if one.Kind == yaml.MappingNode {
			p.parts(one, &use)
		} else {
			use.Estimate = p.doc.Int(one, quota, 1, quotafile.MaxAmount)
		}
		all = append(all, use)
	}
	return all
}

// parts reads the use of a quota that calls draw on by different amounts.
func (p *parser) parts(n *yaml.Node, use *Use) {
	values := p.doc.Mapping(n, use.Quota, useKeys...)
	if e, ok := values["estimate"]; ok {
		use.Estimate = p.doc.Int(e, "estimate", 1, quotafile.MaxAmount)
	}
	if e, ok := values["actual"]; ok {
		use.Actual = p.amounts(e, "actual")
	}
	use.Tokens = p.tokens(n, values, use.Quota)
	switch {
	case use.Tokens != nil && (use.Estimate > 0 || use.Actual != (Range{})):
		p.doc.Fail(n, "give either", "the use of %s has both an estimate and tokens, of which estimates are made", use.Quota)
	case use.Tokens != nil:
		use.Estimate = use.Tokens.most()
		use.Actual = Range{Least: use.Tokens.Input.Least + use.Tokens.Output.Least, Most: use.Tokens.Input.Most + use.Tokens.Output.Most}
	case values["estimate"] == nil:
		p.doc.Fail(n, "such as {estimate: 500, actual: 200-480}, or {input: 500-2000, output: 100-900}",
			"the use of %s has no estimate", use.Quota)
	}
	if p.slots[use.Quota] && use.Actual != (Range{}) {
		p.doc.Fail(n, "a call has its slots until it ends", "actual of %s: slots are not settled", use.Quota)
	}
}

// tokens reads what the calls of a model use; nil: n says nothing of that.
func (p *parser) tokens(n *yaml.Node, values map[string]*yaml.Node, quota string) *Tokens {
	t := &Tokens{Otherwise: p.estimates[quota], Ceiling: p.ceilings[quota]}
	for _, side := range []struct {
		key string
		to  *Range
	}{{"input", &t.Input}, {"output", &t.Output}} {
		v, ok := values[side.key]
		if !ok {
			continue
		}
		if *side.to = p.amounts(v, side.key); side.to.Most < 1 || side.to.Most > estimate.MaxCount {
			p.doc.Fail(v, "such as 500, or 200-480", "%s must be from 1 to %d tokens at the most", side.key, estimate.MaxCount)
		}
	}
	bound, bounded := values["max_output"]
	if bounded {
		t.MaxOutput = p.doc.Int(bound, "max_output", 1, estimate.MaxCount)
	}
	switch {
	case t.Output == (Range{}) && bounded:
		p.doc.Fail(n, "such as {output: 100-900, max_output: 4000}", "max_output needs output")
	case bounded && t.Output.Most > t.MaxOutput:
		p.doc.Fail(bound, "providers end an answer at max_output", "output must be at most max_output")
	}
	if t.Input == (Range{}) && t.Output == (Range{}) {
		return nil
	}
	return t
}

// times reads the agent's schedule and the duration of its calls.
func (p *parser) times(n *yaml.Node, values map[string]*yaml.Node, a *Agent) {
	for _, span := range []struct {
		key string
		to  *Span
	}{{"start", &a.Start}, {"think", &a.Think}, {"latency", &a.Latency}} {
		if v, ok := values[span.key]; ok {
			*span.to = p.span(v, span.key, MaxFor)
		}
	}
	for _, length := range []struct {
		key   string
		to    *time.Duration
		least time.Duration
	}{{"every", &a.Every, 10 * time.Millisecond}, {"jitter", &a.Jitter, 0}, {"hold_ttl", &a.HoldTTL, time.Second}} {
		if v, ok := values[length.key]; ok {
			*length.to = p.doc.Duration(v, length.key, length.least, MaxFor)
		}
	}
	if a.HoldTTL > longest {
		p.doc.Fail(values["hold_ttl"], "", "hold_ttl is at most 24h")
	}
	if v, ok := values["cron"]; ok {
		cron, err := parseCron(p.doc.Text(v, "cron"))
		if err != nil {
			p.doc.Fail(v, `five fields, in UTC, such as "0 * * * *"`, "invalid cron %q", v.Value)
		}
		a.Cron = cron
		if a.Every > 0 {
			p.doc.Fail(n, "", "the agent %q has both every and cron; one excludes the other", a.Name)
		}
	}
	if v, ok := values["patience"]; ok {
		if v.Value == "forever" {
			a.Patience = Forever
		} else {
			a.Patience = p.doc.Duration(v, "patience (a duration or forever)", 0, longest)
		}
	}
	if !a.Scheduled() && a.Calls*a.Parallel > 0 && a.Think.Most+a.Latency.Most == 0 {
		p.doc.Fail(n, "give it a latency, think or every", "the agent %q calls without end and without time passing", a.Name)
	}
}

// absences reads the periods in which an agent is away.
func (p *parser) absences(values map[string]*yaml.Node, key string) []Absence {
	v, ok := values[key]
	if !ok {
		return nil
	}
	var all []Absence
	for _, element := range p.doc.Sequence(v, key) {
		one := p.doc.Mapping(element, "an absence", absenceKeys...)
		absence := Absence{At: p.at(element, one)}
		if length, ok := one["for"]; ok {
			absence.For = p.doc.Duration(length, "for", time.Millisecond, MaxFor)
		}
		if absence.For == 0 && key == "cuts" {
			p.doc.Fail(element, "such as for: 4m", "a cut has no for")
		}
		all = append(all, absence)
	}
	slices.SortFunc(all, func(a, b Absence) int { return int(a.At - b.At) })
	return all
}

// checkAgents checks rules that concern all agents.
func (p *parser) checkAgents(f *Fleet, at []*yaml.Node) {
	if len(f.Agents) == 0 {
		p.doc.Fail(p.doc.Root, `it needs a list "agents:"`, "the fleet has no agents")
		return
	}
	total, seen := 0, map[string]bool{}
	for i, a := range f.Agents {
		total += a.Count
		if total > MaxAgents {
			p.doc.Fail(p.doc.Root, "", "the fleet has more than %d agents", MaxAgents)
			return
		}
		for _, name := range a.Holders() {
			if seen[name] {
				p.doc.Fail(at[i], "with a count, an agent's name gets -1, -2 and so on", "two agents are called %q", name)
			}
			seen[name] = true
		}
		p.agents = append(p.agents, a.Name)
	}
}
