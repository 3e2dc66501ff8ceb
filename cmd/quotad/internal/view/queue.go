package view

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Waiter is a Reserve in the cluster's queue.
type Waiter struct {
	Holder, Quota string
	// Since is the arrival time of its event.
	Since time.Time
}

// Queue tracks waiting Reserves and recent events, from a cluster's events. It does not contain Reserves that began to wait
// before the first event. It is safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	waiting map[uint64]Waiter
	latest  []string
}

const (
	// maxWaiters bounds the remembered Reserves: a picture shows a few.
	maxWaiters = 10_000
	// maxLatest is the number of recent events to keep.
	maxLatest = 5
)

// Take processes an event that arrived at now.
func (q *Queue) Take(event *quotav1.Event, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == nil {
		q.waiting = map[uint64]Waiter{}
	}
	what := ""
	switch event.GetKind() { //nolint:exhaustive // the others do not change the queue, and are not news
	case quotav1.EventKind_EVENT_KIND_WAITING:
		if len(q.waiting) < maxWaiters {
			q.waiting[event.GetTicket()] = Waiter{Holder: event.GetHolder(), Quota: event.GetQuota(), Since: now}
		}
	case quotav1.EventKind_EVENT_KIND_GRANTED, quotav1.EventKind_EVENT_KIND_WAIT_ENDED:
		delete(q.waiting, event.GetTicket())
	case quotav1.EventKind_EVENT_KIND_REFUSED:
		what = fmt.Sprintf("%s refused for %s: %s", event.GetQuota(), event.GetHolder(), strings.TrimPrefix(event.GetReason().String(),
			"REASON_"))
	case quotav1.EventKind_EVENT_KIND_COOLDOWN:
		what = fmt.Sprintf("%s closed for %s", event.GetQuota(), event.GetDuration().AsDuration().Round(time.Second))
	case quotav1.EventKind_EVENT_KIND_REOPENED, quotav1.EventKind_EVENT_KIND_REOPENED_BY_OPERATOR:
		what = event.GetQuota() + " reopened"
	case quotav1.EventKind_EVENT_KIND_BREAKER:
		what = fmt.Sprintf("%s closed for %s: the provider refused its calls too often", event.GetQuota(), event.GetHolder())
	case quotav1.EventKind_EVENT_KIND_REVOKED:
		what = fmt.Sprintf("lease %d of %s revoked", event.GetLease(), event.GetHolder())
	case quotav1.EventKind_EVENT_KIND_EXPIRED:
		what = fmt.Sprintf("lease %d of %s expired", event.GetLease(), event.GetHolder())
	case quotav1.EventKind_EVENT_KIND_TASK_SHELVED:
		what = fmt.Sprintf("task %s shelved", event.GetTask())
	}
	if what != "" {
		q.latest = append(q.latest, now.Format(time.TimeOnly)+" "+what)
		q.latest = slices.Delete(q.latest, 0, max(len(q.latest)-maxLatest, 0))
	}
}

// Waiting returns the waiting Reserves, the longest wait first.
func (q *Queue) Waiting() []Waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := make([]Waiter, 0, len(q.waiting))
	for _, w := range q.waiting {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b Waiter) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Holder+" "+a.Quota, b.Holder+" "+b.Quota)
	})
	return all
}

// Latest returns the recent notable events, oldest first.
func (q *Queue) Latest() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.latest)
}

// Forget drops the waiting Reserves, because events may have been missed.
func (q *Queue) Forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.waiting)
}
