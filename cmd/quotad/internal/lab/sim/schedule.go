package sim

import (
	"container/heap"
	"hash/fnv"
	"math/rand/v2"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
)

// schedule is virtual time: events in the order of their times and, at one time, of their scheduling. Times are nanoseconds
// since the run began.
type schedule struct {
	now    int64
	asked  uint64
	events eventHeap
}

type event struct {
	at  int64
	seq uint64
	run func()
}

// at schedules an event at a time, or now if that is past.
func (s *schedule) at(moment int64, run func()) {
	s.asked++
	heap.Push(&s.events, event{at: max(moment, s.now), seq: s.asked, run: run})
}

// in schedules an event after a duration.
func (s *schedule) in(after int64, run func()) { s.at(s.now+after, run) }

// step runs the next event that is not after last; false: there is none.
func (s *schedule) step(last int64) bool {
	next, ok := s.next()
	if !ok || next > last {
		return false
	}
	s.now = next
	s.run()
	return true
}

// next returns the time of the next event; false: there is none.
func (s *schedule) next() (int64, bool) {
	if len(s.events) == 0 {
		return 0, false
	}
	return s.events[0].at, true
}

// run runs the next event.
func (s *schedule) run() {
	next, _ := heap.Pop(&s.events).(event)
	next.run()
}

// eventHeap implements heap.Interface.
type eventHeap []event

func (h *eventHeap) Len() int { return len(*h) }

// Less orders events by their times and, at one time, by their scheduling.
func (h *eventHeap) Less(i, j int) bool {
	a, b := &(*h)[i], &(*h)[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h *eventHeap) Swap(i, j int) { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

// Push is for package heap.
func (h *eventHeap) Push(x any) {
	if e, ok := x.(event); ok {
		*h = append(*h, e)
	}
}

// Pop is for package heap.
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = event{}
	*h = (*h)[:last]
	return e
}

// dice are the random numbers of one actor. They depend only on the seed and its name.
type dice struct{ *rand.Rand }

func newDice(seed uint64, name string) dice {
	own := fnv.New64a()
	_, _ = own.Write([]byte(name)) // a hash never fails
	return dice{rand.New(rand.NewPCG(seed, own.Sum64()))}
}

// span draws a duration, in nanoseconds.
func (d dice) span(s fleet.Span) int64 {
	return int64(s.Least) + d.below(int64(s.Most-s.Least)+1)
}

// amount draws a number.
func (d dice) amount(r fleet.Range) int64 { return r.Least + d.below(r.Most-r.Least+1) }

// below draws a number from 0 to n-1; 0 for an n below 1.
func (d dice) below(n int64) int64 {
	if n <= 1 {
		return 0
	}
	return d.Int64N(n)
}
