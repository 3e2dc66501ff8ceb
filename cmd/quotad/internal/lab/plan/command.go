package plan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/cmd/quotad/internal/usage"
)

// The errors for a fleet that does not work: exit code 1.
var (
	errInfeasible = errors.New("the fleet cannot work with these quotas")
	errNotMet     = errors.New("what is expected of the fleet does not hold")
)

// usagef is the error for a wrong call of a plan command.
func usagef(format string, values ...any) error {
	return usage.WithHint(`"quotad plan --help" shows how`, format, values...)
}

// readFleet reads a file that a user named.
func readFleet(path string) (*fleet.Fleet, error) {
	f, err := fleet.Read(path)
	if unread := (*os.PathError)(nil); errors.As(err, &unread) {
		return nil, usagef("%w", err)
	}
	return f, err
}

// options are the user's settings.
type options struct {
	file, length, format, plot string
	seed                       uint64
	seeds                      int
	paper                      bool
}

// Command returns `quotad plan`.
func Command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Predict how a fleet of agents works within its limits",
		Long: `Predict how a fleet of agents works within the quotas that it shares. First compute on paper: the demand on each limit, which
one binds, what each class gets, how long it waits at worst, and which agents can never be served. Then run the fleet in
virtual time against a provider that enforces the limits: without quotad, and through quotad's own state machine.

The same seed gives the same result. The exit code is 1 if an agent can never be served, if scheduled work needs more than
the limits allow, or if the run through quotad fails an expectation of the file.`,
		Example: `  quotad plan -f fleet.yaml
  quotad plan -f fleet.yaml --for 7d --plot fleet.svg
  quotad plan -f fleet.yaml --seeds 20 -o json`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&o.file, "file", "f", "", "the fleet.yaml")
	flags.StringVar(&o.length, "for", "", "how long the fleet runs, in virtual time; default: what the file says")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of all randomness")
	flags.IntVar(&o.seeds, "seeds", 1, "number of seeds to run, from --seed on")
	flags.BoolVar(&o.paper, "paper", false, "compute on paper only")
	flags.StringVarP(&o.format, "output", "o", "table", "table, json")
	flags.StringVar(&o.plot, "plot", "", "an SVG file to draw the first seed into")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(checkCommand(), realCommand())
	return cmd
}

// maxSeeds bounds one command.
const maxSeeds = 100_000

// run runs the command.
func (o *options) run(ctx context.Context, out io.Writer) error {
	if o.file == "" {
		return usagef("-f FILE is missing")
	}
	if o.format != "table" && o.format != "json" {
		return usagef("--output is table or json, not %q", o.format)
	}
	if o.seeds < 1 || o.seeds > maxSeeds {
		return usagef("--seeds must be 1 to %d", maxSeeds)
	}
	f, err := readFleet(o.file)
	if err != nil {
		return err
	}
	if o.length != "" {
		if f.For, err = strictyaml.ParseDuration(o.length); err != nil || f.For < time.Second || f.For > fleet.MaxFor {
			return usagef("--for must be a duration of 1s to %s, such as 7d", strictyaml.FormatDuration(fleet.MaxFor))
		}
	}
	report := &Report{Title: title(f)}
	if report.Paper, err = OnPaper(f); err != nil {
		return err
	}
	if !o.paper {
		if report.Runs, err = RunSeeds(ctx, f, o.seed, o.seeds); err != nil {
			return err
		}
	}
	report.Fits = report.fits()
	if err := o.print(report, out); err != nil {
		return err
	}
	if o.plot != "" && !o.paper {
		if err := plotTo(o.plot, f, &report.Runs[0]); err != nil {
			return err
		}
	}
	return report.verdict()
}

func (o *options) print(report *Report, out io.Writer) error {
	if o.format == "json" {
		return output.Value(out, report)
	}
	return report.Write(out)
}

// verdict returns an error if the fleet does not work.
func (r *Report) verdict() error {
	if !r.Paper.Feasible {
		return fmt.Errorf("%w: %s", errInfeasible, join(r.Paper.names()))
	}
	for _, run := range r.Runs {
		if len(run.Wrong) > 0 {
			return fmt.Errorf("%w: seed %d: %s", errNotMet, run.Seed, join(run.Wrong))
		}
	}
	return nil
}

func plotTo(path string, f *fleet.Fleet, runs *Runs) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644) //nolint:gosec // a picture is for everybody
	if err != nil {
		return err
	}
	return errors.Join(Plot(file, f, runs.Alone, runs.Governed), file.Close())
}
