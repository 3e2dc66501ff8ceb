package demo

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/cmd/quotad/internal/view"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestQuotas_MatchProviderLimits: the cluster's quotas equal the provider's limits, for the hours of the demo.
func TestQuotas_MatchProviderLimits(t *testing.T) {
	file, err := quotafile.Parse("quotas.yaml", quotasYAML)
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]int64{}
	for _, q := range file.Quotas {
		switch rule := q.GetRule().(type) {
		case *quotav1.Quota_Window:
			limits[q.GetName()] = rule.Window.GetLimit()
			if rule.Window.GetEvery() != "60s" && rule.Window.GetEvery() != "1m0s" {
				t.Errorf("%s: every %s", q.GetName(), rule.Window.GetEvery())
			}
		case *quotav1.Quota_Rate:
			limits[q.GetName()] = rule.Rate.GetLimit()
			if per := rule.Rate.GetPer().AsDuration(); per != hour {
				t.Errorf("%s: per %v", q.GetName(), per)
			}
		}
	}
	want := map[string]int64{
		"github/core": requestLimit, "github/content": 500,
		"openai/" + model + "/requests": completionLimit, "openai/" + model + "/tokens": tokenLimit,
	}
	if fmt.Sprint(limits) != fmt.Sprint(want) {
		t.Errorf("limits %v, want %v", limits, want)
	}
	for _, r := range roles {
		class := quotav1.Class_CLASS_STANDARD
		for _, rule := range file.Holders {
			if rule.GetPattern() == r.Name {
				class = rule.GetClass()
			}
		}
		if int32(class) != int32(r.Class) { // the same numbers, highest class first
			t.Errorf("%s: the cluster has it in %v, the demo in %v", r.Name, class, r.Class)
		}
	}
}

// TestDemand_ExceedsLimits: with demand below the limits the demo would show nothing.
func TestDemand_ExceedsLimits(t *testing.T) {
	requests, completions := 0.0, 0.0
	for _, r := range roles {
		requests += float64(r.Reads+r.Writes) / r.Every.Seconds() * hour.Seconds()
		if r.ThinkEvery > 0 {
			completions += hour.Seconds() / r.ThinkEvery.Seconds()
		}
	}
	if len(roles) != 9 || requests < 1.2*requestLimit || completions < 1.2*completionLimit {
		t.Errorf("%d agents want %.0f requests and %.0f completions an hour", len(roles), requests, completions)
	}
}

func TestQuantile(t *testing.T) {
	var waits []time.Duration
	for i := range 100 {
		waits = append(waits, time.Duration(100-i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(waits, q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("of nothing")
	}
	rapid.Check(t, func(t *rapid.T) {
		waits := rapid.SliceOfN(rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) }), 1, 50).Draw(t, "waits")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		got := quantile(waits, q)
		below := 0
		for _, w := range waits {
			if w <= got {
				below++
			}
		}
		if float64(below) < q*float64(len(waits))-1e-3 || !slices.Contains(waits, got) {
			t.Fatalf("%v of %v: %v", q, waits, got)
		}
	})
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		shares []int
		want   string
	}{{[]int{5, 5, 5, 5}, "1.00"}, {[]int{9, 0, 0}, "0.33"}, {nil, "0.00"}, {[]int{0, 0}, "0.00"}} {
		if got := fmt.Sprintf("%.2f", jain(c.shares)); got != c.want {
			t.Errorf("%v: %s, want %s", c.shares, got, c.want)
		}
	}
}

// seen returns one record for each time in milliseconds.
func seen(m mode, which api, verdict providertest.Verdict, window int64, ms ...int) (records []providertest.Record) {
	status, resource := http.StatusOK, model
	if verdict.Limited() {
		status = http.StatusTooManyRequests
	}
	if which == github {
		resource = "core"
	}
	for _, at := range ms {
		records = append(records, providertest.Record{
			At: time.Duration(at) * time.Millisecond, Key: m.key(), API: string(which), Verdict: verdict, Status: status,
			Resource: resource, Window: window, Weight: 100,
		})
	}
	return records
}

func TestWaves(t *testing.T) {
	records := slices.Concat(
		seen(own, github, providertest.Admitted, 60, 0, 1, 2), seen(own, github, providertest.LimitPrimary, 60, 5_000, 6_000, 7_900),
		seen(own, github, providertest.Injected, 60, 12_000), seen(own, github, providertest.LimitPrimary, 60, 20_000),
	)
	if got := waves(records); got != 2 {
		t.Errorf("%d waves", got)
	}
}

func TestWindowsUsed_LeavesOutNewestWindow(t *testing.T) {
	records := slices.Concat(
		seen(own, github, providertest.Admitted, 60, 0, 1, 2), seen(own, github, providertest.LimitPrimary, 60, 3),
		seen(own, github, providertest.Admitted, 120, 60_000), seen(own, github, providertest.Admitted, 180, 119_000, 119_001),
	)
	if got := windowsUsed(records, 4); got != 0.5 {
		t.Errorf("%v of two windows of 4", got)
	}
	if windowsUsed(nil, 4) != 0 {
		t.Error("of nothing")
	}
}

func TestHoursUsed_LeavesOutNewestHour(t *testing.T) {
	records := seen(own, openai, providertest.Admitted, 0, 1_000, 2_000, 60_999, 61_000, 100_000)
	for seconds, want := range map[int]float64{10: 0.75, 89: 0.75, 90: 0.625} {
		if got := hoursUsed(records, 4, time.Duration(seconds)*time.Second); got != want {
			t.Errorf("in %d s: %v, want %v", seconds, got, want)
		}
	}
	if hoursUsed(nil, 4, hour) != 0 {
		t.Error("of nothing")
	}
}

// good is a run that keeps all promises.
func good() *report {
	tally := newTally()
	for _, r := range roles {
		for _, which := range []api{github, openai} {
			tally.hear(r.Name, fmt.Appendf(nil, `{"kind":"call","api":%q,"outcome":"ok","tries":1}`, which))
		}
	}
	records := slices.Concat(seen(governed, github, providertest.Admitted, 60, 1, 2, 3), seen(governed, openai, providertest.Admitted, 0, 4))
	return &report{Killed: "n1", Restarted: true, Fleets: []fleetReport{newFleetReport(governed, hour, records, tally.all())}}
}

// TestVerdict_FindsEachFailure: the verdict finds every broken promise.
func TestVerdict_FindsEachFailure(t *testing.T) {
	fleet := func(change func(f *fleetReport)) func(r *report) { return func(r *report) { change(&r.Fleets[0]) } }
	for name, c := range map[string]struct {
		change func(r *report)
		want   string
	}{
		"good":                {func(*report) {}, ""},
		"one 429":             {fleet(func(f *fleetReport) { f.Completions.Limited429 = 1 }), "refused 1 calls"},
		"one 403":             {fleet(func(f *fleetReport) { f.Requests.Limited403 = 1 }), "refused 1 calls"},
		"window too full":     {fleet(func(f *fleetReport) { f.Requests.Peak = requestLimit + 1 }), "5001 requests"},
		"too many at a time":  {fleet(func(f *fleetReport) { f.Completions.Peak = completionLimit + 1 }), "81 completions"},
		"too many tokens":     {fleet(func(f *fleetReport) { f.PeakTokens = tokenLimit + 1 }), "40001 tokens"},
		"an idle agent":       {fleet(func(f *fleetReport) { f.Agents["digest"].Outcomes[github][done] = 0 }), "digest got nothing done"},
		"one that thinks not": {fleet(func(f *fleetReport) { f.Agents["architect"].Outcomes[openai][done] = 0 }), "architect got nothing done"},
		"a failed call":       {fleet(func(f *fleetReport) { f.Failed = 1 }), "1 calls failed"},
		"garbled lines": {fleet(func(f *fleetReport) {
			a := f.Agents["poller"]
			a.Garbled = 3
			f.Agents["poller"] = a
		}), "poller wrote 3 lines"},
		"nobody killed":    {func(r *report) { r.Killed = "" }, "not killed and restarted"},
		"nobody restarted": {func(r *report) { r.Restarted = false }, "not killed and restarted"},
	} {
		r := good()
		c.change(r)
		r.judge(true)
		text := strings.Join(r.Reasons, "; ")
		if r.OK != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: ok %v, %q", name, r.OK, text)
		}
	}
}

// TestVerdict_IgnoresFleetWithoutQuotad: the table shows the fleet on its own backoff, but the verdict ignores it.
func TestVerdict_IgnoresFleetWithoutQuotad(t *testing.T) {
	r := good()
	r.Fleets = append(r.Fleets, newFleetReport(own, hour, seen(own, github, providertest.LimitPrimary, 60, 1), newTally().all()))
	r.judge(true)
	if !r.OK || r.Fleets[1].Requests.Limited429 != 1 {
		t.Errorf("%v %+v", r.Reasons, r.Fleets[1].Requests)
	}
	table := r.table()
	for _, want := range []string{"THROUGH QUOTAD", "OWN BACKOFF", "refused by a limit", "1 (403: 0, 429: 1)", "class 2 background"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

func TestVerdict_ShowsEventsOfCluster(t *testing.T) {
	r := good()
	r.judge(true)
	for _, c := range []struct {
		change func()
		want   string
	}{
		{
			func() { r.Failover = 520 * time.Millisecond },
			"no call was refused, although the leader (n1) was killed midway and no node led for 520 ms.\n",
		},
		{func() { r.Revived = 2 }, "for 520 ms, and nodes ended by themselves and were started again (2 times"},
		{func() { r.Killed, r.Revived = "", 0 }, "no call was refused.\n"},
		{func() { r.OK, r.Reasons = false, []string{"bad", "worse"} }, "  - bad\n  - worse\n"},
		{func() { r.Fleets = nil }, "nothing to judge"},
	} {
		c.change()
		if got := r.verdict(); !strings.Contains(got, c.want) {
			t.Errorf("%q lacks %q", got, c.want)
		}
	}
}

func TestFleetReport_CountsOwnKeyOnly(t *testing.T) {
	records := slices.Concat(seen(own, github, providertest.LimitPrimary, 60, 1, 2),
		seen(governed, github, providertest.Admitted, 60, 3, 4, 5))
	records[4].Repeat = true
	f := newFleetReport(governed, hour, records, newTally().all())
	if f.Requests.Arrived != 3 || f.Requests.limited() != 0 || f.Requests.Peak != 3 || f.Retries < 0.33 || f.Retries > 0.34 {
		t.Errorf("%+v", f)
	}
}

func TestBackoff_OfOwnCallerIsBounded(t *testing.T) {
	c := &ownCaller{dice: newDice(1, "x")}
	for try := 1; try <= mostTries; try++ {
		if d := c.backoff(try, http.Header{}); d < 0 || d > lastBackoff {
			t.Fatalf("try %d: %v", try, d)
		}
	}
	if d := c.backoff(1, http.Header{"Retry-After": {"7"}}); d != 7*time.Second {
		t.Errorf("Retry-After: %v", d)
	}
	if d := c.backoff(1, http.Header{"Retry-After": {"7"}, "Retry-After-Ms": {"6500"}}); d != 6500*time.Millisecond {
		t.Errorf("Retry-After-Ms: %v", d)
	}
}

func TestOpenFolder_IsExclusiveAndEmptied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "demo")
	f, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(dir); err == nil || !strings.Contains(err.Error(), "another demo") {
		t.Errorf("two demos in one folder: %v", err)
	}
	f.close()
	if f, err = openFolder(dir); err != nil {
		t.Fatal(err)
	}
	f.close()
	if _, err := os.Stat(filepath.Join(dir, "old")); err == nil {
		t.Error("what an earlier demo left is still there")
	}

	precious := t.TempDir()
	if err := os.WriteFile(filepath.Join(precious, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(precious); err == nil {
		t.Error("somebody's folder was taken")
	}
	if entries, err := os.ReadDir(precious); err != nil || len(entries) != 1 {
		t.Errorf("somebody's folder was changed: %v %v", entries, err)
	}
}

// TestDemo_ShowsClusterAndFleets: the picture and the plain lines show the cluster and both fleets.
func TestDemo_ShowsClusterAndFleets(t *testing.T) {
	d := &demo{options: options{Fleet: "both", Duration: time.Minute}, tallies: map[mode]*tally{own: newTally(), governed: newTally()}}
	s := scene{agents: d.tallies, cluster: &view.Cluster{IDs: []string{"n1", "n2"}, Nodes: []string{"leader", "down"}, Leader: 0, Term: 3}}
	picture := strings.Join(d.frame(s, time.Second, []string{"0:01 a note"}), "\n")
	for _, want := range []string{
		"0:01 of 1:00", "n1 LEADER (term 3)   n2 down", "architect", "own backoff", "through quotad", "0:01 a note",
	} {
		if !strings.Contains(picture, want) {
			t.Errorf("the picture lacks %q:\n%s", want, picture)
		}
	}
	if plain := d.plain(s, time.Second); len(plain) != 3 || !strings.Contains(plain[0], "leader n1") {
		t.Errorf("plain lines: %q", plain)
	}
}

// TestDemo_ReportsTooShortRun: a run in which the limits have little effect says that it compares nothing.
func TestDemo_ReportsTooShortRun(t *testing.T) {
	for _, c := range []struct {
		fleet    string
		duration time.Duration
		want     bool
	}{{"both", 10 * time.Second, true}, {"both", 89 * time.Second, true}, {"both", 90 * time.Second, false}, {
		"governed", 10 * time.Second,
		false,
	}} {
		note := options{Fleet: c.fleet, Duration: c.duration}.tooShort()
		if (note != "") != c.want || c.want && !strings.Contains(note, "--duration "+c.duration.String()+" is too short to compare") {
			t.Errorf("%s for %s: %q", c.fleet, c.duration, note)
		}
	}
}
