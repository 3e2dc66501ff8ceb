package plan

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// TestRun_CanBeCancelled: a cancelled run ends at once on both sides, however much of it remains.
func TestRun_CanBeCancelled(t *testing.T) {
	f, err := fleet.Parse("fleet.yaml", []byte(`for: 366d
quotas: [{name: q, rate: {limit: 1000, per: 1s}}]
agents: [{name: a, count: 100, every: 10ms, overlap: 1000, use: {q: 1}}]
`))
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	for _, side := range []sim.Side{sim.Alone, sim.Governed} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
		if _, err := sim.Run(ctx, f, side, 1); !errors.Is(err, enough) {
			t.Errorf("%s: %v", side, err)
		}
	}
}

// BenchmarkManyKinds analyses a fleet in which every agent has its own description.
func BenchmarkManyKinds(b *testing.B) {
	var text strings.Builder
	text.WriteString("quotas: [{name: q, rate: {limit: 10, per: 1m}}]\nagents:\n")
	for i := range 2000 {
		fmt.Fprintf(&text, "- {name: a%d, class: background, every: 1m, use: {q: 1}}\n", i)
	}
	f, err := fleet.Parse("fleet.yaml", []byte(text.String()))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := OnPaper(f); err != nil {
			b.Fatal(err)
		}
	}
}

// TestWorstOf_DropsTasksOfSingleSeeds: the worst of several seeds does not show the tasks and workflows of the first one.
func TestWorstOf_DropsTasksOfSingleSeeds(t *testing.T) {
	seed := func(attempts int64) Runs {
		r := &sim.Result{Tasks: []sim.TaskResult{{Attempts: attempts}}, Workflows: []sim.WorkflowResult{{Workflow: "w"}}}
		return Runs{Alone: r, Governed: r}
	}
	for _, side := range []*sim.Result{worstOf([]Runs{seed(1), seed(7)}).Alone, worstOf([]Runs{seed(1), seed(7)}).Governed} {
		if mostAttempts(side) != 0 || len(side.Workflows) != 0 {
			t.Errorf("%d attempts, %d workflows", mostAttempts(side), len(side.Workflows))
		}
	}
}
