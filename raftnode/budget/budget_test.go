package budget_test

import (
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/raftnode/budget"
)

// taken takes one at a time until the budget refuses, and returns how many it took and the refusal.
func taken(b *budget.Budget, caller string, operator bool) (n int64, full *budget.FullError) {
	for {
		if full = b.Take(caller, 1, operator); full != nil {
			return n, full
		}
		n++
	}
}

// TestTake_OfOneOperatorLeavesRoom: an operator, as every caller, may have half of what others leave, so that a second one finds room.
func TestTake_OfOneOperatorLeavesRoom(t *testing.T) {
	b := budget.New("calls", 1600, 100, 10)
	for _, want := range []int64{800, 400, 200} {
		name := string(rune('a' + want/200))
		if n, full := taken(b, name, true); n != want || !full.Own {
			t.Errorf("operator %s has %d, then %v; want %d", name, n, full, want)
		}
	}
	b = budget.New("calls", 1600, 100, 10)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		if _, full := taken(b, name, false); full == nil {
			t.Errorf("caller %s finds no bound", name)
		}
	}
	if n, full := taken(b, "operator", true); n < 50 || !full.Own {
		t.Errorf("an operator has %d next to callers, then %v", n, full)
	}
	if full := b.TakeForAll("node", 1); full != nil {
		t.Errorf("what the process does for all: %v", full)
	}
}

// TestCharge_BeyondItsPartKeepsOutOneCaller: charges beyond a caller's part take no room from others and operators. The caller gets nothing
// more until it has returned all of the surplus.
func TestCharge_BeyondItsPartKeepsOutOneCaller(t *testing.T) {
	b := budget.New("request_bytes", 1600, 200, 10)
	for range 10 {
		b.Charge("hostile", 1000, false)
	}
	if used, callers := b.InUse(); used != 700 || callers != 1 {
		t.Errorf("%d are used by %d callers", used, callers)
	}
	if full := b.Take("hostile", 1, false); full == nil || !full.Own {
		t.Errorf("the caller gets more: %v", full)
	}
	if n, _ := taken(b, "other", false); n != 350 {
		t.Errorf("another caller has %d", n)
	}
	if full := b.Take("operator", 200, true); full != nil {
		t.Errorf("an operator: %v", full)
	}
	for range 9 {
		b.Give("hostile", 1000)
		if full := b.Take("hostile", 1, false); full == nil || !full.Own {
			t.Errorf("the caller gets more before it has returned all: %v", full)
		}
	}
	b.Give("hostile", 1000)
	if full := b.Take("hostile", 1, false); full != nil {
		t.Errorf("the caller, after all was returned: %v", full)
	}
}

// TestCharge_DebtBlocksNoOperator: what calls without tokens from an address were charged beyond its part does not block an operator at
// that address.
func TestCharge_DebtBlocksNoOperator(t *testing.T) {
	b := budget.New("request_bytes", 100, 10, 5)
	b.Charge("address", 80, false)
	if full := b.Take("address", 1, false); full == nil || !full.Own {
		t.Errorf("beyond its part: %v", full)
	}
	if full := b.Take("address", 1, true); full != nil {
		t.Errorf("an operator there: %v", full)
	}
}

// TestGive_ReturnsSurplusFirst: a caller has more than its part, and then the budget shrinks. What it returns counts first as what was
// hidden from others, then as what was hidden from operators only.
func TestGive_ReturnsSurplusFirst(t *testing.T) {
	b := budget.New("request_bytes", 1000, 0, 10)
	if full := b.Take("hostile", 400, false); full != nil {
		t.Fatal(full)
	}
	b.Charge("hostile", 300, false) // 500 are its part
	b.Resize(100, 0, 10)            // 50 are its part, 450 count for others alone, and 200 for nobody
	b.Give("hostile", 300)
	if full := b.Take("operator", 50, true); full != nil {
		t.Errorf("an operator: %v", full)
	}
	b.Give("operator", 50)
	b.Give("hostile", 349)
	if full := b.Take("other", 50, false); full == nil {
		t.Error("another caller finds room that the first one has")
	}
	b.Give("hostile", 1)
	if full := b.Take("other", 50, false); full != nil {
		t.Errorf("another caller, once what remains fits: %v", full)
	}
}

// TestBudget_Adds: in any order of takes, charges and returns, use never exceeds the capacity, callers other than operators leave the kept
// amount free, and nothing is left at the end.
func TestBudget_Adds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const capacity, kept = 1000, 100
		b := budget.New("any", capacity, kept, 10)
		has := map[string]int64{}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			caller := rapid.SampledFrom([]string{"a", "b", "operator"}).Draw(t, "caller")
			operator, n := caller == "operator", rapid.Int64Range(1, 700).Draw(t, "amount")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				if b.Take(caller, n, operator) == nil {
					has[caller] += n
				}
			case 1:
				b.Charge(caller, n, operator)
				has[caller] += n
			case 2:
				n = min(n, has[caller])
				b.Give(caller, n)
				has[caller] -= n
			}
			v := b.View()
			operators, all := int64(0), int64(0)
			for _, use := range v.Uses {
				if use.Used != has[use.Caller] {
					t.Fatalf("%s has %d, of %d", use.Caller, use.Used, has[use.Caller])
				}
				all += use.Used
				if use.Caller == "operator" {
					operators = use.Used
				}
			}
			if v.Used > min(capacity, all) || v.Used-operators > capacity-kept {
				t.Fatalf("%d of %d are used, %d by the operator", v.Used, all, operators)
			}
		}
		for caller, n := range has { // in any order
			b.Give(caller, n)
		}
		if used, callers := b.InUse(); used != 0 || callers != 0 {
			t.Fatalf("%d are used by %d callers", used, callers)
		}
	})
}

// TestBudget_ConcurrentUse: the race detector finds a method that does not take the lock.
func TestBudget_ConcurrentUse(t *testing.T) {
	b := budget.New("any", 100, 10, 5)
	var using sync.WaitGroup
	for _, use := range []func(){
		func() {
			if b.Take("a", 1, false) == nil {
				b.Give("a", 1)
			}
		},
		func() {
			if b.TakeForAll("node", 1) == nil {
				b.Give("node", 1)
			}
		},
		func() {
			b.Charge("b", 1, false)
			b.Give("b", 1)
		},
		func() { b.Resize(100, 10, 5) },
		func() { b.Alone() },
		func() { b.View() },
		func() { b.InUse() },
	} {
		using.Go(func() {
			for range 100 {
				use()
			}
		})
	}
	using.Wait()
	if used, callers := b.InUse(); used != 0 || callers != 0 {
		t.Errorf("%d are used by %d callers", used, callers)
	}
}

// TestResize_KeepsWhatCallersHave: callers keep what they have, and those other than operators get nothing more until it fits. An operator
// gets the kept amount at once, also under the name of a caller that has too much.
func TestResize_KeepsWhatCallersHave(t *testing.T) {
	b := budget.New("calls", 24_000, 1_500, 64)
	if n, full := taken(b, "hostile", false); n != 11_250 || !full.Own {
		t.Fatalf("the hostile caller has %d, then %v", n, full)
	}
	if full := b.Take("small", 2, false); full != nil {
		t.Fatal(full)
	}
	b.Resize(60, 4, 3)
	if v := b.View(); v.Used != 11_252 || v.Capacity != 60 || v.Kept != 4 || v.Minimum != 3 {
		t.Errorf("after it shrank: %+v", v)
	}
	for caller, own := range map[string]bool{"hostile": true, "small": false, "new": false} {
		if full := b.Take(caller, 1, false); full == nil || full.Own != own {
			t.Errorf("%s: %v", caller, full)
		}
	}
	if full := b.TakeForAll("node", 1); full == nil {
		t.Error("the process finds room")
	}
	for _, operator := range []string{"operator", "hostile"} {
		if full := b.Take(operator, 1, true); full != nil {
			t.Errorf("operator %s: %v", operator, full)
		}
		b.Give(operator, 1)
	}
	for b.Take("new", 1, false) != nil { // until it fits
		b.Give("hostile", 1)
	}
	if v := b.View(); v.Used != v.Capacity-v.Kept {
		t.Errorf("the next one finds room among %d of %d", v.Used, v.Capacity-v.Kept)
	}
	b.Resize(24_000, 1_500, 64)
	if n, _ := taken(b, "hostile", false); n < 11_000 {
		t.Errorf("after it grew the caller gets %d more", n)
	}
}

// resized is a budget that changes its size at random, with what callers took of it according to its answers.
type resized struct {
	b                       *budget.Budget
	capacity, kept, minimum int64
	// has excludes what operators took as operators; operates has that.
	has, operates map[string]int64
	// before is the sum of all use at the last change of size.
	before int64
}

func (r *resized) sum(of map[string]int64) (sum int64) {
	for _, n := range of { // in any order
		sum += n
	}
	return sum
}

// step takes, returns, or changes the size.
func (r *resized) step(t *rapid.T) {
	caller := rapid.SampledFrom([]string{"a", "b", "c", "operator"}).Draw(t, "caller")
	n := rapid.Int64Range(1, 300).Draw(t, "amount")
	switch rapid.SampledFrom([]string{"take", "take", "operate", "give", "resize"}).Draw(t, "what") {
	case "take":
		had, all := r.has[caller]+r.operates[caller], r.sum(r.has)+r.sum(r.operates)
		most := max(r.minimum, (r.capacity-r.kept-(all-had))/2)
		want := all+n <= r.capacity-r.kept && (had == 0 || had+n <= most)
		full := r.b.Take(caller, n, false)
		if want != (full == nil) {
			t.Fatalf("%s, which has %d and may have %d, takes %d next to %d of %d: %v", caller, had, most, n, all-had, r.capacity-r.kept, full)
		}
		if full == nil {
			r.has[caller] += n
		}
	case "operate":
		if r.b.Take(caller, n, true) == nil {
			r.operates[caller] += n
		}
		if all := r.sum(r.has) + r.sum(r.operates); all > r.capacity+r.before {
			t.Fatalf("with operators all have %d of %d, and had %d before", all, r.capacity, r.before)
		}
	case "give":
		from := rapid.SampledFrom([]map[string]int64{r.has, r.operates}).Draw(t, "from")
		n = min(n, from[caller])
		r.b.Give(caller, n)
		from[caller] -= n
	case "resize":
		r.capacity = rapid.Int64Range(16, 1000).Draw(t, "capacity")
		r.kept, r.minimum = rapid.Int64Range(0, r.capacity/2).Draw(t, "kept"), rapid.Int64Range(1, 20).Draw(t, "minimum")
		r.b.Resize(r.capacity, r.kept, r.minimum)
		r.before = r.sum(r.has) + r.sum(r.operates)
		if n := max(1, r.kept/2); r.kept > 0 && r.b.Take("another operator", n, true) != nil {
			t.Fatalf("an operator finds no %d of the %d that are kept, right after the budget changed its size", n, r.kept)
		} else if r.kept > 0 {
			r.b.Give("another operator", n)
		}
	}
}

// TestResize_Adds: in any order of takes, returns and resizes, each caller has what it took, and no grant exceeds the present size. Right
// after a change an operator can take half of the kept amount. Once it is empty, a resized budget behaves like a new one of that size.
func TestResize_Adds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &resized{
			b: budget.New("any", 1000, 100, 10), capacity: 1000, kept: 100, minimum: 10,
			has: map[string]int64{}, operates: map[string]int64{},
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			r.step(t)
			v := r.b.View()
			for _, use := range v.Uses {
				if want := r.has[use.Caller] + r.operates[use.Caller]; use.Used != want {
					t.Fatalf("%s has %d, of %d", use.Caller, use.Used, want)
				}
			}
			if want := r.sum(r.has) + r.sum(r.operates); v.Used != want || v.Capacity != r.capacity || v.Kept != r.kept || v.Minimum != r.minimum {
				t.Fatalf("%+v are shown, of %d used", v, want)
			}
		}
		for _, of := range []map[string]int64{r.has, r.operates} {
			for caller, n := range of { // in any order
				r.b.Give(caller, n)
			}
		}
		made := budget.New("any", r.capacity, r.kept, r.minimum)
		for _, caller := range []string{"a", "b", "operator"} {
			got, why := taken(r.b, caller, caller == "operator")
			want, made := taken(made, caller, caller == "operator")
			if got != want || *why != *made {
				t.Fatalf("%s has %d, then %v, and %d, then %v, of a new one", caller, got, why, want, made)
			}
		}
	})
}
