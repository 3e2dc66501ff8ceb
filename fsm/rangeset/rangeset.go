// Package rangeset is an ordered, copy-on-write set of pairs of a key and an id, which stores runs of consecutive ids
// as one.
package rangeset

import (
	"fmt"
	"math"

	"github.com/tidwall/btree"
)

// Set is an ordered set of pairs of a key and an id: leases by deadline, and by holder. The grants of one entry mostly
// have consecutive ids and the same keys, and end together too. So a run of ids is one item of the tree, and single
// changes are collected before they are applied to the tree.
type Set struct {
	// Tree has the runs, without the pending changes.
	Tree *btree.BTreeG[Run]
	// coming is in the set and not yet in the tree, going in the tree and no longer in the set. Every read applies them
	// first. At the end of an entry both are empty: between entries many goroutines read at once, and none may write.
	coming, going Run
}

// Run is consecutive ids, from 1 on, all with one key. The zero value is empty.
type Run struct {
	// From and To are the first and the last id.
	Key, From, To uint64
}

func lessRange(a, b Run) bool { return a.Key < b.Key || a.Key == b.Key && a.From < b.From }

// New returns an empty set.
func New() *Set { return &Set{Tree: btree.NewBTreeGOptions(lessRange, btree.Options{NoLocks: true})} }

func (r *Run) has(key, id uint64) bool {
	return r.To != 0 && r.Key == key && r.From <= id && id <= r.To
}

// take appends an id to a run if it is the next one, or if the run is empty.
func (r *Run) take(key, id uint64) bool {
	if r.To == 0 {
		*r = Run{Key: key, From: id, To: id}
		return true
	}
	if r.Key != key || r.To+1 != id {
		return false
	}
	r.To = id
	return true
}

// Add adds an id that is not in the set.
func (r *Set) Add(key, id uint64) {
	if r.going.has(key, id) || !r.coming.take(key, id) {
		r.Flush()
		r.coming.take(key, id)
	}
}

// Remove removes an id that is in the set.
func (r *Set) Remove(key, id uint64) {
	if r.coming.has(key, id) || !r.going.take(key, id) {
		r.Flush()
		r.going.take(key, id)
	}
}

// Flush applies the pending changes to the tree.
func (r *Set) Flush() {
	if r.going.To != 0 {
		r.cut(r.going)
		r.going = Run{}
	}
	if r.coming.To != 0 {
		r.Tree.Load(r.coming) // mostly the last
		r.coming = Run{}
	}
}

// cut removes a run's ids from the tree, wherever they are.
func (r *Set) cut(out Run) {
	for out.From <= out.To {
		at, found := r.Tree.Delete(out)
		if !found {
			if at = r.before(out.Key, out.From); !at.has(out.Key, out.From) {
				panic(fmt.Sprintf("fsm: id %d under key %d is to be removed, and is not there", out.From, out.Key))
			}
			r.Tree.Set(Run{Key: at.Key, From: at.From, To: out.From - 1})
		}
		if at.To > out.To {
			r.Tree.Set(Run{Key: at.Key, From: out.To + 1, To: at.To})
		}
		out.From = at.To + 1
	}
}

// before returns the last run that begins at or before a key and an id; the zero value if there is none.
func (r *Set) before(key, id uint64) (found Run) {
	r.Tree.Descend(Run{Key: key, From: id}, func(at Run) bool {
		found = at
		return false
	})
	return found
}

// has reports whether an id is in the set.
func (r *Set) has(key, id uint64) bool {
	r.Flush()
	at := r.before(key, id)
	return at.has(key, id)
}

// Ascend calls fn for the ids with a key, in ascending order from one on, until it returns false.
func (r *Set) Ascend(key, from uint64, fn func(id uint64) bool) {
	r.Flush()
	first := from
	if at := r.before(key, from); at.has(key, from) {
		first = at.From
	}
	r.Tree.Ascend(Run{Key: key, From: first}, func(at Run) bool {
		if at.Key != key {
			return false
		}
		for id := max(at.From, from); id <= at.To; id++ {
			if !fn(id) {
				return false
			}
		}
		return true
	})
}

// Descend calls fn for the ids with a key, in descending order, until it returns false.
func (r *Set) Descend(key uint64, fn func(id uint64) bool) {
	r.Flush()
	r.Tree.Descend(Run{Key: key, From: math.MaxUint64}, func(at Run) bool {
		if at.Key != key {
			return false
		}
		for id := at.To; id >= at.From; id-- {
			if !fn(id) {
				return false
			}
		}
		return true
	})
}

// First returns the first key; false: the set is empty.
func (r *Set) First() (key uint64, ok bool) {
	r.Flush()
	first, ok := r.Tree.Min()
	return first.Key, ok
}

// TakeUntil removes up to most of the first ids, with keys up to key, and appends them in order.
func (r *Set) TakeUntil(ids []uint64, key uint64, most int) []uint64 {
	r.Flush()
	for most > 0 {
		first, ok := r.Tree.Min()
		if !ok || first.Key > key {
			break
		}
		r.Tree.PopMin()
		if left := first.From + uint64(most); left <= first.To {
			r.Tree.Set(Run{Key: first.Key, From: left, To: first.To})
			first.To = left - 1
		}
		for id := first.From; id <= first.To; id++ {
			ids = append(ids, id)
			most--
		}
	}
	return ids
}

// count returns the number of ids.
func (r *Set) count() (n int) {
	r.Flush()
	r.Tree.Scan(func(at Run) bool {
		n += int(at.To - at.From + 1)
		return true
	})
	return n
}

// Copy returns a range set that shares everything until one of the two changes.
func (r *Set) Copy() *Set {
	r.Flush()
	return &Set{Tree: r.Tree.Copy()}
}
