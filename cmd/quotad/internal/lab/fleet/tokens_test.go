package fleet

import (
	"testing"
)

// modelled is a fleet whose agents call models.
const modelled = `
quotas:
  - {name: all, rate: {limit: 9000, per: 1m}, headroom: 0.1}
  - {name: both, rate: {limit: 100000, per: 1m}}
  - {name: input, rate: {limit: 100000, per: 1m}}
  - {name: output, rate: {limit: 100000, per: 1m}, default_estimate: 700, settle: max}
  - {name: below, rate: {limit: 10000, per: 1m}, parent: all}
  - {name: pool, pool: {members: [{name: a, quota: below}, {name: b, quota: input}]}}
agents:
  - name: a
    use:
      both: {input: 100-300, output: 50-90}
      input: {input: 1000}
      output: {output: 100-300}
      below: {input: 9000, output: 10-100, max_output: 500}
  - {name: b, use: {both: {input: 100-300, output: 50-90, max_output: 4096}}}
  - {name: c, use: {pool: {input: 20000, output: 5000}}}
  - {name: d, use: {both: {input: 10, output: 5000-6000}}}
`

// TestTokens_BoundTheUse: of calls whose amounts are estimated, the largest possible estimate, the range of what they use, and their means
// are known. An estimate is at most what a quota, its ancestors or a pool's largest member can grant.
func TestTokens_BoundTheUse(t *testing.T) {
	f, err := Parse("fleet.yaml", []byte(modelled))
	if err != nil {
		t.Fatal(err)
	}
	uses := map[string]Use{}
	for _, a := range f.Agents {
		for _, use := range a.Uses {
			uses[a.Name+" "+use.Quota] = use
		}
	}
	for _, c := range []struct {
		use        string
		estimate   int64
		actual     Range
		mean, kept float64
	}{
		{"a both", 300 + 4000, Range{150, 390}, 270, 200 + 4000}, // without a history, the estimator expects an output of 4,000
		{"a input", 1000, Range{1000, 1000}, 1000, 1000},
		{"a output", 700, Range{100, 300}, 200, 700},
		{"a below", 8100, Range{9010, 9100}, 9055, 9055},
		{"b both", 300 + 4096, Range{150, 390}, 270, 200 + 4096},
		{"c pool", 25_000, Range{25_000, 25_000}, 25_000, 25_000},
		{"d both", 6010, Range{5010, 6010}, 5510, 5510}, // what it learns
	} {
		use := uses[c.use]
		if use.Estimate != c.estimate || use.Actual != c.actual || use.Mean() != c.mean || use.Kept() != c.kept {
			t.Errorf("%s: estimate %d, actual %v, mean %v, kept %v; want %+v", c.use, use.Estimate, use.Actual, use.Mean(), use.Kept(), c)
		}
	}
}

// TestUse_Means: an amount without tokens counts as it is given.
func TestUse_Means(t *testing.T) {
	for _, c := range []struct {
		use        Use
		mean, kept float64
	}{
		{Use{Estimate: 7}, 7, 7},
		{Use{Estimate: 500, Actual: Range{200, 400}}, 300, 500},
		{Use{Estimate: 100, Actual: Range{200, 400}}, 300, 300},
	} {
		if c.use.Mean() != c.mean || c.use.Kept() != c.kept {
			t.Errorf("%+v: mean %v, kept %v", c.use, c.use.Mean(), c.use.Kept())
		}
	}
}
