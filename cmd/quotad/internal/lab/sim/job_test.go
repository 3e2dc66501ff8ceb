package sim

import (
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
)

// run runs a fleet given as text.
func run(t *testing.T, side Side, text string) *Result {
	t.Helper()
	f, err := fleet.Parse("fleet.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), f, side, 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const cutOff = `
for: 1h
quotas: [{name: tokens, rate: {limit: 1000, per: 1m}}]
agents:
  - name: coder
    tasks: 1
    calls: 100
    think: 5s
    use: {tokens: 1}
    patience: forever
    retry: {ttl: 30s}
    cuts: [{at: 60s, for: 2m}]
`

// TestTask_CutOffAttemptIsLost: a runner that cannot reach the cluster until its attempt's deadline stops its tool. The
// attempt is lost, and the next one begins five minutes after the deadline.
func TestTask_CutOffAttemptIsLost(t *testing.T) {
	task := run(t, Governed, cutOff).Tasks[0]
	if task.Phase != PhaseDone || task.Attempts != 2 || task.Failures != 1 || task.Log[0].Outcome != fleet.Lost {
		t.Fatalf("%+v", task)
	}
	// The last renewal was at most 48 s after the begin, so the deadline is at most 78 s after it.
	if begun := task.Log[1].Begun; begun < 60*time.Second+5*time.Minute || begun > 78*time.Second+5*time.Minute+10*time.Second {
		t.Errorf("the next one begins after %v", begun)
	}
}

const dying = `
for: 2h
cluster: {kill: [10s, 7m, 30m]}
quotas: [{name: tokens, rate: {limit: 1000, per: 1m}}]
agents:
  - name: coder
    tasks: 2
    calls: 10
    think: 5s
    use: {tokens: 1}
    retry: {ttl: 60s}
    crashes: [{at: 20s, for: 5s}, {at: 6m40s, for: 5s}, {at: 22m40s, for: 5s}]
`

// TestTask_DyingAttemptsUseBudget: a machine that restarts during each attempt uses the budget up, whichever node leads meanwhile. The
// agent continues with its next task. Alone it would try indefinitely.
func TestTask_DyingAttemptsUseBudget(t *testing.T) {
	r := run(t, Governed, dying)
	first, second := r.Tasks[0], r.Tasks[1]
	if first.Phase != PhaseShelved || first.Listed != PhaseShelved || first.Attempts != 3 || first.Failures != 3 {
		t.Errorf("the first task: %+v", first)
	}
	if second.Phase != PhaseDone || second.Attempts != 1 {
		t.Errorf("the second task: %+v", second)
	}
	if alone := run(t, Alone, dying).Tasks[0]; alone.Phase != PhaseDone || alone.Burnt["tokens"] == 0 {
		t.Errorf("alone: %+v", alone)
	}
}

const handing = `
for: 1h
quotas: [{name: tokens, rate: {limit: 1000, per: 1m}}]
agents:
  - {name: left, every: 1m, tasks: 5, use: {tokens: 1}}
  - {name: right, every: 2m, tasks: 4, use: {tokens: 1}}
  - {name: both, follows: [left, right], calls: 2, use: {tokens: 1}, latency: 1m, crashes: [{at: 3m, for: 1m}]}
  - {name: last, follows: [both], use: {tokens: 1}}
`

// TestTasks_FollowersWaitForAllInputs: an agent that follows two others waits for both. All tasks reach the end of the chain, and tasks
// that a crash interrupted are repeated.
func TestTasks_FollowersWaitForAllInputs(t *testing.T) {
	for _, side := range []Side{Alone, Governed} {
		r := run(t, side, handing)
		var done []int64
		for _, h := range r.Holders {
			done = append(done, h.Tasks)
		}
		if r.Finish == 0 || done[0] != 5 || done[1] != 4 || done[2] != 4 || done[3] != 4 {
			t.Errorf("%s: finished after %v, tasks %v", side, r.Finish, done)
		}
		// The fourth pair is there after 6 minutes; each takes two calls of a minute, and one is interrupted.
		if r.Finish < 9*time.Minute || r.Finish > 13*time.Minute {
			t.Errorf("%s: finished after %v", side, r.Finish)
		}
	}
}
