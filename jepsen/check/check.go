// Package check judges a run from what it left behind. Each checker guards promises of docs/consistency.md, and says
// pass, fail with examples, or inconclusive: it could not look, or there was nothing to see, and that is no pass.
package check

import (
	"errors"
	"fmt"
	"sort"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/workload"
)

// Outcome is what a checker says.
type Outcome string

// The outcomes.
const (
	Pass         Outcome = "pass"
	Fail         Outcome = "fail"
	Inconclusive Outcome = "inconclusive"
)

// mostExamples bounds how many violations a verdict shows; it counts them all.
const mostExamples = 20

// Verdict is what one checker says of a run.
type Verdict struct {
	// Checker names it, Promise says what it guards, in a sentence.
	Checker string `json:"checker"`
	Promise string `json:"promise"`
	// Outcome is the word, Count how many violations there are, Examples the first of them.
	Outcome  Outcome  `json:"outcome"`
	Count    int      `json:"count"`
	Examples []string `json:"examples,omitempty"`
	// Looked says how much was looked at: a pass over nothing is none.
	Looked int `json:"looked"`
}

// violate adds a violation.
func (v *Verdict) violate(format string, args ...any) {
	v.Count++
	v.Outcome = Fail
	if len(v.Examples) < mostExamples {
		v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
	}
}

// done settles the outcome of a checker that found nothing.
func (v *Verdict) done() {
	if v.Outcome == "" {
		v.Outcome = Pass
		if v.Looked == 0 {
			v.Outcome = Inconclusive
			v.Examples = append(v.Examples, "there was nothing to look at")
		}
	}
}

// run is what is judged.
type run struct {
	dir history.Dir
	// simulated is set where the run happened in this process, and has no folder.
	simulated *Simulated
	facts     *history.Facts
	log       []entry
	calls     []*call
	// faults are in order of their beginning.
	faults []*history.Fault
	// restores are those among them, in the order of their indices.
	restores []*history.Restore
	// asked is what agents asked through a gateway.
	asked []*history.Asked
	// verdicts by the checker's name.
	verdicts map[string]*Verdict
	order    []*Verdict
	stats    Stats
}

// verdict returns a checker's verdict, made at the first call.
func (r *run) verdict(checker, promise string) *Verdict {
	if v := r.verdicts[checker]; v != nil {
		return v
	}
	v := &Verdict{Checker: checker, Promise: promise}
	r.verdicts[checker] = v
	r.order = append(r.order, v)
	return v
}

// Result is what all checkers say of a run.
type Result struct {
	Facts    *history.Facts   `json:"facts"`
	Verdicts []*Verdict       `json:"verdicts"`
	Stats    Stats            `json:"stats"`
	Faults   []*history.Fault `json:"faults"`
	// Series are for the report.
	Series Series `json:"series"`
}

// Outcome is the worst of all verdicts.
func (r *Result) Outcome() Outcome {
	worst := Pass
	for _, v := range r.Verdicts {
		if v.Outcome == Fail {
			return Fail
		}
		if v.Outcome == Inconclusive {
			worst = Inconclusive
		}
	}
	return worst
}

// Run judges a run. An error says that the history itself cannot be read or believed.
func Run(dir history.Dir) (*Result, error) {
	facts, err := dir.ReadFacts()
	if err != nil {
		return nil, err
	}
	r := &run{dir: dir, facts: facts, verdicts: map[string]*Verdict{}}
	if err := r.load(); err != nil {
		return nil, err
	}
	r.agreement()
	replayed := r.replay()
	r.answers(replayed)
	r.reads(replayed)
	r.uninvited(replayed)
	r.unanswered(replayed)
	r.realTime()
	r.leaders()
	r.clusterTime()
	r.tasks()
	spends := r.spends()
	r.provider(spends)
	r.slots(spends)
	r.gateway(spends[workload.ModelRequests])
	r.watches(replayed)
	r.finalStates(replayed)
	r.processes()
	r.resources()
	r.secrets()
	r.porcupine()
	r.liveness()
	r.others()
	r.exercised(replayed)
	for _, v := range r.order {
		v.done()
	}
	return &Result{Facts: facts, Verdicts: r.order, Stats: r.stats, Faults: r.faults, Series: r.series()}, nil
}

// load reads the history.
func (r *run) load() error {
	var err error
	if r.faults, err = history.All[history.Fault](r.dir.Faults()); err != nil {
		return err
	}
	sort.SliceStable(r.faults, func(i, j int) bool { return r.faults[i].Began < r.faults[j].Began })
	r.restores = restoresOf(r.faults)
	err = history.Read(r.dir.Calls("*"), func(line *history.Call) error {
		decoded, err := decode(line)
		if err != nil {
			return err
		}
		r.calls = append(r.calls, decoded)
		return nil
	})
	if err != nil {
		return err
	}
	if len(r.calls) == 0 {
		return errors.New("the history has no calls")
	}
	if err := r.loadAgents(); err != nil {
		return err
	}
	sort.SliceStable(r.calls, func(i, j int) bool { return r.calls[i].Sent < r.calls[j].Sent })
	r.stats.Calls = len(r.calls)
	return nil
}
