package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/client/pacing/pacingtest"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/fsm/effect"
)

// TestBatched_ConsumesAheadAsTheClientDoes replays the traces that the Go client's limiter replays.
func TestBatched_ConsumesAheadAsTheClientDoes(t *testing.T) {
	for _, trace := range pacingtest.Traces {
		t.Run(trace.Name, func(t *testing.T) { pacingtest.Replay(t, trace, newReplay(t, trace).take) })
	}
}

// replay is a fleet of one agent that makes its calls on request. Its cluster takes no time.
type replay struct {
	*world
	caller *batched
	grants int
}

func newReplay(t *testing.T, trace pacingtest.Trace) *replay {
	t.Helper()
	f, err := fleet.Parse("fleet.yaml", fmt.Appendf(nil, `for: 2h
quotas: [{name: %s, rate: {limit: %d, per: 1m}}]
agents: [{name: picard, start: 1h, every: 1h, use: {%[1]s: 1}, batch: true}]
`, pacingtest.Quota, trace.Usable))
	if err != nil {
		t.Fatal(err)
	}
	f.Cluster = fleet.Cluster{}
	r := &replay{world: newWorld(f, 1)}
	r.cluster = newCluster(r.schedule, f.Cluster, f.Begins, newDice(1, "cluster"))
	r.cluster.hear = func(e effect.Event) {
		if e.Kind == effect.EventGranted {
			r.grants++
		}
	}
	if err := r.found(); err != nil {
		t.Fatal(err)
	}
	r.populate(1)
	caller, ok := r.agents[0].caller.(*batched)
	if !ok {
		t.Fatalf("calls are made by %T", r.agents[0].caller)
	}
	r.caller = caller
	return r
}

// take makes one call at a time.
func (r *replay) take(at time.Duration) (grants int, left int64) {
	for r.step(int64(at)) { // process all events until then
	}
	r.now = int64(at)
	a := r.agents[0]
	a.running++
	a.want(&call{agent: a, life: a.life, task: &task{workers: 1}, asked: r.now, uses: a.kind.Uses})
	for r.step(int64(at)) { // process all events until then
	}
	for _, b := range []*batch{r.caller.current, r.caller.next} {
		if b != nil {
			left += b.left
		}
	}
	return r.grants, left
}
