package main

import (
	"errors"
	"fmt"
	"io"
)

// hostileGoal is a goal for the others' service during an attack. measured computes its figure from the rounds.
type hostileGoal struct {
	what     string
	goal     float64
	least    bool
	measured func(rest, attack []phase) float64
}

// hostileGoals use medians of the rounds, except for memory: a node above its mark refuses grants, even in a single round.
var hostileGoals = []hostileGoal{
	{"rate of others with the hostile caller, ratio", 0.8, true, medianRatio(func(p phase) float64 { return p.PerSecond })},
	{"p99 of others with the hostile caller, ratio", 2, false, medianRatio(func(p phase) float64 { return p.P99 })},
	{"longest operator command, ms", 1000, false, func(rest, attack []phase) float64 {
		longest := func(p phase) float64 { return p.Operator }
		_, before := sortedOf(rest, longest)
		_, with := sortedOf(attack, longest)
		return max(before, with)
	}},
	{"memory of a node, part of its mark", 1, false, func(rest, attack []phase) (most float64) {
		for _, phases := range [][]phase{rest, attack} {
			all, _ := sortedOf(phases, func(p phase) float64 { return p.MemoryPart })
			most = max(most, all[len(all)-1])
		}
		return most
	}},
}

func medianRatio(get func(phase) float64) func(rest, attack []phase) float64 {
	return func(rest, attack []phase) float64 {
		_, before := sortedOf(rest, get)
		_, with := sortedOf(attack, get)
		return with / before
	}
}

// reached reports whether a measured value reaches the goal. NaN, which means that nothing was measured, never does.
func (g hostileGoal) reached(value float64) bool {
	if g.least {
		return value >= g.goal
	}
	return value <= g.goal
}

// judgeHostile prints the verdict on each goal, and returns an error if one is missed or an operator command failed.
func judgeHostile(out io.Writer, measured map[string][]phase) (err error) {
	rest, attack := measured["rest"], measured["attack"]
	for _, g := range hostileGoals {
		sign, verdict, value := "at most", "reached", g.measured(rest, attack)
		if g.least {
			sign = "at least"
		}
		if !g.reached(value) {
			verdict = "MISSED"
			err = errors.Join(err, fmt.Errorf("%s: %.2f, the goal is %s %g", g.what, value, sign, g.goal))
		}
		_, _ = fmt.Fprintf(out, "%s: %.2f (goal: %s %g, %s)\n", g.what, value, sign, g.goal, verdict)
	}
	for _, phases := range [][]phase{rest, attack} {
		for round, p := range phases {
			if p.Commands == 0 {
				err = errors.Join(err, fmt.Errorf("round %d: no operator command was carried out", round+1))
			}
			if len(p.Failed) > 0 {
				err = errors.Join(err, fmt.Errorf("round %d: %d of %d operator commands failed, the first: %w", round+1, len(p.Failed), p.Commands,
					p.Failed[0]))
			}
		}
	}
	return err
}
