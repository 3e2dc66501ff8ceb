package ledger

import (
	"testing"

	"pgregory.net/rapid"
)

// TestUsage_ListsOnlyCountedEnds: whatever is added, ends and returns, counted or not, no end is listed without
// being counted, and the count never exceeds the existing amount.
func TestUsage_ListsOnlyCountedEnds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var u Usage
		there := map[int64]int64{} // by end, the existing amount, counted or not
		ends := []int64{OpenEnd, 1, 2, 3}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			from, to := rapid.SampledFrom(ends).Draw(rt, "from"), rapid.SampledFrom(ends[1:]).Draw(rt, "to")
			amount := rapid.Int64Range(1, 9).Draw(rt, "amount")
			switch gone := min(amount, there[from]); rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				u.Add(from, amount, true)
				there[from] += amount
			case 1: // it began before it was counted
				there[from] += amount
			case 2:
				u.TakeBack(from, gone)
				there[from] -= gone
			case 3:
				u.MoveCounted(from, to, gone)
				there[from] -= gone
				there[to] += gone
			}
			rest := u.Amount
			for _, e := range u.Ends {
				if rest -= e.Amount; e.Amount <= 0 || e.Amount > there[e.End] {
					rt.Fatalf("%d are listed under %d, where %d are", e.Amount, e.End, there[e.End])
				}
			}
			if rest < 0 || rest > there[OpenEnd] {
				rt.Fatalf("%+v counts %d without an end, where %d are", u, rest, there[OpenEnd])
			}
		}
	})
}
