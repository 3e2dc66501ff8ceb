// Package cow has the common part of the state's tables. They are ordered and copied on write: a copy takes constant
// time, and shares everything until one of the two changes.
//
// Objects in tables carry the generation in which they were made. A frozen state may share objects of an older
// generation, so a change of one first replaces it by a copy (Edit).
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

// Has reports whether an item is in a set.
func Has[T any](set *Set[T], item T) bool {
	_, ok := set.Get(item)
	return ok
}

// DropRun deletes a run of items that meant accepts, starting at from, and returns them.
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

// Made is the part of an object that records the generation in which it was made.
type Made struct{ generation uint64 }

// In returns the Made of an object of a generation.
func In(generation uint64) Made { return Made{generation} }

// MadeIn reports whether an object was made in a generation. No frozen state has objects of the present one.
func (m *Made) MadeIn(generation uint64) bool { return m.generation == generation }

func (m *Made) made() *Made { return m }

// object is a pointer to a T that embeds Made.
type object[T any] interface {
	*T
	made() *Made
}

// Edit returns an object of a table for update: itself if it was made in this generation, else a copy that replaces it.
// A copy shares what its fields point to: to change a slice in place, copy the slice as well.
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
