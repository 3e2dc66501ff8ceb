package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/perf/benchfmt"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

// comparison is a watched benchmark. Its stored figure is the ratio to a reference that is independent of quotad and runs
// in the same process just before or after. So a baseline from one machine is meaningful on another.
type comparison struct {
	pkg, name, unit    string
	reference, refUnit string
	// slack is the tolerated growth of the ratio.
	slack float64
}

// watched are the comparisons. Those that sync a disk get more slack than those that only compute.
var watched = []comparison{
	{"./client", "Allow/quotad", "sec/op", "Allow/x-time-rate", "sec/op", 0.15},
	{"./client", "Allow/quotad-two-goroutines", "sec/op", "Allow/x-time-rate-two-goroutines", "sec/op", 0.25},
	{"./fsm", "Apply/leases=10000", "sec/command", "ReferenceMemory/entries=10000", "sec/op", 0.15},
	{"./fsm", "Apply/leases=100000", "sec/command", "ReferenceMemory/entries=100000", "sec/op", 0.15},
	{"./fsm", "Apply/leases=1000000", "sec/command", "ReferenceMemory/entries=1000000", "sec/op", 0.15},
	{"./fsm", "Apply/leases=1000000", "bytes/lease", "", "", 0.05},
	{"./fsm", "Pace", "ratio", "", "", 0.08}, // shares on rates: at most 1.1 of a Reserve without them
	{"./raftnode", "StoreLogs/boltdb/entries=1", "sec/op", "ReferenceSync", "sec/op", 0.25},
	{"./raftnode", "StoreLogs/boltdb/entries=64", "sec/op", "ReferenceSync", "sec/op", 0.25},
	{"./raftnode", "StoreLogs/wal/entries=1", "sec/op", "ReferenceSync", "sec/op", 0.25},
	{"./raftnode", "StoreLogs/wal/entries=64", "sec/op", "ReferenceSync", "sec/op", 0.25},
	{"./raftnode", "Propose/callers=64", "sec/op", "ReferenceSync", "sec/op", 0.25},
}

// key identifies a comparison in the file of baselines.
func (c comparison) key() string { return c.pkg + " " + c.name + " " + c.unit }

// baseline is the stored result of a comparison.
type baseline struct {
	Ratio float64 `json:"ratio"`
	// Least and Most are the extremes of its rounds: a value between them is noise.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
}

func checkCommand() *cobra.Command {
	var path, benchtime, root, against string
	var rounds int
	var update bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Run the watched benchmarks and find slower ones",
		Long: `Run Go benchmarks in several rounds, each next to a reference that is independent of quotad. Compare the median of the rounds'
ratios with the stored one. A ratio that grew by more than its slack, and is above all rounds of the stored one, is a failure.
The result has no meaning on a machine that does other work.

With --against DIR, run the benchmarks of another checkout in turn with these, and compare with its medians instead: other
work on the machine then slows both down.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runs := []runner{goBenchmarks(root, benchtime)}
			if against != "" {
				runs = append(runs, goBenchmarks(against, benchtime))
			}
			ratios, err := measureRatios(cmd.Context(), watched, rounds, runs...)
			if err != nil {
				return err
			}
			if update {
				return writeBaselines(path, ratios[0])
			}
			if against != "" {
				return judge(cmd.OutOrStdout(), watched, mediansOnly(ratios[1]), ratios[0], "faster")
			}
			stored, err := readBaselines(path)
			if err != nil {
				return err
			}
			return judge(cmd.OutOrStdout(), watched, stored, ratios[0], "faster: make a new baseline")
		},
	}
	cmd.Flags().StringVar(&path, "baselines", "cmd/quotad/internal/lab/bench/tool/baselines.json", "the stored ratios")
	cmd.Flags().StringVar(&root, "root", ".", "quotad's sources")
	cmd.Flags().StringVar(&benchtime, "benchtime", "1s", "how long each benchmark runs in each round")
	cmd.Flags().IntVar(&rounds, "rounds", 7, "how many rounds")
	cmd.Flags().BoolVar(&update, "update", false, "store the ratios instead of comparing them")
	cmd.Flags().StringVar(&against, "against", "", "another checkout of quotad to compare with, instead of the stored ratios")
	cmd.MarkFlagsMutuallyExclusive("update", "against")
	return cmd
}

// runner runs the benchmarks of a package once and returns the output of go test.
type runner func(ctx context.Context, pkg string) ([]byte, error)

func goBenchmarks(root, benchtime string) runner {
	return func(ctx context.Context, pkg string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark("+pattern(pkg)+")$", "-benchtime", benchtime,
			"-timeout", "30m", pkg)
		cmd.Dir = root
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go test %s in %s: %w\n%s", pkg, root, err, out)
		}
		return out, nil
	}
}

// pattern matches a package's benchmarks for go test, without sub-benchmarks.
func pattern(pkg string) string {
	var names []string
	for _, c := range watched {
		for _, name := range []string{c.name, c.reference} {
			first, _, _ := strings.Cut(name, "/")
			if c.pkg == pkg && first != "" && !slices.Contains(names, first) {
				names = append(names, first)
			}
		}
	}
	return strings.Join(names, "|")
}

// measureRatios runs all packages once in each round, with each runner in turn, and returns the median and the extremes of each ratio for
// each runner. Every other round begins with the last runner: so none always runs on a machine that the other one has warmed.
func measureRatios(ctx context.Context, all []comparison, rounds int, runs ...runner) ([]map[string]baseline, error) {
	if rounds < 1 {
		return nil, errors.New("there must be at least one round")
	}
	ratios := make([]map[string][]float64, len(runs))
	for i := range ratios {
		ratios[i] = map[string][]float64{}
	}
	for round := range rounds {
		for _, pkg := range packagesOf(all) {
			_, _ = fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, rounds, pkg)
			for nth := range runs {
				which := nth
				if round%2 == 1 {
					which = len(runs) - 1 - nth
				}
				if err := measureOnce(ctx, all, pkg, runs[which], ratios[which]); err != nil {
					return nil, err
				}
			}
		}
	}
	medians := make([]map[string]baseline, len(runs))
	for i := range medians {
		medians[i] = map[string]baseline{}
		for key, values := range ratios[i] {
			medians[i][key] = baseline{Ratio: round3(bench.Median(values)), Least: round3(slices.Min(values)), Most: round3(slices.Max(values))}
		}
	}
	return medians, nil
}

// mediansOnly drops the extremes: what changes from round to round also changes the other tree's.
func mediansOnly(of map[string]baseline) map[string]baseline {
	out := map[string]baseline{}
	for key, b := range of {
		out[key] = baseline{Ratio: b.Ratio, Least: b.Ratio, Most: b.Ratio}
	}
	return out
}

// packagesOf returns the packages of comparisons, each once, in their order.
func packagesOf(all []comparison) (packages []string) {
	for _, c := range all {
		if !slices.Contains(packages, c.pkg) {
			packages = append(packages, c.pkg)
		}
	}
	return packages
}

// measureOnce runs a package once and adds its ratios.
func measureOnce(ctx context.Context, all []comparison, pkg string, run runner, ratios map[string][]float64) error {
	out, err := run(ctx, pkg)
	if err != nil {
		return err
	}
	measured, err := parse(out)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.pkg != pkg {
			continue
		}
		ratio, err := c.ratio(measured)
		if err != nil {
			return err
		}
		ratios[c.key()] = append(ratios[c.key()], ratio)
	}
	return nil
}

// round3 rounds to four significant digits: more would be noise in a stored file.
func round3(x float64) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

// ratio returns a benchmark's figure divided by its reference's.
func (c comparison) ratio(measured map[string]float64) (float64, error) {
	value, found := measured[c.name+" "+c.unit]
	if !found {
		return 0, fmt.Errorf("%s: the benchmark %s did not print %s", c.pkg, c.name, c.unit)
	}
	if c.reference == "" {
		return value, nil
	}
	reference, found := measured[c.reference+" "+c.refUnit]
	if !found || reference == 0 {
		return 0, fmt.Errorf("%s: the reference %s did not print %s", c.pkg, c.reference, c.refUnit)
	}
	return value / reference, nil
}

// processors is the suffix that go test adds to a name.
var processors = regexp.MustCompile(`-\d+$`)

// parse parses the output of go test: figures by name and unit.
func parse(out []byte) (map[string]float64, error) {
	measured := map[string]float64{}
	reader := benchfmt.NewReader(bytes.NewReader(out), "go test")
	for reader.Scan() {
		if result, ok := reader.Result().(*benchfmt.Result); ok {
			for _, value := range result.Values {
				measured[processors.ReplaceAllString(string(result.Name.Full()), "")+" "+value.Unit] = value.Value
			}
		}
	}
	return measured, reader.Err()
}

func readBaselines(path string) (map[string]baseline, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there are no baselines yet: `make bench-baseline` on a machine that does nothing else makes them: %w", err)
	}
	if err != nil {
		return nil, err
	}
	stored := map[string]baseline{}
	if err := json.Unmarshal(data, &stored); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return stored, nil
}

func writeBaselines(path string, ratios map[string]baseline) error {
	data, err := json.MarshalIndent(ratios, "", "  ") // keys are sorted
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644) //nolint:gosec // baselines are for everybody
}

// judge prints all ratios. It fails if one grew by more than its slack and beyond the baseline's rounds, or has no
// baseline. The same build, measured twice within an hour, had medians of 78 and 91 for a ratio whose rounds lay between 62
// and 99. faster is what to say about one that shrank as much.
func judge(out io.Writer, all []comparison, stored, now map[string]baseline, faster string) error {
	rows := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(rows, "BENCHMARK\tREFERENCE\tBASELINE\tNOW\tCHANGE\t")
	var slower []string
	for _, c := range all {
		was, found := stored[c.key()]
		is := now[c.key()]
		beside := c.reference
		if beside == "" {
			beside = c.unit
		}
		if !found || was.Ratio <= 0 {
			_, _ = fmt.Fprintf(rows, "%s\t%s\t-\t%.4g\t\tno baseline\n", c.name, beside, is.Ratio)
			slower = append(slower, c.name+" (no baseline)")
			continue
		}
		change, verdict := is.Ratio/was.Ratio-1, ""
		switch {
		case change > c.slack && is.Ratio > was.Most:
			verdict = fmt.Sprintf("slower by more than %.0f %%", 100*c.slack)
			slower = append(slower, c.name)
		case change > c.slack:
			verdict = "within what the baseline's rounds differ by"
		case change < -c.slack && is.Ratio < was.Least:
			verdict = faster
		}
		_, _ = fmt.Fprintf(rows, "%s\t%s\t%.4g\t%.4g\t%+.1f %%\t%s\n", c.name, beside, was.Ratio, is.Ratio, 100*change, verdict)
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	if len(slower) > 0 {
		return fmt.Errorf("%d of %d became slower: %s", len(slower), len(all), strings.Join(slower, ", "))
	}
	return nil
}
