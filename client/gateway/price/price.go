// Package price computes the exact cost of calls to models, in micro-dollars. It has no figures, file format or clock.
package price

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// Rate is a price of one token in 10^-12 dollars: the sixth decimal of a price of a million tokens.
type Rate int64

// Bounds of prices and costs.
const (
	// Scale is the Rate of one dollar for a million tokens, and the Times of the factor 1.
	Scale = 1_000_000
	// maxDollars is the largest price of a million tokens, and the largest factor.
	maxDollars = 1_000_000
	// MaxCost is the largest cost, in micro-dollars: the largest amount of a quota.
	MaxCost = 1<<53 - 1
)

// ParseRate parses a decimal number of dollars for per tokens, such as 1.25 for 1000000.
func ParseRate(text string, per int64) (Rate, error) {
	n, err := decimal(text)
	if err != nil {
		return 0, err
	}
	n.Mul(n, big.NewRat(Scale*1_000_000, per))
	if !n.IsInt() {
		return 0, fmt.Errorf("%q has more than six decimals for a million tokens", text)
	}
	if n.Num().Cmp(big.NewInt(maxDollars*Scale)) > 0 {
		return 0, fmt.Errorf("%q is more than %d dollars for a million tokens", text, maxDollars)
	}
	return Rate(n.Num().Int64()), nil
}

// Times is a factor, in millionths.
type Times int64

// ParseTimes parses a factor as a decimal number, such as 0.5.
func ParseTimes(text string) (Times, error) {
	n, err := decimal(text)
	if err != nil {
		return 0, err
	}
	n.Mul(n, big.NewRat(Scale, 1))
	if !n.IsInt() || n.Num().Cmp(big.NewInt(maxDollars*Scale)) > 0 {
		return 0, fmt.Errorf("%q has more than six decimals, or is above %d", text, maxDollars)
	}
	return Times(n.Num().Int64()), nil
}

// decimal parses digits with at most one point. Other formats are rejected: an exponent is a mistake in a price.
func decimal(text string) (*big.Rat, error) {
	whole, part, _ := strings.Cut(text, ".")
	if whole == "" || len(text) > 32 || strings.Trim(whole+part, "0123456789") != "" || strings.HasSuffix(text, ".") {
		return nil, fmt.Errorf("%q is not a decimal number, such as 1.25", text)
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, errors.New(text + " is not a decimal number")
	}
	return n, nil
}

// Line is the price of a model. An absent rate defaults to the next more general one: CacheWrite for CacheWrite1h, Input for Cached and
// CacheWrite.
type Line struct {
	// Upstream is a pattern of upstreams; empty: all. Model is a pattern of models, in which * stands for any run of characters.
	Upstream, Model string
	// Over: the line is for calls with more input tokens than this, cached ones included.
	Over int64
	// Input is the rate of input neither read from a cache nor written to one, Output the rate of all output.
	Input, Output Rate
	// Cached, CacheWrite and CacheWrite1h are the rates of input read from a cache, written to one, and written for an hour.
	Cached, CacheWrite, CacheWrite1h *Rate
	// Times are factors by service tier. A missing tier has the factor 1.
	Times map[string]Times
	// Source and Date are the origin of the figures, and when they were read.
	Source string
	Date   time.Time
}

// Tokens is the use of a call. The kinds do not overlap.
type Tokens struct{ Input, Cached, Written, Written1h, Output int64 }

// All returns the input of all kinds.
func (t Tokens) All() int64 { return t.Input + t.Cached + t.Written + t.Written1h }

// Cost returns the cost of tokens in a service tier, in micro-dollars, rounded up.
func (l *Line) Cost(t Tokens, tier string) int64 {
	cached, write := or(l.Cached, l.Input), or(l.CacheWrite, l.Input)
	sum := new(big.Int)
	for _, part := range []struct {
		tokens int64
		rate   Rate
	}{
		{t.Input, l.Input}, {t.Cached, cached}, {t.Written, write}, {t.Written1h, or(l.CacheWrite1h, write)}, {t.Output, l.Output},
	} {
		sum.Add(sum, new(big.Int).Mul(big.NewInt(max(part.tokens, 0)), big.NewInt(int64(part.rate))))
	}
	// A rate is in units of 10^-6 micro-dollars.
	scale := big.NewInt(Scale)
	if times, ok := l.Times[tier]; ok {
		sum.Mul(sum, big.NewInt(int64(times)))
		scale.Mul(scale, big.NewInt(Scale))
	}
	sum.Add(sum, scale).Sub(sum, big.NewInt(1)).Div(sum, scale)
	if !sum.IsInt64() || sum.Int64() > MaxCost {
		return MaxCost
	}
	return sum.Int64()
}

// Ahead returns the kind that input counts as before the call, while the cache's content is unknown: as written to a cache, if parts
// have cache marks and writing costs more.
func (l *Line) Ahead(input, output int64, marked bool) Tokens {
	if marked && or(l.CacheWrite, l.Input) > l.Input {
		return Tokens{Written: input, Output: output}
	}
	return Tokens{Input: input, Output: output}
}

func or(rate *Rate, otherwise Rate) Rate {
	if rate == nil {
		return otherwise
	}
	return *rate
}

// Find returns the first matching line whose Over is below the call's input.
func Find(lines []Line, fits func(Line) bool, input int64) (*Line, bool) {
	for i := range lines {
		if (lines[i].Over == 0 || lines[i].Over < input) && fits(lines[i]) {
			return &lines[i], true
		}
	}
	return nil, false
}

// OldAfter is the age above which Old reports prices.
const OldAfter = 180 * 24 * time.Hour

// Old returns the models of lines whose figures are old or have no date, in order.
func Old(lines []Line, now time.Time) []string {
	var out []string
	for _, l := range lines {
		if now.Sub(l.Date) > OldAfter {
			out = append(out, l.Model)
		}
	}
	return out
}
