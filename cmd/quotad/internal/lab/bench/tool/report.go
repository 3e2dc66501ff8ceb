package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

// Only this command writes the text between the marks.
const (
	beginMark = "<!-- begin of bench-peers: written by `make bench-peers-report` -->"
	endMark   = "<!-- end of bench-peers -->"
)

// The pages with these marks, relative to the repository's root.
const (
	defaultPage    = "docs/performance-tables.md"
	defaultScaling = "docs/scaling.md"
)

func reportCommand() *cobra.Command {
	var results, page, scaling string
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write tables and plots of a results file into a page of the documentation",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := bench.ReadResults(results)
			if err != nil {
				return err
			}
			if err := proper(r); err != nil {
				return err
			}
			if err := writePage(page, r); err != nil {
				return err
			}
			if err := replaceMarked(scaling, func(out *bytes.Buffer) error {
				writeScaling(out, r)
				return nil
			}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s, its plots and %s are written\n", page, scaling)
			return err
		},
	}
	cmd.Flags().StringVar(&results, "results", "bin/bench-peers.json", "what run wrote")
	cmd.Flags().StringVar(&page, "page", defaultPage, "the page with the marks")
	cmd.Flags().StringVar(&scaling, "scaling", defaultScaling, "the page with the marks of the scaling table")
	return cmd
}

// proper rejects the results of a run that proves nothing: too short, or on a machine that did other work.
func proper(r *bench.Results) error {
	const leastRounds, leastSeconds, mostLoad = 3, 3, 0.25
	if r.Rounds < leastRounds || r.Seconds < leastSeconds || r.Machine.Load > mostLoad*float64(r.Machine.Cores) {
		return fmt.Errorf("a page is written of at least %d rounds of at least %d s on a machine with a load of at most %g per core; "+
			"this was %d rounds of %g s, at %.1f", leastRounds, leastSeconds, mostLoad, r.Rounds, r.Seconds, r.Machine.Load)
	}
	return nil
}

// writePage replaces the text between a page's marks, and writes the plots next to the page.
func writePage(path string, r *bench.Results) error {
	plots := []struct {
		file, says string
		draw       func(r *bench.Results, path string) (drawn bool, err error)
	}{
		{
			"performance-rates.svg", "Decisions per second in closed loops; the dot is the median, the line spans the slowest to the fastest round",
			drawRates,
		},
		{
			"performance-latencies.svg",
			"Latency by percentile of 64 callers on 1,000 quotas at the same arrival rate, all rounds together (the table above has medians of " +
				"the rounds)", drawLatencies,
		},
	}
	return replaceMarked(path, func(out *bytes.Buffer) error {
		writeTables(out, r)
		for _, p := range plots {
			drawn, err := p.draw(r, filepath.Join(filepath.Dir(path), p.file))
			if err != nil {
				return err
			}
			if drawn {
				fmt.Fprintf(out, "![%s](%s)\n\n", p.says, p.file)
			}
		}
		return nil
	})
}

// replaceMarked replaces the text between a page's marks.
func replaceMarked(path string, write func(*bytes.Buffer) error) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := bytes.Cut(page, []byte(beginMark))
	_, after, ends := bytes.Cut(rest, []byte(endMark))
	if !begins || !ends {
		return fmt.Errorf("%s has no place for the results: it needs the lines %q and %q", path, beginMark, endMark)
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(beginMark + "\n\n")
	if err := write(&out); err != nil {
		return err
	}
	out.WriteString(endMark)
	out.Write(after)
	return os.WriteFile(path, out.Bytes(), 0o644) //nolint:gosec // a page for everybody
}

// places matches the flags that name local paths of the measuring machine.
var places = regexp.MustCompile(` --(dir|results|quotad)[ =]\S+`)

// writeTables writes everything except the plots.
func writeTables(out *bytes.Buffer, r *bench.Results) {
	m := r.Machine
	fmt.Fprintf(out, "Made on %s by `%s`", r.Started.Format("2006-01-02"), places.ReplaceAllString(r.Command, ""))
	if r.Commit != "" {
		fmt.Fprintf(out, " at commit %s", r.Commit)
	}
	fmt.Fprintf(out, ": %d rounds, each work %g s. %s, %d cores, %.0f GiB, %s, %s; a write of 4 KiB with its sync took %s\n"+
		"(p99 %s); load before: %.1f. Callers and servers share the machine; each system runs alone. %s\n\n",
		r.Rounds, r.Seconds, m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.Go, microseconds(m.DiskP50), microseconds(m.DiskP99),
		m.Load, versions(r))
	goalsTable(out, r)
	ratesTable(out, r)
	latencyTable(out, r)
	costTable(out, r)
	localTable(out, r)
}

func versions(r *bench.Results) string {
	all := make([]string, 0, len(r.Systems))
	said := map[string]bool{}
	for _, s := range r.Systems {
		if !said[s.Version] {
			all = append(all, strings.Join(strings.Fields(s.Version), " "))
		}
		said[s.Version] = true
	}
	return strings.Join(all, "; ") + "."
}

// table writes a Markdown table.
func table(out *bytes.Buffer, header []string, rows [][]string) {
	line := func(cells []string) { fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | ")) }
	line(header)
	rule := make([]string, len(header))
	for i := range rule {
		rule[i] = "---"
	}
	line(rule)
	for _, row := range rows {
		line(row)
	}
	out.WriteString("\n")
}

func systemNames(r *bench.Results) []string {
	names := make([]string, len(r.Systems))
	for i, s := range r.Systems {
		names[i] = s.Name
	}
	return names
}

// goalsTable compares the results with the goals.
func goalsTable(out *bytes.Buffer, r *bench.Results) {
	var rows [][]string
	for _, g := range goals {
		value, found := g.measure(r)
		if !found {
			continue
		}
		verdict := "no"
		if g.reached(value) {
			verdict = "yes"
		}
		rows = append(rows, []string{g.what, g.beside, g.sign() + fmt.Sprintf(" %.3g x", g.goal), fmt.Sprintf("%.3g x", value), verdict})
	}
	if len(rows) > 0 {
		out.WriteString("## Goals\n\n")
		table(out, []string{"work", "compared with", "goal", "measured", "reached"}, rows)
	}
}

func ratesTable(out *bytes.Buffer, r *bench.Results) {
	out.WriteString("## Decisions per second\n\nClosed loops: each caller waits for its answer. Medians of the rounds, in brackets the " +
		"slowest and the fastest.\n\n")
	var rows [][]string
	for _, work := range r.Works() {
		row := []string{work}
		for _, system := range systemNames(r) {
			cell := "-"
			if s, found := r.Summarize(system, work, 0); found {
				cell = fmt.Sprintf("%s (%s-%s)", rounded(s.PerSecond), rounded(s.Least), rounded(s.Most))
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	table(out, append([]string{"work"}, systemNames(r)...), rows)
}

// latencyTable shows p50, p99 and p99.9 of closed and open loops.
func latencyTable(out *bytes.Buffer, r *bench.Results) {
	out.WriteString("## Latency\n\np50 / p99 / p99.9 of a call. Open: calls arrive at random times at the given rate, whether or not " +
		"earlier ones were\n" +
		"answered, and latency counts from the time at which each should have begun. A system that cannot keep up is stopped after\n" +
		"twice the time.\n\n")
	var rows [][]string
	for _, work := range r.Works() {
		for _, offered := range []float64{0, 50, 500, 3200, bench.OwnHalf} {
			row, measured := []string{work + loopName(offered)}, false
			for _, system := range systemNames(r) {
				cell := "-"
				if s, found := r.Summarize(system, work, offered); found {
					measured = true
					cell = fmt.Sprintf("%s / %s / %s", bench.Brief(s.P50), bench.Brief(s.P99), bench.Brief(s.P999))
					if s.Unanswered > 0 {
						cell += fmt.Sprintf(", %.0f %% without an answer", 100*s.Unanswered)
					}
					if offered == bench.OwnHalf {
						cell += fmt.Sprintf(" at %s/s", rounded(s.PerSecond))
					}
				}
				row = append(row, cell)
			}
			if measured {
				rows = append(rows, row)
			}
		}
	}
	table(out, append([]string{"work"}, systemNames(r)...), rows)
}

func loopName(offered float64) string {
	switch {
	case offered == bench.OwnHalf:
		return ", open at half of its own rate"
	case offered > 0:
		return fmt.Sprintf(", open at %.0f/s", offered)
	default:
		return ""
	}
}

func costTable(out *bytes.Buffer, r *bench.Results) {
	out.WriteString("## What a decision costs\n\nProcessor seconds per million decisions (all servers; + the callers), bytes written to " +
		"disk and syncs (fsync and\n" +
		"fdatasync, counted by kernel tracepoints) per decision, all nodes together.\n\n")
	var rows [][]string
	for _, work := range r.Works() {
		row := []string{work}
		for _, system := range systemNames(r) {
			cell := "-"
			if s, found := r.Summarize(system, work, 0); found {
				cell = fmt.Sprintf("%.3g + %.3g s, %.3g B, %s", s.CPU, s.CallerCPU, s.Bytes, bench.Syncs(s.Syncs))
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	table(out, append([]string{"work"}, systemNames(r)...), rows)
}

func localTable(out *bytes.Buffer, r *bench.Results) {
	if len(r.Local) == 0 {
		return
	}
	out.WriteString("## A local take\n\nTime per take, and allocations; medians. quotad's limiter meanwhile fetches its batches from a " +
		"cluster of three.\n\n")
	var rows [][]string
	var names []string
	seen := map[string]bool{}
	for _, l := range r.Local {
		if !seen[l.Name] {
			names = append(names, l.Name)
		}
		seen[l.Name] = true
	}
	for _, name := range names {
		row := []string{name}
		for _, goroutines := range []int{1, 2} {
			row = append(row, fmt.Sprintf("%.1f ns, %.4f", localTime(r, name, goroutines), localAllocs(r, name, goroutines)))
		}
		rows = append(rows, row)
	}
	table(out, []string{"limiter", "one goroutine", "two goroutines"}, rows)
}

// rounded formats a rate with three digits.
func rounded(rate float64) string {
	switch {
	case rate < 100:
		return fmt.Sprintf("%.3g", rate)
	case rate < 1000:
		return fmt.Sprintf("%.0f", rate)
	default:
		scale := 1.0
		for rate/scale >= 1000 {
			scale *= 10
		}
		return thousands(int64(rate/scale+0.5) * int64(scale))
	}
}

func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

func microseconds(n int64) string { return fmt.Sprintf("%.2f ms", float64(n)/1000) }
