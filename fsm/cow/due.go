package cow

import "cmp"

// Due says that something is due at a moment.
type Due[K cmp.Ordered] struct {
	// At is the moment, in nanoseconds of the clock that its table goes by.
	At int64
	// ID names what is due.
	ID K
}

// NewDues returns an empty set of what is due, in the order of time.
func NewDues[K cmp.Ordered]() *Set[Due[K]] {
	return NewSet(func(a, b Due[K]) bool { return a.At < b.At || a.At == b.At && a.ID < b.ID })
}

// TakeDue removes and returns up to most items from the front of a set, for as long as they are due.
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
