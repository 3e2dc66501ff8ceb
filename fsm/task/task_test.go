package task

import (
	"reflect"
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

const (
	isDone    = logpb.TaskOutcome_TASK_OUTCOME_DONE
	hasFailed = logpb.TaskOutcome_TASK_OUTCOME_FAILED
)

// world is a table of tasks with a host that has a clock, a counter of fences, no quotas, and unlimited budgets.
type world struct {
	*Table
	now    int64
	fence  uint64
	book   accounts.Book
	events []effect.Event
}

func newWorld() *world { return &world{Table: New(), book: accounts.New()} }

func (w *world) Now() int64                             { return w.now }
func (w *world) FenceCounter() uint64                   { return w.fence }
func (w *world) NextFence() uint64                      { w.fence++; return w.fence }
func (w *world) Book() *accounts.Book                   { return &w.book }
func (w *world) Payer() accounts.Payer                  { return accounts.Payer{} }
func (w *world) Covers(pattern, holder string) bool     { return pattern == holder }
func (w *world) Closed(string, []string) *logpb.Refusal { return nil }
func (w *world) Emit(event effect.Event)                { w.events = append(w.events, event) }

func (w *world) OverBudget(accounts.Budget, string) *logpb.Result {
	return effect.Fail(logpb.Reason_REASON_CALLER_BUDGET, "", "")
}

func (w *world) QuotaName(name string) (string, *logpb.Failure) {
	return "", &logpb.Failure{Reason: logpb.Reason_REASON_UNKNOWN_QUOTA, Quota: name}
}

func (w *world) Report(*logpb.Command, string, []string) bool { return true }

// due carries out due work.
func (w *world) due() {
	w.LoseAttempts(w, 100)
	w.ForgetOld(w, 100)
}

func (w *world) begin(t *testing.T, name string, maxFailures int32) uint64 {
	t.Helper()
	result := w.Begin(w, &logpb.BeginTask{Task: name, Holder: "x", MaxFailures: maxFailures}, "")
	if result.GetTaskBegun().GetFence() == 0 {
		t.Fatalf("%s did not begin: %v", name, result)
	}
	return w.fence
}

func (w *world) end(t *testing.T, name string, fence uint64, outcome logpb.TaskOutcome, detail string) {
	t.Helper()
	end := &logpb.EndTask{Task: name, Fence: fence, Outcome: outcome, Detail: detail}
	if result := w.End(w, &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: end}}); result.GetTaskEnded() == nil {
		t.Fatalf("the end of %s was not taken: %v", name, result)
	}
}

// TestEvents_OfEachStep: the events of a watcher.
func TestEvents_OfEachStep(t *testing.T) {
	w := newWorld()
	for i, step := range []struct {
		do   func()
		want []effect.EventKind
	}{
		{func() { w.begin(t, "t", 1) }, []effect.EventKind{effect.EventTaskBegun}},
		{func() { w.end(t, "t", 1, hasFailed, "") }, []effect.EventKind{effect.EventTaskEnded, effect.EventTaskShelved}},
		{func() { w.Retry(w, &logpb.RetryTask{Task: "t"}, "") }, []effect.EventKind{effect.EventTaskRetried}},
		{func() { w.begin(t, "t", 1) }, []effect.EventKind{effect.EventTaskBegun}},
		{func() {
			w.now += DefaultTTL
			w.due()
			w.Begin(w, &logpb.BeginTask{Task: "t", Holder: "x", MaxFailures: 1}, "")
		}, []effect.EventKind{effect.EventTaskEnded, effect.EventTaskShelved}},
	} {
		w.events = nil
		step.do()
		var kinds []effect.EventKind
		for _, e := range w.events {
			if e.Task != "t" || e.Holder != "x" {
				t.Errorf("%+v", e)
			}
			kinds = append(kinds, e.Kind)
		}
		if !slices.Equal(kinds, step.want) {
			t.Errorf("step %d: %v", i, kinds)
		}
	}
	if e := w.events[1]; e.Outcome != logpb.TaskOutcome_TASK_OUTCOME_LOST || e.Amount != 1 {
		t.Errorf("%+v", e)
	}
}

// TestView_PhasesTimesAndPages: phases, times and pages.
func TestView_PhasesTimesAndPages(t *testing.T) {
	w := newWorld()
	for i, name := range []string{"a/done", "a/shelved", "b/under", "b/waits"} {
		w.begin(t, name, 1+int32(i)/2)
	}
	w.end(t, "a/done", 1, isDone, "")
	w.end(t, "a/shelved", 2, hasFailed, "exit code 1")
	w.end(t, "b/waits", 4, hasFailed, "")
	w.now += fixed.Minute
	all, _ := w.Page(Filter{}, "", 10, 100, w.now)
	if len(all) != 4 {
		t.Fatalf("%d tasks", len(all))
	}
	const ago = fixed.Minute
	for i, want := range []View{
		{Phase: logpb.TaskPhase_TASK_PHASE_DONE, EndedAgo: ago, MaxFailures: 1, Outcome: isDone},
		{
			Phase: logpb.TaskPhase_TASK_PHASE_SHELVED, EndedAgo: ago, Failures: 1, MaxFailures: 1, Outcome: hasFailed, Detail: "exit code 1",
		},
		{Phase: logpb.TaskPhase_TASK_PHASE_IN_FLIGHT, MaxFailures: 2, Fence: 3, Left: DefaultTTL - ago},
		{
			Phase: logpb.TaskPhase_TASK_PHASE_WAITING, EndedAgo: ago, Failures: 1, MaxFailures: 2, Outcome: hasFailed, RetryIn: firstRetry - ago,
		},
	} {
		got := all[i]
		got.Name, got.Holder, got.Quotas, got.Attempts = "", "", nil, 0
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", all[i].Name, got)
		}
	}
	w.now += firstRetry
	ready, _ := w.Page(Filter{Prefix: "b/", Holder: "x", Phase: logpb.TaskPhase_TASK_PHASE_READY}, "b/under", 1, 100, w.now)
	if len(ready) != 1 || ready[0].Name != "b/waits" {
		t.Errorf("%+v", ready)
	}
	if none, _ := w.Page(Filter{Holder: "y"}, "", 10, 100, w.now); len(none) != 0 {
		t.Errorf("%+v", none)
	}
}

// TestCopy_StaysAsItWas: a reader's copy does not change with the tasks.
func TestCopy_StaysAsItWas(t *testing.T) {
	w := newWorld()
	fence := w.begin(t, "t", 3)
	frozen := w.Copy()
	w.end(t, "t", fence, hasFailed, "exit code 1")
	w.now += fixed.Day
	w.begin(t, "t", 3)
	w.begin(t, "u", 3)
	views, _ := frozen.Page(Filter{}, "", 10, 100, 0)
	if len(views) != 1 || views[0].Phase != logpb.TaskPhase_TASK_PHASE_IN_FLIGHT || views[0].Fence != fence || views[0].Failures != 0 {
		t.Errorf("a copy changed: %+v", views)
	}
	for name, table := range map[string]*Table{"the table": w.Table, "its copy": frozen} {
		if err := table.Verify(w.fence); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEnter_RefusesImpossibleTasks: a snapshot with an inconsistent task is refused.
func TestEnter_RefusesImpossibleTasks(t *testing.T) {
	fine := func() *logpb.SnapshotTask {
		return &logpb.SnapshotTask{Name: "t", Holder: "x", Phase: logpb.TaskPhase_TASK_PHASE_WAITING, MaxFailures: 3, Attempts: 1, TtlNs: 1}
	}
	enter := func(encoded *logpb.SnapshotTask) error {
		w := newWorld()
		return w.Enter(w, encoded)
	}
	if err := enter(fine()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*logpb.SnapshotTask){
		"no phase":                 func(s *logpb.SnapshotTask) { s.Phase = 0 },
		"ready":                    func(s *logpb.SnapshotTask) { s.Phase = logpb.TaskPhase_TASK_PHASE_READY },
		"too many failures":        func(s *logpb.SnapshotTask) { s.Failures = 4 },
		"spent and not shelved":    func(s *logpb.SnapshotTask) { s.Failures = 3 },
		"shelved and not spent":    func(s *logpb.SnapshotTask) { s.Phase = logpb.TaskPhase_TASK_PHASE_SHELVED },
		"never begun":              func(s *logpb.SnapshotTask) { s.Attempts = 0 },
		"an attempt with no fence": func(s *logpb.SnapshotTask) { s.Phase = logpb.TaskPhase_TASK_PHASE_IN_FLIGHT },
	} {
		changed := fine()
		change(changed)
		if err := enter(changed); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	w := newWorld()
	_ = w.Enter(w, fine())
	if w.Enter(w, fine()) == nil {
		t.Error("a task came twice")
	}
}
