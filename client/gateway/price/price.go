// Package price computes what calls of models cost, in micro-dollars and exactly. It knows no figures, no file format and no clock.
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
	// Scale is how many units of a Rate are a dollar for a million tokens, and how many units of a Times are 1.
	Scale = 1_000_000
	// maxDollars is the largest price of a million tokens, and the largest factor.
	maxDollars = 1_000_000
	// MaxCost is the largest cost, in micro-dollars: the largest amount of a quota.
	MaxCost = 1<<53 - 1
)

// ParseRate reads dollars for so many tokens as a decimal number, such as 1.25 for 1000000.
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

// ParseTimes reads a factor as a decimal number, such as 0.5.
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

// decimal reads digits with at most one point. Other ways to write numbers are refused: an exponent is a mistake in a price.
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

// Line is the price of a model. Where a rate is absent, the next more general one counts: CacheWrite for CacheWrite1h, Input for Cached
// and CacheWrite.
type Line struct {
	// Upstream is a pattern of upstreams; empty: all. Model is a pattern of models, in which * stands for any run of characters.
	Upstream, Model string
	// Over: the line is for calls of more input tokens, cached ones included.
	Over int64
	// Input and Output are the rates of what is neither read from a cache nor written to one, and of all output.
	Input, Output Rate
	// Cached, CacheWrite and CacheWrite1h are those of input that is read from a cache, written to one, and written for an hour.
	Cached, CacheWrite, CacheWrite1h *Rate
	// Times are factors by service tier. A tier that is not named costs the rates.
	Times map[string]Times
	// Source and Date are where the figures were read, and when.
	Source string
	Date   time.Time
}

// Tokens are what a call used. All kinds are apart: none is a part of another.
type Tokens struct{ Input, Cached, Written, Written1h, Output int64 }

// All returns the input of all kinds.
func (t Tokens) All() int64 { return t.Input + t.Cached + t.Written + t.Written1h }

// Cost returns what tokens cost in a service tier, in micro-dollars, rounded up.
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
	// A rate is 10^-6 micro-dollars.
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

// Ahead returns what input counts as before the call, when it is not known what a cache holds: as written to one, where parts of it
// are marked for a cache and that is dearer.
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

// Find returns the first line that fits and whose Over is below the call's input.
func Find(lines []Line, fits func(Line) bool, input int64) (*Line, bool) {
	for i := range lines {
		if (lines[i].Over == 0 || lines[i].Over < input) && fits(lines[i]) {
			return &lines[i], true
		}
	}
	return nil, false
}

// OldAfter is from which age on prices are warned of.
const OldAfter = 180 * 24 * time.Hour

// Old returns the models of the lines whose figures are old or have no date, in order.
func Old(lines []Line, now time.Time) []string {
	var out []string
	for _, l := range lines {
		if now.Sub(l.Date) > OldAfter {
			out = append(out, l.Model)
		}
	}
	return out
}
