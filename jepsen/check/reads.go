package check

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// viewKey names an object at an index.
type viewKey struct {
	index uint64
	name  string
}

// views are the expected results of reads.
type views struct {
	quotas    map[viewKey]*fsm.QuotaView
	tasks     map[viewKey]string
	workflows map[viewKey]string
}

// shown holds the names of the objects that a read showed.
type shown struct{ quotas, tasks, workflows []string }

// readsByIndex are the objects that reads showed, by index.
func (r *run) readsByIndex() map[uint64]*shown {
	wanted := map[uint64]*shown{}
	at := func(meta *quotav1.Meta) *shown {
		if wanted[meta.Index] == nil {
			wanted[meta.Index] = &shown{}
		}
		return wanted[meta.Index]
	}
	for _, c := range r.calls {
		if c.Error != nil {
			continue
		}
		switch answer := c.response.(type) {
		case *quotav1.GetQuotaResponse:
			s := at(answer.Meta)
			s.quotas = append(s.quotas, answer.Quota.Definition.Name)
		case *quotav1.GetWorkflowResponse:
			s := at(answer.Meta)
			s.workflows = append(s.workflows, answer.Workflow.Definition.Name)
		case *quotav1.ListTasksResponse:
			for _, task := range answer.Tasks {
				s := at(answer.Meta)
				s.tasks = append(s.tasks, task.Task)
			}
		}
	}
	return wanted
}

// read keeps the expected results of reads at this entry.
func (v *views) read(s *shown, machine *fsm.Machine, applied *fsm.Applied) {
	if s == nil {
		return
	}
	for _, name := range s.quotas {
		if view, ok := machine.State().Quota(name, applied.Clock); ok {
			v.quotas[viewKey{applied.Index, name}] = &view
		}
	}
	for _, name := range s.workflows {
		if view, ok := machine.State().Workflow(name, applied.Clock); ok {
			v.workflows[viewKey{applied.Index, name}] = workflowSeen(view.Sequential)
		}
	}
	for _, name := range s.tasks {
		for _, t := range machine.State().Tasks(name, "", logpb.TaskPhase_TASK_PHASE_UNSPECIFIED, "", 1, applied.Clock) {
			v.tasks[viewKey{applied.Index, t.Name}] = taskSeen(t.Failures, t.MaxFailures, t.Attempts, t.Fence, int32(t.Outcome), int32(t.Phase))
		}
	}
}

func workflowSeen(sequential bool) string {
	if sequential {
		return "one at a time"
	}
	return "all go"
}

// taskSeen is the state of a task, except for changes by the mere passing of time.
func taskSeen(failures, most int32, attempts int64, fence uint64, outcome, phase int32) string {
	if phase == int32(quotav1.TaskPhase_TASK_PHASE_READY) {
		phase = int32(quotav1.TaskPhase_TASK_PHASE_WAITING)
	}
	return fmt.Sprintf("%v, %d of %d failures, %d attempts, fence %d, %v", quotav1.TaskPhase(phase), failures, most, attempts, fence,
		quotav1.TaskOutcome(outcome))
}

// reads compares the results of reads with the replayed state at their index.
func (r *run) reads(rep *replayed) {
	v := r.verdict("reads", "A read shows the state at the index that it names.")
	r.readsOfTasks(rep, v)
	for _, c := range r.calls {
		answer, ok := c.response.(*quotav1.GetQuotaResponse)
		if !ok || answer == nil {
			continue
		}
		v.Checked++
		status := answer.Quota
		view := rep.views.quotas[viewKey{answer.Meta.Index, status.Definition.Name}]
		if view == nil {
			v.violate("GetQuota by %s shows %s at index %d, which no node applied", c.Client, status.Definition.Name, answer.Meta.Index)
			continue
		}
		if view.Held != status.Held || view.Leases != status.Leases || view.Waiting != status.Waiting || view.Usable != status.Usable {
			v.violate("GetQuota by %s at index %d shows %s with held %d, leases %d, waiting %d, usable %d; the log has %d, %d, %d, %d",
				c.Client, answer.Meta.Index, status.Definition.Name, status.Held, status.Leases, status.Waiting, status.Usable,
				view.Held, view.Leases, view.Waiting, view.Usable)
		}
		// Windows advance with Unix time, also without an entry. So do fading amounts at a restore, whose time no entry carries.
		if status.Definition.GetWindow() == nil && !r.restoredAt(answer.Meta.Index) &&
			(view.Consumed != status.Consumed || view.Available != status.Available) {
			v.violate("GetQuota by %s at index %d shows %s with consumed %d, available %d; the log has %d, %d: it looked at a time that no "+
				"entry carries",
				c.Client, answer.Meta.Index, status.Definition.Name, status.Consumed, status.Available, view.Consumed, view.Available)
		}
	}
}

// restoredAt says whether a backup was restored at an index.
func (r *run) restoredAt(index uint64) bool {
	return slices.ContainsFunc(r.restores, func(restore *history.Restore) bool { return restore.Index == index })
}

// readsOfTasks compares reads of tasks and workflows in the same way.
func (r *run) readsOfTasks(rep *replayed, v *Verdict) {
	compare := func(c *call, what, name, replied, want string) {
		v.Checked++
		if replied != want {
			v.violate("%s by %s shows %s %s as %q; the log has %q", c.Procedure, c.Client, what, name, replied, want)
		}
	}
	for _, c := range r.calls {
		if c.Error != nil {
			continue
		}
		switch answer := c.response.(type) {
		case *quotav1.ListTasksResponse:
			for _, t := range answer.Tasks {
				replied := taskSeen(t.Failures, t.MaxFailures, t.Attempts, t.Fence, int32(t.Outcome), int32(t.Phase))
				compare(c, "task", t.Task, replied, rep.views.tasks[viewKey{answer.Meta.Index, t.Task}])
			}
		case *quotav1.GetWorkflowResponse:
			w := answer.Workflow
			replied := workflowSeen(w.State == quotav1.WorkflowState_WORKFLOW_STATE_SEQUENTIAL)
			compare(c, "workflow", w.Definition.Name, replied, rep.views.workflows[viewKey{answer.Meta.Index, w.Definition.Name}])
		}
	}
}
