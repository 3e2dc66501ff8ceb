// Package cow has what the tables of the state have in common. They are ordered and copied on write: a copy costs the same whatever a table
// holds, and shares all of it until one of the two changes.
//
// Objects in tables carry the generation in which they were made. A frozen state may have those of an older generation as well, so a change
// of one first puts a copy in its place (Edit).
package cow

import (
	"cmp"

	"github.com/tidwall/btree"
)

// Set is an ordered set.
type Set[T any] = btree.BTreeG[T]

// Map is a table by key.
type Map[K cmp.Ordered, V any] = btree.Map[K, V]

// NewSet returns an empty set.
func NewSet[T any](less func(a, b T) bool) *Set[T] {
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

// Has tells whether an item is in a set.
func Has[T any](set *Set[T], item T) bool {
	_, ok := set.Get(item)
	return ok
}

// DropRun deletes the items of a set that are meant, from one on for as long as they come one after the other, and returns them.
func DropRun[T any](set *Set[T], from T, meant func(T) bool) (all []T) {
	set.Ascend(from, func(t T) bool {
		if meant(t) {
			all = append(all, t)
		}
		return meant(t)
	})
	for _, t := range all {
		set.Delete(t)
	}
	return all
}

// Made is the part of an object that says in which generation it was made.
type Made struct{ generation uint64 }

// In returns the part of an object that is made in a generation.
func In(generation uint64) Made { return Made{generation} }

// MadeIn tells whether an object was made in a generation: in the present one, no frozen state has it.
func (m *Made) MadeIn(generation uint64) bool { return m.generation == generation }

func (m *Made) made() *Made { return m }

// object is a pointer to a T that has a Made in it.
type object[T any] interface {
	*T
	made() *Made
}

// Edit returns an object of a table that may be changed: itself where it was made in this generation, else a copy that takes its place.
// A copy shares what its fields point at: to change a slice in place, copy the slice as well.
func Edit[K cmp.Ordered, T any, P object[T]](table *Map[K, P], key K, o P, generation uint64) (edited P, copied bool) {
	if o.made().MadeIn(generation) {
		return o, false
	}
	fresh := *o
	edited = &fresh
	*edited.made() = In(generation)
	table.Set(key, edited)
	return edited, true
}
