package budget_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/raftnode/budget"
)

// taken takes one after the other until the budget refuses, and returns how many and why.
func taken(b *budget.Budget, caller string, operator bool) (n int64, full *budget.FullError) {
	for {
		if full = b.Take(caller, 1, operator); full != nil {
			return n, full
		}
		n++
	}
}

// TestTake_OfOneOperatorLeavesRoom: an operator has half of what others leave, as every caller has, so that a second one finds room.
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

// TestCharge_BeyondItsPartKeepsOutOneCaller: whatever a caller is charged with, others and operators find what they would find next to a
// caller that has its part, and the caller gets nothing more until all of that is returned.
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

// TestBudget_Adds: in whatever order callers take, are charged and return, no more is used than there is, others than operators leave what
// is kept for operators, and nothing is left in the end.
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
