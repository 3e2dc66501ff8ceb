package plan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/usage"
)

// checkOptions are the user's settings.
type checkOptions struct {
	seed  uint64
	seeds int
	write string
}

// checkCommand returns `quotad plan check`.
func checkCommand() *cobra.Command {
	o := checkOptions{}
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check fleets against the expectations in their files, over many seeds",
		Long: `Run each fleet in virtual time, with and without quotad, for every seed, and check the runs against the file's "expect:". One
table has the worst figure of all seeds. The exit code is 1 if an expectation fails.`,
		Example: `  quotad plan check docs/scenarios/*.yaml
  quotad plan check --seeds 200 fleet.yaml`,
		Args: usage.Arguments("FILE..."),
		RunE: func(cmd *cobra.Command, files []string) error {
			if o.seeds < 1 || o.seeds > maxSeeds {
				return usagef("--seeds must be 1 to %d", maxSeeds)
			}
			return o.run(cmd.Context(), files, cmd.OutOrStdout())
		},
	}
	cmd.Flags().Uint64Var(&o.seed, "seed", 1, "the first seed")
	cmd.Flags().IntVar(&o.seeds, "seeds", 1, "number of seeds")
	cmd.Flags().StringVar(&o.write, "write", "", "Markdown page to regenerate, with plots and tables of the first seed next to the files")
	return cmd
}

// scenario is one file and its runs.
type scenario struct {
	name  string
	path  string
	fleet *fleet.Fleet
	runs  []Runs
}

// wrong returns the failed expectations, seed by seed.
func (s *scenario) wrong() (all []string) {
	for _, run := range s.runs {
		for _, wrong := range run.Wrong {
			all = append(all, fmt.Sprintf("%s, seed %d: %s", s.name, run.Seed, wrong))
		}
	}
	return all
}

// readScenarios reads files.
func readScenarios(files []string) ([]*scenario, error) {
	var all []*scenario
	for _, path := range files {
		f, err := readFleet(path)
		if err != nil {
			return nil, err
		}
		if f.Expect == nil {
			f.Expect = &fleet.Expect{Classes: fleet.AnyOrder, Retries: -1, Outage: -1}
		}
		all = append(all, &scenario{name: strings.TrimSuffix(filepath.Base(path), ".yaml"), path: path, fleet: f})
	}
	return all, nil
}

// onBinding returns runs whose classes contain only the calls on the binding quota.
func (s *scenario) onBinding(runs []Runs) []Runs {
	kinds := s.fleet.Draws(s.fleet.Expect.Binding)
	narrowed := make([]Runs, len(runs))
	for i, run := range runs {
		alone, governed := *run.Alone, *run.Governed
		alone.Classes, governed.Classes = alone.ClassesOf(kinds), governed.ClassesOf(kinds)
		narrowed[i] = Runs{Seed: run.Seed, Alone: &alone, Governed: &governed}
	}
	return narrowed
}

// run runs the command.
func (o *checkOptions) run(ctx context.Context, files []string, out io.Writer) error {
	all, err := readScenarios(files)
	if err != nil {
		return err
	}
	var wrong []string
	for _, s := range all {
		if s.runs, err = RunSeeds(ctx, s.fleet, o.seed, o.seeds); err != nil {
			return err
		}
		wrong = append(wrong, s.wrong()...)
	}
	for _, table := range tables(all, allSeeds) {
		if err := table.Write(out); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "%d fleets, %d seeds each: the worst of all seeds, figure by figure\n", len(all), o.seeds)
	if o.write != "" {
		if err := o.writePage(all); err != nil {
			return err
		}
	}
	const enough = 20
	for _, line := range wrong[:min(len(wrong), enough)] {
		fmt.Fprintf(out, "! %s\n", line)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %d times", errNotMet, len(wrong))
	}
	return nil
}

// comparison is one table of all scenarios on both sides, with the worst figure of each one's runs.
func comparison(all []*scenario, of func(*scenario) []Runs) *output.Table {
	table := &output.Table{Header: []string{
		"SCENARIO", "SIDE", "REFUSED", "PEAK OF LIMIT", "RETRIES", "FINISHED", "OF IDEAL", "P99 CRITICAL", "STANDARD", "BACKGROUND", "GIVEN UP",
		"FAIR",
	}}
	for _, s := range all {
		runs := worstOf(s.onBinding(of(s)))
		name := s.name
		for _, r := range []*sim.Result{runs.Alone, runs.Governed} {
			row := []string{
				name, string(r.Side), refusedText(r), peakText(s.fleet, r), shareOfAttempts(r), finishText(s.fleet, r), idealText(s.fleet, r),
			}
			for i := range r.Classes {
				row = append(row, classText(&r.Classes[i]))
			}
			table.Add(append(row, output.Int(r.GivenUp), fairText(r))...)
			name = ""
		}
	}
	return table
}

func refusedText(r *sim.Result) string {
	if r.Outage == 0 {
		return output.Int(r.Refused)
	}
	return fmt.Sprintf("%d (+%d)", r.Refused, r.Outage)
}

// peakText shows the peak of the binding quota, or else of the quota closest to its limit.
func peakText(f *fleet.Fleet, r *sim.Result) string {
	q := &r.Quotas[nearest(r, 1)[0]]
	for i := range r.Quotas {
		if r.Quotas[i].Quota == f.Expect.Binding {
			q = &r.Quotas[i]
		}
	}
	return fmt.Sprintf("%d of %d", q.Peak, q.Limit)
}

// finishText shows when all tasks of limited number were finished, if there are any.
func finishText(f *fleet.Fleet, r *sim.Result) string {
	if !slices.ContainsFunc(f.Agents, func(a *fleet.Agent) bool { return a.Tasks > 0 }) {
		return output.Dash
	}
	return finishedText(r.Finish)
}

func shareOfAttempts(r *sim.Result) string {
	if r.Attempts == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(r.Retries)/float64(r.Attempts))
}

// idealText shows the use of the binding quota, or else of the most used one.
func idealText(f *fleet.Fleet, r *sim.Result) string {
	best := -1
	for i := range r.Quotas {
		if r.Quotas[i].Quota == f.Expect.Binding {
			return useText(&r.Quotas[i])
		}
		if r.Quotas[i].Measured > 0 && (best < 0 || r.Quotas[i].Utilisation > r.Quotas[best].Utilisation) {
			best = i
		}
	}
	if best < 0 {
		return output.Dash
	}
	return useText(&r.Quotas[best])
}

func classText(c *sim.ClassResult) string {
	if c.Calls == 0 {
		return output.Dash
	}
	return waitText(c.P99)
}

// fairText shows the lowest fairness of the classes.
func fairText(r *sim.Result) string {
	least := 1.0
	for i := range r.Classes {
		least = min(least, r.Classes[i].Fairness)
	}
	return fmt.Sprintf("%.2f", least)
}

// The marks around the generated part of a page.
const worstBegin, worstEnd = "<!-- all seeds -->\n", "<!-- end of all seeds -->"

// writePage regenerates the tables of a page, and next to the files the tables and plots of the first seed.
func (o *checkOptions) writePage(all []*scenario) error {
	page, err := os.ReadFile(o.write)
	if err != nil {
		return err
	}
	text, err := pageOf(string(page), all, o.seeds)
	if err != nil {
		return err
	}
	first := filepath.Join(filepath.Dir(all[0].path), firstTables)
	if err := os.WriteFile(first, []byte(markdown(tables(all, firstSeed))), 0o644); err != nil { //nolint:gosec // a table is for everybody
		return err
	}
	for _, s := range all {
		if err := plotTo(plotPath(s.path), s.fleet, &s.runs[0]); err != nil {
			return err
		}
	}
	return os.WriteFile(o.write, []byte(text), 0o644) //nolint:gosec // a page is for everybody
}

// plotPath is the path of a file's plot.
func plotPath(path string) string { return strings.TrimSuffix(path, ".yaml") + ".svg" }

// firstTables is the file of the first seed's tables.
const firstTables = "first-seed.txt"

// pageOf returns a page with its tables regenerated.
func pageOf(page string, all []*scenario, seeds int) (string, error) {
	worst := fmt.Sprintf("\nThe worst of %d seeds, figure by figure.\n\n%s", seeds, markdown(tables(all, allSeeds)))
	return between(page, worstBegin, worstEnd, worst)
}

// between replaces the text between two marks.
func between(page, begin, end, text string) (string, error) {
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", errors.New("the page has no place for its tables: " + strings.TrimSpace(begin))
	}
	return before + begin + text + end + after, nil
}

// markdown formats tables as Markdown, each followed by an empty line.
func markdown(tables []*output.Table) string {
	var out strings.Builder
	for _, table := range tables {
		writeMarkdown(&out, table)
		out.WriteString("\n")
	}
	return out.String()
}

func writeMarkdown(out *strings.Builder, table *output.Table) {
	line := func(cells []string) {
		out.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	header := make([]string, len(table.Header))
	rule := make([]string, len(table.Header))
	for i, cell := range table.Header {
		header[i], rule[i] = strings.ToLower(cell), "---"
	}
	line(header)
	line(rule)
	for _, row := range table.Rows {
		line(row)
	}
}
