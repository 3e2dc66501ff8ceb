package fsm

import (
	"math"
	"math/bits"
)

// maxAmount is the largest amount at the door: what a JSON number carries exactly.
const maxAmount = 1<<53 - 1

// Lengths in nanoseconds.
const (
	millisecond = int64(1_000_000)
	second      = 1000 * millisecond
	minute      = 60 * second
	hour        = 60 * minute
	day         = 24 * hour
)

// mulDivFloor returns floor(a*b/c) for non-negative a, b and positive c, saturated at the largest int64.
func mulDivFloor(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

// mulDivCeil returns ceil(a*b/c) for non-negative a, b and positive c, saturated at the largest int64.
func mulDivCeil(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(c-1), 0)
	hi += carry
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

// addSaturated returns a+b, saturated at the ends of int64.
func addSaturated(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}

// roundUp returns the smallest multiple of width that is at least t.
func roundUp(t, width int64) int64 {
	rest := t % width
	switch {
	case rest == 0:
		return t
	case rest < 0:
		return t - rest
	}
	return addSaturated(t, width-rest)
}

// floorDiv returns floor(a/b) for positive b.
func floorDiv(a, b int64) int64 {
	quotient := a / b
	if a%b < 0 {
		quotient--
	}
	return quotient
}

// firstMillisecond returns the first whole millisecond after 0 at which something holds that then holds forever, at most
// the end, rounded up.
func firstMillisecond(end int64, holds func(at int64) bool) int64 {
	early, late := int64(0), max(roundUp(end, millisecond)/millisecond, 1)
	for late-early > 1 {
		if middle := early + (late-early)/2; holds(middle * millisecond) {
			late = middle
		} else {
			early = middle
		}
	}
	return late * millisecond
}
