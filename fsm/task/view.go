package task

import (
	"strings"

	"github.com/quotad/quotad/fsm/logpb"
)

// View is a task as a reader sees it at some cluster time. Durations are nanoseconds.
type View struct {
	Name, Holder string
	Quotas       []string
	Phase        logpb.TaskPhase
	// Failures are counted since it was made or retried; at MaxFailures it is shelved. Limited counts limits in a row.
	Failures, MaxFailures, Limited int32
	// Attempts counts begun attempts.
	Attempts int64
	// Fence and Left are those of the running attempt.
	Fence uint64
	Left  int64
	// RetryIn is how long until the next attempt may begin; 0: now, or never without an operator.
	RetryIn int64
	// Outcome and Detail are those of the last ended attempt; EndedAgo is how long ago it ended.
	Outcome  logpb.TaskOutcome
	Detail   string
	EndedAgo int64
}

// Filter selects tasks.
type Filter struct {
	// Prefix is a prefix of names, Holder a holder's name. Empty: any.
	Prefix, Holder string
	// Phase is a phase; unspecified: any.
	Phase logpb.TaskPhase
	// Shown reports whether a holder's tasks are shown; nil: all.
	Shown func(holder string) bool
}

// matches reports whether a task passes the filter, without the prefix.
func (of *Filter) matches(v *View) bool {
	return (of.Holder == "" || of.Holder == v.Holder) && (of.Phase == logpb.TaskPhase_TASK_PHASE_UNSPECIFIED || of.Phase == v.Phase) &&
		(of.Shown == nil || of.Shown(v.Holder))
}

// Page returns up to limit tasks by name, above the name after. next is the value of after for the next page, empty
// after the last task. A page ends early, and may be empty, once it costs most: records read and quotas shown.
func (ts *Table) Page(of Filter, after string, limit, most int, now int64) (views []View, next string) {
	work, last := 0, after
	ts.byName.Ascend(max(of.Prefix, after), func(name string, t *task) bool {
		switch {
		case !strings.HasPrefix(name, of.Prefix):
			return false
		case name == after && after != "":
			return true
		case len(views) >= limit || work >= most:
			next = last
			return false
		}
		work++
		last = name
		if v := t.view(now); of.matches(&v) {
			work += len(v.Quotas)
			views = append(views, v)
		}
		return true
	})
	return views, next
}

func (t *task) view(now int64) View {
	v := View{
		Name: t.name, Holder: t.holder, Quotas: t.quotas, Phase: t.phase, Failures: t.failures, MaxFailures: t.maxFailures,
		Limited: t.limited, Attempts: t.attempts, Outcome: t.outcome, Detail: t.detail,
	}
	if t.outcome != logpb.TaskOutcome_TASK_OUTCOME_UNSPECIFIED {
		v.EndedAgo = max(now-t.ended, 0)
	}
	switch t.phase {
	case logpb.TaskPhase_TASK_PHASE_IN_FLIGHT:
		v.Fence, v.Left = t.fence, max(t.at-now, 0)
	case logpb.TaskPhase_TASK_PHASE_WAITING:
		if v.RetryIn = max(t.at-now, 0); v.RetryIn == 0 {
			v.Phase = logpb.TaskPhase_TASK_PHASE_READY
		}
	case logpb.TaskPhase_TASK_PHASE_SHELVED, logpb.TaskPhase_TASK_PHASE_DONE, logpb.TaskPhase_TASK_PHASE_READY,
		logpb.TaskPhase_TASK_PHASE_UNSPECIFIED:
	}
	return v
}
