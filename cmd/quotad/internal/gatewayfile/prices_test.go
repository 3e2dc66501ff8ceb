package gatewayfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/price"
	"github.com/quotad/quotad/cmd/quotad/internal/preset"
)

const pricesText = `
prices:
- {model: "haiku-*", over: 100000, input: "0.50", output: "2.50", per: 1M, source: s, date: 2026-10-24}
- {upstream: openai, model: gpt-5, input: 1.25, cached: "0.125", cache_write: "2", cache_write_1h: "3", output: "10.00",
   times: {flex: "0.5"}, source: s, date: 2026-10-24}
- {model: small, input: "0.0001", output: "0", per: 1K, source: s, date: 2026-10-24}
`

func TestParsePrices_ReadsEveryKey(t *testing.T) {
	lines, err := ParsePrices("prices.yaml", []byte(pricesText))
	if err != nil || len(lines) != 3 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	long, gpt, small := lines[0], lines[1], lines[2]
	switch {
	case long.Model != "haiku-*" || long.Over != 100_000 || long.Cached != nil || long.Output != 2_500_000:
		t.Errorf("%+v", long)
	case gpt.Upstream != "openai" || gpt.Input != 1_250_000 || *gpt.Cached != 125_000 || *gpt.CacheWrite != 2_000_000 ||
		*gpt.CacheWrite1h != 3_000_000 || gpt.Times["flex"] != price.Scale/2:
		t.Errorf("%+v", gpt)
	case small.Input != 100_000 || !small.Date.Equal(time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC)):
		t.Errorf("%+v", small)
	}
}

func TestParsePrices_RefusesByLine(t *testing.T) {
	for want, text := range map[string]string{
		`p:2: unknown key "imput" in prices; did you mean "input"?`: "prices:\n- {model: a, imput: 1, output: 1, source: s, date: 2026-10-24}",
		`p:2: prices: "1e3" is not a decimal number`:                "prices:\n- {model: a, input: 1e3, output: 1, source: s, date: 2026-10-24}",
		`p:2: a price needs output`:                                 "prices:\n- {model: a, input: 1, source: s, date: 2026-10-24}",
		`p:2: a price needs date`:                                   "prices:\n- {model: a, input: 1, output: 1, source: s}",
		`p:2: prices.date must be a day`:                            "prices:\n- {model: a, input: 1, output: 1, source: s, date: October}",
		`p:1: the list prices: is missing`:                          "{}",
	} {
		if _, err := ParsePrices("p", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %s", text, err, want)
		}
	}
}

func TestParse_FindsThePricesNextToTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "gateway.yaml")
	text := "cluster: {nodes: [a:1]}\nprices: prices.yaml\nupstreams: {openai: {unpriced: free}}\n"
	if _, err := Parse(path, []byte(text)); err == nil || !strings.Contains(err.Error(), "quotad preset show prices") {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "prices.yaml"), []byte(pricesText), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse(path, []byte(text))
	if err != nil || len(c.Prices) != 3 || c.Upstreams["openai"].Unpriced != "free" {
		t.Errorf("%+v, %v", c.Prices, err)
	}
}

// TestParsePrices_TakesThePresetsFile: the gateway accepts the prices that quotad prints, and each figure has a source and
// a date.
func TestParsePrices_TakesThePresetsFile(t *testing.T) {
	lines, err := ParsePrices("prices.yaml", preset.Prices)
	if err != nil || len(lines) == 0 {
		t.Fatal(len(lines), err)
	}
	for _, l := range lines {
		if l.Source == "" || l.Date.IsZero() || l.Input == 0 || l.Output == 0 {
			t.Errorf("%s has no source, day or price: %+v", l.Model, l)
		}
	}
}
