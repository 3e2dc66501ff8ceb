package fixed

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// saturated returns a number as an int64, or the nearest end of its range.
func saturated(n *big.Int) int64 {
	switch {
	case n.IsInt64():
		return n.Int64()
	case n.Sign() > 0:
		return math.MaxInt64
	}
	return math.MinInt64
}

// TestArithmetic_IsThatOfWholeNumbers: results equal those of unbounded integers, or are the end of int64.
func TestArithmetic_IsThatOfWholeNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		edge := rapid.SampledFrom([]int64{0, 1, 2, Second, MaxAmount, MaxTime, math.MaxInt64 - 1, math.MaxInt64})
		below := rapid.Custom(func(t *rapid.T) int64 { return -edge.Draw(t, "edge") })
		any64 := rapid.OneOf(edge, below, rapid.Int64(), rapid.Int64Range(-100, 100))
		positive := rapid.OneOf(edge, rapid.Int64Range(0, math.MaxInt64), rapid.Int64Range(0, 100))
		a, b, c := positive.Draw(t, "a"), positive.Draw(t, "b"), max(positive.Draw(t, "c"), 1)
		product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		if got, want := MulDivFloor(a, b, c), saturated(new(big.Int).Div(product, big.NewInt(c))); got != want {
			t.Errorf("floor of %d x %d / %d is %d, wanted %d", a, b, c, got, want)
		}
		up := new(big.Int).Add(product, big.NewInt(c-1))
		if got, want := MulDivCeil(a, b, c), saturated(up.Div(up, big.NewInt(c))); got != want {
			t.Errorf("ceiling of %d x %d / %d is %d, wanted %d", a, b, c, got, want)
		}
		x, y := any64.Draw(t, "x"), any64.Draw(t, "y")
		if got, want := AddSaturated(x, y), saturated(new(big.Int).Add(big.NewInt(x), big.NewInt(y))); got != want {
			t.Errorf("%d + %d is %d, wanted %d", x, y, got, want)
		}
		floor := new(big.Int).Div(big.NewInt(x), big.NewInt(c)) // Euclidean: rounds down for a positive divisor
		if got := FloorDiv(x, c); got != floor.Int64() {
			t.Errorf("floor of %d / %d is %d, wanted %d", x, c, got, floor)
		}
		multiple := new(big.Int).Neg(new(big.Int).Div(new(big.Int).Neg(big.NewInt(x)), big.NewInt(c)))
		if got, want := RoundUp(x, c), saturated(multiple.Mul(multiple, big.NewInt(c))); got != want {
			t.Errorf("%d rounded up to a multiple of %d is %d, wanted %d", x, c, got, want)
		}
	})
}
