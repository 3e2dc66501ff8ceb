package estimate

import "slices"

// window is the last figures of a kind.
type window struct {
	// ring has them in order of arrival, the next at at; sorted in order of size.
	ring, sorted []float32
	at           int
}

func (w *window) size() int { return len(w.ring) }

// add takes a figure, and forgets the oldest one where there are enough.
func (w *window) add(figure float64) {
	f := float32(figure)
	if len(w.ring) < lastCalls {
		w.ring = append(w.ring, f)
	} else {
		gone, _ := slices.BinarySearch(w.sorted, w.ring[w.at])
		w.sorted = slices.Delete(w.sorted, gone, gone+1)
		w.ring[w.at] = f
		w.at = (w.at + 1) % lastCalls
	}
	place, _ := slices.BinarySearch(w.sorted, f)
	w.sorted = slices.Insert(w.sorted, place, f)
}

// p95 returns the figure that 95 of a hundred do not exceed, 0 where there is none.
func (w *window) p95() float64 {
	if len(w.sorted) == 0 {
		return 0
	}
	return float64(w.sorted[(len(w.sorted)*95+99)/100-1])
}
