package estimate

import "slices"

// window is the last figures of a kind.
type window struct {
	// ring has them in order of arrival, the next at index at; sorted has them in order of size.
	ring, sorted []float32
	at           int
}

func (w *window) size() int { return len(w.ring) }

// add adds a figure, and drops the oldest one once there are lastCalls.
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

// p95 returns the 95th percentile of the figures; 0 if there are none.
func (w *window) p95() float64 {
	if len(w.sorted) == 0 {
		return 0
	}
	return float64(w.sorted[(len(w.sorted)*95+99)/100-1])
}
