package fleet

import (
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// expectKeys are the keys of expectations.
var expectKeys = []string{
	"binding", "utilisation", "classes", "longest_wait", "p99", "finish", "refused", "retries", "outage", "reclaimed", "stale_fences",
	"alone_refused", "tasks", "chain",
}

// expect reads the expectations.
func (p *parser) expect(n *yaml.Node) *Expect {
	e := &Expect{
		Classes: AnyOrder, LongestWait: make(map[quotav1.Class]time.Duration), P99: make(map[string]time.Duration), Retries: -1, Outage: -1,
	}
	values := p.doc.Mapping(n, "expect", expectKeys...)
	if v, ok := values["binding"]; ok {
		e.Binding = p.doc.Choice(v, "binding", p.limits...)
	}
	if v, ok := values["utilisation"]; ok {
		e.Utilisation = p.part(v, "utilisation", 0.01, 2)
		if e.Binding == "" {
			p.doc.Fail(v, "name the quota that is meant", "utilisation needs binding")
		}
	}
	if v, ok := values["classes"]; ok {
		e.Classes = ClassOrder(p.doc.Choice(v, "classes", string(AnyOrder), string(Ordered), string(Strict)))
	}
	if v, ok := values["longest_wait"]; ok {
		for word, length := range p.doc.Mapping(v, "longest_wait", "critical", "standard", "background") {
			class, _ := quotafile.ParseClass(word)
			e.LongestWait[class] = p.doc.Duration(length, "longest_wait", time.Millisecond, MaxFor)
		}
	}
	if v, ok := values["p99"]; ok {
		for agent, length := range p.doc.Mapping(v, "p99", p.agents...) {
			e.P99[agent] = p.doc.Duration(length, "p99", time.Millisecond, MaxFor)
		}
	}
	if v, ok := values["finish"]; ok {
		e.Finish = p.part(v, "finish", 1, 1000)
	}
	if v, ok := values["refused"]; ok {
		e.Refused = p.part(v, "refused", 0, 1)
	}
	for _, count := range []struct {
		key string
		to  *int64
	}{{"retries", &e.Retries}, {"outage", &e.Outage}, {"stale_fences", &e.StaleFences}, {"alone_refused", &e.AloneRefused}} {
		if v, ok := values[count.key]; ok {
			*count.to = p.doc.Int(v, count.key, 0, quotafile.MaxAmount)
		}
	}
	if v, ok := values["reclaimed"]; ok {
		e.Reclaimed = p.doc.Duration(v, "reclaimed", time.Millisecond, longest)
	}
	if v, ok := values["tasks"]; ok {
		e.Tasks = p.expectTasks(v)
	}
	if v, ok := values["chain"]; ok {
		e.Chain = p.expectChain(v)
	}
	return e
}

// part reads a fraction.
func (p *parser) part(n *yaml.Node, what string, least, most float64) float64 {
	part := p.doc.Float(n, what)
	if part < least || part > most {
		p.doc.Fail(n, "", "%s is %s; it must be %v to %v", what, n.Value, least, most)
	}
	return part
}

// canFail rejects an expectation that matches no agent: it would always hold.
func (p *parser) canFail(n *yaml.Node, f *Fleet) {
	e, drawn := f.Expect, f.Draws(f.Expect.Binding)
	there, budgets := make(map[quotav1.Class]bool), false
	for _, a := range f.Agents {
		if drawn[a.Name] {
			there[a.Class] = true
		}
		budgets = budgets || a.Retry != nil
	}
	if e.Classes != AnyOrder && len(there) < 2 {
		p.doc.Fail(n, "give agents classes", "classes are %s, and only one class draws on the binding quota", e.Classes)
	}
	for _, class := range []quotav1.Class{quotav1.Class_CLASS_CRITICAL, quotav1.Class_CLASS_STANDARD, quotav1.Class_CLASS_BACKGROUND} {
		if _, ok := e.LongestWait[class]; ok && !there[class] {
			p.doc.Fail(n, "", "longest_wait is for %s, and no such agent draws on the binding quota", quotafile.ClassWord(class))
		}
	}
	if e.Tasks != nil && !budgets {
		p.doc.Fail(n, "such as retry: {max_failures: 3}", "tasks are expected, and no agent has retry")
	}
	if e.Chain != nil && e.Chain.AloneWave > 0 && e.Binding == "" {
		p.doc.Fail(n, "name the quota that is meant", "alone_wave needs binding")
	}
}

var (
	expectTasksKeys = []string{"delays", "shelved", "unfinished", "outcomes", "attempts", "burnt", "alone_attempts", "alone_burnt"}
	expectChainKeys = []string{"complete", "sequential", "kept_back", "alone_wave"}
)

// expectTasks reads the expectations of tasks with retry budgets.
func (p *parser) expectTasks(n *yaml.Node) *ExpectTasks {
	e := &ExpectTasks{Unfinished: -1, Attempts: -1, Shelved: map[string]int64{}, Outcomes: make(map[Outcome]int64)}
	values := p.doc.Mapping(n, "tasks", expectTasksKeys...)
	for _, count := range []struct {
		key string
		to  *int64
	}{{"unfinished", &e.Unfinished}, {"attempts", &e.Attempts}, {"alone_attempts", &e.AloneAttempts}} {
		if v, ok := values[count.key]; ok {
			*count.to = p.doc.Int(v, count.key, 0, quotafile.MaxAmount)
		}
	}
	if v, ok := values["delays"]; ok {
		for _, element := range p.doc.Sequence(v, "delays") {
			e.Delays = append(e.Delays, p.doc.Duration(element, "a delay", time.Second, longest))
		}
	}
	if v, ok := values["shelved"]; ok {
		for agent, count := range p.doc.Mapping(v, "shelved", p.agents...) {
			e.Shelved[agent] = p.doc.Int(count, "shelved", 0, maxCalls)
		}
	}
	if v, ok := values["outcomes"]; ok {
		for word, count := range p.doc.Mapping(v, "outcomes", outcomeWords(Outcomes)...) {
			e.Outcomes[Outcome(word)] = p.doc.Int(count, word, 1, maxCalls)
		}
	}
	e.Burnt, e.AloneBurnt = p.burnt(values, "burnt"), p.burnt(values, "alone_burnt")
	return e
}

// burnt reads amounts by quota.
func (p *parser) burnt(values map[string]*yaml.Node, key string) map[string]int64 {
	amounts := map[string]int64{}
	if v, ok := values[key]; ok {
		for quota, amount := range p.doc.Mapping(v, key, p.limits...) {
			amounts[quota] = p.doc.Int(amount, key, 0, quotafile.MaxAmount)
		}
	}
	return amounts
}

// expectChain reads the expectations of agents that continue each other's work.
func (p *parser) expectChain(n *yaml.Node) *ExpectChain {
	e := &ExpectChain{}
	values := p.doc.Mapping(n, "chain", expectChainKeys...)
	if v, ok := values["complete"]; ok {
		e.Complete = p.doc.Bool(v, "complete")
	}
	for _, count := range []struct {
		key string
		to  *int64
	}{{"sequential", &e.Sequential}, {"kept_back", &e.KeptBack}, {"alone_wave", &e.AloneWave}} {
		if v, ok := values[count.key]; ok {
			*count.to = p.doc.Int(v, count.key, 0, quotafile.MaxAmount)
		}
	}
	return e
}
