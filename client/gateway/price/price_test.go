package price_test

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/client/gateway/price"
)

func rate(t *testing.T, text string) price.Rate {
	t.Helper()
	r, err := price.ParseRate(text, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParseRate_ReadsDecimalsAndNothingElse(t *testing.T) {
	for text, want := range map[string]price.Rate{"0": 0, "1.25": 1_250_000, "0.000001": 1, "75": 75_000_000, "0.10": 100_000} {
		if got := rate(t, text); got != want {
			t.Errorf("%s is %d, want %d", text, got, want)
		}
	}
	if got, err := price.ParseRate("0.0015", 1_000); err != nil || got != 1_500_000 {
		t.Errorf("0.0015 for a thousand is %d, %v", got, err)
	}
	for _, text := range []string{"", "-1", "+1", "1e3", "1.", ".5", "1,25", "$1", "0.0000001", "1000000.1", "1/2", "0x1", "1_000", "1.2.3"} {
		if got, err := price.ParseRate(text, 1_000_000); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
	for text, want := range map[string]price.Times{"0.5": 500_000, "2": 2_000_000, "1.1": 1_100_000} {
		if got, err := price.ParseTimes(text); err != nil || got != want {
			t.Errorf("times %s is %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestCost_IsExactAndRoundedUp(t *testing.T) {
	cached, write, hour := rate(t, "0.50"), rate(t, "6.25"), rate(t, "10")
	opus := price.Line{
		Input: rate(t, "5"), Output: rate(t, "25"), Cached: &cached, CacheWrite: &write, CacheWrite1h: &hour,
		Times: map[string]price.Times{"batch": 500_000},
	}
	plain := price.Line{Input: rate(t, "0.20"), Output: rate(t, "1.25")}
	for _, c := range []struct {
		name string
		line price.Line
		used price.Tokens
		tier string
		want int64
	}{
		{"nothing", opus, price.Tokens{}, "", 0},
		{"each kind", opus, price.Tokens{Input: 13, Cached: 21408, Written: 4384, Output: 178}, "", 65 + 10704 + 27400 + 4450},
		{"written for an hour", opus, price.Tokens{Written1h: 3}, "", 30},
		{"half price", opus, price.Tokens{Input: 13}, "batch", 33},
		{"a tier without a factor", opus, price.Tokens{Input: 13}, "priority", 65},
		{"a fraction of a micro-dollar", plain, price.Tokens{Input: 1}, "", 1},
		{"absent rates are those of input", plain, price.Tokens{Cached: 10, Written: 10, Written1h: 10}, "", 6},
		{"far too many", opus, price.Tokens{Output: 1 << 60}, "", price.MaxCost},
	} {
		if got := c.line.Cost(c.used, c.tier); got != c.want {
			t.Errorf("%s costs %d micro-dollars, want %d", c.name, got, c.want)
		}
	}
}

func TestCost_IsTheSmallestWholeNumberThatCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, r := rapid.Int64Range(0, 1<<40).Draw(t, "tokens"), rapid.Int64Range(0, 1<<38).Draw(t, "rate")
		times := rapid.Int64Range(0, 4_000_000).Draw(t, "times")
		line := price.Line{Output: price.Rate(r), Times: map[string]price.Times{"x": price.Times(times)}}
		got := line.Cost(price.Tokens{Output: n}, "x")
		exact := new(big.Rat).Mul(big.NewRat(n, price.Scale), big.NewRat(times, price.Scale))
		exact.Mul(exact, big.NewRat(r, 1))
		over := new(big.Rat).Sub(big.NewRat(got, 1), exact)
		if got != price.MaxCost && (over.Sign() < 0 || over.Cmp(big.NewRat(1, 1)) >= 0) {
			t.Fatalf("%d tokens at %d, times %d cost %d, exactly %s", n, r, times, got, exact.FloatString(6))
		}
	})
}

func TestFind_TakesTheFirstLineOfTheInput(t *testing.T) {
	lines := []price.Line{{Model: "haiku", Over: 100_000, Input: 5}, {Model: "haiku", Input: 1}, {Model: "opus"}}
	fits := func(l price.Line) bool { return l.Model == "haiku" }
	for input, want := range map[int64]price.Rate{0: 1, 100_000: 1, 100_001: 5} {
		if l, ok := price.Find(lines, fits, input); !ok || l.Input != want {
			t.Errorf("%d tokens cost %+v, want %d", input, l, want)
		}
	}
	if _, ok := price.Find(lines, func(price.Line) bool { return false }, 1); ok {
		t.Error("a model without a line has a price")
	}
}

func TestOld_NamesLinesOfMoreThan180Days(t *testing.T) {
	now := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
	lines := []price.Line{
		{Model: "new", Date: now.AddDate(0, -5, 0)}, {Model: "old", Date: now.AddDate(0, -7, 0)}, {Model: "undated"},
	}
	if got := price.Old(lines, now); !slices.Equal(got, []string{"old", "undated"}) {
		t.Errorf("got %v", got)
	}
}

func FuzzParseRate(f *testing.F) {
	f.Add("1.25")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := price.ParseRate(text, 1_000_000); err == nil && (r < 0 || r > 1_000_000*price.Scale) {
			t.Errorf("%q is %d", text, r)
		}
	})
}
