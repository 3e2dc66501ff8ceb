// Package check judges a run from its files. Each checker guards promises of docs/consistency.md. Its outcome is pass, fail with examples,
// or inconclusive: it could not check, or there was nothing to check, which is no pass.
package check

import (
	"errors"
	"fmt"
	"sort"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/workload"
)

// Outcome is the outcome of a checker.
type Outcome string

// The outcomes.
const (
	Pass         Outcome = "pass"
	Fail         Outcome = "fail"
	Inconclusive Outcome = "inconclusive"
)

// mostExamples bounds the violations that a verdict shows; it counts them all.
const mostExamples = 20

// Verdict is the finding of one checker about a run.
type Verdict struct {
	// Checker is its name, Promise what it guards, in one sentence.
	Checker string `json:"checker"`
	Promise string `json:"promise"`
	// Count is the number of violations, Examples are the first of them.
	Outcome  Outcome  `json:"outcome"`
	Count    int      `json:"count"`
	Examples []string `json:"examples,omitempty"`
	// Checked counts the items checked: with 0 a pass means nothing.
	Checked int `json:"looked"`
}

// violate adds a violation.
func (v *Verdict) violate(format string, args ...any) {
	v.Count++
	v.Outcome = Fail
	if len(v.Examples) < mostExamples {
		v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
	}
}

// done sets the outcome of a checker that found no violation.
func (v *Verdict) done() {
	if v.Outcome == "" {
		v.Outcome = Pass
		if v.Checked == 0 {
			v.Outcome = Inconclusive
			v.Examples = append(v.Examples, "there was nothing to look at")
		}
	}
}

// run is the run that is judged.
type run struct {
	dir history.Dir
	// simulated is set for a run that happened in this process, and has no folder.
	simulated *Simulated
	facts     *history.Facts
	log       []entry
	calls     []*call
	// faults are in order of their beginning.
	faults []*history.Fault
	// restores are the faults that restored a backup, in order of their indices.
	restores []*history.Restore
	// asked are the requests of agents through a gateway.
	asked []*history.Asked
	// verdicts by the checker's name.
	verdicts map[string]*Verdict
	order    []*Verdict
	stats    Stats
}

// verdict returns a checker's verdict, and creates it at the first call.
func (r *run) verdict(checker, promise string) *Verdict {
	if v := r.verdicts[checker]; v != nil {
		return v
	}
	v := &Verdict{Checker: checker, Promise: promise}
	r.verdicts[checker] = v
	r.order = append(r.order, v)
	return v
}

// Result holds the verdicts of all checkers on a run.
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

// Run judges a run. An error means that the history is unreadable or invalid.
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
