package plan

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// judged analyses a fleet's quotas and agents.
func judged(t *testing.T, text string) *Paper {
	t.Helper()
	f, err := fleet.Parse("fleet.yaml", []byte("network: 0-0\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := OnPaper(f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestDemand_MatchesHandArithmetic compares demands with values computed by hand.
func TestDemand_MatchesHandArithmetic(t *testing.T) {
	const minute, settled = "quotas: [{name: q, rate: {limit: 1000, per: 1m}}]",
		"quotas: [{name: q, settle: %s, rate: {limit: 1000, per: 1m}}]"
	for _, c := range []struct {
		name, quotas, agents string
		mean                 float64
		peak                 int64
		verdict              Verdict
	}{
		// One task of two calls each minute; the task before may still run.
		{"by the clock", minute, "[{name: a, every: 1m, calls: 2, latency: 1s, use: {q: 3}}]", 6, 12, Fits},
		{"late ones come together", minute, "[{name: a, every: 1m, jitter: 1m, latency: 1s, use: {q: 1}}]", 1, 3, Fits},
		{"one after the other", minute, "[{name: a, latency: 5s, think: 1s, use: {q: 1}}]", 10, 11, Fits},
		{"too slow for its clock", minute, "[{name: a, every: 10ms, latency: 10s, use: {q: 200}}]", 1200, 1400, Saturated},
		{"fast enough for it", minute, "[{name: a, every: 10s, latency: 10s, use: {q: 200}}]", 1200, 1400, Overloaded},
		// A follower makes as many tasks as it receives, not as many as it could.
		{
			"forwarded", minute,
			"[{name: a, every: 1m, latency: 1s, use: {q: 1}}, {name: b, follows: [a], calls: 2, latency: 1s, use: {q: 10}}, {name: c, follows: " +
				"[b, a], latency: 30s, use: {q: 100}}]",
			121, 2 + 610 + 300, Fits,
		},
		{
			"forwarded without a clock", minute, "[{name: a, latency: 1m, use: {q: 1}}, {name: b, follows: [a], latency: 1s, use: {q: 1}}]", 2,
			2 + 61, Fits,
		},
		// The estimate is taken at first, and the actual amount counts in the end.
		{"returns units", minute, "[{name: a, every: 30s, latency: 1s, use: {q: {estimate: 400, actual: 100-300}}}]", 400, 1200, Queues},
		{
			"keeps", fmt.Sprintf(settled, "max"), "[{name: a, every: 30s, latency: 1s, use: {q: {estimate: 400, actual: 100-300}}}]", 800, 1200,
			Queues,
		},
		{"overruns", minute, "[{name: a, every: 30s, latency: 1s, use: {q: {estimate: 100, actual: 100-300}}}]", 400, 900, Fits},
		// Each of a pool's two members gets half of the calls, and their parent gets all.
		{
			"a pool's member", minute[:len(minute)-1] + ", {name: r, rate: {limit: 1000, per: 1m}}" +
				", {name: p, pool: {members: [{name: q, quota: q}, {name: r, quota: r}]}}]",
			"[{name: a, every: 30s, latency: 1s, use: {p: {estimate: 400, actual: 100-300}}}]", 200, 600, Fits,
		},
		{
			"a pool's parent", minute[:len(minute)-1] + ", {name: r, parent: q, rate: {limit: 1000, per: 1m}}" +
				", {name: s, parent: q, rate: {limit: 1000, per: 1m}}" +
				", {name: p, pool: {members: [{name: r, quota: r}, {name: s, quota: s}]}}]",
			"[{name: a, every: 30s, latency: 1s, use: {p: {estimate: 400, actual: 100-300}}}]", 400, 1200, Queues,
		},
		// A crontab's total, and its densest interval.
		{"each minute for a year", "for: 366d\n" + minute, `[{name: a, cron: "* * * * *", latency: 1s, use: {q: 1}}]`, 1, 2, Fits},
		{
			"around the hour", "begins: 2026-01-05T08:30:00Z\nfor: 1h\nquotas: [{name: q, rate: {limit: 10, per: 5m}}]",
			`[{name: a, cron: "0,30,58,59 * * * *", latency: 1s, use: {q: 1}}]`, 4. / 12, 3, Fits,
		},
		{"never", minute, `[{name: a, cron: "0 0 30 2 *", latency: 1s, use: {q: 1}}]`, 0, 0, Fits},
		{
			"more than can be counted", minute,
			"[{name: a, count: 10000, overlap: 1000, parallel: 1000, calls: 1000, latency: 1ms, use: {q: 9007199254740991}}]",
			10000. * 1000 * 1000 * 60000 * 9007199254740991, 1 << 62, Saturated,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judged(t, c.quotas+"\nagents: "+c.agents).Quotas[0]
			if math.Abs(got.Mean-c.mean) > 1e-9*c.mean || got.Peak != c.peak || got.Verdict != c.verdict {
				t.Errorf("mean %v, peak %d, %s; want %v, %d, %s", got.Mean, got.Peak, got.Verdict, c.mean, c.peak, c.verdict)
			}
		})
	}
}

// TestPeak_IsUpperBound: if a fleet is refused nothing, no period sees more than the computed peak.
func TestPeak_IsUpperBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		f.Provider = fleet.Provider{Limits: map[string]fleet.Limit{}}
		for _, q := range f.Quotas {
			f.Provider.Limits[q.Name] = fleet.Limit{Limit: math.MaxInt64 / 4, NoBurst: true}
		}
		for _, a := range f.Agents {
			a.Crashes, a.Retry = nil, nil
			if len(a.Follows) == 0 && rapid.Bool().Draw(t, "by the clock") {
				a.Every = time.Duration(rapid.IntRange(100, 100_000).Draw(t, "every")) * time.Millisecond
				a.Jitter = time.Duration(rapid.IntRange(0, 60_000).Draw(t, "jitter")) * time.Millisecond
				a.Overlap = rapid.IntRange(1, 4).Draw(t, "overlap")
			}
		}
		r, err := sim.Run(t.Context(), f, sim.Alone, 1)
		if err != nil {
			t.Fatal(err)
		}
		wanted := newDemands(f)
		for i, q := range f.Quotas {
			if got := judgeQuota(wanted, q); r.Quotas[i].Peak > got.Peak {
				t.Fatalf("a period of %s saw %d; on paper it is at most %d", q.Name, r.Quotas[i].Peak, got.Peak)
			}
		}
	})
}

// TestWorstWait_ByClass: the analysis promises no wait only if nothing can delay a call.
func TestWorstWait_ByClass(t *testing.T) {
	const agents = `
agents:
  - {name: a, class: critical, every: 20m, use: {q: 1}}
  - {name: b, every: 20m, use: {q: 1}}
  - {name: c, class: background, every: 1m, use: {q: 1}}
`
	for quota, want := range map[string][3]time.Duration{
		"window: {limit: 100, every: hour}":                            {0, 0, 0},
		"window: {limit: 100, every: hour}, policy: {zones: smooth}":   {0, time.Hour, time.Hour},
		"window: {limit: 100, every: hour}, policy: {zones: strict}":   {time.Hour, time.Hour, time.Hour},
		"window: {limit: 100, every: hour}, policy: {profile: fleet}":  {0, time.Hour, time.Hour},
		"window: {limit: 5, every: hour}":                              {time.Hour, -1, -1},
		"rate: {limit: 5, per: 1h}":                                    {time.Hour, -1, -1},
		"rate: {limit: 100, per: 1h}":                                  {0, 0, 0},
		"slots: {limit: 100}":                                          {0, 0, 0},
		"slots: {limit: 1}":                                            {-1, -1, -1},
		"window: {limit: 0, every: hour}":                              {-1, -1, -1},
		"rate: {limit: 100, per: 1h}, policy: {ageing: 5m, ramp: 1m}":  {0, 0, 0},
		"rate: {limit: 1000, per: 1h, burst: 500}, policy: {ramp: 1m}": {time.Hour, time.Hour, time.Hour},
	} {
		q := judged(t, "quotas: [{name: q, "+quota+"}]"+agents).Quotas[0]
		for i, c := range q.Classes {
			if got := c.WorstWait.Round(10 * time.Minute); want[i].Round(10*time.Minute) != got {
				t.Errorf("%s: a %s call waits for %v at most, want %v", quota, c.Class, c.WorstWait, want[i])
			}
		}
	}
}
