package fsm

import (
	"fmt"
	"math"

	"github.com/tidwall/btree"
)

// rangeSet is an ordered set of pairs of a key and an id: leases by deadline, and by holder. What one entry grants mostly has ids that follow
// each other and the same keys, and ends together too. So such a run of ids is one place in the tree, and what comes or goes
// one by one is put together before it is entered there.
type rangeSet struct {
	tree *btree.BTreeG[idRange]
	// coming is in the set and not in the tree yet, going in the tree and not in the set any more. Whoever reads has them entered first;
	// and at the end of an entry there is neither, for between entries many read at once, and none may write.
	coming, going idRange
}

// idRange is ids that follow each other, from 1 on, all with one key. The zero value is none.
type idRange struct{ key, from, to uint64 }

func lessRange(a, b idRange) bool { return a.key < b.key || a.key == b.key && a.from < b.from }

func newRangeSet() *rangeSet { return &rangeSet{tree: newTree(lessRange)} }

func (r *idRange) has(key, id uint64) bool {
	return r.to != 0 && r.key == key && r.from <= id && id <= r.to
}

// take makes an id part of a run where it follows, or the run is none.
func (r *idRange) take(key, id uint64) bool {
	if r.to == 0 {
		*r = idRange{key: key, from: id, to: id}
		return true
	}
	if r.key != key || r.to+1 != id {
		return false
	}
	r.to = id
	return true
}

// add adds an id that is not there.
func (r *rangeSet) add(key, id uint64) {
	if r.going.has(key, id) || !r.coming.take(key, id) {
		r.flush()
		r.coming.take(key, id)
	}
}

// remove removes an id that is there.
func (r *rangeSet) remove(key, id uint64) {
	if r.coming.has(key, id) || !r.going.take(key, id) {
		r.flush()
		r.going.take(key, id)
	}
}

// flush enters into the tree what came and went.
func (r *rangeSet) flush() {
	if r.going.to != 0 {
		r.cut(r.going)
		r.going = idRange{}
	}
	if r.coming.to != 0 {
		r.tree.Load(r.coming) // mostly the last
		r.coming = idRange{}
	}
}

// cut takes a run's ids out of the tree, wherever they stand.
func (r *rangeSet) cut(out idRange) {
	for out.from <= out.to {
		at, found := r.tree.Delete(out)
		if !found {
			if at = r.before(out.key, out.from); !at.has(out.key, out.from) {
				panic(fmt.Sprintf("fsm: id %d under key %d is to be removed, and is not there", out.from, out.key))
			}
			r.tree.Set(idRange{key: at.key, from: at.from, to: out.from - 1})
		}
		if at.to > out.to {
			r.tree.Set(idRange{key: at.key, from: out.to + 1, to: at.to})
		}
		out.from = at.to + 1
	}
}

// before returns the last run that begins at a key and an id, or before; none: there is no such.
func (r *rangeSet) before(key, id uint64) (found idRange) {
	r.tree.Descend(idRange{key: key, from: id}, func(at idRange) bool {
		found = at
		return false
	})
	return found
}

// has tells whether an id is there.
func (r *rangeSet) has(key, id uint64) bool {
	r.flush()
	at := r.before(key, id)
	return at.has(key, id)
}

// ascend calls fn for the ids with a key, from one on, until it returns false.
func (r *rangeSet) ascend(key, from uint64, fn func(id uint64) bool) {
	r.flush()
	first := from
	if at := r.before(key, from); at.has(key, from) {
		first = at.from
	}
	r.tree.Ascend(idRange{key: key, from: first}, func(at idRange) bool {
		if at.key != key {
			return false
		}
		for id := max(at.from, from); id <= at.to; id++ {
			if !fn(id) {
				return false
			}
		}
		return true
	})
}

// descend calls fn for the ids with a key, from the last one on, until it returns false.
func (r *rangeSet) descend(key uint64, fn func(id uint64) bool) {
	r.flush()
	r.tree.Descend(idRange{key: key, from: math.MaxUint64}, func(at idRange) bool {
		if at.key != key {
			return false
		}
		for id := at.to; id >= at.from; id-- {
			if !fn(id) {
				return false
			}
		}
		return true
	})
}

// first returns the first key; false: there is nothing.
func (r *rangeSet) first() (key uint64, ok bool) {
	r.flush()
	first, ok := r.tree.Min()
	return first.key, ok
}

// takeUntil removes the first ids, up to most, with keys up to one, and appends them in order.
func (r *rangeSet) takeUntil(ids []uint64, key uint64, most int) []uint64 {
	r.flush()
	for most > 0 {
		first, ok := r.tree.Min()
		if !ok || first.key > key {
			break
		}
		r.tree.PopMin()
		if left := first.from + uint64(most); left <= first.to {
			r.tree.Set(idRange{key: first.key, from: left, to: first.to})
			first.to = left - 1
		}
		for id := first.from; id <= first.to; id++ {
			ids = append(ids, id)
			most--
		}
	}
	return ids
}

// count returns how many ids there are.
func (r *rangeSet) count() (n int) {
	r.flush()
	r.tree.Scan(func(at idRange) bool {
		n += int(at.to - at.from + 1)
		return true
	})
	return n
}

// copy returns a range set that shares everything until one of the two changes.
func (r *rangeSet) copy() *rangeSet {
	r.flush()
	return &rangeSet{tree: r.tree.Copy()}
}
