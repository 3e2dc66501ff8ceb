package plan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/live"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/cmd/quotad/internal/usage"
)

// realOptions are the user's settings.
type realOptions struct {
	length, dir, write string
	seed               uint64
}

// realCommand returns `quotad plan real`.
func realCommand() *cobra.Command {
	o := realOptions{}
	cmd := &cobra.Command{
		Use:   "real FILE...",
		Short: "Run fleets in real time with real processes, and check the expectations in their files",
		Long: `Run each fleet in real time, with and without quotad. Each has a cluster of three processes on loopback, a provider (an HTTP
server with GitHub's headers and its own count), and agents that use the Go client. If the file kills the leader, its process
gets SIGKILL, and starts again after another node leads. All fleets run at the same time.

A fleet whose work does not end runs for at most --for. A shortened run is checked only against what must never happen, and
its kills occur at the same fractions of its time. The exit code is 1 if an expectation fails.`,
		Example: `  quotad plan real docs/scenarios/s2-six-writers.yaml
  quotad plan real --for 3m docs/scenarios/s9-*.yaml`,
		Args: usage.Arguments("FILE..."),
		RunE: func(cmd *cobra.Command, files []string) error { return o.run(cmd.Context(), files, cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.length, "for", "10m", "the longest that a fleet runs")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the agents' randomness; equal seeds do not give equal runs in real time")
	flags.StringVar(&o.dir, "dir", "", "an empty folder for data and logs; default: a temporary one, kept if an expectation fails")
	flags.StringVar(&o.write, "write", "", "Markdown page whose section of runs in real time to regenerate")
	return cmd
}

// realScenario is a scenario in real time.
type realScenario struct {
	scenario
	// whole is the file's length of the run if the run was cut short; 0: it was not.
	whole            time.Duration
	alone, governed  *live.Outcome
	errAlone, errGov error
}

// run runs the command.
func (o *realOptions) run(ctx context.Context, files []string, out io.Writer) (err error) {
	most, err := strictyaml.ParseDuration(o.length)
	if err != nil || most < time.Second || most > 24*time.Hour {
		return usagef("--for must be a duration of 1s to 24h, such as 3m")
	}
	read, err := readScenarios(files)
	if err != nil {
		return err
	}
	var all []*realScenario
	for _, s := range read {
		for quota, limit := range s.fleet.Provider.Limits {
			if limit.Others > 0 {
				return usagef("%s: others use %s, which is simulated in virtual time only: quotad plan check", s.name, quota)
			}
		}
		all = append(all, shorten(s, most))
	}
	dir, err := o.folder()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d fleets run for at most %s each, all at once. Data and logs: %s\n\n", len(all), shortDuration(most), dir)
	if err := runReal(ctx, all, dir, o.seed); err != nil {
		return err
	}
	if err := report(all, out); err != nil {
		return err
	}
	if o.write != "" {
		if err := writeReal(o.write, all, time.Now()); err != nil {
			return err
		}
	}
	if wrong := wrongOf(all); len(wrong) > 0 {
		return fmt.Errorf("%w: %s; data and logs are in %s", errNotMet, join(wrong), dir)
	}
	if o.dir == "" {
		return os.RemoveAll(dir)
	}
	return nil
}

// folder returns the path of an empty folder.
func (o *realOptions) folder() (string, error) {
	if o.dir == "" {
		return os.MkdirTemp("", "quotad-real-")
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(o.dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty: choose another --dir", o.dir)
	}
	return o.dir, err
}

// shorten returns a scenario of length most or less. A fleet that ends by itself still counts as whole. If kills would
// occur after the end, all kills move to the same fractions of the time.
func shorten(s *scenario, most time.Duration) *realScenario {
	r := &realScenario{scenario: *s}
	if s.fleet.For <= most {
		return r
	}
	f := *s.fleet
	f.For = most
	if slices.ContainsFunc(f.Agents, func(a *fleet.Agent) bool { return a.Tasks == 0 }) {
		r.whole = s.fleet.For
	}
	f.Cluster.Kills = slices.Clone(f.Cluster.Kills)
	if n := len(f.Cluster.Kills); n > 0 && f.Cluster.Kills[n-1] >= most {
		for i, at := range f.Cluster.Kills {
			f.Cluster.Kills[i] = time.Duration(float64(at) / float64(s.fleet.For) * float64(most))
		}
	}
	r.fleet = &f
	return r
}

// runReal runs all scenarios on both sides at once.
func runReal(ctx context.Context, all []*realScenario, dir string, seed uint64) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for i, s := range all {
		setting := live.Setting{Binary: binary, Dir: filepath.Join(dir, fmt.Sprintf("%d-%s", i+1, s.name)), Seed: seed}
		side := func(side sim.Side, to **live.Outcome, failed *error) {
			if *to, *failed = live.Run(ctx, s.fleet, side, setting); *failed != nil {
				cancel()
			}
		}
		running.Go(func() { side(sim.Alone, &s.alone, &s.errAlone) })
		running.Go(func() { side(sim.Governed, &s.governed, &s.errGov) })
	}
	running.Wait()
	var errs []error
	for _, s := range all {
		for _, err := range []error{s.errAlone, s.errGov} {
			if err != nil && !errors.Is(err, context.Canceled) {
				errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
			}
		}
	}
	if len(errs) == 0 {
		return ctx.Err()
	}
	return fmt.Errorf("%w; data and logs are in %s", errors.Join(errs...), dir)
}

// wrongOf returns the failed expectations.
func wrongOf(all []*realScenario) (wrong []string) {
	for _, s := range all {
		for _, w := range s.wrong() {
			wrong = append(wrong, s.name+": "+w)
		}
	}
	return wrong
}

// wrong returns a scenario's failed expectations. A run without its planned kills proves nothing, so their absence is a
// failure as well.
func (s *realScenario) wrong() (wrong []string) {
	if s.whole > 0 {
		wrong = JudgeCut(s.fleet, s.governed.Result)
	} else {
		wrong = Judge(s.fleet, s.alone.Result, s.governed.Result)
	}
	if done, want := len(s.governed.Kills), len(s.fleet.Cluster.Kills); done != want {
		wrong = append(wrong, fmt.Sprintf("the leader was killed %d times and should have been %d times", done, want))
	}
	for _, o := range []*live.Outcome{s.alone, s.governed} {
		if seen := int64(len(o.Seen)); seen > o.Attempts {
			wrong = append(wrong, fmt.Sprintf("%s: the provider saw %d attempts, the agents know of %d", o.Side, seen, o.Attempts))
		}
	}
	return append(wrong, s.explained()...)
}

// explained adds to each refusal through quotad the longest delay of attempts in the period before it: no store can prevent
// a refusal that an attempt after its spend-by causes.
func (s *realScenario) explained() (all []string) {
	for _, a := range s.governed.Seen {
		if !a.Refused || a.Outage {
			continue
		}
		q := s.governed.Quotas[a.Limit]
		all = append(all, fmt.Sprintf("at %v %s refused %s; of the attempts that arrived in the period before, the slowest took %v to arrive",
			round(a.At), q.Quota, a.Holder, round(s.governed.LongestWay(a.At-q.Period, a.At))))
	}
	return all
}

// report prints the results of all scenarios.
func report(all []*realScenario, out io.Writer) error {
	if err := realTable(all).Write(out); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := processTable(all).Write(out); err != nil {
		return err
	}
	for _, wrong := range wrongOf(all) {
		fmt.Fprintf(out, "! %s\n", wrong)
	}
	return nil
}

// realTable compares both sides, in the form used for virtual time.
func realTable(all []*realScenario) *output.Table {
	var plain []*scenario
	for _, s := range all {
		one := s.scenario
		if s.whole > 0 {
			one.name = fmt.Sprintf("%s, %s of %s", s.name, shortDuration(s.fleet.For), shortDuration(s.whole))
		}
		one.runs = []Runs{{Alone: s.alone.Result, Governed: s.governed.Result}}
		plain = append(plain, &one)
	}
	return comparison(plain, func(s *scenario) []Runs { return s.runs })
}

// processTable has the figures that only runs in real time have.
func processTable(all []*realScenario) *output.Table {
	table := &output.Table{Header: []string{
		"SCENARIO", "CALLS SERVED", "P50 CRITICAL", "STANDARD", "BACKGROUND", "LONGEST WAY", "IDEAL FINISH", "LEADER KILLED AT",
		"ANOTHER LED AFTER",
	}}
	for _, s := range all {
		row := []string{s.name, output.Int(s.governed.Served)}
		for _, c := range s.governed.ClassesOf(s.fleet.Draws(s.fleet.Expect.Binding)) {
			p50 := output.Dash
			if c.Calls > 0 {
				p50 = waitText(c.P50)
			}
			row = append(row, p50)
		}
		ideal := output.Dash
		if s.governed.Finish > 0 {
			ideal = waitText(IdealFinish(s.fleet, s.governed.Result))
		}
		at, after := output.Dash, output.Dash
		for i, kill := range s.governed.Kills {
			if i == 0 {
				at, after = waitText(kill.At), waitText(kill.Failover)
				continue
			}
			at, after = at+", "+waitText(kill.At), after+", "+waitText(kill.Failover)
		}
		table.Add(append(row, waitText(s.governed.LongestWay(-1, s.governed.Length)), ideal, at, after)...)
	}
	return table
}
