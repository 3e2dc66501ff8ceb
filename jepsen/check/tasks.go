package check

import (
	"cmp"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Tasks are judged once more by the clients' view alone: if the log and its replay agree to forget a budget, it is still forgotten.

// seenTask is one task as clients saw it.
type seenTask struct {
	name     string
	attempts map[uint64]*seenAttempt
	// counts are the reported counts of failures, closed the reports that it is shelved or done.
	counts, closed []seenCount
	// fresh are the calls that give it a fresh budget or create it again.
	fresh []span
	// failed are the fences of the attempts that clients reported as failed.
	failed map[uint64]bool
	most   int32
}

// span is when something took effect: after from, before to.
type span struct{ from, to int64 }

// seenAttempt is an attempt as its runner saw it.
type seenAttempt struct {
	fence uint64
	begun span
	// alive is until when it certainly ran if no call ended it, ended the earliest time at which a call may have ended it.
	alive, ended int64
}

// seenCount is a reported count of failures.
type seenCount struct {
	span
	failures int32
}

// tasks judges retry budgets by the clients' view.
func (r *run) tasks() {
	v := r.verdict("tasks", "A task fails no more often than it may, its count never goes back, none begins that is shelved or done, "+
		"and one attempt runs at a time (by what the clients saw).")
	for _, t := range r.seenTasks() {
		v.Checked += len(t.counts)
		t.judgeCounts(v)
		t.judgeClosed(v)
		if !r.hurried() {
			t.judgeAttempts(v)
		}
		if most := int(t.most) * (1 + len(t.fresh)); len(t.failed) > most {
			v.violate("%s failed %d times, %d are allowed and it was put back %d times", t.name, len(t.failed), t.most, len(t.fresh))
		}
	}
}

// seenTasks collects the reports on each task, separately for each interval between restores: the state after a restore lacks what the
// restore took back.
func (r *run) seenTasks() []*seenTask {
	var all []*seenTask
	from := int64(math.MinInt64)
	for _, restore := range r.restores {
		all = append(all, r.seenTasksOf(from, restore.Began)...)
		from = restore.Ended
	}
	return append(all, r.seenTasksOf(from, math.MaxInt64)...)
}

// seenTasksOf collects the reports on each task between two moments. Of calls that began before or ended after, it uses only those that may
// have renewed a task.
func (r *run) seenTasksOf(from, to int64) []*seenTask {
	known := map[string]*seenTask{}
	task := func(name string) *seenTask {
		if known[name] == nil {
			known[name] = &seenTask{name: name, attempts: map[uint64]*seenAttempt{}, failed: map[uint64]bool{}}
		}
		return known[name]
	}
	first := r.firstSent()
	for _, c := range r.calls {
		at := span{from: c.Sent, to: c.Returned}
		if p := &c.parts[0]; p.identified {
			at.from = first[p.id] // an answer may be that of an earlier attempt
		}
		if c.Error != nil && !c.open() {
			continue
		}
		if c.Error != nil {
			at.to = math.MaxInt64
		}
		if inside := c.Sent > from && c.Returned < to; !inside && (at.to < from || at.from > to || !renews(c.request)) {
			continue
		}
		switch request := c.request.(type) {
		case *quotav1.RetryTaskRequest:
			task(request.Task).renewed(at)
		case *quotav1.ForgetTaskRequest:
			task(request.Task).renewed(at)
		case *quotav1.BeginTaskRequest:
			if c.Error == nil {
				task(request.Task).begin(at, c.Sent, c.response.(*quotav1.BeginTaskResponse)) //nolint:errcheck // its procedure's
			}
		case *quotav1.RenewTaskRequest:
			if c.Error == nil {
				task(request.Task).renew(request.Fence, at.from, c.response.(*quotav1.RenewTaskResponse)) //nolint:errcheck // its procedure's
			}
		case *quotav1.EndTaskRequest:
			task(request.Task).end(at, request, c.response)
		case *quotav1.ListTasksRequest:
			for _, status := range listed(c) {
				task(status.Task).count(at, status.Failures, status.MaxFailures)
			}
		}
	}
	var all []*seenTask
	for _, t := range known {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *seenTask) int { return cmp.Compare(a.name, b.name) })
	return all
}

// renews says whether a request may give a task a fresh budget, or create it again.
func renews(request proto.Message) bool {
	switch request.(type) {
	case *quotav1.RetryTaskRequest, *quotav1.ForgetTaskRequest:
		return true
	}
	return false
}

// firstSent is when each numbered request was first sent.
func (r *run) firstSent() map[requestID]int64 {
	first := map[requestID]int64{}
	for _, c := range r.calls { // in the order in which they were sent
		if p := &c.parts[0]; p.identified {
			if _, ok := first[p.id]; !ok {
				first[p.id] = c.Sent
			}
		}
	}
	return first
}

func listed(c *call) []*quotav1.TaskStatus {
	if answer, ok := c.response.(*quotav1.ListTasksResponse); ok && answer != nil {
		return answer.Tasks
	}
	return nil
}

// renewed records a call that gives a task a fresh start; attempts of one request count once.
func (t *seenTask) renewed(at span) {
	for i := range t.fresh {
		if t.fresh[i].from == at.from {
			t.fresh[i].to = max(t.fresh[i].to, at.to)
			return
		}
	}
	t.fresh = append(t.fresh, at)
}

func (t *seenTask) count(at span, failures, most int32) {
	t.counts = append(t.counts, seenCount{at, failures})
	t.most = max(t.most, most)
}

func (t *seenTask) begin(at span, sent int64, answer *quotav1.BeginTaskResponse) {
	if answer.GetDone() || answer.GetRefusal().GetReason() == quotav1.Reason_REASON_TASK_SHELVED {
		t.closed = append(t.closed, seenCount{span: at})
	}
	attempt := answer.GetAttempt()
	if attempt == nil {
		return
	}
	t.count(at, attempt.Failures, attempt.MaxFailures)
	a := t.attempts[attempt.Fence]
	if a == nil {
		a = &seenAttempt{fence: attempt.Fence, begun: at, ended: math.MaxInt64}
		t.attempts[attempt.Fence] = a
	}
	a.begun.to = min(a.begun.to, at.to)
	a.alive = max(a.alive, sent+drifted(attempt.ExpiresIn.AsDuration()))
}

// drifted is the shortest time that a duration of the cluster's clock takes by other clocks.
func drifted(d time.Duration) int64 { return int64(d - d/100) }

func (t *seenTask) renew(fence uint64, sent int64, answer *quotav1.RenewTaskResponse) {
	if a := t.attempts[fence]; a != nil {
		a.alive = max(a.alive, sent+drifted(answer.ExpiresIn.AsDuration()))
	}
}

// end records an EndTask. Even with an unknown outcome it may have ended the attempt.
func (t *seenTask) end(at span, request *quotav1.EndTaskRequest, response any) {
	if a := t.attempts[request.Fence]; a != nil {
		a.ended = min(a.ended, at.from)
	}
	answer, ok := response.(*quotav1.EndTaskResponse)
	if !ok || answer == nil {
		return
	}
	t.count(at, answer.Failures, answer.MaxFailures)
	if request.Outcome == quotav1.TaskOutcome_TASK_OUTCOME_FAILED {
		t.failed[request.Fence] = true
	}
	if answer.Phase == quotav1.TaskPhase_TASK_PHASE_SHELVED || answer.Phase == quotav1.TaskPhase_TASK_PHASE_DONE {
		t.closed = append(t.closed, seenCount{span: at})
	}
}

// freshBetween says whether a fresh budget may have been given between two moments.
func (t *seenTask) freshBetween(from, to int64) bool {
	return slices.ContainsFunc(t.fresh, func(f span) bool { return f.from < to && f.to > from })
}

// judgeCounts checks that failures are not forgotten.
func (t *seenTask) judgeCounts(v *Verdict) {
	slices.SortStableFunc(t.counts, func(a, b seenCount) int { return cmp.Compare(a.from, b.from) })
	ended := slices.Clone(t.counts)
	slices.SortStableFunc(ended, func(a, b seenCount) int { return cmp.Compare(a.to, b.to) })
	var highest seenCount
	for _, c := range t.counts {
		for len(ended) > 0 && ended[0].to < c.from {
			if ended[0].failures >= highest.failures {
				highest = ended[0]
			}
			ended = ended[1:]
		}
		if c.failures >= highest.failures {
			continue
		}
		if !t.freshBetween(highest.from, c.to) {
			v.violate("%s had %d failures at %d, and %d at %d, and nobody put it back", t.name, highest.failures, highest.to, c.failures, c.from)
		}
		highest = c
	}
}

// judgeClosed checks that no attempt begins of a task that is shelved or done.
func (t *seenTask) judgeClosed(v *Verdict) {
	for _, a := range t.attempts {
		for _, closed := range t.closed {
			if closed.to < a.begun.from && !t.freshBetween(closed.from, a.begun.to) {
				v.violate("%s was shelved or done at %d, and attempt %d of it was begun at %d", t.name, closed.to, a.fence, a.begun.from)
				break
			}
		}
	}
}

// judgeAttempts checks that no attempt begins while another runs.
func (t *seenTask) judgeAttempts(v *Verdict) {
	var all []*seenAttempt
	for _, a := range t.attempts {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *seenAttempt) int { return cmp.Compare(a.fence, b.fence) })
	for i, b := range all {
		for _, a := range all[:i] {
			if b.begun.to < min(a.alive, a.ended) && !t.freshBetween(a.begun.from, b.begun.to) {
				v.violate("attempt %d of %s was begun by %d, and attempt %d ran until %d", b.fence, t.name, b.begun.to, a.fence, min(a.alive, a.ended))
			}
		}
	}
}
