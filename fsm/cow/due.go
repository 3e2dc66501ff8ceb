package cow

import "cmp"

// Due is the time at which an object is due.
type Due[K cmp.Ordered] struct {
	// At is the time, in nanoseconds of the table's clock.
	At int64
	// ID is the object's key.
	ID K
}

// NewDues returns an empty set of due objects, in the order of time.
func NewDues[K cmp.Ordered]() *Set[Due[K]] {
	return NewSet(func(a, b Due[K]) bool { return a.At < b.At || a.At == b.At && a.ID < b.ID })
}

// TakeDue removes and returns up to most items from the front of a set, as long as they are due.
func TakeDue[T any](set *Set[T], most int, isDue func(T) bool) []T {
	var all []T
	for len(all) < most {
		first, ok := set.Min()
		if !ok || !isDue(first) {
			break
		}
		set.PopMin()
		all = append(all, first)
	}
	return all
}
