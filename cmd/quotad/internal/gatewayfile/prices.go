package gatewayfile

import (
	"os"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/client/gateway/price"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
)

// prices reads the file of prices that the configuration names.
func (r *reader) prices(n *yaml.Node) []price.Line {
	path := r.path(n, "prices")
	data, err := os.ReadFile(path)
	if err != nil {
		r.Fail(n, `"quotad preset show prices" prints one`, "prices: %s", err)
		return nil
	}
	lines, err := ParsePrices(path, data)
	if err != nil {
		r.Fail(n, "", "%s", err)
	}
	return lines
}

// ParsePrices parses a file of prices. If the file has mistakes, the error is a strictyaml.Problems.
func ParsePrices(file string, data []byte) ([]price.Line, error) {
	d, err := strictyaml.Parse(file, data)
	if err != nil {
		return nil, err
	}
	r := &reader{Document: d}
	if d.Root == nil {
		d.Fail(nil, "begin with prices:", "the file is empty")
		return nil, d.Err()
	}
	list := r.Mapping(d.Root, "the file", "prices")["prices"]
	if list == nil {
		d.Fail(d.Root, `such as prices: [{model: gpt-5, input: "1.25", output: "10", source: URL, date: 2026-10-24}]`,
			"the list prices: is missing")
		return nil, d.Err()
	}
	var out []price.Line
	for _, element := range r.Sequence(list, "prices") {
		out = append(out, r.price(element))
	}
	return out, d.Err()
}

// pers are the numbers of tokens to which a price may apply.
var pers = map[string]int64{"1M": 1_000_000, "1K": 1_000}

func (r *reader) price(n *yaml.Node) (l price.Line) {
	values := r.Mapping(n, "prices", "upstream", "model", "over", "input", "cached", "cache_write", "cache_write_1h", "output", "per", "times",
		"source", "date")
	per := pers["1M"]
	if values["per"] != nil {
		per = max(pers[r.Choice(values["per"], "prices.per", "1M", "1K")], 1)
	}
	rate := func(n *yaml.Node) *price.Rate {
		got, err := price.ParseRate(r.Text(n, "a price"), per)
		if err != nil {
			r.Fail(n, "write dollars as text, such as \"1.25\"", "prices: %s", err)
		}
		return &got
	}
	each(values, map[string]func(*yaml.Node){
		"upstream":       func(n *yaml.Node) { l.Upstream = r.Text(n, "prices.upstream") },
		"model":          func(n *yaml.Node) { l.Model = r.Text(n, "prices.model") },
		"over":           func(n *yaml.Node) { l.Over = r.Int(n, "prices.over", 1, 1<<40) },
		"input":          func(n *yaml.Node) { l.Input = *rate(n) },
		"cached":         func(n *yaml.Node) { l.Cached = rate(n) },
		"cache_write":    func(n *yaml.Node) { l.CacheWrite = rate(n) },
		"cache_write_1h": func(n *yaml.Node) { l.CacheWrite1h = rate(n) },
		"output":         func(n *yaml.Node) { l.Output = *rate(n) },
		"source":         func(n *yaml.Node) { l.Source = r.Text(n, "prices.source") },
		"date":           func(n *yaml.Node) { l.Date = r.date(n) },
		"times": func(n *yaml.Node) {
			l.Times = map[string]price.Times{}
			for tier, factor := range r.Mapping(n, "prices.times") {
				times, err := price.ParseTimes(r.Text(factor, "prices.times"))
				if err != nil {
					r.Fail(factor, "such as \"0.5\"", "prices.times: %s", err)
				}
				l.Times[tier] = times
			}
		},
	})
	for _, name := range []string{"model", "input", "output", "source", "date"} {
		if values[name] == nil {
			r.Fail(n, "", "a price needs %s", name)
		}
	}
	return l
}

func (r *reader) date(n *yaml.Node) time.Time {
	date, err := time.Parse(time.DateOnly, r.Text(n, "prices.date"))
	if err != nil {
		r.Fail(n, "such as 2026-10-24", "prices.date must be a day")
	}
	return date
}
