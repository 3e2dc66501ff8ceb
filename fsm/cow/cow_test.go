package cow_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/cow"
)

// thing is an object of a table.
type thing struct {
	cow.Made
	value int
}

// TestEdit_LeavesCopiesAsTheyWere changes random objects of a table that is copied now and then. Every copy keeps its values, and an
// object is copied at most once in each generation.
func TestEdit_LeavesCopiesAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var table cow.Map[int, *thing]
		generation := uint64(1)
		for key := range 8 {
			table.Set(key, &thing{Made: cow.In(generation), value: key})
		}
		values := func(table *cow.Map[int, *thing]) map[int]int {
			all := map[int]int{}
			table.Scan(func(key int, o *thing) bool {
				all[key] = o.value
				return true
			})
			return all
		}
		type frozen struct {
			table  *cow.Map[int, *thing]
			values map[int]int
		}
		var copies []frozen
		edited := map[int]bool{0: true, 1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true} // in this generation
		t.Repeat(map[string]func(*rapid.T){
			"copy": func(*rapid.T) {
				copies = append(copies, frozen{table.Copy(), values(&table)})
				generation++
				clear(edited)
			},
			"edit": func(t *rapid.T) {
				key := rapid.IntRange(0, 7).Draw(t, "key")
				o, _ := table.Get(key)
				changed, copied := cow.Edit(&table, key, o, generation)
				if copied == edited[key] || (changed == o) == copied || !changed.MadeIn(generation) {
					t.Fatalf("object %d: copied %t, edited before %t, generation %+v", key, copied, edited[key], changed.Made)
				}
				edited[key] = true
				changed.value = rapid.Int().Draw(t, "value")
				if stored, _ := table.Get(key); stored != changed {
					t.Fatalf("the table keeps the object before")
				}
			},
			"": func(t *rapid.T) {
				for _, c := range copies {
					if got := values(c.table); !maps.Equal(got, c.values) {
						t.Fatalf("a copy has %v, it had %v", got, c.values)
					}
				}
			},
		})
	})
}

func TestDropRun(t *testing.T) {
	t.Parallel()
	set := cow.NewSet(func(a, b int) bool { return a < b })
	for _, n := range []int{1, 3, 4, 5, 7} {
		set.Set(n)
	}
	frozen := set.Copy()
	if got := cow.DropRun(set, 2, func(n int) bool { return n < 6 }); !slices.Equal(got, []int{3, 4, 5}) {
		t.Errorf("dropped %v", got)
	}
	if got := set.Items(); !slices.Equal(got, []int{1, 7}) || frozen.Len() != 5 {
		t.Errorf("left %v, and %d in the copy", got, frozen.Len())
	}
	if !cow.Has(set, 7) || cow.Has(set, 5) || !cow.Has(frozen, 5) {
		t.Error("membership does not follow")
	}
}

func TestTakeDue_InOrderOfTime(t *testing.T) {
	t.Parallel()
	dues := cow.NewDues[string]()
	for _, d := range []cow.Due[string]{{9, "late"}, {2, "b"}, {2, "a"}, {1, "z"}, {5, "m"}} {
		dues.Set(d)
	}
	take := func(most int) (ids []string) {
		for _, d := range cow.TakeDue(dues, most, func(d cow.Due[string]) bool { return d.At <= 5 }) {
			ids = append(ids, d.ID)
		}
		return ids
	}
	for _, want := range [][]string{{"z", "a"}, {"b", "m"}, nil} {
		if got := take(2); !slices.Equal(got, want) {
			t.Errorf("took %v, want %v", got, want)
		}
	}
	if dues.Len() != 1 {
		t.Errorf("%d are left, want the one that is not due", dues.Len())
	}
}

func TestMirrored(t *testing.T) {
	t.Parallel()
	if err := cow.Mirrored("leases", 2, 2); err != nil {
		t.Error(err)
	}
	if err := cow.Mirrored("leases", 2, 3); err == nil || err.Error() != "2 leases, 3 places" {
		t.Errorf("2 leases and 3 places: %v", err)
	}
}
