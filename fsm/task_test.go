package fsm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
)

// Commands of stories about tasks. A fence is that of the n-th grant or attempt; stories have one epoch.

func begins(task, holder string, maxFailures int32) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: &logpb.BeginTask{Task: task, Holder: holder, MaxFailures: maxFailures}}}
}

func beginsOn(task string, quotas ...string) *logpb.Command {
	return with(begins(task, "x", 0), func(c *logpb.Command) { c.GetBeginTask().Quotas = quotas })
}

func ends(task string, fence uint64, outcome logpb.TaskOutcome) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: &logpb.EndTask{Task: task, Fence: fence, Outcome: outcome}}}
}

func endsAfter(task string, fence uint64, outcome logpb.TaskOutcome, wait int64, cause logpb.Cause) *logpb.Command {
	return with(ends(task, fence, outcome), func(c *logpb.Command) { c.GetEndTask().WaitNs, c.GetEndTask().Report = &wait, cause })
}

func renewsTask(task string, fence uint64, ttl int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_RenewTask{RenewTask: &logpb.RenewTask{Task: task, Fence: fence, TtlNs: ttl}}}
}

func retries(task string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_RetryTask{RetryTask: &logpb.RetryTask{Task: task}}}
}

func forgets(task string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ForgetTask{ForgetTask: &logpb.ForgetTask{Task: task}}}
}

// taskFence returns the fence of a task's last attempt, 0 after a retry, and 1 if there is no task.
func (m *Machine) taskFence(name string) uint64 {
	views := m.Tasks(name, "", 0, "", 1, m.clock)
	if len(views) == 0 || views[0].Name != name {
		return 1
	}
	fence := views[0].Fence
	m.tasks.Records(func(record *logpb.SnapshotRecord) bool { // no view has the fence of an ended one
		if record.GetTask().Name == name {
			fence = record.GetTask().Fence
		}
		return fence == 0 && record.GetTask().Name < name
	})
	return fence
}

const (
	isDone      = logpb.TaskOutcome_TASK_OUTCOME_DONE
	hasFailed   = logpb.TaskOutcome_TASK_OUTCOME_FAILED
	isSaturated = logpb.TaskOutcome_TASK_OUTCOME_SATURATED
	isExhausted = logpb.TaskOutcome_TASK_OUTCOME_PLAN_EXHAUSTED
	hasFinished = logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED
)

// TestTask_RetryBudget: how often a task may fail, and when its next attempt may begin (design 6.10, scenario S3).
func TestTask_RetryBudget(t *testing.T) {
	tell(t, []story{
		{"shelved at the third failure, 5 and 15 min before the second and third attempt", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{minute, ends("t", 1, hasFailed), "waiting until 6m0s, 1 of 3 failed"},
			{5*minute - 1, begins("t", "x", 0), "TASK_LATER  again at 6m0s"},
			{1, begins("t", "x", 0), "attempt 2, fence 2, until 16m0s, 1 of 3 failed"},
			{0, ends("t", 2, hasFailed), "waiting until 21m0s, 2 of 3 failed"},
			{15*minute - 1, begins("t", "x", 0), "TASK_LATER  again at 21m0s"},
			{1, begins("t", "x", 0), "attempt 3, fence 3, until 31m0s, 2 of 3 failed"},
			{0, ends("t", 3, hasFailed), "shelved, 3 of 3 failed"},
			{30 * day, begins("t", "x", 0), "TASK_SHELVED "},
			{0, retries("t"), "done"},
			{0, begins("t", "x", 0), "attempt 4, fence 4, until 720h31m0s, 0 of 3 failed"},
		}},
		{"30 min from the fourth attempt on, where there is one", nil, []line{
			{0, begins("t", "x", 5), "attempt 1, fence 1, until 10m0s, 0 of 5 failed"},
			{0, ends("t", 1, hasFailed), "waiting until 5m0s, 1 of 5 failed"},
			{5 * minute, begins("t", "x", 0), "attempt 2, fence 2, until 15m0s, 1 of 5 failed"},
			{0, ends("t", 2, hasFailed), "waiting until 20m0s, 2 of 5 failed"},
			{15 * minute, begins("t", "x", 0), "attempt 3, fence 3, until 30m0s, 2 of 5 failed"},
			{0, ends("t", 3, hasFailed), "waiting until 50m0s, 3 of 5 failed"},
			{30 * minute, begins("t", "x", 0), "attempt 4, fence 4, until 1h0m0s, 3 of 5 failed"},
			{0, ends("t", 4, hasFailed), "waiting until 1h20m0s, 4 of 5 failed"},
			{30 * minute, begins("t", "x", 1), "attempt 5, fence 5, until 1h30m0s, 4 of 5 failed"}, // one more failure is allowed
			{0, ends("t", 5, hasFailed), "shelved, 5 of 5 failed"},
		}},
		{"a plan that is used up is waited for, a saturated provider a minute; neither uses the budget up", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, endsAfter("t", 1, isExhausted, 4*hour, 0), "waiting until 4h0m0s, 0 of 3 failed"},
			{4 * hour, begins("t", "x", 0), "attempt 2, fence 2, until 4h10m0s, 0 of 3 failed"},
			{0, ends("t", 2, hasFailed), "waiting until 4h5m0s, 1 of 3 failed"},
			{5 * minute, begins("t", "x", 0), "attempt 3, fence 3, until 4h15m0s, 1 of 3 failed"},
			{0, ends("t", 3, isSaturated), "waiting until 4h6m0s, 1 of 3 failed"},
			{minute, begins("t", "x", 0), "attempt 4, fence 4, until 4h16m0s, 1 of 3 failed"},
			{0, ends("t", 4, isDone), "done, 1 of 3 failed"},
			{0, begins("u", "x", 0), "attempt 1, fence 5, until 4h16m0s, 0 of 3 failed"},
			{0, ends("u", 5, isExhausted), "waiting until 4h36m0s, 0 of 3 failed"}, // the end is unknown: 30 min
		}},
		{"limits in a row wait longer and longer, up to half an hour", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, endsAfter("t", 1, isSaturated, 5*second, 0), "waiting until 5s, 0 of 3 failed"},
			{5 * second, begins("t", "x", 0), "attempt 2, fence 2, until 10m5s, 0 of 3 failed"},
			{0, endsAfter("t", 2, isSaturated, 5*second, 0), "waiting until 1m5s, 0 of 3 failed"},
			{minute, begins("t", "x", 0), "attempt 3, fence 3, until 11m5s, 0 of 3 failed"},
			{0, endsAfter("t", 3, isExhausted, 5*second, 0), "waiting until 3m5s, 0 of 3 failed"},
			{2 * minute, begins("t", "x", 0), "attempt 4, fence 4, until 13m5s, 0 of 3 failed"},
			{0, ends("t", 4, hasFailed), "waiting until 8m5s, 1 of 3 failed"},
			{5 * minute, begins("t", "x", 0), "attempt 5, fence 5, until 18m5s, 1 of 3 failed"},
			{0, endsAfter("t", 5, isSaturated, 5*second, 0), "waiting until 8m10s, 1 of 3 failed"},
		}},
		{"what was finished before the limit is done, and is not begun again", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, endsAfter("t", 1, hasFinished, 4*hour, 0), "done, 0 of 3 failed"},
			{0, begins("t", "x", 0), "done before"},
			{6 * day, begins("t", "x", 0), "done before"},
			{day, begins("t", "x", 0), "attempt 1, fence 2, until 168h10m0s, 0 of 3 failed"}, // dropped after a week
		}},
	})
}

// TestTask_Attempts: only one runs at a time, and it ends.
func TestTask_Attempts(t *testing.T) {
	tell(t, []story{
		{"nothing heard until the deadline is a failure, and a late word changes nothing", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{5 * minute, begins("t", "y", 0), "TASK_IN_FLIGHT  again at 10m0s"},
			{minute, renewsTask("t", 1, 0), "until 16m0s"},
			{10 * minute, ends("t", 1, isDone), "! STALE_FENCE"},
			{0, renewsTask("t", 1, 0), "! STALE_FENCE"},
			{0, begins("t", "y", 0), "TASK_LATER  again at 21m0s"}, // from its deadline on
			{5 * minute, begins("t", "y", 0), "attempt 2, fence 2, until 31m0s, 1 of 3 failed"},
			{0, ends("t", 1, hasFailed), "! STALE_FENCE"},
			{0, ends("t", 2, isDone), "done, 1 of 3 failed"},
		}},
		{"an end may be reported repeatedly, a different one is not taken", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, ends("t", 1, hasFailed), "waiting until 5m0s, 1 of 3 failed"},
			{0, ends("t", 1, hasFailed), "waiting until 5m0s, 1 of 3 failed"},
			{0, ends("t", 1, isDone), "! STALE_ATTEMPT"},
			{0, renewsTask("t", 1, 0), "! STALE_ATTEMPT"},
			{0, retries("t"), "done"},
			{0, ends("t", 1, hasFailed), "! STALE_FENCE"},
			{0, begins("t", "x", 0), "attempt 2, fence 2, until 10m0s, 0 of 3 failed"},
		}},
		{"who names the attempt begins no other one", nil, []line{
			{
				0, with(begins("t", "x", 0), func(c *logpb.Command) { c.GetBeginTask().Attempt = 1 }), "attempt 1, fence 1, until 10m0s, 0 of 3 failed",
			},
			{0, ends("t", 1, hasFailed), "waiting until 5m0s, 1 of 3 failed"},
			{5 * minute, with(begins("t", "x", 0), func(c *logpb.Command) { c.GetBeginTask().Attempt = 1 }), "! STALE_ATTEMPT"},
		}},
		{"a forgotten task's attempt is dead, also where the task is new again", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, forgets("t"), "done"},
			{0, renewsTask("t", 1, 0), "! STALE_FENCE"},
			{0, begins("t", "x", 0), "attempt 1, fence 2, until 10m0s, 0 of 3 failed"},
			{0, ends("t", 1, hasFailed), "! STALE_FENCE"},
		}},
		{"an attempt continues under a fresh budget", nil, []line{
			{0, begins("t", "x", 2), "attempt 1, fence 1, until 10m0s, 0 of 2 failed"},
			{0, ends("t", 1, hasFailed), "waiting until 5m0s, 1 of 2 failed"},
			{5 * minute, begins("t", "x", 0), "attempt 2, fence 2, until 15m0s, 1 of 2 failed"},
			{0, retries("t"), "done"},
			{0, ends("t", 2, hasFailed), "waiting until 10m0s, 1 of 2 failed"},
		}},
		{"what nobody begins is forgotten a week after it may begin; what is shelved is not", nil, []line{
			{0, begins("t", "x", 0), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, ends("t", 1, hasFailed), "waiting until 5m0s, 1 of 3 failed"},
			{0, begins("u", "x", 1), "attempt 1, fence 2, until 10m0s, 0 of 1 failed"},
			{0, ends("u", 2, hasFailed), "shelved, 1 of 1 failed"},
			{7*day + 5*minute - 1, begins("t", "x", 0), "attempt 2, fence 3, until 168h14m59.999999999s, 1 of 3 failed"},
			{0, endsAfter("t", 3, isExhausted, 0, 0), "waiting until 168h4m59.999999999s, 1 of 3 failed"},
			{7 * day, begins("t", "x", 0), "attempt 1, fence 4, until 336h14m59.999999999s, 0 of 3 failed"},
			{0, begins("u", "x", 0), "TASK_SHELVED "},
		}},
	})
}

// TestTask_WaitsForItsQuotas: a limit met by one attempt keeps other tasks from beginning, within the bounds of a report.
func TestTask_WaitsForItsQuotas(t *testing.T) {
	plan := &logpb.Quota{Name: "plan", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 100, EveryNs: 5 * hour}}}
	tell(t, []story{
		{"exhausted until its time, for all that live on it", []*logpb.Quota{plan, rateOf("rpm", 10, minute)}, []line{
			{0, beginsOn("t", "plan"), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, endsAfter("t", 1, isExhausted, 30*minute, logpb.Cause_CAUSE_EXHAUSTED), "waiting until 30m0s, 0 of 3 failed"},
			{0, beginsOn("u", "plan", "rpm"), "COOLDOWN plan again at 30m0s"},
			{0, asks("a", 0, itemOf("plan", 1)), "COOLDOWN plan again at 30m0s"},
			{0, beginsOn("u", "rpm"), "attempt 1, fence 2, until 10m0s, 0 of 3 failed"},
			{0, beginsOn("v"), "attempt 1, fence 3, until 10m0s, 0 of 3 failed"},
			{30 * minute, beginsOn("t", "plan"), "attempt 2, fence 4, until 40m0s, 0 of 3 failed"},
		}},
		{"one attempt's word closes a rate for five minutes at most", []*logpb.Quota{rateOf("rpm", 10, minute)}, []line{
			{0, beginsOn("t", "rpm"), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, endsAfter("t", 1, isExhausted, day, logpb.Cause_CAUSE_EXHAUSTED), "waiting until 24h0m0s, 0 of 3 failed"},
			{0, beginsOn("u", "rpm"), "COOLDOWN rpm again at 5m0s"},
		}},
		{
			"an ancestor that is closed closes it too; a task's own state comes first",
			[]*logpb.Quota{rateOf("org", 10, minute), under(rateOf("org/a", 5, minute), "org")},
			[]line{
				{0, beginsOn("t", "org/a"), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
				{0, endsAfter("t", 1, isSaturated, minute, logpb.Cause_CAUSE_ACCOUNT), "waiting until 1m0s, 0 of 3 failed"},
				{0, beginsOn("t", "org/a"), "TASK_LATER  again at 1m0s"},
				{0, beginsOn("u", "org/a"), "COOLDOWN org again at 1m0s"},
			},
		},
		{"without a report no quota learns of it", []*logpb.Quota{rateOf("rpm", 10, minute)}, []line{
			{0, beginsOn("t", "rpm"), "attempt 1, fence 1, until 10m0s, 0 of 3 failed"},
			{0, endsAfter("t", 1, isSaturated, minute, 0), "waiting until 1m0s, 0 of 3 failed"},
			{0, beginsOn("u", "rpm"), "attempt 1, fence 2, until 10m0s, 0 of 3 failed"},
		}},
	})
}

// TestNextDue_WithTasks: an entry is due when an attempt is lost, and ticks continue while a task waits for its time.
func TestNextDue_WithTasks(t *testing.T) {
	w := newWorld(t)
	due := func(wantPending bool, want int64) {
		t.Helper()
		at, pending := w.m.State().NextDue()
		if pending != wantPending || want != 0 && at != want {
			t.Fatalf("due at %d, pending %v", at, pending)
		}
	}
	due(false, 0)
	w.do(begins("t", "x", 0))
	due(true, task.DefaultTTL)
	w.sleep(task.DefaultTTL)
	due(true, 0) // it waits for its second attempt
	w.sleep(5 * minute)
	due(false, 0)
	w.do(begins("t", "x", 0))
	w.do(ends("t", 2, isDone))
	due(false, 0)
	w.do(begins("u", "x", 1))
	w.do(ends("u", 3, hasFailed))
	due(false, 0) // a shelved task needs no entries
	if c := w.m.State().Counts(); c.Tasks != 2 || c.TasksShelved != 1 {
		t.Fatalf("%+v", c)
	}
}

// taskWorld has a task in each phase, and its own limits.
func taskWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.quotas(rateOf("rpm", 10, minute))
	w.do(limitsTo(func(l *logpb.SetLimits) { l.MaxTasks, l.TaskLifeNs = proto.Int64(10), new(day) }))
	for _, task := range []string{"done", "shelved", "under-way", "waiting"} {
		w.do(with(beginsOn(task, "rpm"), func(c *logpb.Command) { c.GetBeginTask().MaxFailures = 1 }))
	}
	w.do(ends("done", 1, isDone))
	w.do(with(ends("shelved", 2, hasFailed), func(c *logpb.Command) { c.GetEndTask().Detail = "exit code 1: no such file" }))
	w.do(endsAfter("waiting", 4, isExhausted, hour, logpb.Cause_CAUSE_EXHAUSTED))
	return w
}

// TestSnapshot_KeepsTasks: a state with a task in each phase is written as it was restored.
func TestSnapshot_KeepsTasks(t *testing.T) {
	written := snapshotOf(t, taskWorld(t).m.Freeze())
	m, err := Restore(bytes.NewReader(written))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(snapshotOf(t, m.State()), written) {
		t.Fatal("a restored state writes another snapshot")
	}
}

// TestRestore_GoldenTasks: a snapshot with tasks can always be restored, to the same state.
func TestRestore_GoldenTasks(t *testing.T) {
	path := filepath.Join("testdata", "snapshot-v1-tasks.bin")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Restore(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	if c := m.State().Counts(); c.Tasks != 4 || c.TasksShelved != 1 || m.accounts.Limits.Tasks != 10 || m.accounts.Limits.TaskLife != day {
		t.Fatalf("the golden snapshot holds %+v", c)
	}
}

// TestTask_BudgetStopsRetryLoop: ten agents ask every minute for nine hours, like the loops that burnt millions of tokens: 319
// attempts of one task, hundreds of others (scenario S3).
func TestTask_BudgetStopsRetryLoop(t *testing.T) {
	const tasks, minutes = 10, 9 * 60
	plan := &logpb.Quota{Name: "plan", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 100, EveryNs: 5 * hour}}}
	for _, c := range []struct {
		name    string
		quotas  []string
		outcome logpb.TaskOutcome
		report  logpb.Cause
		most    int // of the whole fleet
		shelved int64
	}{
		{"each attempt fails: three of each task", nil, hasFailed, 0, 3 * tasks, tasks},
		{"out of usage, nobody knows until when: one in half an hour", nil, isExhausted, 0, 18 * tasks, 0},
		{
			"out of usage, and the quota is known: one for all of them in each hour, as long as one caller closes it",
			[]string{"plan"},
			isExhausted,
			logpb.Cause_CAUSE_EXHAUSTED, 9, 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(plan)
			attempts := 0
			for range minutes {
				for n := range tasks {
					task := string(rune('a' + n))
					b := w.raw(beginsOn(task, c.quotas...))[0].GetTaskBegun()
					if b == nil {
						continue
					}
					attempts++
					end := ends(task, b.Fence, c.outcome)
					end.GetEndTask().Report = c.report
					if w.raw(end)[0].GetTaskEnded() == nil {
						t.Fatalf("the end of %s was not taken", task)
					}
				}
				w.now += minute
			}
			if counts := w.m.State().Counts(); attempts != c.most || counts.TasksShelved != c.shelved {
				t.Errorf("%d attempts, %d shelved", attempts, counts.TasksShelved)
			}
			if err := w.m.State().Verify(); err != nil {
				t.Error(err)
			}
		})
	}
}
