package model

import "container/heap"

// due is when something with a number ends by itself.
type due struct {
	at int64
	id uint64
}

// dues are in the order of time. What ended otherwise, or later than it once said, stays in until its time has come.
type dues struct{ heap dueHeap }

func (d *dues) add(at int64, id uint64) { heap.Push(&d.heap, due{at, id}) }

// first returns the first that is due.
func (d *dues) first(now int64) (due, bool) {
	if len(d.heap) == 0 || d.heap[0].at > now {
		return due{}, false
	}
	return d.heap[0], true
}

func (d *dues) take() { heap.Pop(&d.heap) }

// dueHeap implements heap.Interface.
type dueHeap []due

func (h *dueHeap) Len() int           { return len(*h) }
func (h *dueHeap) Less(i, j int) bool { return (*h)[i].at < (*h)[j].at }
func (h *dueHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(due)) } //nolint:errcheck // only add calls it

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
