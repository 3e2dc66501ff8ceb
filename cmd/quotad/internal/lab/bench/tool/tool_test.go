package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

// result returns a run of a work.
func result(t *testing.T, system, work string, round int, offered, perSecond float64, microseconds int64) bench.Run {
	t.Helper()
	h := hdrhistogram.New(1, 60_000_000, 3)
	for range 200 {
		if err := h.RecordValue(microseconds); err != nil {
			t.Fatal(err)
		}
	}
	encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return bench.Run{
		System: system, Work: work, Round: round, Callers: 64, Batch: 1, Offered: offered, Decisions: 200, PerSecond: perSecond,
		Latency: bench.Latency{
			P50: microseconds, P90: microseconds, P99: microseconds, P999: microseconds, Max: microseconds, Histogram: string(encoded),
		},
		Cost: bench.Cost{CPUSeconds: 1, WriteBytes: 200},
	}
}

func results(t *testing.T) *bench.Results {
	t.Helper()
	r := &bench.Results{
		Command: "bin/bench run --dir /somewhere --rounds 2 --results=/else/where", Rounds: 2, Seconds: 4,
		Systems: []bench.SystemInfo{{Name: "quotad", Version: "q 1"}, {Name: "etcd", Version: "e 1"}, {Name: "etcd, plain put", Version: "e 1"}},
	}
	for round := 1; round <= 2; round++ {
		r.Runs = append(r.Runs,
			result(t, "quotad", bench.OneCaller, round, 0, 500, 2000), result(t, "quotad", bench.Hot64, round, 0, 16_000, 4000),
			result(t, "quotad", bench.Spread64, round, 500, 500, 2500),
			result(t, "etcd", bench.Hot64, round, 0, 100, 600_000), result(t, "etcd", bench.Spread64, round, 500, 480, 5000),
			result(t, "etcd, plain put", bench.OneCaller, round, 0, 520, 1900))
	}
	r.Local = []bench.Local{
		{Name: "quotad", Goroutines: 1, NanosecondsPerTake: 30}, {Name: "golang.org/x/time/rate", Goroutines: 1, NanosecondsPerTake: 80},
	}
	return r
}

// TestWritePage_IsRepeatable: the report goes between the page's marks, identically each time, with the plots next to the page.
func TestWritePage_IsRepeatable(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	if err := os.WriteFile(page, []byte("before\n"+beginMark+"\nold\n"+endMark+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 2 {
		if err := writePage(page, results(t)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, got) {
			t.Errorf("written again the page differs:\n%s", got)
		}
		first = got
	}
	for _, want := range []string{
		"by `bin/bench run --rounds 2`", "before\n" + beginMark, endMark + "\nafter\n",
		"| 64 callers, one quota | etcd | ≥ 150 x | 160 x | yes |",
		"| one caller, p50 | etcd, plain put | ≤ 1.1 x | 1.05 x | yes |",
		"| a local take, one goroutine | golang.org/x/time/rate | ≤ 0.5 x | 0.375 x | yes |",
		"| 64 callers, one quota | 16,000 (16,000-16,000) | 100 (100-100) | - |",
		"![Decisions per second", "q 1; e 1.",
	} {
		if !strings.Contains(string(first), want) {
			t.Errorf("%q is missing in\n%s", want, first)
		}
	}
	if strings.Contains(string(first), "old") {
		t.Error("what was there is still there")
	}
	for _, plot := range []string{"performance-rates.svg", "performance-latencies.svg"} {
		if data, err := os.ReadFile(filepath.Join(dir, plot)); err != nil || !bytes.Contains(data, []byte("</svg>")) {
			t.Errorf("%s: %v", plot, err)
		}
	}
}

// TestWriteScaling_TableOfAgents: the numbers of agents follow from half of the measured rate.
func TestWriteScaling_TableOfAgents(t *testing.T) {
	r := results(t)
	r.Runs = append(r.Runs,
		result(t, "quotad", bench.Spread256, 1, 0, 20_000, 4000), result(t, "quotad", bench.Agents64, 1, bench.AgentRate, 3000, 1))
	var out bytes.Buffer
	writeScaling(&out, r)
	for _, want := range []string{
		"At half of the 20,000 decisions a second", "| 0.1 | 100,000 | 1,000,000 |", "| 10 | 1,000 | 10,000 | 100,000 |",
		"64 agents that take 3,000 a second",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

// TestPages_HaveMarks: the report has a place in each page that it writes.
func TestPages_HaveMarks(t *testing.T) {
	for _, page := range []string{defaultPage, defaultScaling} {
		text, err := os.ReadFile(filepath.Join("../../../../../..", page))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, begins := bytes.Cut(text, []byte(beginMark))
		if !begins || !bytes.Contains(rest, []byte(endMark)) {
			t.Errorf("%s has no marks", page)
		}
	}
}

// TestWritePage_RefusesPageWithoutMarks: a page without marks is an error and stays unchanged.
func TestWritePage_RefusesPageWithoutMarks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writePage(page, results(t)); err == nil {
		t.Error("written")
	}
	if got, _ := os.ReadFile(page); string(got) != "text\n" {
		t.Errorf("%q", got)
	}
}

// TestProper_RefusesTrialRunsAndBusyMachines: the figures of a trial run or of a busy machine never reach the documentation.
func TestProper_RefusesTrialRunsAndBusyMachines(t *testing.T) {
	for name, c := range map[string]struct {
		rounds        int
		seconds, load float64
		proper        bool
	}{
		"proper": {3, 4, 0.3, true}, "few rounds": {2, 4, 0, false}, "short": {3, 0.3, 0, false}, "busy": {5, 10, 4, false},
	} {
		err := proper(&bench.Results{Rounds: c.rounds, Seconds: c.seconds, Machine: bench.Machine{Cores: 2, Load: c.load}})
		if (err == nil) != c.proper {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlots_OfNothingMeasuredAreNotDrawn: without measurements there is no plot and no crash.
func TestPlots_OfNothingMeasuredAreNotDrawn(t *testing.T) {
	for _, draw := range []func(*bench.Results, string) (bool, error){drawRates, drawLatencies} {
		path := filepath.Join(t.TempDir(), "plot.svg")
		if drawn, err := draw(&bench.Results{Systems: []bench.SystemInfo{{Name: "quotad"}}}, path); drawn || err != nil {
			t.Errorf("%v %v", drawn, err)
		}
	}
}

// printed is the output of go test for a benchmark that takes twice the time of its reference.
func printed(name, reference string) string {
	return "goos: linux\npkg: example\n" + name + "-2 \t 1000\t 200.0 ns/op\t 350.0 ns/command\n" + reference +
		"-2 \t 1000\t 100.0 ns/op\nPASS\n"
}

// TestCheck: check reports a ratio that grew. It does not report an unchanged ratio, nor a slower machine.
func TestCheck(t *testing.T) {
	all := []comparison{
		{"./a", "Work/size=10", "sec/op", "Reference", "sec/op", 0.1}, {"./a", "Work/size=10", "sec/command", "Reference", "sec/op", 0.1},
	}
	measure := func(ctx context.Context, pkg string) ([]byte, error) {
		if pkg != "./a" {
			return nil, errors.New(pkg)
		}
		return []byte(printed("BenchmarkWork/size=10", "BenchmarkReference")), nil
	}
	ratios, err := measureRatios(t.Context(), all, 3, measure)
	if err != nil {
		t.Fatal(err)
	}
	now := ratios[0]
	if got := now[all[0].key()].Ratio; got != 2 {
		t.Errorf("ratio %v", got)
	}
	if got := now[all[1].key()].Ratio; got != 3.5 {
		t.Errorf("ratio %v", got)
	}
	path := filepath.Join(t.TempDir(), "baselines.json")
	if _, err := readBaselines(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without baselines: %v", err)
	}
	if err := writeBaselines(path, now); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		was, most float64
		fails     bool
	}{
		"the same": {2, 2, false}, "a little slower": {1.9, 1.9, false}, "slower": {1.7, 1.8, true}, "much faster": {4, 4, false},
		"no slower than a round was": {1.7, 2.1, false}, "no baseline": {0, 0, true},
	} {
		stored, err := readBaselines(path)
		if err != nil {
			t.Fatal(err)
		}
		stored[all[0].key()] = baseline{Ratio: c.was, Least: c.was, Most: c.most}
		var out bytes.Buffer
		if err := judge(&out, all, stored, now, ""); (err != nil) != c.fails {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
	if _, err := measureRatios(t.Context(), []comparison{{"./a", "Gone", "sec/op", "Reference", "sec/op", 0.1}}, 1, measure); err == nil {
		t.Error("a benchmark that is gone was not missed")
	}
}

// TestCheck_AgainstAnotherTree: rounds run in turn, and each tree has its own ratios: noise of the machine that moves both is
// no difference.
func TestCheck_AgainstAnotherTree(t *testing.T) {
	all := []comparison{
		{"./a", "Work", "sec/op", "", "", 0.1}, {"./a", "Other", "sec/op", "", "", 0.1}, {"./b", "Work", "sec/op", "", "", 0.1},
	}
	var order []string
	tree := func(name string, work float64) runner {
		return func(_ context.Context, pkg string) ([]byte, error) {
			order = append(order, name+pkg)
			noise := float64(1 + (len(order)-1)/4) // a round is slower than the one before, for both
			return fmt.Appendf(nil, "pkg: x\nBenchmarkWork-2 1 %f ns/op\nBenchmarkOther-2 1 %f ns/op\nPASS\n", work*noise, 100*noise), nil
		}
	}
	for name, c := range map[string]struct {
		now, other float64
		slower     string
	}{
		"the same": {100, 100, ""}, "slower": {150, 100, "2 of 3 became slower: Work, Work"}, "faster": {100, 150, ""},
	} {
		order = nil
		ratios, err := measureRatios(t.Context(), all, 3, tree("now ", c.now), tree("other ", c.other))
		if err != nil {
			t.Fatal(err)
		}
		alternating := []string{"now ./a", "other ./a", "now ./b", "other ./b", "other ./a", "now ./a", "other ./b", "now ./b"}
		if !slices.Equal(order, append(alternating, alternating[:4]...)) {
			t.Errorf("%s: %v", name, order)
		}
		var out bytes.Buffer
		err = judge(&out, all, mediansOnly(ratios[1]), ratios[0], "faster")
		if text := fmt.Sprint(err); c.slower != "" && text != c.slower || c.slower == "" && err != nil {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
	broken := func(context.Context, string) ([]byte, error) { return nil, errors.New("does not build") }
	if _, err := measureRatios(t.Context(), all, 1, tree("now ", 1), broken); err == nil {
		t.Error("a tree that does not build was not missed")
	}
}

// TestWatched_BenchmarksExist: the watched benchmarks are in the sources.
func TestWatched_BenchmarksExist(t *testing.T) {
	const root = "../../../../../.."
	for _, c := range watched {
		files, err := filepath.Glob(filepath.Join(root, c.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var sources strings.Builder
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sources.Write(data)
		}
		for name := range strings.SplitSeq(pattern(c.pkg), "|") {
			if !strings.Contains(sources.String(), "func Benchmark"+name+"(") {
				t.Errorf("%s has no benchmark %s", c.pkg, name)
			}
		}
	}
	if got := strings.Split(pattern("./client"), "|"); !slices.Equal(got, []string{"Allow"}) {
		t.Errorf("%q", got)
	}
}

// TestChoose_SystemsByName: names select systems, and the error for an unknown name lists the known ones.
func TestChoose_SystemsByName(t *testing.T) {
	if all, err := choose("q", nil); err != nil || len(all) != 6 {
		t.Errorf("%d, %v", len(all), err)
	}
	two, err := choose("q", []string{"redis", "quotad"})
	if err != nil || len(two) != 2 || two[0].Name != "redis" || two[1].Name != "quotad" {
		t.Errorf("%v, %v", two, err)
	}
	if _, err := choose("q", []string{"rediss"}); err == nil || !strings.Contains(err.Error(), `"redis"`) {
		t.Errorf("%v", err)
	}
}
