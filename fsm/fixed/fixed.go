// Package fixed has saturating arithmetic on amounts and durations as 64-bit integers, so that every replica computes
// the same number.
package fixed

import (
	"math"
	"math/bits"
)

// MaxAmount is the largest amount that the API accepts: the largest integer that a JSON number represents exactly.
const MaxAmount = 1<<53 - 1

// Durations in nanoseconds.
const (
	Millisecond = int64(1_000_000)
	Second      = 1000 * Millisecond
	Minute      = 60 * Second
	Hour        = 60 * Minute
	Day         = 24 * Hour
)

// MulDivFloor returns floor(a*b/c) for non-negative a, b and positive c, saturated at the largest int64.
func MulDivFloor(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

// MulDivCeil returns ceil(a*b/c) for non-negative a, b and positive c, saturated at the largest int64.
func MulDivCeil(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(c-1), 0)
	hi += carry
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

// AddSaturated returns a+b, saturated at the ends of int64.
func AddSaturated(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}

// RoundUp returns the smallest multiple of width that is at least t.
func RoundUp(t, width int64) int64 {
	rest := t % width
	switch {
	case rest == 0:
		return t
	case rest < 0:
		return t - rest
	}
	return AddSaturated(t, width-rest)
}

// FloorDiv returns floor(a/b) for positive b.
func FloorDiv(a, b int64) int64 {
	quotient := a / b
	if a%b < 0 {
		quotient--
	}
	return quotient
}

// FirstMillisecond returns the first whole millisecond after 0 at which holds is true, at most end, rounded up. holds
// must stay true once it is.
func FirstMillisecond(end int64, holds func(at int64) bool) int64 {
	early, late := int64(0), max(RoundUp(end, Millisecond)/Millisecond, 1)
	for late-early > 1 {
		if middle := early + (late-early)/2; holds(middle * Millisecond) {
			late = middle
		} else {
			early = middle
		}
	}
	return late * Millisecond
}

// Million is the unit of fractions in millionths.
const Million = 1_000_000

// MaxTime is the latest time of an entry, 146 years after the first: the sum of two such times does not overflow.
const MaxTime = int64(1) << 62
