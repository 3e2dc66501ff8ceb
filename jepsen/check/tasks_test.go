package check

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// ofTask is a task as clients saw it: calls that take a millisecond each.
type ofTask struct {
	calls []*call
	seq   uint64
}

// at adds a call; without an answer its outcome is unknown.
func (o *ofTask) at(moment time.Duration, request, answer proto.Message) *ofTask {
	o.seq++
	return o.again(o.seq, moment, request, answer)
}

// again adds another attempt of request number seq.
func (o *ofTask) again(seq uint64, moment time.Duration, request, answer proto.Message) *ofTask {
	c := &call{Call: &history.Call{Sent: int64(moment), Returned: int64(moment + time.Millisecond)}, request: request, response: answer}
	if answer == nil {
		c.Error = &history.Error{Text: "timeout"}
	}
	c.parts = []part{{id: requestID{session: 1, seq: seq}, identified: true}}
	o.calls = append(o.calls, c)
	return o
}

func asksTask() *quotav1.BeginTaskRequest { return &quotav1.BeginTaskRequest{Task: "t"} }

func begunTask(fence uint64, failures int32, left time.Duration) *quotav1.BeginTaskResponse {
	return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Attempt{Attempt: &quotav1.Attempt{
		Number: int64(fence), Fence: fence, Failures: failures, MaxFailures: 2, ExpiresIn: durationpb.New(left),
	}}}
}

func failsTask(fence uint64) *quotav1.EndTaskRequest {
	return &quotav1.EndTaskRequest{Task: "t", Fence: fence, Outcome: quotav1.TaskOutcome_TASK_OUTCOME_FAILED}
}

func endedTask(phase quotav1.TaskPhase, failures int32) *quotav1.EndTaskResponse {
	return &quotav1.EndTaskResponse{Phase: phase, Failures: failures, MaxFailures: 2}
}

// TestTasks_Observed: valid and invalid views of a task's budget and attempts.
func TestTasks_Observed(t *testing.T) {
	const waiting, shelved, second = quotav1.TaskPhase_TASK_PHASE_WAITING, quotav1.TaskPhase_TASK_PHASE_SHELVED, time.Second
	retry, forget := &quotav1.RetryTaskRequest{Task: "t"}, &quotav1.ForgetTaskRequest{Task: "t"}
	once := func() *ofTask { // attempt 1 fails
		return new(ofTask).at(0, asksTask(), begunTask(1, 0, 4*second)).at(second, failsTask(1), endedTask(waiting, 1))
	}
	twice := func() *ofTask { // and so does attempt 2
		return once().at(2*second, asksTask(), begunTask(2, 1, 4*second)).at(3*second, failsTask(2), endedTask(shelved, 2))
	}
	list := func(failures int32) *quotav1.ListTasksResponse {
		return &quotav1.ListTasksResponse{Tasks: []*quotav1.TaskStatus{{Task: "t", Failures: failures, MaxFailures: 2}}}
	}
	for name, c := range map[string]struct {
		seen *ofTask
		want Outcome
	}{
		"fails twice": {twice(), ""},
		"put back and begun": {twice().at(4*second, retry, &quotav1.RetryTaskResponse{}).at(5*second, asksTask(),
			begunTask(3, 0, second)), ""},
		"perhaps put back": {twice().at(4*second, retry, nil).at(9*second, asksTask(), begunTask(3, 0, second)), ""},
		"forgotten and begun": {once().at(4*second, forget, &quotav1.ForgetTaskResponse{}).at(5*second, asksTask(),
			begunTask(3, 0, second)), ""},
		"begun though it is shelved":   {twice().at(5*second, asksTask(), begunTask(3, 2, second)), Fail},
		"a failure is forgotten":       {once().at(5*second, asksTask(), begunTask(2, 0, second)), Fail},
		"a list forgets a failure":     {once().at(5*second, &quotav1.ListTasksRequest{}, list(0)), Fail},
		"a list sees it":               {once().at(5*second, &quotav1.ListTasksRequest{}, list(1)), ""},
		"an old answer comes late":     {once().again(1, 5*second, asksTask(), begunTask(1, 0, 0)), ""},
		"fails more often than it may": {twice().at(2*second, failsTask(3), endedTask(shelved, 2)), Fail},
		"two at once": {new(ofTask).at(0, asksTask(), begunTask(1, 0, 4*second)).at(second, asksTask(),
			begunTask(2, 0, 4*second)), Fail},
		"after the deadline": {new(ofTask).at(0, asksTask(), begunTask(1, 0, 4*second)).at(4*second, asksTask(),
			begunTask(2, 1, 4*second)), ""},
		"after a deadline that was put off": {new(ofTask).at(0, asksTask(), begunTask(1, 0, 4*second)).at(3*second,
			&quotav1.RenewTaskRequest{Task: "t", Fence: 1}, &quotav1.RenewTaskResponse{ExpiresIn: durationpb.New(4 * second)}).at(5*second,
			asksTask(), begunTask(2, 1, 4*second)), Fail},
		"after an end of unknown outcome": {new(ofTask).at(0, asksTask(), begunTask(1, 0, 4*second)).at(second, failsTask(1), nil).at(2*second,
			asksTask(), begunTask(2, 1, second)), ""},
		"begun though it is done": {new(ofTask).at(0, asksTask(), begunTask(1, 0, 4*second)).at(second, &quotav1.EndTaskRequest{
			Task: "t", Fence: 1, Outcome: quotav1.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED,
		}, endedTask(quotav1.TaskPhase_TASK_PHASE_DONE, 0)).at(2*second, asksTask(), begunTask(2, 0, second)), Fail},
	} {
		r := newRun("")
		r.calls = c.seen.calls
		r.tasks()
		if v := r.verdict("tasks", ""); v.Outcome != c.want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestTasks_FailSavedHistories: the clients' view of one task each, in builds with a planted defect.
func TestTasks_FailSavedHistories(t *testing.T) {
	for _, name := range []string{"two-attempts", "task-budget-forgotten"} {
		r := newRun(history.Dir("testdata/" + name))
		if err := r.load(); err != nil {
			t.Fatal(err)
		}
		r.tasks()
		if v := r.verdict("tasks", ""); v.Outcome != Fail {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
