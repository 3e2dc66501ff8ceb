package fsm

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
)

// runner works on tasks. It regards its attempt as its own until it has reported the end, however much time has passed.
type runner struct {
	task  string
	fence uint64
	// deadline is the attempt's, as the runner knows it.
	deadline int64
}

// tasksModel counts by the state's answers alone.
type tasksModel struct {
	*rapid.T
	w       *world
	runners []*runner
	// failures are counted by task since it was made, retried or forgotten; most is the maximum in the state's answers.
	failures, most map[string]int32
	// present is the attempt that may be running, by task.
	present map[string]*runner
}

var taskNames = []string{"one", "two", "three"}

// TestTask_KeepsBudgetInAnyHistory: whatever runners do, and however late, no task fails more often than allowed between two
// commands of an operator. Only one attempt of it runs, and a stale command changes nothing.
func TestTask_KeepsBudgetInAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &tasksModel{
			T: rt, w: newWorld(rt), failures: map[string]int32{}, most: map[string]int32{}, present: map[string]*runner{},
		}
		m.w.quotas(rateOf("rpm", 10, minute))
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			m.w.now += rapid.SampledFrom([]int64{0, second, minute, 5 * minute, 16 * minute, hour, 4 * day}).Draw(rt, "pass")
			m.w.apply()
			m.learn()
			if rapid.IntRange(0, 9).Draw(rt, "cut") == 0 {
				m.w.reborn()
			}
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0, 1, 2, 3:
				m.begin()
			case 4, 5, 6, 7:
				m.end()
			case 8:
				m.renew()
			case 9:
				m.operate()
			}
			m.learn()
			m.compare()
		}
	})
}

func (m *tasksModel) name() string { return rapid.SampledFrom(taskNames).Draw(m.T, "task") }

// learn counts attempts and tasks that ended by time: attempts whose deadline passed, and dropped tasks.
func (m *tasksModel) learn() {
	for _, e := range m.w.last.Events {
		if e.Kind == effect.EventTaskEnded && e.Outcome == logpb.TaskOutcome_TASK_OUTCOME_LOST {
			r := m.present[e.Task]
			if r == nil || r.fence != e.Fence || r.deadline > m.w.now {
				m.Fatalf("attempt %d of %s was lost at %d, the model has %+v", e.Fence, e.Task, m.w.now, r)
			}
			m.failures[e.Task]++
			delete(m.present, e.Task)
		}
	}
	m.w.last.Events = nil
	for _, task := range taskNames {
		if views := m.w.m.Tasks(task, "", 0, "", 1, m.w.clock()); len(views) == 0 || views[0].Name != task {
			if m.present[task] != nil {
				m.Fatalf("%s was forgotten while an attempt was running", task)
			}
			m.failures[task] = 0
		}
	}
}

func (m *tasksModel) begin() {
	task, most := m.name(), rapid.Int32Range(0, 4).Draw(m.T, "most")
	command := begins(task, "x", most)
	command.GetBeginTask().TtlNs = rapid.SampledFrom([]int64{0, second, minute, hour}).Draw(m.T, "ttl")
	if rapid.Bool().Draw(m.T, "on a quota") {
		command.GetBeginTask().Quotas = []string{"rpm"}
	}
	b := m.w.do(command).GetTaskBegun()
	if b.GetAttempt() == 0 {
		return
	}
	if other := m.present[task]; other != nil {
		m.Fatalf("attempt %d of %s began while %d was running", b.Fence, task, other.fence)
	}
	if b.Failures != m.failures[task] || b.Failures >= b.MaxFailures {
		m.Fatalf("an attempt of %s began after %d of %d failures, the model counted %d", task, b.Failures, b.MaxFailures, m.failures[task])
	}
	m.most[task] = b.MaxFailures
	r := &runner{task: task, fence: b.Fence, deadline: b.DeadlineNs}
	m.present[task], m.runners = r, append(m.runners, r)
}

func (m *tasksModel) runner() *runner {
	if len(m.runners) == 0 {
		return nil
	}
	return rapid.SampledFrom(m.runners).Draw(m.T, "runner")
}

// end makes a runner report the end of its attempt. A stale report must change nothing.
func (m *tasksModel) end() {
	r := m.runner()
	if r == nil {
		return
	}
	outcome := logpb.TaskOutcome(rapid.Int32Range(1, 5).Draw(m.T, "outcome"))
	command := endsAfter(r.task, r.fence, outcome, rapid.SampledFrom([]int64{0, second, hour}).Draw(m.T, "wait"),
		logpb.Cause(rapid.Int32Range(0, 7).Draw(m.T, "cause")))
	if m.present[r.task] != r {
		before := m.before()
		if e := m.w.do(command); e.GetTaskEnded() == nil && e.GetFailure() == nil {
			m.Fatalf("a stale end of %s had the result %v", r.task, e)
		}
		m.unchanged(before)
		return
	}
	if e := m.w.do(command).GetTaskEnded(); e == nil {
		m.Fatalf("the end of %s was not taken", r.task)
	}
	if outcome == hasFailed {
		m.failures[r.task]++
	}
	delete(m.present, r.task)
}

func (m *tasksModel) renew() {
	r := m.runner()
	if r == nil {
		return
	}
	if m.present[r.task] != r {
		before := m.before()
		if m.w.do(renewsTask(r.task, r.fence, 0)).GetFailure() == nil {
			m.Fatalf("a stale attempt of %s was renewed", r.task)
		}
		m.unchanged(before)
		return
	}
	r.deadline = m.w.do(renewsTask(r.task, r.fence, 0)).GetRenewed().GetDeadlineNs()
}

// operate makes an operator retry or forget a task.
func (m *tasksModel) operate() {
	task := m.name()
	if rapid.Bool().Draw(m.T, "retry") {
		if m.w.do(retries(task)).GetDone() != nil {
			m.failures[task] = 0
		}
		return
	}
	if m.w.do(forgets(task)).GetDone() != nil {
		m.failures[task] = 0
		delete(m.present, task)
	}
}

func (m *tasksModel) before() [32]byte {
	_, whole := m.w.timeless()
	return whole
}

func (m *tasksModel) unchanged(before [32]byte) {
	if _, after := m.w.timeless(); after != before {
		m.Fatalf("a stale word changed the state")
	}
}

// compare compares views with the model.
func (m *tasksModel) compare() {
	views := m.w.m.State().Tasks("", "", 0, "", 10, m.w.clock())
	for _, v := range views {
		underWay := v.Phase == logpb.TaskPhase_TASK_PHASE_IN_FLIGHT
		if v.Failures != m.failures[v.Name] || v.Failures > v.MaxFailures || underWay != (m.present[v.Name] != nil) {
			m.Fatalf("%+v, the model counted %d failures of %d, present %+v", v, m.failures[v.Name], m.most[v.Name], m.present[v.Name])
		}
		if (v.Phase == logpb.TaskPhase_TASK_PHASE_SHELVED) != (v.Failures == v.MaxFailures) {
			m.Fatalf("%+v", v)
		}
	}
	if !slices.IsSortedFunc(views, func(a, b task.View) int { return strings.Compare(a.Name, b.Name) }) {
		m.Fatalf("tasks are out of order")
	}
}
