package model

import "container/heap"

// due is the time at which a numbered object ends by itself.
type due struct {
	at int64
	id uint64
}

// dues are in order of time. An object that ended earlier, or was extended, keeps its entry until that time.
type dues struct{ heap dueHeap }

func (d *dues) add(at int64, id uint64) { heap.Push(&d.heap, due{at, id}) }

// first returns the first entry whose time has come.
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
