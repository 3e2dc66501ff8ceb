package rangeset

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// listed are the expected ids by key.
type listed map[uint64][]uint64

func (l listed) copy() listed {
	c := listed{}
	for key, ids := range l {
		c[key] = slices.Clone(ids)
	}
	return c
}

func (l listed) add(key, id uint64) {
	at, _ := slices.BinarySearch(l[key], id)
	l[key] = slices.Insert(l[key], at, id)
}

func (l listed) remove(key, id uint64) {
	at, _ := slices.BinarySearch(l[key], id)
	if l[key] = slices.Delete(l[key], at, at+1); len(l[key]) == 0 {
		delete(l, key)
	}
}

// check reads a set in every way.
func (l listed) check(t *rapid.T, r *Set) {
	sum := 0
	for key := range uint64(listedKeys) {
		from := rapid.Uint64Range(0, listedIDs).Draw(t, "from")
		var up, down, want []uint64
		r.Ascend(key, from, func(id uint64) bool {
			up = append(up, id)
			return true
		})
		r.Descend(key, func(id uint64) bool {
			down = append(down, id)
			return true
		})
		for _, id := range l[key] {
			if id >= from {
				want = append(want, id)
			}
		}
		slices.Reverse(down)
		if !slices.Equal(up, want) || !slices.Equal(down, l[key]) || r.has(key, from) != slices.Contains(l[key], from) {
			t.Fatalf("key %d: %v from %d on, %v downwards, %t; not %v", key, up, from, down, r.has(key, from), l[key])
		}
		if len(want) > 0 {
			r.Ascend(key, from, func(id uint64) bool {
				if id != want[0] {
					t.Fatalf("continues to %d", id)
				}
				return false
			})
		}
		sum += len(l[key])
	}
	first, some := r.First()
	if some != (sum > 0) || some && len(l[first]) == 0 || r.count() != sum {
		t.Fatalf("the first key is %d (%t); %d ids of %d", first, some, r.count(), sum)
	}
	for key := range first {
		if some && len(l[key]) > 0 {
			t.Fatalf("key %d comes before %d", key, first)
		}
	}
}

const (
	listedKeys = 4
	listedIDs  = 24
)

// TestSet_MatchesModel: after any additions, removals and takes, runs hold the same as single ids would, and copies do not change.
func TestSet_MatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, want := New(), listed{}
		var copies []*Set
		var wanted []listed
		key, id := rapid.Uint64Range(0, listedKeys-1), rapid.Uint64Range(1, listedIDs)
		several := func(t *rapid.T, do func(key, id uint64)) {
			k, step := key.Draw(t, "key"), rapid.SampledFrom([]int{1, 1, 1, 2, -1}).Draw(t, "step")
			many, at := rapid.IntRange(1, 8).Draw(t, "many"), int(id.Draw(t, "id"))
			for ; many > 0 && at >= 1 && at <= listedIDs; many, at = many-1, at+step {
				do(k, uint64(at))
			}
		}
		add := func(key, id uint64) {
			if !slices.Contains(want[key], id) {
				r.Add(key, id)
				want.add(key, id)
			}
		}
		remove := func(key, id uint64) {
			if slices.Contains(want[key], id) {
				r.Remove(key, id)
				want.remove(key, id)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add":    func(t *rapid.T) { several(t, add) },
			"remove": func(t *rapid.T) { several(t, remove) },
			"move": func(t *rapid.T) { // as in a renewal
				to := key.Draw(t, "to")
				several(t, func(key, id uint64) {
					if slices.Contains(want[key], id) && !slices.Contains(want[to], id) {
						remove(key, id)
						add(to, id)
					}
				})
			},
			"take": func(t *rapid.T) {
				until, most := key.Draw(t, "until"), rapid.IntRange(0, 10).Draw(t, "most")
				var some []uint64
				for key := range until + 1 {
					for _, id := range slices.Clone(want[key]) {
						if len(some) < most {
							some = append(some, id)
							want.remove(key, id)
						}
					}
				}
				if got := r.TakeUntil(nil, until, most); !slices.Equal(got, some) {
					t.Fatalf("took %v, not %v", got, some)
				}
			},
			"flush": func(*rapid.T) { r.Flush() },
			"copy":  func(*rapid.T) { copies, wanted = append(copies, r.Copy()), append(wanted, want.copy()) },
			"read":  func(t *rapid.T) { want.check(t, r) },
		})
		want.check(t, r)
		for i := range copies {
			wanted[i].check(t, copies[i])
		}
	})
}

// TestSet_ConsecutiveIDsTakeOneNode: ids that are added, or removed, one after the other are one item of the tree.
func TestSet_ConsecutiveIDsTakeOneNode(t *testing.T) {
	r := New()
	const ids = 100_000
	for id := range uint64(ids) {
		r.Add(7, id+1)
	}
	if r.count() != ids || r.Tree.Len() != 1 {
		t.Fatalf("%d ids in %d places", r.count(), r.Tree.Len())
	}
	for id := range uint64(ids / 2) {
		r.Remove(7, 2*id+1)
	}
	if r.count() != ids/2 || r.Tree.Len() != ids/2 {
		t.Fatalf("%d ids in %d places", r.count(), r.Tree.Len())
	}
	if taken := r.TakeUntil(nil, 7, ids); len(taken) != ids/2 || r.Tree.Len() != 0 {
		t.Fatalf("%d taken, %d places left", len(taken), r.Tree.Len())
	}
}
